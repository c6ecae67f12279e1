package data

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data/tokenizer"
)

// The same counts in conversations as by transformers' return_assistant_tokens_mask, all the way from files to labels. It
// differs where a block ends with a character of several tokens or is empty, see testdata/masks.py.
func TestMasksAreThoseOfTransformers(t *testing.T) {
	var golden struct {
		Templates     map[string]string `json:"templates"`
		Conversations []json.RawMessage `json:"conversations"`
		Cases         []struct {
			Tokenizer    string          `json:"tokenizer"`
			Config       json.RawMessage `json:"config"`
			Template     string          `json:"template"`
			Conversation int             `json:"conversation"`
			IDs          []int32         `json:"ids"`
			All          [][2]int        `json:"all"`
			Last         [][2]int        `json:"last"`
			Reason       string          `json:"reason"` // why transformers' mask is another one, in few cases
		} `json:"cases"`
	}
	doc, err := os.ReadFile("testdata/masks.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc, &golden); err != nil || len(golden.Cases) < 100 {
		t.Fatalf("%d cases, %v", len(golden.Cases), err)
	}
	rows := make([]string, len(golden.Conversations))
	for i, c := range golden.Conversations {
		rows[i] = write(t, t.TempDir(), fmt.Sprintf("%d.jsonl", i), strings.ReplaceAll(string(c), "\n", " ")+"\n")
	}
	type model struct {
		tok  tokenizer.Tokenizer
		chat *Chat
	}
	models := map[string]model{}
	differ := 0
	for _, c := range golden.Cases {
		if c.Reason != "" {
			differ++
		}
		m, ok := models[c.Tokenizer+c.Template]
		if !ok {
			dir := t.TempDir()
			spec, err := os.ReadFile(filepath.Join("tokenizer", "testdata", c.Tokenizer+".json"))
			if err != nil {
				t.Fatal(err)
			}
			write(t, dir, "tokenizer.json", string(spec))
			write(t, dir, "tokenizer_config.json", string(c.Config))
			write(t, dir, "chat_template.jinja", golden.Templates[c.Template])
			if m.tok, err = tokenizer.Load(dir); err != nil {
				t.Fatal(err)
			}
			if m.chat, err = NewChat(dir, ""); err != nil {
				t.Fatal(err)
			}
			models[c.Tokenizer+c.Template] = m
		}
		for _, last := range []bool{false, true} {
			chat := *m.chat
			chat.LastTurn = last
			want := c.All
			if last {
				want = c.Last
			}
			where := fmt.Sprintf("%s, %s, conversation %d, last turn only %v", c.Tokenizer, c.Template, c.Conversation, last)
			d, err := prepare(t, Source{Path: rows[c.Conversation], Type: Messages}, Options{Tokenizer: m.tok, Renderer: &chat})
			if len(want) == 0 {
				if err == nil || !strings.Contains(err.Error(), "nothing of what the assistant wrote") {
					t.Errorf("%s: nothing counts, and the error is %v", where, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", where, err)
				continue
			}
			labels := make([]int32, len(c.IDs))
			for i := range labels {
				labels[i] = Ignore
			}
			for _, r := range want {
				copy(labels[r[0]:r[1]], c.IDs[r[0]:r[1]])
			}
			if diff := cmp.Diff(Example{c.IDs, labels}, example(t, d, 0)); diff != "" {
				t.Errorf("%s: %s", where, diff)
			}
		}
	}
	if 10*differ > len(golden.Cases) {
		t.Errorf("of %d masks, %d are not those of transformers", len(golden.Cases), differ)
	}
}
