package report

import (
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

var page = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>millrace report</title>
<style>
:root { --0: #0072b2; --1: #d55e00; --2: #009e73; --3: #aa4499; --4: #8a6d00; --5: #56707a }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 58em; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; font-size: 14px; width: 100% } th, td { text-align: left; padding: .3em .8em .3em 0 } th { color: #777; font-weight: 500 }
h2 { font-size: 16px; margin: 1.6em 0 .2em } h2 small { color: #777; font-weight: 400 }
svg { width: 100%; height: auto } .grid { stroke: #e4e4e4; fill: none } text { font: 12px system-ui, sans-serif; fill: #777 } .y { text-anchor: end } .x { text-anchor: middle }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round } .raw { opacity: .28; stroke-width: 1 } .key { display: inline-block; width: 1.2em; height: .25em; vertical-align: middle; margin-right: .4em }
.c0 { stroke: var(--0) } .c1 { stroke: var(--1) } .c2 { stroke: var(--2) } .c3 { stroke: var(--3) } .c4 { stroke: var(--4) } .c5 { stroke: var(--5) }
circle { fill: #fff; stroke-width: 2 }
.k0 { background: var(--0) } .k1 { background: var(--1) } .k2 { background: var(--2) } .k3 { background: var(--3) } .k4 { background: var(--4) } .k5 { background: var(--5) }
@media (prefers-color-scheme: dark) {
  :root { --0: #56b4e9; --1: #f0904c; --2: #4fd1a5; --3: #e090d8; --4: #e6c84c; --5: #a8bcc4 }
  body { color: #ddd; background: #161616 } .grid { stroke: #333 } text, th, h2 small { color: #999; fill: #999 } circle { fill: #161616 }
}
</style>
</head>
<body>
<h1>{{if eq (len .Runs) 1}}{{(index .Runs 0).Name}}{{else}}{{len .Runs}} runs{{end}}</h1>
<table>
<tr><th>run</th><th>steps</th><th>tokens</th><th>loss</th><th>least eval loss</th><th>speed</th><th>step</th><th>host memory</th></tr>{{range .Runs}}
<tr><td><span class="key k{{.Color}}"></span>{{.Name}}{{if .At}}<br>{{.At}}{{end}}</td><td>{{.Steps}}</td><td>{{.Tokens}}</td><td>{{.Loss}}</td><td>{{.Eval}}</td><td>{{.Speed}}</td><td>{{.Step}}</td><td>{{.Host}}</td></tr>{{end}}
</table>
{{range .Charts}}
<h2>{{.Title}} <small>{{.Unit}}</small></h2>
{{if eq .Title "lanes busy"}}<p>` + laneKey + `</p>
{{end}}{{.SVG}}{{end}}
</body>
</html>
`))

// laneKey names the colors of lanes.
var laneKey = func() (key string) {
	for lane := range trace.NumLanes {
		key += fmt.Sprintf(`<span class="key k%d"></span>%v `, lane, lane)
	}
	return key
}()
