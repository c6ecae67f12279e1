package serve

import (
	"bytes"
	"math"
	"slices"
)

// table holds the numbers of a run's records, by column and in the order of steps, in bounded memory. An entry of a
// column stands for one record at first; when the table has grown to its limit, two neighbours become one, with their
// mean, least and greatest value.
type table struct {
	limitBytes int64 // of all entries; the columns of one record may need more

	records int     // steps so far, without step 0
	each    int     // records in an entry, a power of two
	steps   []int64 // the last step of each entry
	names   []string
	columns map[string]*column
	bytes   int64
}

// column is a number of records.
type column struct {
	isEval bool
	count  int // finite values
	// A column begins with few values, each with its step. One that most records have moves to entries.
	few  []point
	mean []float32 // by entry, NaN where it has no value; nil: the column is in few
	// least and greatest are nil where an entry stands for one record.
	least, greatest []float32
	sum             float64 // of the values of the last entry
	of              int     // those values
}

// point is a value of a step.
type point struct {
	step  int64
	entry int32 // -1: of step 0
	value float32
}

// Limits of columns.
const (
	mostColumns = 8192   // a record with more has the first ones
	mostFew     = 10_000 // values of a column that has few, the newest ones
	fewOf       = 4      // a column has few values if fewer than one in this number of records has one
	leastDense  = 8      // values before a column moves to entries
	pointBytes  = 16
)

func newTable(limitBytes int64) *table {
	return &table{limitBytes: limitBytes, each: 1, columns: map[string]*column{}}
}

// cell is a number of a record.
type cell struct {
	of    *column
	value float64
}

// column is the column of a name, which may be new; nil: a record has too many.
func (t *table) column(name []byte) *column {
	c := t.columns[string(name)]
	if c == nil && len(t.columns) < mostColumns {
		c = &column{isEval: bytes.HasPrefix(name, []byte("eval_")) || bytes.HasPrefix(name, []byte("eval/"))}
		t.columns[string(name)] = c
		t.names = append(t.names, string(name))
	}
	return c
}

// add adds the record of a step. Of step 0, which is no step, only evaluations count.
func (t *table) add(step int64, record []cell) {
	entry := int32(-1)
	if step > 0 {
		if t.records%t.each == 0 {
			t.steps = append(t.steps, step)
			t.bytes += 8
		}
		t.steps[len(t.steps)-1] = step
		t.records++
		if t.bytes > t.limitBytes && len(t.steps) > 2 {
			t.halve()
		}
		entry = int32(len(t.steps) - 1)
	}
	for _, of := range record {
		if math.IsNaN(of.value) || math.IsInf(of.value, 0) || step == 0 && !of.of.isEval {
			continue
		}
		t.set(of.of, point{step, entry, float32(of.value)}, of.value)
	}
}

// set adds a number to its column.
func (t *table) set(c *column, p point, value float64) {
	c.count++
	if c.mean != nil {
		t.put(c, int(p.entry), value)
		return
	}
	if most := t.mostFew(); len(c.few) >= most+most/4 {
		t.bytes -= int64(len(c.few)-most) * pointBytes
		c.few = slices.Delete(c.few, 0, len(c.few)-most)
	}
	c.few = append(c.few, p)
	t.bytes += pointBytes
	if c.count >= leastDense && !t.hasFew(c) {
		t.bytes -= int64(len(c.few)) * pointBytes
		for _, p := range c.few {
			t.put(c, int(p.entry), float64(p.value))
		}
		c.few = nil
	}
}

// mostFew bounds the values of a column that has few, so that those of all columns take a quarter of the memory.
func (t *table) mostFew() int {
	return int(min(max(t.limitBytes/4/pointBytes/int64(len(t.columns)), 16), mostFew))
}

// hasFew reports whether a column has a value only at some steps.
func (t *table) hasFew(c *column) bool { return c.isEval || c.count*fewOf < t.records }

// put adds a value to an entry, which is the last one or one after it.
func (t *table) put(c *column, entry int, value float64) {
	width := int64(4)
	if t.each > 1 {
		width = 12
	}
	x := float32(value)
	if entry == len(c.mean)-1 && c.of > 0 { // another value of the entry
		c.sum += value
		c.of++
		c.mean[entry] = float32(c.sum / float64(c.of))
		if c.least != nil {
			c.least[entry], c.greatest[entry] = min(c.least[entry], x), max(c.greatest[entry], x)
		}
		return
	}
	for len(c.mean) <= entry {
		missing := float32(math.NaN())
		c.mean = append(c.mean, missing)
		if t.each > 1 {
			c.least, c.greatest = append(c.least, missing), append(c.greatest, missing)
		}
		t.bytes += width
	}
	c.mean[entry], c.sum, c.of = x, value, 1
	if t.each > 1 {
		c.least[entry], c.greatest[entry] = x, x
	}
}

// halve joins neighbours.
func (t *table) halve() {
	n := (len(t.steps) + 1) / 2
	for i := range n {
		t.steps[i] = t.steps[min(2*i+1, len(t.steps)-1)]
	}
	t.steps = slices.Clone(t.steps[:n])
	t.each *= 2
	t.bytes = int64(n) * 8
	for _, c := range t.columns {
		for i := range c.few {
			if c.few[i].entry > 0 {
				c.few[i].entry /= 2
			}
		}
		t.bytes += int64(len(c.few)) * pointBytes
		if c.mean == nil {
			continue
		}
		if c.least == nil {
			c.least, c.greatest = slices.Clone(c.mean), slices.Clone(c.mean)
		}
		m := (len(c.mean) + 1) / 2
		mean, least, greatest := make([]float32, m), make([]float32, m), make([]float32, m)
		for i := range m {
			mean[i], least[i], greatest[i] = joined(c, 2*i, min(2*i+2, len(c.mean)))
		}
		c.mean, c.least, c.greatest = mean, least, greatest
		t.bytes += int64(m) * 12
	}
}

// joined is the mean, the least and the greatest value of entries; NaN if they have no value.
func joined(c *column, from, to int) (mean, least, greatest float32) {
	sum, n := 0.0, 0
	low, high := math.Inf(1), math.Inf(-1)
	for i := from; i < to; i++ {
		x := float64(c.mean[i])
		if math.IsNaN(x) {
			continue
		}
		sum += x
		n++
		if c.least != nil {
			low, high = min(low, float64(c.least[i])), max(high, float64(c.greatest[i]))
		} else {
			low, high = min(low, x), max(high, x)
		}
	}
	if n == 0 {
		missing := float32(math.NaN())
		return missing, missing, missing
	}
	return float32(sum / float64(n)), float32(low), float32(high)
}
