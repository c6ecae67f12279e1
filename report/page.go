package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/trace"
)

// MostRuns bounds the runs that a page can tell apart by color.
const MostRuns = 6

// WritePage draws runs as a page of HTML: at most [MostRuns]. With refreshSec above 0 a browser loads the page again
// after as many seconds.
func WritePage(w io.Writer, runs []Run, refreshSec int) error {
	type drawn struct {
		Title, Unit string
		Drawing     template.HTML // numbers and escaped names alone
		Key         template.HTML // names of colors; empty: not of this chart
	}
	var all []drawn
	for _, c := range charts(runs) {
		c.runs = len(runs)
		if drawing := c.html(); drawing != "" {
			all = append(all, drawn{c.title, c.unit, template.HTML(drawing), c.key()})
		}
	}
	return page.Execute(w, struct {
		Runs       []Run
		Rows       []row
		Charts     []drawn
		RefreshSec int
	}{runs, rowsOf(runs), all, refreshSec})
}

// charts are the curves of a page, the most important first.
func charts(runs []Run) []chart {
	lanes := chart{title: "lanes busy", unit: "% of the step", zero: true, keyed: true}
	if len(runs) == 1 { // lanes of several runs would be too many lines
		for lane := range trace.NumLanes {
			busy := func(m trace.Metrics) bool { return m.Lanes[lane] > 0 }
			if lane.IsOptional() && !slices.ContainsFunc(runs[0].Records, busy) {
				continue
			}
			y := smooth(column(runs[0].Records, func(m trace.Metrics) float64 {
				return 100 * m.Lanes[lane] / m.StepSec
			}))
			lanes.lines = append(lanes.lines, line{x: steps(runs[0]), y: y, color: int(lane), name: lane.String()})
		}
	}
	return []chart{
		lossChart(runs),
		objectiveChart(runs, "accuracy of tokens", "share of targets that no other token is likelier than",
			"mean_token_accuracy"),
		objectiveChart(runs, "entropy", "of the model's distribution at the targets, in nats", "entropy"),
		objectiveChart(runs, "margin of rewards", "the chosen completion's less the rejected one's", "rewards/margins",
			"margin"),
		objectiveChart(runs, "accuracy of rewards", "share of pairs in which the chosen completion has more",
			"rewards/accuracies", "accuracy"),
		objectiveChart(runs, "mean reward", "", "mean_reward"),
		objectiveChart(runs, "reward of chosen completions", "", "rewards/chosen"),
		objectiveChart(runs, "reward of rejected completions", "", "rewards/rejected"),
		objectiveChart(runs, "distance from the reference", "kl, in nats", "kl"),
		each(runs, chart{title: "gradient norm", unit: "before clipping; logarithmic axis", log: true},
			func(m trace.Metrics) float64 { return m.GradNorm }),
		each(runs, chart{title: "greatest update", unit: "of a weight, over the learning rate; logarithmic axis", log: true},
			func(m trace.Metrics) float64 {
				if m.MaxUpdateOverLR == nil {
					return math.NaN()
				}
				return *m.MaxUpdateOverLR
			}),
		each(runs, chart{title: "learning rate"}, func(m trace.Metrics) float64 { return m.LearningRate }),
		each(runs, chart{title: "speed", unit: "tokens/s", zero: true},
			func(m trace.Metrics) float64 { return m.TokensPerSec }),
		lanes,
		expertsChart(runs, "busiest expert of a layer",
			"% of its layer's choices: the worst layer, and the mean of layers",
			func(x *trace.Experts) (worst, mean float64) {
				return 100 * slices.Max(x.Busiest), 100 * meanOf(x.Busiest)
			}),
		expertsChart(runs, "entropy of experts' loads",
			"1: all are chosen equally often; the worst layer, and the mean of layers",
			func(x *trace.Experts) (worst, mean float64) { return slices.Min(x.Entropy), meanOf(x.Entropy) }),
		each(runs, chart{title: "host memory", unit: "GiB, peak so far", zero: true},
			func(m trace.Metrics) float64 { return float64(m.HostPeakBytes) / (1 << 30) }),
	}
}

