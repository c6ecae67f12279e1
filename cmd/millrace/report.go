package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/serve"
	"github.com/millrace/millrace/vfs"
)

type reportCmd struct {
	Runs   []string `arg:"" complete:"DIR" name:"RUN" help:"Output directories of runs, or their metrics.jsonl; up to six can be compared."`
	HTML   string   `name:"html" placeholder:"FILE" help:"Write a page with the curves of the runs."`
	Follow bool     `help:"With --html: write the page again every 10 seconds, until the runs have ended."`
	JSON   bool     `help:"Print a list with one object per run."`
}

func (*reportCmd) Help() string {
	return `Reads the records of runs, also of one that is running. A page is that of millrace serve in one file: it needs no
server and loads nothing. With --follow a browser that shows the page loads it again by itself.

Examples:

  millrace report runs/gsm8k
  millrace report runs/gsm8k runs/gsm8k-lr1e-4 --html report.html
  millrace report runs/gsm8k --html live.html --follow`
}

// mostReported bounds the runs that a page can tell apart.
const mostReported = 6

// Run prints or draws the records of runs.
func (c *reportCmd) Run(p *program) error {
	switch {
	case len(c.Runs) > mostReported:
		return badFlag("%d runs are more than a page can tell apart: name at most %d", len(c.Runs), mostReported)
	case c.JSON && c.HTML != "":
		return badFlag("--json and --html are both given: choose one")
	case c.Follow && c.HTML == "":
		return badFlag("--follow is for a page: name its file with --html")
	case c.Follow:
		return c.follow(p, waitFor)
	}
	runs, err := serve.Freeze(c.Runs, thisBuild().Version, false)
	if err != nil {
		return blame.BadRequest(err)
	}
	for _, note := range runs.Notes() {
		p.note(note)
	}
	switch {
	case c.HTML != "":
		return writeReport(c.HTML, runs, 0)
	case c.JSON:
		return p.printJSON(runs.Summaries())
	}
	return p.printSummaries(runs.Summaries())
}

func writeReport(name string, runs *serve.Frozen, refreshSec int) error {
	err := vfs.WriteOutput(name, func(w io.Writer) error { return runs.WritePage(w, refreshSec) })
	if err != nil {
		return badFlag("--html: %w", err)
	}
	return nil
}

// printSummaries prints a row for each run.
func (p *program) printSummaries(all []report.Summary) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "run\tsteps\tloss\taverage loss\teval loss\tleast eval loss\ttokens/s\tstep\thost memory")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%d to %d\t%s\t%s\t%s\t%s\t%.0f\t%.3g s\t%.2f GiB\n",
			terminal.Text(strings.TrimSuffix(s.Run, "/")), s.FirstStep, s.LastStep, s.Loss(), s.Average(), s.Eval(),
			s.LeastEval(), s.TokensPerSec, s.StepSec, float64(s.HostPeakBytes)/(1<<30))
		for _, label := range slices.Sorted(maps.Keys(s.EvalSets)) {
			of := s.EvalSets[label]
			fmt.Fprintf(w, "  %s\t\t\t\t%s\t%s\t\t\t\n", terminal.Text(label), of.Eval(), of.LeastEval())
		}
	}
	return w.Flush()
}
