package objective

import (
	"slices"
	"testing"
)

// TestMeasure has a step of two pairs, one of answers with a label, and one of documents alone. Prompts, targets that
// do not exist, mismatched completions and masked answers do not count, and rejected ones only in the entropy.
func TestMeasure(t *testing.T) {
	of := func(side Side, group int, entropy, hit float32) Sequence {
		return Sequence{Side: side, Group: group, Targets: []int32{3, 4, 5, -1}, Weights: []float32{0, 1, 1, 1},
			LogProbs: []float32{-1, -1, -1, 0}, Reference: []float32{-1, -1, -1, 0},
			Entropies: []float32{100, entropy, entropy, 100}, Hits: []float32{1, hit, 0, 1}}
	}
	sampled := func(q Sequence, isMasked bool) Sequence {
		q.Rollout = &Rollout{Masked: isMasked}
		return q
	}
	for name, c := range map[string]struct {
		settings          Settings
		sequences         []Sequence
		entropy, accuracy float64
	}{
		"pairs": {Settings{Type: "dpo"}, []Sequence{of(Chosen, 0, 1, 1), of(Rejected, 0, 2, 1), of(Chosen, 1, 3, 0),
			of(Rejected, 1, 4, 1)}, 2.5, 0.25},
		"labels": {Settings{Type: "kto"}, []Sequence{of(Desirable, 0, 1, 1), of(Mismatched, 0, 100, 0),
			of(Undesirable, 1, 2, 1), of(Mismatched, 1, 100, 0)}, 1.5, 0.5},
		"answers": {Settings{Type: "policy", Policy: Policy{Correction: "none"}},
			[]Sequence{sampled(of(Alone, 0, 1, 1), false), sampled(of(Alone, 1, 9, 0), true)}, 1, 0.5},
		"documents": {Settings{Type: "dft"}, []Sequence{of(Alone, 0, 1, 1), of(Alone, 1, 2, 0)}, 1.5, 0.25},
	} {
		o, err := New(c.settings)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.sequences {
			if !o.Needs().Reference {
				c.sequences[i].Reference = nil
			}
		}
		res, err := Weigh(o, &Step{Sequences: slices.Clone(c.sequences), Whole: Count(c.sequences)})
		if got := res.Metrics(); err != nil || got[Entropy] != c.entropy || got[MeanTokenAccuracy] != c.accuracy {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		var sum Result
		empty, err := Weigh(o, &Step{Whole: Count(c.sequences)})
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []Result{empty, res, empty} { // a group of micro-batches may have no document
			Merge(&sum, part)
		}
		if got := sum.Metrics(); got[Entropy] != c.entropy || got[MeanTokenAccuracy] != c.accuracy {
			t.Errorf("%s: merged %v", name, got)
		}
	}
}
