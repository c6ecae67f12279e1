package data

import (
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/objective"
)

// checkPlaced checks that documents are all that is in micro-batches, each where it says.
func checkPlaced(t *rapid.T, d *Dataset, batches []MicroBatch, placed []Placed) {
	tokens := 0
	for _, b := range batches {
		tokens += b.RealTokens
	}
	for _, p := range placed {
		b, end := batches[p.Micro], p.First+p.Length
		ids := b.IDs[p.First:end]
		whole := example(t, d, p.Document).InputIDs
		at := slices.Index(whole, ids[0])
		if at < 0 || !slices.Equal(ids, whole[at:at+p.Length]) || p.Cut != (p.Length < len(whole)) {
			t.Fatalf("%+v has the tokens %v of document %v", p, ids, whole)
		}
		for i := p.First; i < end; i++ {
			if int(b.DocStart[i]) != p.First || int(b.DocEnd[i]) != end {
				t.Fatalf("position %d of %+v is of a document from %d to %d", i, p, b.DocStart[i], b.DocEnd[i])
			}
		}
		tokens -= p.Length
	}
	if tokens != 0 {
		t.Fatalf("the documents of a step have %d tokens less than its micro-batches", tokens)
	}
}

// checkPrompts compares a step with the same one where prompts are targets.
func checkPrompts(t *rapid.T, plain, prompts []MicroBatch) {
	for m, p := range prompts {
		b, targets := plain[m], 0
		if !slices.Equal(p.IDs, b.IDs) || !slices.Equal(p.DocStart, b.DocStart) || !slices.Equal(p.DocEnd, b.DocEnd) {
			t.Fatal("the documents differ")
		}
		for i, target := range p.Targets {
			counts, inside := b.Targets[i] >= 0, i+1 < int(p.DocEnd[i])
			switch {
			case counts && (target != b.Targets[i] || p.Weights[i] != 1):
				t.Fatalf("position %d has the target %d of weight %v, without prompts %d", i, target, p.Weights[i], b.Targets[i])
			case !counts && target >= 0 && (target != p.IDs[i]+1 || p.Weights[i] != 0):
				t.Fatalf("position %d of a prompt has the target %d of weight %v", i, target, p.Weights[i])
			case inside && target < 0:
				t.Fatalf("position %d has no target", i)
			}
			if target >= 0 {
				targets++
			}
		}
		if targets != p.TargetTokens {
			t.Fatalf("%d targets, counted %d", targets, p.TargetTokens)
		}
	}
}

// TestPlaces: the documents of a step are where the loader says, and prompts that become targets have the weight 0.
func TestPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, _ := drawDataset(t, 100)
		o, micro := drawOptions(t)
		o.LongDocuments, o.Epochs = rapid.SampledFrom(LongTreatments).Draw(t, "overlong"), 2
		plain, err := NewLoader(d, o)
		if err != nil {
			if !strings.Contains(err.Error(), "no token counts") && !strings.Contains(err.Error(), "leave no target") {
				t.Fatal(err)
			}
			t.Skip("draws another: no token of this dataset counts, which a loader refuses")
		}
		o.PromptTargets = true
		prompts, err := NewLoader(d, o)
		if err != nil {
			t.Fatal(err)
		}
		targets := 0
		for {
			a, err := next(plain, micro)
			b, bad := next(prompts, micro)
			if err != bad {
				t.Fatal(err, bad)
			}
			if err == io.EOF {
				break
			}
			checkPlaced(t, d, a, plain.Documents())
			checkPlaced(t, d, b, prompts.Documents())
			checkPrompts(t, a, b)
			for i, p := range plain.Documents() {
				if p.Group != i || p.Side != objective.Alone {
					t.Fatalf("document %d is %+v", i, p)
				}
			}
			for _, b := range b {
				targets += b.TargetTokens
			}
		}
		if p := prompts.Packing(); int64(targets) != 2*p.TargetTokens {
			t.Fatalf("two epochs have %d targets, packing has %d in one", targets, p.TargetTokens)
		}
	})
}
