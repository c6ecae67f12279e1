package spelling

import (
	"slices"
	"testing"
)

func TestMeant(t *testing.T) {
	known := []string{"learning_rate", "lr_scheduler", "batch_tokens", "max_steps", "rtx4090-pc-64gb", "rtx4090-pc-256gb", "llama-3-70b", "seed"}
	for word, want := range map[string][]string{
		"learning_rat":  {"learning_rate"},
		"learning-rate": {"learning_rate"},
		"LearningRate":  {"learning_rate"},
		"4090":          {"rtx4090-pc-64gb", "rtx4090-pc-256gb"},
		"70b":           {"llama-3-70b"},
		"bacth_tokens":  {"batch_tokens"},
		"sede":          nil, // two letters of four
		"sed":           {"seed"},
		"optimizer":     nil,
		"":              nil,
		"-":             nil,
	} {
		if got := Meant(word, known); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", word, got, want)
		}
	}
	if q := Question("4090", known); q != ": did you mean rtx4090-pc-64gb or rtx4090-pc-256gb?" {
		t.Error(q)
	}
	if q := Question("optimizer", known); q != "" {
		t.Error(q)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "abc", 3}, {"kitten", "sitting", 3}, {"same", "same", 0}, {"ab", "ba", 2}} {
		if got := Distance(c.a, c.b); got != c.want || Distance(c.b, c.a) != c.want {
			t.Errorf("%q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestCount(t *testing.T) {
	for want, got := range map[string]string{"1 bad row": Count(1, "bad row"), "0 slots": Count(0, "slot"), "2 micro-batches": Count(2, "micro-batch")} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
