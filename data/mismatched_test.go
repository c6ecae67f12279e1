package data

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/objective"
)

// A step of answers with a label has for each of two neighbours its prompt with the other one's answer, in rows after
// those of its cohort's share, and each answer once. A reference's part has the same tokens.
func TestMismatchedDocuments(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 25).Draw(rt, "answers")
		cohorts := rapid.IntRange(1, 2).Draw(rt, "cohorts")
		const sequenceLen, rows = 24, 4
		var lines []string
		for i := range n {
			lines = append(lines, fmt.Sprintf(`{"prompt": %q, "completion": %q, "label": %v}`,
				strings.Repeat("p", rapid.IntRange(1, 12).Draw(rt, "prompt")),
				strings.Repeat(string(rune('a'+i)), rapid.IntRange(1, 20).Draw(rt, "answer")), i%3 == 0))
		}
		path := write(t, t.TempDir(), "a.jsonl", strings.Join(lines, "\n"))
		d, err := Prepare(t.Context(), []Source{{Type: Binary, Path: path}}, Options{Tokenizer: tokenizer.Bytes(),
			InTwos: true})
		if err != nil {
			rt.Fatal(err)
		}
		defer d.Close()
		if d.Len() != n&^1 || d.HasPairs() || !d.HasLabels() {
			rt.Fatalf("%d documents of %d answers", d.Len(), n)
		}
		want := make([][]int32, d.Len())
		for i := range want {
			own, other := exampleOf(rt, d, i), exampleOf(rt, d, i^1)
			want[i] = append(slices.Clone(own.InputIDs[:answerOf(own)]), other.InputIDs[answerOf(other):]...)
			part := d.Parts()[0].Mismatched()
			got := make([]int32, part.Length(i))
			if err := part.Tokens(got, i); err != nil || !slices.Equal(got, want[i]) {
				rt.Fatalf("the part's document %d is %v (%v), want %v", i, got, err, want[i])
			}
			want[i] = want[i][:min(len(want[i]), sequenceLen)]
		}
		l, err := NewLoader(d, LoaderOptions{SequenceLen: sequenceLen, BatchTokens: rows * sequenceLen, Seed: 3, Epochs: 1,
			Cohorts: cohorts, Mismatched: true})
		if err != nil {
			rt.Fatal(err)
		}
		defer l.Close()
		batches := NewBatches(make([]byte, batch.Bytes(2*rows*sequenceLen)), 2*rows, 1, sequenceLen)
		trained, mismatched, steps := map[int]int{}, map[int]int{}, 0
		for ; ; steps++ {
			err := l.Next(t.Context(), batches)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				rt.Fatal(err)
			}
			for _, p := range l.Documents() {
				share, forward := p.Micro/(2*rows/cohorts), p.Micro%(2*rows/cohorts) >= rows/cohorts
				if forward != (p.Side == objective.Mismatched) {
					rt.Fatalf("document %d of side %d is in row %d of share %d", p.Document, p.Side, p.Micro, share)
				}
				if !forward {
					trained[p.Document]++
					continue
				}
				mismatched[p.Document]++
				micro := batches[p.Micro]
				if got := micro.IDs[p.First:][:p.Length]; !slices.Equal(got, want[p.Document]) {
					rt.Fatalf("mismatched document %d is %v, want %v", p.Document, got, want[p.Document])
				}
				own := answerOf(exampleOf(rt, d, p.Document))
				for at := range p.Length {
					target := micro.Targets[p.First+at]
					if is := at+1 >= own && at+1 < p.Length; is != (target >= 0) || is && target != want[p.Document][at+1] {
						rt.Fatalf("position %d of mismatched document %d learns %d", at, p.Document, target)
					}
				}
			}
		}
		for i := range d.Len() {
			if trained[i] != mismatched[i] || trained[i] > 1 {
				rt.Fatalf("document %d comes %d times, and mismatched %d times", i, trained[i], mismatched[i])
			}
		}
		if steps != l.Steps() || len(trained)+2*(l.Packing().EmptyPairs+l.Packing().WidePairs) > d.Len() {
			rt.Fatalf("%d steps of %d, %d documents of %d, %+v", steps, l.Steps(), len(trained), d.Len(), l.Packing())
		}
	})
}

func exampleOf(t *rapid.T, d *Dataset, i int) Example {
	e, err := d.Example(i)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// answerOf is the first token of an example that counts.
func answerOf(e Example) int {
	return slices.IndexFunc(e.Labels, func(l int32) bool { return l != Ignore })
}
