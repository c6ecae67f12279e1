package data

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestScoresAreTargets: where documents have scores, each has one target, at the position that is asked for, and all of
// its tokens as before. Its last position may be it.
func TestScoresAreTargets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawPairs(t, 90, 1)
		o, micro := drawPairOptions(t)
		o.PromptTargets = false
		plain, err := NewLoader(d, o)
		if err != nil {
			t.Skip("draws another: no pair of this dataset fits, which a loader refuses")
		}
		last := rapid.Bool().Draw(t, "last")
		at := func(tokens []int32) int {
			if last {
				return len(tokens) - 1
			}
			return len(tokens) / 2
		}
		o.ScoreAt = at
		scored, err := NewLoader(d, o)
		if err != nil {
			t.Fatal(err)
		}
		held, err := NewEvalLoader(d, EvalOptions{SequenceLen: o.SequenceLen, LongDocuments: o.LongDocuments,
			Cohorts: o.Cohorts, ScoreAt: at})
		if err != nil {
			t.Fatal(err)
		}
		if p := scored.Packing(); p.TargetTokens != int64(2*p.Pairs) || held.Packing().TargetTokens !=
			int64(2*held.Packing().Pairs) {
			t.Fatalf("packing %+v", p)
		}
		rows := o.BatchTokens / o.SequenceLen / micro
		without, with, of := batches(rows, micro, o.SequenceLen), batches(rows, micro, o.SequenceLen),
			batches(rows, micro, o.SequenceLen)
		for _, err := range []error{plain.Next(t.Context(), without), scored.Next(t.Context(), with),
			held.Next(t.Context(), of)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for m := range with {
			if !slices.Equal(with[m].IDs, without[m].IDs) || !slices.Equal(with[m].DocEnd, without[m].DocEnd) {
				t.Fatal("the documents differ")
			}
		}
		checkScores(t, with, scored.Documents(), at)
		checkScores(t, of, held.Documents(), at)
	})
}

// checkScores checks the targets of the documents of a step.
func checkScores(t *rapid.T, all []MicroBatch, placed []Placed, at ScoreAt) {
	targets := 0
	for _, p := range placed {
		b := all[p.Micro]
		place := p.First + at(b.IDs[p.First:][:p.Length])
		for i := p.First; i < p.First+p.Length; i++ {
			if is := b.Targets[i] >= 0; is != (i == place) || is && (b.Targets[i] != b.IDs[i] || b.Weights[i] != 1) {
				t.Fatalf("%+v: position %d has the target %d of weight %v", p, i, b.Targets[i], b.Weights[i])
			}
		}
	}
	for _, b := range all {
		if b.TargetTokens != b.Count() {
			t.Fatalf("%d targets, counted %d", b.Count(), b.TargetTokens)
		}
		targets += b.TargetTokens
	}
	if targets != len(placed) {
		t.Fatalf("%d targets of %d documents", targets, len(placed))
	}
}
