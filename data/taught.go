package data

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/hostmem"
)

// MaxTopK bounds the tokens that a teacher has at a place.
const MaxTopK = 1024

// Keys of what a teacher says: a list for each token, of the likeliest ones in its place.
const (
	teacherIDs      = "target_token_ids"
	teacherLogProbs = "target_logprobs"
)

// mostMass bounds the sum of the probabilities of a place: numbers that were rounded to bf16 exceed 1 a little.
const mostMass = 1.01

// taught reads a row of type distill. A token counts if labels, where the row has them, do not leave it out with -100,
// and the teacher has tokens in its place.
func (f *fields) taught(_ Source, out *Record) {
	row := &tokenRow{key: "input_ids", ids: f.tokens("input_ids", f.numbers("input_ids"))}
	ids, logProbs := f.lists(teacherIDs, len(row.ids)), f.lists(teacherLogProbs, len(row.ids))
	if f.err != nil {
		return
	}
	row.counts = make([]bool, len(row.ids))
	for t := range ids {
		if len(ids[t]) != len(logProbs[t]) {
			f.fail("field %q has %d numbers at %d, and %s has %d tokens there", teacherLogProbs, len(logProbs[t]), t,
				teacherIDs, len(ids[t]))
			return
		}
		row.topK = max(row.topK, len(ids[t]))
		row.counts[t] = len(ids[t]) > 0
	}
	if row.topK == 0 || row.topK > MaxTopK {
		f.fail("field %q has %d tokens at a place: there must be 1 to %d", teacherIDs, row.topK, MaxTopK)
		return
	}
	if _, ok := f.value("labels"); ok {
		f.labels(row)
	}
	row.teacher = make([]byte, 8*row.topK*len(row.ids))
	for t := range ids {
		here := row.teacher[8*row.topK*t:][:8*row.topK]
		tokens, numbers := hostmem.I32(here[:4*row.topK]), hostmem.F32(here[4*row.topK:])
		for i := range tokens {
			tokens[i] = -1
		}
		copy(tokens, f.tokens(teacherIDs, ids[t]))
		mass := 0.0
		for i, v := range logProbs[t] {
			if v > mostMass-1 {
				f.fail("field %q has %v at %d: a log-probability is not above 0", teacherLogProbs, v, t)
			}
			numbers[i] = float32(max(min(v, 0), -math.MaxFloat32))
			mass += math.Exp(min(v, 0))
		}
		if mass > mostMass {
			f.fail("field %q has probabilities at %d that add up to %.4g, more than 1", teacherLogProbs, t, mass)
		}
	}
	row.columns[teacherColumn] = hostmem.F32(row.teacher)
	out.tokens = row
}

// labels leaves out tokens that do not count.
func (f *fields) labels(row *tokenRow) {
	labels := f.numbers("labels")
	if len(labels) != len(row.ids) {
		f.fail("field %q has %d numbers for %d tokens of input_ids", "labels", len(labels), len(row.ids))
		return
	}
	for t, l := range labels {
		if l != float64(Ignore) && l != float64(row.ids[t]) {
			f.fail("field %q has %v at %d, which is neither the token there nor %d", "labels", l, t, Ignore)
		}
		row.counts[t] = row.counts[t] && l != float64(Ignore)
	}
}

// lists reads a list of n lists of numbers, of which any may be empty.
func (f *fields) lists(key string, n int) [][]float64 {
	items := f.items(key, "lists")
	switch {
	case f.err != nil:
		return nil
	case len(items) != n:
		f.fail("field %q has %d lists for %d tokens of input_ids", key, len(items), n)
		return nil
	}
	all := make([][]float64, n)
	for t, item := range items {
		numbers, err := listOf(item)
		if err != nil {
			f.fail("field %q: item %d is %s, and must be a list of numbers", key, t, kindOf(item))
			return nil
		}
		all[t] = f.numbersOf(key, numbers)
	}
	return all
}

// checkTeacher refuses tokens that the vocabulary does not have, or that a place has twice.
func (r *tokenRow) checkTeacher(vocabSize int) error {
	sorted := make([]int32, r.topK)
	for t := range r.ids {
		copy(sorted, hostmem.I32(r.teacher[8*r.topK*t:][:4*r.topK]))
		slices.Sort(sorted)
		for i, id := range sorted {
			switch {
			case int(id) >= vocabSize:
				return fmt.Errorf("%s has token %d at %d, and the vocabulary has %d: the teacher has another tokenizer", teacherIDs,
					id, t, vocabSize)
			case id >= 0 && i > 0 && sorted[i-1] == id:
				return fmt.Errorf("%s has token %d twice at %d", teacherIDs, id, t)
			}
		}
	}
	return nil
}

// TopK is the number of tokens of a teacher that the documents have at each place; of several sources the largest. 0:
// they have none.
func (d *Dataset) TopK() (k int) {
	for i := range d.runs {
		k = max(k, d.runs[i].has.topK())
	}
	return k
}

// Top reads what the teacher says of the first tokens of document i after its first: k tokens for each, -1 where there
// are fewer, and their log-probabilities. The slices have an entry for each.
func (d *Dataset) Top(i, k int, ids []int32, logProbs []float32) error {
	r, start, _ := d.locate(i)
	has := r.has.topK()
	if has == 0 || has > k {
		return fmt.Errorf("document %d has %d tokens of a teacher at each place, and not up to %d", i, has, k)
	}
	n := len(ids) / k
	column := make([]byte, 8*has*n)
	if err := readAll(r.columns[teacherColumn], column, 8*int64(has)*(start+1)); err != nil {
		return err
	}
	SpreadTop(column, has, k, ids, logProbs)
	return nil
}

// SpreadTop takes tokens and log-probabilities apart, which follow each other in numbers of 32 bits: for each place has
// tokens, int32, and then their log-probabilities. Each place gets k of both.
func SpreadTop(numbers []byte, has, k int, ids []int32, logProbs []float32) {
	for t := range len(ids) / k {
		here := numbers[8*has*t:][:8*has]
		of := ids[t*k:][:k]
		copy(logProbs[t*k:][:k], hostmem.F32(here[4*has:]))
		for i := copy(of, hostmem.I32(here[:4*has])); i < k; i++ {
			of[i] = -1
		}
	}
}
