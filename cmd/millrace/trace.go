package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/timeline"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

type traceCmd struct {
	File string `arg:"" name:"FILE" help:"Chrome trace that train, bench or plan wrote with --trace."`
	SVG  string `name:"svg" placeholder:"FILE" help:"Draw the lanes of the step as an SVG picture."`
	Dark bool   `help:"Colors for a dark page; by default they are for a light one."`
	Step int64  `placeholder:"N" help:"Step to show; by default the last whole one."`
	JSON bool   `help:"Print how long each lane was busy as JSON."`
}

func (*traceCmd) Help() string {
	return `Prints how long each lane of a step was busy, and a chart. With --svg it also draws a picture.

Examples, the last two of a step that was only simulated:

  millrace bench --shape smollm2-135m --memory-device 200MiB --trace step.json
  millrace trace step.json --svg step.svg
  millrace plan --shape llama-3-70b --machine rtx4090-pc-256gb --trace plan.json
  millrace trace plan.json --svg plan.svg --dark`
}

// tracedStep is the step of a trace as JSON.
type tracedStep struct {
	trace.About
	Step       int64       `json:"step"`
	Torn       bool        `json:"torn"` // the trace lacks its beginning
	StepSec    float64     `json:"step_sec"`
	Lanes      trace.Lanes `json:"lanes"`       // busy seconds
	BusyShares trace.Lanes `json:"busy_shares"` // of the step
	Timeline   []string    `json:"timeline"`
	SVG        string      `json:"svg,omitempty"`
}

// Run shows a trace.
func (c *traceCmd) Run(p *program) error {
	r, err := c.read()
	if err != nil {
		return blame.BadRequest(err)
	}
	if c.JSON {
		return p.printJSON(r)
	}
	return p.printf("%s", traceText(r))
}

// read reads the trace, and draws the picture if one is asked for.
func (c *traceCmd) read() (*tracedStep, error) {
	if c.Step < 0 {
		return nil, badFlag("--step is %d: use 1 or a later step", c.Step)
	}
	if c.Dark && c.SVG == "" {
		return nil, badFlag("--dark is for a picture: name its file with --svg")
	}
	t, err := readTrace(c.File)
	if err != nil {
		return nil, err
	}
	step, err := timeline.Of(t, c.Step)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	if c.SVG != "" {
		theme := timeline.Light
		if c.Dark {
			theme = timeline.Dark
		}
		err := vfs.WriteOutput(c.SVG, func(w io.Writer) error { _, err := w.Write(step.SVG(theme)); return err })
		if err != nil {
			return nil, fmt.Errorf("--svg: %w", err)
		}
	}
	lanes := step.BusyLanes()
	return &tracedStep{About: step.About, Step: step.Number, Torn: step.Torn, StepSec: step.Length.Seconds(),
		Lanes: lanes, BusyShares: lanes.Times(1 / step.Length.Seconds()), Timeline: step.Chart(), SVG: c.SVG}, nil
}

// readTrace reads a regular file. It refuses others, such as a named pipe, instead of waiting for them.
func readTrace(name string) (*trace.Trace, error) {
	f, err := vfs.OpenRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := trace.ReadChrome(f)
	if err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	return t, nil
}

// traceText is the step for people.
func traceText(r *tracedStep) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, text)
		}
	}
	row("model", "%s", r.Model)
	row("device", "%s", r.Device)
	kind := "measured"
	if r.Simulated {
		kind = "SIMULATED, nothing was run"
	}
	row("step", "%d, %s: %s", r.Step, kind, plan.FormatSeconds(r.StepSec))
	if r.Torn {
		row("warning", "the trace lacks the beginning of this step")
	}
	w.Flush()
	fmt.Fprintf(&b, "\n")
	w = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for lane := range trace.NumLanes {
		if lane.IsOptional() && r.BusyShares[lane] == 0 {
			continue
		}
		fmt.Fprintf(w, "%v busy\t%.1f\t%%\t\n", lane, 100*r.BusyShares[lane])
	}
	w.Flush()
	fmt.Fprintf(&b, "\n  %s\n\n%s\n", strings.Join(r.Timeline, "\n  "), plan.Legend(r.Timeline))
	return b.String()
}
