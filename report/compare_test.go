package report

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/trace"
)

// made is a run with these losses, and evaluations by step.
func made(name string, losses []float64, evals map[int64]float64) Run {
	r := Run{Name: name}
	for i, loss := range losses {
		m := trace.Metrics{Step: int64(i + 1), Loss: loss, GradNorm: 1, TargetTokens: 1, Tokens: 10, StepSec: 1}
		if v, ok := evals[m.Step]; ok {
			m.EvalLoss = &v
		}
		r.Records = append(r.Records, m)
	}
	if v, ok := evals[0]; ok {
		r.Before = &trace.Metrics{EvalLoss: &v}
	}
	return r
}

func TestSparks(t *testing.T) {
	nan := math.NaN()
	runs := []Run{made("a", []float64{8, 7, 6, 5, 4, 3, 2, 1}, map[int64]float64{0: 8, 4: 1}),
		made("b", []float64{8, 8, nan, nan, 1e12, 1}, map[int64]float64{6: 4})}
	for _, c := range []struct {
		of    Curve
		width int
		ascii bool
		want  []string
	}{
		{LossCurve, 8, false, []string{"█▇▆▅▄▃▂▁", "██  █▁"}},
		{LossCurve, 8, true, []string{"#*+=-:._", "##  #_"}},
		{LossCurve, 4, false, []string{"█▅▃▁", "█ █"}},
		{EvalCurve, 8, false, []string{"███▁▁▁▁▁", "     ▄"}},
	} {
		got, ok := Sparks(runs, c.of, c.width, c.ascii)
		if d := cmp.Diff(c.want, got); d != "" || !ok {
			t.Errorf("%d cells, %v: %s", c.width, ok, d)
		}
	}
	if got, ok := Sparks([]Run{made("a", []float64{3, 3}, nil)}, LossCurve, 4, true); !ok || got[0] != "_ _" {
		t.Errorf("equal values: %q, %v", got, ok)
	}
	if got, ok := Sparks([]Run{made("a", []float64{nan}, nil)}, EvalCurve, 4, true); ok {
		t.Errorf("without a value: %q", got)
	}
}

func TestCompare(t *testing.T) {
	a, b := made("a", []float64{3, 2}, map[int64]float64{2: 2.5}), made("b", []float64{3, 1}, map[int64]float64{2: 2.25})
	c := made("c", []float64{3, math.NaN()}, nil)
	b.Records[0].StepSec, c.Records[1].GradNorm = 3, math.Inf(1)
	all := []Summary{Summarize(a), Summarize(b), Summarize(c)}
	of := func(o CompareOptions) (cells map[string][]string, best map[string][]bool) {
		cells, best = map[string][]string{}, map[string][]bool{}
		for _, r := range Compare(all, o) {
			cells[r.Name], best[r.Name] = r.Cells, r.Best
		}
		return cells, best
	}
	cells, best := of(CompareOptions{})
	no := []bool{false, false, false}
	for name, want := range map[string][]bool{"steps": no, "average loss": {false, true, false}, "loss, last step": no,
		"least eval loss": {false, true, false}, "tokens/s": {true, false, true}, "skipped steps": {true, true, false}} {
		if d := cmp.Diff(want, best[name]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if d := cmp.Diff([]string{"2.5000", "2.2500", "-"}, cells["eval loss"]); d != "" {
		t.Error(d)
	}
	if _, ok := cells["written to disk"]; ok {
		t.Error("a row without a number is there")
	}
	_, best = of(CompareOptions{OtherLosses: true, OtherEvals: true})
	for _, name := range []string{"average loss", "eval loss", "least eval loss"} {
		if d := cmp.Diff(no, best[name]); d != "" {
			t.Errorf("losses of other tokens, %s: %s", name, d)
		}
	}
	all = all[:1]
	if _, best = of(CompareOptions{}); best["average loss"][0] {
		t.Error("the only run is called the best")
	}
}
