package serve

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// answered is an answer as the page reads it.
type answered struct {
	Steps    []int64
	Columns  map[string]answeredColumn
	Bucket   int
	Complete bool
}

type answeredColumn struct {
	Mean, Min, Max []*float64
	At             []int64
	Values         []*float64
}

func ask(t testing.TB, tab *table, a asked) (doc answered) {
	t.Helper()
	text := tab.answer(a, true)
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return doc
}

func addRow(t *table, step int64, values map[string]float64) {
	var cells []cell
	for name, x := range values {
		cells = append(cells, cell{t.column([]byte(name)), x})
	}
	t.add(step, cells)
}

// Whatever is asked for, and however little memory there is, a point is the mean, the least and the greatest value of
// its steps, and no step is missing.
func TestPointsAreOfTheirSteps(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(r, "steps")
		limit := rapid.SampledFrom([]int64{1 << 20, 3000, 600}).Draw(r, "limit")
		lack := rapid.IntRange(0, 3).Draw(r, "lacking") // one value in lack+2 is not there
		tab := newTable(limit)
		values := make([]float64, n)
		for i := range n {
			values[i] = float64(rapid.IntRange(-8, 8).Draw(r, "value"))
			row := map[string]float64{"x": values[i], "all": 1}
			if lack > 0 && i%(lack+1) == lack {
				row["x"], values[i] = math.NaN(), math.NaN()
			}
			addRow(tab, int64(10*(i+1)), row)
		}
		from, to := int64(rapid.IntRange(0, 10*n).Draw(r, "from")), int64(rapid.IntRange(0, 11*n).Draw(r, "to"))
		points := rapid.IntRange(1, 400).Draw(r, "points")
		doc := ask(t, tab, asked{names: []string{"x", "none"}, from: from, to: to, points: points})
		x := doc.Columns["x"]
		if len(doc.Columns) != 1 || len(x.Mean) != len(doc.Steps) {
			r.Fatalf("%d columns, %d means of %d points", len(doc.Columns), len(x.Mean), len(doc.Steps))
		}
		if len(doc.Steps) > points+2 {
			r.Fatalf("%d points, %d asked for", len(doc.Steps), points)
		}
		if from <= to && from <= int64(10*n) && to >= 10 && len(doc.Steps) == 0 && doc.Bucket > 1 {
			r.Fatalf("no points of steps %d to %d", from, to)
		}
		for i, last := range doc.Steps {
			end := int(last / 10)
			begin := (end - 1) / doc.Bucket * doc.Bucket
			low, high := math.Inf(1), math.Inf(-1)
			for _, v := range values[begin:end] {
				if !math.IsNaN(v) {
					low, high = min(low, v), max(high, v)
				}
			}
			switch {
			case math.IsInf(low, 1):
				if x.Mean[i] != nil {
					r.Fatalf("point %d has a mean without a value", i)
				}
			case x.Mean[i] == nil, *x.Mean[i] < low-1e-6, *x.Mean[i] > high+1e-6:
				r.Fatalf("the mean of point %d, to step %d, is %v, not from %g to %g", i, last, x.Mean[i], low, high)
			case doc.Bucket > 1 && i < len(doc.Steps)-1 && (*x.Min[i] != low || *x.Max[i] != high):
				r.Fatalf("point %d is from %g to %g, not %g to %g", i, *x.Min[i], *x.Max[i], low, high)
			}
		}
		if tab.bytes > limit+int64(40*len(tab.columns)) && len(tab.steps) > 2 {
			r.Fatalf("%d bytes of %d", tab.bytes, limit)
		}
	})
}

// Evaluations, and numbers that few records have, come with their steps.
func TestFewValues(t *testing.T) {
	tab := newTable(8 << 20)
	addRow(tab, 0, map[string]float64{"eval_loss": 5, "loss": 9, "learning_rate": math.NaN()})
	for step := int64(1); step <= 1000; step++ {
		row := map[string]float64{"loss": 1 / float64(step)}
		if step%100 == 0 {
			row["eval_loss"], row["layers/a/grad_norm"] = float64(step), 2
		}
		addRow(tab, step, row)
	}
	doc := ask(t, tab, asked{to: 500, points: 10})
	five := func(x ...float64) (all []*float64) {
		for i := range x {
			all = append(all, &x[i])
		}
		return all
	}
	if d := cmp.Diff(answeredColumn{At: []int64{0, 100, 200, 300, 400, 500}, Values: five(5, 100, 200, 300, 400, 500)},
		doc.Columns["eval_loss"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int64{100, 200, 300, 400, 500}, doc.Columns["layers/a/grad_norm"].At); d != "" {
		t.Error(d)
	}
	if got := doc.Columns["loss"]; len(got.Mean) < 5 || len(got.Mean) > 10 || doc.Bucket != 64 || *got.Max[0] != 1 {
		t.Errorf("%d points of %d steps, from %v: %v", len(got.Mean), doc.Bucket, got.Max[0], doc.Steps)
	}
	for step := int64(1001); step <= 40_000; step++ {
		addRow(tab, step, map[string]float64{"eval_loss": 1})
	}
	if n := len(ask(t, tab, asked{to: 1 << 40, points: 10}).Columns["eval_loss"].At); n != mostFew {
		t.Errorf("%d evaluations", n)
	}
}

// A run that grows moves no point of its past.
func TestPointsStay(t *testing.T) {
	tab := newTable(1 << 20)
	var before answered
	for step := int64(1); step <= 5000; step++ {
		addRow(tab, step, map[string]float64{"loss": math.Sin(float64(step))})
		if step%250 != 0 {
			continue
		}
		doc := ask(t, tab, asked{names: []string{"loss"}, from: 77, to: 1 << 40, points: 100})
		for i, last := range doc.Steps[:len(doc.Steps)-1] {
			if last%int64(doc.Bucket) != 0 {
				t.Fatalf("point %d, of %d steps, ends at step %d", i, doc.Bucket, last)
			}
		}
		for i := range len(before.Steps) - 1 {
			if doc.Bucket == before.Bucket && (doc.Steps[i] != before.Steps[i] ||
				*doc.Columns["loss"].Mean[i] != *before.Columns["loss"].Mean[i]) {
				t.Fatalf("after step %d point %d is another one", step, i)
			}
		}
		before = doc
	}
	if len(before.Steps) < 50 || len(before.Steps) > 100 {
		t.Errorf("%d points", len(before.Steps))
	}
}

// The number of columns is bounded, and so is their memory.
func TestManyColumns(t *testing.T) {
	tab := newTable(1 << 20)
	for step := int64(1); step <= 40; step++ {
		row := map[string]float64{}
		for i := range mostColumns + 100 {
			row[fmt.Sprint("c", i)] = 1
		}
		var cells []cell
		for name, x := range row {
			if c := tab.column([]byte(name)); c != nil {
				cells = append(cells, cell{c, x})
			}
		}
		tab.add(step, cells)
	}
	if len(tab.columns) != mostColumns || tab.bytes > 3<<20 {
		t.Errorf("%d columns, %d bytes", len(tab.columns), tab.bytes)
	}
}
