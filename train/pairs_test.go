package train

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/train/verbs"
)

// TestPairsAreShown: preview shows both sides of pairs, with what counts, and counts them; a run without an objective
// refuses them before it reads them.
func TestPairsAreShown(t *testing.T) {
	c := smallConfig(t)
	rows := filepath.Join(t.TempDir(), "a.jsonl")
	long := strings.Repeat("long", c.SequenceLen)
	write(t, rows, `{"prompt": "q", "chosen": "b", "rejected": "c", "margin": 0.5}
{"prompt": "q", "chosen": "same", "rejected": "same"}
{"prompt": "q", "chosen": "b", "rejected": "`+long+`"}
{"prompt": "q", "chosen": "b", "rejected": "d"}
`)
	c.Datasets = []data.Source{{Path: rows, Type: data.Preference}}
	env := newEnv(t)
	var told strings.Builder
	env.Progress = &told
	var shown []string
	sum, err := verbs.Preview(context.Background(), env, c, verbs.PreviewOptions{Limit: 2},
		func(e verbs.PreviewExample) error {
			trained := ""
			for _, p := range e.Pieces {
				if p.Trained {
					trained += p.Text
				}
			}
			shown = append(shown, fmt.Sprint(e.Pair, e.Side, e.Margin, " ", trained[:1]))
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(shown, "; "); got != "1chosen0.5 b; 1rejected0.5 c; 2chosen0 b; 2rejected0 l" {
		t.Errorf("shown %s", got)
	}
	if sum.Pairs != 3 || sum.EqualPairs != 1 || sum.LongChosen != 0 || sum.LongRejected != 1 || sum.Documents != 6 {
		t.Errorf("%+v", sum)
	}
	if want := "of the training data 1 pair left out whose sides have the same tokens"; !strings.Contains(told.String(),
		want) {
		t.Errorf("told %q, want %q", told.String(), want)
	}
	write(t, rows, `{"prompt": "q", "completion": "b", "label": true}`+"\n"+`{"prompt": "q", "completion": "c", "label": 0}`)
	c.Datasets[0].Type, shown = data.Binary, nil
	sum, err = verbs.Preview(context.Background(), env, c, verbs.PreviewOptions{Limit: 0},
		func(e verbs.PreviewExample) error {
			shown = append(shown, fmt.Sprint(e.Pair, e.Side))
			return nil
		})
	if err != nil || strings.Join(shown, " ") != "0desirable 0undesirable" || sum.Desirable != 1 || sum.Undesirable != 1 {
		t.Errorf("labels: %v, %s, %+v", err, shown, sum)
	}
	if want := "the training data: 1 answer desirable, and 1 undesirable"; !strings.Contains(told.String(), want) {
		t.Errorf("told %q, want %q", told.String(), want)
	}
	c.Datasets[0].Type = data.Preference
	_, err = Train(context.Background(), c, Options{Env: newEnv(t)})
	if err == nil || !strings.HasPrefix(err.Error(), "type preference needs an objective that compares two answers") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a run without an objective: %v", err)
	}
}
