package rl

import (
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl/reward"
)

// A metric of a judge is the mean over all answers of a round that have it, however these were asked for.
func TestFiguresWeighByAnswers(t *testing.T) {
	panel, err := reward.Open(t.Context(), []runfile.Reward{{Name: "a", Type: runfile.RewardLength, Max: 8}},
		reward.Options{MaxTokens: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer panel.Close()
	wave := func(mean float64, of int) []reward.Tally {
		return []reward.Tally{{Metrics: map[string]float64{"x": mean}, MetricOf: map[string]int{"x": of}}}
	}
	l := &Loop{Panel: panel}
	of := l.figures(&sampled{all: 1, tallies: [][]reward.Tally{wave(1, 1), wave(4, 3), {{}}}})
	if x := of["rewards/a/x"]; x != 3.25 {
		t.Errorf("the mean of 1, and 3 times 4, is %v, want 3.25", x)
	}
}

// The rows of prompts count as often as a round has them: for itself, for its judges, and in lines of these.
func TestRowsOfARoundAreCounted(t *testing.T) {
	l := &Loop{Prompts: &Prompts{longestRow: 1000}, Config: runfile.RL{PromptsPerStep: 3, Reward: []runfile.Reward{
		{Command: []string{"a"}, Workers: 2}, {URL: "http://a"}, {Type: runfile.RewardNumber}}}}
	if got, want := l.HeldBytes(), int64(1000*(2*3+2*16+2*32)); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
