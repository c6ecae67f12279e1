package data

import (
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/data/template"
)

// TokenColumn is a number that each token of a row of type weighted has.
type TokenColumn int

// The columns of tokens.
const (
	TokenWeights    TokenColumn = iota // of the loss of the token; 0: it does not count
	TokenLogProbs                      // of the model that wrote the token
	TokenReferences                    // of a reference model
	_                                  // what a teacher says
	TokenOld                           // of the model before the first update with the tokens
	TokenValues                        // of a critic before it
)

// weightKeys are the keys of the columns.
var weightKeys = [...]string{"weights", "logprobs", "ref_logprobs"}

// Column reads the numbers of a column for the tokens of document i; nil where its source has none.
func (d *Dataset) Column(i int, c TokenColumn) ([]float32, error) {
	r, start, end := d.locate(i)
	if r.columns[c] == nil {
		return nil, nil
	}
	all := make([]float32, end-start)
	return all, r.readColumn(int(c), all, start)
}

// tokenRow is a row that has tokens, and numbers for each.
type tokenRow struct {
	key     string // of ids
	ids     []int32
	columns [tokenColumns][]float32
	topK    int    // tokens of a teacher at each place
	teacher []byte // of type distill: the bytes of that column
	counts  []bool // by token; nil: those of a weight other than 0
	rollout *rolloutNumbers
}

// weighted reads a row of type weighted: tokens with weights, or with a mask and one weight for the tokens in it.
func (f *fields) weighted(_ Source, out *Record) {
	row := &tokenRow{key: "input_ids", ids: f.tokens("input_ids", f.numbers("input_ids"))}
	if f.err != nil {
		return
	}
	_, hasMask := f.value("completion_mask")
	advantage, hasAdvantage := f.number("advantage")
	_, hasWeights := f.value(weightKeys[TokenWeights])
	switch {
	case hasMask && hasWeights || hasAdvantage && hasWeights:
		f.fail("the row has weights, and completion_mask or advantage, which make weights: keep one of the two")
	case hasMask != hasAdvantage:
		f.fail("completion_mask and advantage go together: a token has the weight mask x advantage")
	case hasMask:
		row.columns[TokenWeights] = f.column("completion_mask", len(row.ids), func(v float64) float64 {
			if v != 0 && v != 1 {
				f.fail(`field "completion_mask" has %v: a token is in it (1) or not (0)`, v)
			}
			return v * advantage
		})
	case !hasWeights:
		f.missing(weightKeys[TokenWeights])
	}
	for c, key := range weightKeys {
		if _, ok := f.value(key); ok {
			row.columns[c] = f.column(key, len(row.ids), func(v float64) float64 { return v })
		}
	}
	out.tokens = row
}

// column reads a number for each of n tokens, as the row has it.
func (f *fields) column(key string, n int, of func(float64) float64) []float32 {
	all := f.numbers(key)
	if len(all) != n {
		f.fail("field %q has %d numbers for %d tokens of input_ids", key, len(all), n)
	}
	column := make([]float32, len(all))
	for i, v := range all {
		v = of(v)
		if column[i] = float32(v); math.IsInf(float64(column[i]), 0) {
			f.fail("field %q has %v at %d, which is too large for 32 bits", key, v, i)
		}
	}
	return column
}

// tokens turns numbers into tokens.
func (f *fields) tokens(key string, numbers []float64) (ids []int32) {
	for _, id := range numbers {
		if id != math.Trunc(id) || id < 0 || id > math.MaxInt32 {
			f.fail(`field %q has %v, which is no token`, key, id)
			return nil
		}
		ids = append(ids, int32(id))
	}
	return ids
}

// numbers reads a list of numbers that is not empty.
func (f *fields) numbers(key string) []float64 {
	items := f.items(key, "numbers")
	if f.err == nil && len(items) == 0 {
		v, _ := f.value(key)
		f.fail("field %q is no list of numbers, but %s", key, kindOf(v))
	}
	return f.numbersOf(key, items)
}

// items reads a list of such things.
func (f *fields) items(key, things string) []template.Value {
	v, ok := f.value(key)
	items, err := listOf(v)
	switch {
	case f.err != nil:
	case !ok:
		f.missing(key)
	case err != nil:
		f.fail("field %q is no list of %s, but %s", key, things, kindOf(v))
	}
	return items
}

// numbersOf reads the items of a list as numbers.
func (f *fields) numbersOf(key string, items []template.Value) []float64 {
	all := make([]float64, len(items))
	for i, item := range items {
		switch n := item.(type) {
		case template.Int:
			all[i] = float64(n)
		case template.Float:
			all[i] = float64(n)
		case template.Bool:
			if n {
				all[i] = 1
			}
		default:
			f.fail("field %q: number %d is %s", key, i, kindOf(item))
		}
		if math.IsNaN(all[i]) || math.IsInf(all[i], 0) {
			f.fail("field %q: number %d is not finite", key, i)
		}
	}
	return all
}

// document makes a document of the row, with the vocabulary of a tokenizer. A token counts if its weight is not 0.
func (r *tokenRow) document(vocabSize int) (d document, err error) {
	isCounted := false
	for t, id := range r.ids {
		if int(id) >= vocabSize {
			return d, fmt.Errorf("token %d of %s is %d, and the vocabulary has %d: the tokens are of another tokenizer", t,
				r.key, id, vocabSize)
		}
		label := Ignore
		if t > 0 && r.isCounted(t) { // nothing predicts the first one
			label, isCounted = id, true
		}
		d.InputIDs, d.Labels = append(d.InputIDs, id), append(d.Labels, label)
	}
	if r.topK > 0 {
		if err := r.checkTeacher(vocabSize); err != nil {
			return d, err
		}
	}
	switch {
	case r.rollout != nil: // others are compared with it, also where none of its tokens counts
	case !isCounted && r.topK > 0:
		return d, errors.New("no token after the first counts: labels leave all of them out, or target_token_ids is empty " +
			"at each; leave the row out")
	case !isCounted:
		return d, errors.New("no token after the first has a weight other than 0 (weights, or completion_mask x " +
			"advantage): leave the row out")
	}
	d.columns = r.columns
	for c, column := range r.columns {
		if column != nil {
			d.has |= tokenColumn(c)
		}
	}
	if r.topK > 0 {
		d.has |= withTeacher(r.topK)
	}
	if d.rollout = r.rollout; d.rollout != nil {
		d.has |= withNumbers(len(d.rollout.numbers))
	}
	return d, nil
}

// isCounted says whether a token counts in the loss.
func (r *tokenRow) isCounted(t int) bool {
	if r.counts != nil {
		return r.counts[t]
	}
	return r.columns[TokenWeights][t] != 0
}
