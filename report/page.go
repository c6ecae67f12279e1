package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/millrace/millrace/trace"
)

// MostRuns is how many runs a page can tell apart by color.
const MostRuns = 6

// WritePage draws runs as a page of HTML: at most [MostRuns].
func WritePage(w io.Writer, runs []Run) error {
	type drawn struct {
		Title, Unit string
		SVG         template.HTML // numbers and escaped names alone
	}
	var all []drawn
	for _, c := range charts(runs) {
		c.runs = len(runs)
		if svg := c.svg(); svg != "" {
			all = append(all, drawn{c.title, c.unit, template.HTML(svg)})
		}
	}
	var rows []row
	for i, r := range runs {
		rows = append(rows, rowOf(i, Summarize(r)))
	}
	return page.Execute(w, struct {
		Runs   []row
		Charts []drawn
	}{rows, all})
}

// charts are the curves of a page, the most important first.
func charts(runs []Run) []chart {
	lanes := chart{title: "lanes busy", unit: "% of the step", zero: true}
	if len(runs) == 1 { // lanes of several runs would be too many lines
		for lane := range trace.NumLanes {
			y := smooth(column(runs[0].Records, func(m trace.Metrics) float64 { return 100 * m.Lanes.Of(lane) / m.StepSec }))
			lanes.lines = append(lanes.lines, line{x: steps(runs[0]), y: y, color: int(lane), name: lane.String()})
		}
	}
	return []chart{
		lossChart(runs),
		each(runs, chart{title: "gradient norm", unit: "before clipping", log: true},
			func(m trace.Metrics) float64 { return m.GradNorm }),
		each(runs, chart{title: "learning rate"}, func(m trace.Metrics) float64 { return m.LearningRate }),
		each(runs, chart{title: "speed", unit: "tokens/s", zero: true},
			func(m trace.Metrics) float64 { return m.TokensPerSec }),
		lanes,
		each(runs, chart{title: "host memory", unit: "GiB, peak so far", zero: true},
			func(m trace.Metrics) float64 { return float64(m.HostPeakBytes) / (1 << 30) }),
	}
}

// lossChart has the loss of each step, faint, its average, and evaluations as dots.
func lossChart(runs []Run) chart {
	c := chart{title: "loss", unit: "nats per target token; the line is an average, dots are evaluations"}
	for i, r := range runs {
		raw := column(r.Records, lossOf)
		c.lines = append(c.lines,
			line{x: steps(r), y: raw, color: i, class: "raw", name: r.Name + ", each step"},
			line{x: steps(r), y: smooth(raw), color: i, name: r.Name})
		evals := line{color: i, class: "dots", name: r.Name + ", evaluation"}
		for _, m := range r.Records {
			if m.EvalLoss != nil {
				evals.x, evals.y = append(evals.x, float64(m.Step)), append(evals.y, *m.EvalLoss)
			}
		}
		c.lines = append(c.lines, evals)
	}
	return c
}

func each(runs []Run, c chart, value func(trace.Metrics) float64) chart {
	for i, r := range runs {
		c.lines = append(c.lines, line{x: steps(r), y: column(r.Records, value), color: i, name: r.Name})
	}
	return c
}

func steps(r Run) []float64 {
	return column(r.Records, func(m trace.Metrics) float64 { return float64(m.Step) })
}

// row is a run in the page's table.
type row struct {
	Color                                                  int
	Name, Steps, Tokens, Loss, Eval, Speed, Step, Host, At string
}

func rowOf(color int, s Summary) row {
	r := row{
		Color: color, Name: s.Run, Steps: fmt.Sprintf("%d to %d", s.FirstStep, s.LastStep), Tokens: short(float64(s.Tokens)),
		Loss: s.Loss(), Eval: s.LeastEval(),
		Speed: fmt.Sprintf("%.0f tokens/s", s.TokensPerSec), Step: fmt.Sprintf("%.3g s", s.StepSec),
		Host: fmt.Sprintf("%.2f GiB", float64(s.HostPeakBytes)/(1<<30)),
	}
	if s.HoursStopped > 0 {
		r.At = "stopped for " + (time.Duration(s.HoursStopped * float64(time.Hour))).Round(time.Minute).String()
	}
	return r
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{"laneKey": laneKey}).Parse(pageText))

// laneKey names the colors of lanes.
func laneKey() (key template.HTML) {
	for lane := range trace.NumLanes {
		key += template.HTML(fmt.Sprintf(`<span class="key k%d"></span>%v `, lane, lane))
	}
	return key
}