// objectiveChart has a number of what the run trains for in each step, faint, its average, and evaluations as dots, of
// the runs that have it, by one of its names.
func objectiveChart(runs []Run, title, unit string, names ...string) chart {
	c := chart{title: title, unit: unit}
	of := func(prefix string) func(trace.Metrics) float64 {
		return func(m trace.Metrics) float64 {
			for _, name := range names {
				if x, ok := m.Objective[prefix+name]; ok {
					return x
				}
			}
			return math.NaN()
		}
	}
	for i, r := range runs {
		raw, held := column(r.Records, of("")), of(trace.EvalPrefix)
		if !slices.ContainsFunc(raw, func(x float64) bool { return !math.IsNaN(x) }) {
			continue
		}
		evals := line{color: i, class: "dots", name: r.Name + ", evaluation"}
		all := r.Records
		if r.Before != nil {
			all = append([]trace.Metrics{*r.Before}, all...)
		}
		for _, m := range all {
			if x := held(m); !math.IsNaN(x) {
				evals.x, evals.y = append(evals.x, float64(m.Step)), append(evals.y, x)
			}
		}
		c.lines = append(c.lines, line{x: steps(r), y: raw, color: i, class: "raw", name: r.Name + ", each step"},
			line{x: steps(r), y: smooth(raw), color: i, name: r.Name}, evals)
	}
	return c
}

// expertsChart has two lines for each run of a model with experts: of its worst layer, faint, and the mean over layers.
func expertsChart(runs []Run, title, unit string, of func(*trace.Experts) (worst, mean float64)) chart {
	c := chart{title: title, unit: unit, zero: true}
	for i, r := range runs {
		if !slices.ContainsFunc(r.Records, func(m trace.Metrics) bool { return m.Experts != nil }) {
			continue
		}
		of := func(m trace.Metrics) (worst, mean float64) {
			if m.Experts == nil || len(m.Experts.Busiest) == 0 || len(m.Experts.Entropy) == 0 {
				return math.NaN(), math.NaN()
			}
			return of(m.Experts)
		}
		worst := column(r.Records, func(m trace.Metrics) float64 { x, _ := of(m); return x })
		mean := column(r.Records, func(m trace.Metrics) float64 { _, x := of(m); return x })
		c.lines = append(c.lines, line{x: steps(r), y: worst, color: i, class: "raw", name: r.Name + ", worst layer"},
			line{x: steps(r), y: smooth(mean), color: i, name: r.Name + ", mean"})
	}
	return c
}

func meanOf(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// lossChart has the loss of each step, faint, its average, and evaluations as dots.
func lossChart(runs []Run) chart {
	c := chart{title: "loss", unit: "nats per target token; the thick line is an average, dots are evaluations"}
	for i, r := range runs {
		raw := column(r.Records, lossOf)
		c.lines = append(c.lines,
			line{x: steps(r), y: raw, color: i, class: "raw", name: r.Name + ", each step"},
			line{x: steps(r), y: smooth(raw), color: i, name: r.Name})
		evals := line{color: i, class: "dots", name: r.Name + ", evaluation"}
		if r.Before != nil {
			evals.x, evals.y = []float64{0}, []float64{*r.Before.EvalLoss}
		}
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

// row is a number of all runs in the page's table.
type row struct {
	Name  string
	Cells []template.HTML
}

func rowsOf(runs []Run) []row {
	rows := []row{{Name: "run"}, {Name: "steps"}, {Name: "tokens"}, {Name: "loss, first to last step"}, {Name: "average loss"},
		{Name: "eval loss"}, {Name: "least eval loss"}, {Name: "speed"}, {Name: "step"}, {Name: "host memory"},
		{Name: "written to disk"}, {Name: "stopped for"}}
	for color, r := range runs {
		s := Summarize(r)
		for i, text := range []string{s.Run, fmt.Sprintf("%d to %d", s.FirstStep, s.LastStep), short(float64(s.Tokens)), s.Loss(),
			s.Average(), s.Eval(), s.LeastEval(), fmt.Sprintf("%.0f tokens/s", s.TokensPerSec), fmt.Sprintf("%.3g s", s.StepSec),
			fmt.Sprintf("%.2f GiB", float64(s.HostPeakBytes)/(1<<30)),
			s.Written(), stoppedFor(s)} {
			cell := template.HTML(template.HTMLEscapeString(text))
			if i == 0 {
				cell = template.HTML(fmt.Sprintf(`<span class="key k%d"></span>`, color)) + cell
			}
			rows[i].Cells = append(rows[i].Cells, cell)
		}
	}
	return rows
}

func stoppedFor(s Summary) string {
	if s.HoursStopped == 0 {
		return "-"
	}
	return time.Duration(s.HoursStopped * float64(time.Hour)).Round(time.Minute).String()
}

// key names the colors of lines, if the chart has one.
func (c chart) key() (key template.HTML) {
	if c.keyed {
		for _, l := range c.lines {
			name := template.HTMLEscapeString(l.name)
			key += template.HTML(fmt.Sprintf(`<span class="key k%d"></span>%s `, l.color, name))
		}
	}
	return key
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("report").Parse(pageText))
