package browsertest_test

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/workshop/browsertest"
)

// Numbers are written with their units, and steps that are added to a curve give the curve that a new page draws.
func TestNumbersOfPage(t *testing.T) {
	b := browsertest.Start(t)
	run := newRun(t, t.TempDir(), "long", "")
	run.train(1, 3000, kind{})
	w := serveRuns(t, nil, run.dir)
	p := b.Open(t, w.URL, wide)
	p.Wait(settled)
	for expression, want := range map[string]string{
		"units.loss(1.23456)":                        "1.2346",
		"units.loss(null)":                           "–",
		"units.loss(2.5e7)":                          "2.5e7",
		"units.significant(0.00001)":                 "1e-5",
		"units.significant(0.000012345)":             "1.23e-5",
		"units.significant(1234.5)":                  "1,235",
		"units.significant(NaN)":                     "–",
		"units.bytes(1536)":                          "1.5 KiB",
		"units.bytes(17179869184)":                   "16 GiB",
		"units.written(2.5e12)":                      "2.5 TB",
		"units.count(999)":                           "999",
		"units.count(1234567)":                       "1.23M",
		"units.percent(0.125)":                       "12.5%",
		"units.percent(0.000268, 2)":                 "0.027%",
		"units.significant(0.55432, 3)":              "0.554",
		"units.duration(0.25)":                       "250 ms",
		"units.duration(59.94)":                      "59.9 s",
		"units.duration(3725)":                       "1 h 2 min",
		"units.duration(200000)":                     "2 d 7 h",
		"dom.clean('a\u202eb')":                      `a\u202eb`,
		"dom.clean('abcdef', 3)":                     "abc… (3 more characters)",
		"plots.average([1, 2], [1, 3], 2).join()":    "1,2.3333333333333335",
		"plots.average([1, 2], [null, 3], 2).join()": ",3",
	} {
		if got := p.Text(expression); got != want {
			t.Errorf("%s is %q, want %q", expression, got, want)
		}
	}

	const curve = `(() => { const l = [...plots.living].find((l) => l.chart.id === "loss").lines.find((l) => ` +
		`l.low); return { x: l.x, y: l.y, low: l.low, high: l.high } })()`
	type line struct{ X, Y, Low, High []float64 }
	for _, to := range []int{3001, 3007, 3050} {
		run.train(1+lastOf(t, p), to, kind{})
		p.Wait(fmt.Sprintf(`%s.x.at(-1) === %d`, curve, to))
	}
	var grown, whole line
	p.Get(curve, &grown)
	p.Reload()
	p.Wait(settled)
	p.Wait(fmt.Sprintf(`%s.x.at(-1) === 3050`, curve))
	p.Get(curve, &whole)
	if len(grown.X) != len(whole.X) || len(whole.X) < 400 {
		t.Fatalf("%d points after steps were added, %d of a new page", len(grown.X), len(whole.X))
	}
	for i := range whole.X {
		if grown.X[i] != whole.X[i] || abs(grown.Y[i]-whole.Y[i]) > 1e-5 || grown.Low[i] != whole.Low[i] ||
			grown.High[i] != whole.High[i] {
			t.Fatalf("point %d: %v %v %v %v after steps were added, %v %v %v %v of a new page", i, grown.X[i],
				grown.Y[i], grown.Low[i],
				grown.High[i], whole.X[i], whole.Y[i], whole.Low[i], whole.High[i])
		}
	}
	// A zoom asks for the steps themselves.
	p.Get(`view.setZoom({ from: 1000, to: 1200 })`, nil)
	p.Wait(`[...plots.living].find((l) => l.chart.id === "loss").lines[0].x.filter((x) => x >= 1000 && x <= ` +
		`1200).length === 201`)
	quiet(t, p, w.URL)
}

func lastOf(t *testing.T, p *browsertest.Page) (step int) {
	t.Helper()
	p.Get(`store.runs()[0].last_step`, &step)
	return step
}

func abs(x float64) float64 { return max(x, -x) }
