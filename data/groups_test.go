package data

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/hostmem"
)

// groupedSource is a source in a test, of documents in groups of a size.
type groupedSource struct {
	examples []Example
	group    int
	weight   float64
}

// grouped makes a dataset of sources.
func grouped(sources ...groupedSource) (*Dataset, error) {
	d := &Dataset{accounts: hostmem.New()}
	for _, s := range sources {
		b := newBuilder()
		for _, e := range s.examples {
			if err := b.append(e); err != nil {
				return nil, err
			}
		}
		p, err := b.finishInMemory(d.accounts)
		if err != nil {
			return nil, err
		}
		d.add(p, Messages, s.weight)
		d.sources[len(d.sources)-1].group = s.group
	}
	return d, d.seal()
}

// sided makes a document of n tokens from first on, the first prompt of which do not count.
func sided(first, n, prompt int) Example {
	e := count(n)
	for i := range e.InputIDs {
		e.InputIDs[i] = int32(first + i)
		e.Labels[i] = e.InputIDs[i]
		if i < prompt {
			e.Labels[i] = Ignore
		}
	}
	return e
}

func TestGroupsAreWhole(t *testing.T) {
	four := []Example{count(3), count(4), count(5), count(6)}
	for want, sources := range map[string][]groupedSource{
		"datasets has pairs and documents by themselves": {{four, 2, 1}, {four, 1, 1}},
		"a source has 3 documents, which is no multiple": {{four[:3], 2, 1}},
	} {
		if _, err := grouped(sources...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	prints := map[string]bool{}
	for _, group := range []int{0, 1, 2} {
		d, err := grouped(groupedSource{four, group, 1})
		if err != nil {
			t.Fatal(err)
		}
		prints[d.Fingerprint()] = true
	}
	if len(prints) != 2 {
		t.Errorf("documents by themselves and pairs of them have %d fingerprints, want 2", len(prints))
	}
}

// TestSplitKeepsPairs: the parts of a split have whole pairs, as many as were asked for, and each
// pair is in one of them.
func TestSplitKeepsPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sources []groupedSource
		pairs := 0
		for range rapid.IntRange(1, 3).Draw(t, "sources") {
			s := groupedSource{group: 2, weight: 1}
			for range rapid.IntRange(1, 20).Draw(t, "pairs") {
				s.examples = append(s.examples, sided(10*pairs+1, 2, 0), sided(10*pairs+4, 2, 0))
				pairs++
			}
			sources = append(sources, s)
		}
		d, err := grouped(sources...)
		if err != nil {
			t.Fatal(err)
		}
		if pairs < 2 {
			if _, _, err := d.Split(1, 1); err == nil || !strings.Contains(err.Error(), "there are 1 pair;") {
				t.Fatalf("a pair is split: %v", err)
			}
			return
		}
		k := rapid.IntRange(1, pairs-1).Draw(t, "held out")
		training, held, err := d.Split(float64(k), rapid.Uint64().Draw(t, "seed"))
		if err != nil {
			t.Fatal(err)
		}
		if training.Len() != 2*(pairs-k) || held.Len() != 2*k {
			t.Fatalf("%d and %d documents, want %d of %d pairs", training.Len(), held.Len(), k, pairs)
		}
		var seen []int32
		for _, part := range []*Dataset{training, held} {
			if err := part.checkGroups(); err != nil || part.groupSize() != 2 {
				t.Fatalf("a part has groups of %d: %v", part.groupSize(), err)
			}
			for i := range part.Len() / 2 {
				chosen, rejected := example(t, part, 2*i).InputIDs[0], example(t, part, 2*i+1).InputIDs[0]
				if chosen%10 != 1 || rejected != chosen+3 {
					t.Fatalf("documents %d and %d are a pair", chosen, rejected)
				}
				seen = append(seen, chosen/10)
			}
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != pairs {
			t.Fatalf("the parts have %v of %d pairs", seen, pairs)
		}
	})
}
