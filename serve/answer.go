package serve

import (
	"encoding/json"
	"math"
	"math/bits"
	"slices"
	"strconv"
)

// asked is a request for columns.
type asked struct {
	names    []string // nil: all
	from, to int64    // steps
	points   int      // at most about this number of each column
}

// answer is the columns of a range of steps as JSON: see docs/serve.md. A point stands for as many entries as it has
// to, a power of two, which begins at a multiple of that: a run that grows moves no point of its past.
func (t *table) answer(a asked, complete bool) []byte {
	first, _ := slices.BinarySearch(t.steps, a.from)
	end, found := slices.BinarySearch(t.steps, a.to)
	if found || end < len(t.steps) && t.each > 1 { // the entry that has the step
		end++
	}
	end = max(end, first)
	join := 1
	if n := (end - first - 1) / max(a.points, 1); n > 0 {
		join = 1 << bits.Len(uint(n))
	}
	first -= first % join
	names := a.names
	if names == nil {
		names = t.names
	}
	doc := []byte(`{"steps":[`)
	for from := first; from < end; from += join {
		doc = comma(doc, from > first)
		doc = strconv.AppendInt(doc, t.steps[min(from+join, end)-1], 10)
	}
	doc = append(doc, `],"columns":{`...)
	begun := false
	for _, name := range names {
		c := t.columns[name]
		if c == nil {
			continue
		}
		doc = comma(doc, begun)
		begun = true
		doc = append(appendText(doc, name), ':')
		if t.hasFew(c) {
			doc = t.appendFew(doc, c, a)
		} else {
			doc = t.appendEntries(doc, t.entriesOf(c), first, end, join)
		}
	}
	doc = append(doc, `},"bucket":`...)
	doc = strconv.AppendInt(doc, int64(t.each*join), 10)
	doc = strconv.AppendBool(append(doc, `,"complete":`...), complete)
	return append(doc, '}')
}

// entriesOf is a column by entries, also one that has not moved there.
func (t *table) entriesOf(c *column) *column {
	if c.mean != nil {
		return c
	}
	of := &column{mean: make([]float32, len(t.steps))}
	for i := range of.mean {
		of.mean[i] = float32(math.NaN())
	}
	for _, p := range c.few {
		if p.entry >= 0 {
			of.mean[p.entry] = p.value
		}
	}
	return of
}

func (t *table) appendEntries(doc []byte, c *column, first, end, join int) []byte {
	lists := []string{"mean", "min", "max"}
	if t.each*join == 1 {
		lists = lists[:1]
	}
	doc = append(doc, '{')
	for i, name := range lists {
		doc = append(append(appendText(comma(doc, i > 0), name), ':'), '[')
		for from := first; from < end; from += join {
			mean, least, greatest := joined(c, min(from, len(c.mean)), min(from+join, end, len(c.mean)))
			doc = appendNumber(comma(doc, from > first), [...]float32{mean, least, greatest}[i])
		}
		doc = append(doc, ']')
	}
	return append(doc, '}')
}

// appendFew adds a column that has few values, each at its step: in entries too, where only the last step of each is
// known.
func (t *table) appendFew(doc []byte, c *column, a asked) []byte {
	few := slices.Clone(c.few)
	for i, x := range c.mean {
		if !math.IsNaN(float64(x)) {
			few = append(few, point{t.steps[i], int32(i), x})
		}
	}
	few = slices.DeleteFunc(few, func(p point) bool { return p.step < a.from || p.step > a.to })
	few = few[max(0, len(few)-mostFew):]
	doc = append(doc, `{"at":[`...)
	for i, p := range few {
		doc = strconv.AppendInt(comma(doc, i > 0), p.step, 10)
	}
	doc = append(doc, `],"values":[`...)
	for i, p := range few {
		doc = appendNumber(comma(doc, i > 0), p.value)
	}
	return append(doc, "]}"...)
}

func comma(doc []byte, isNext bool) []byte {
	if isNext {
		return append(doc, ',')
	}
	return doc
}

// appendNumber adds a number with the digits that a float32 needs; null for NaN.
func appendNumber(doc []byte, x float32) []byte {
	if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
		return append(doc, "null"...)
	}
	return strconv.AppendFloat(doc, float64(x), 'g', -1, 32)
}

// appendText adds a text, with what HTML reads as marks spelled out.
func appendText(doc []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return append(doc, quoted...)
}
