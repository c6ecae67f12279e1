package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/trace"
)

type metricsCmd struct {
	Of      string   `arg:"" complete:"DIR" name:"RUN" help:"Output directory of a run, or its metrics.jsonl."`
	CSV     bool     `name:"csv" help:"Print a row for each step, for spreadsheets and other programs."`
	Columns []string `placeholder:"NAME" help:"Columns to print, separated by commas; * stands for any part of a name without /, as in eval/*/loss. By default all."`
}

func (*metricsCmd) Help() string {
	return `The numbers of a run's records, also of one that is running. Those of a nested field have a path, such as
lanes/fetch, rewards/margins or eval/LABEL/loss. Without --csv there is a row for each column.

Examples:

  millrace metrics runs/gsm8k
  millrace metrics runs/gsm8k --csv --columns 'loss,grad_norm,eval/*/loss' > gsm8k.csv`
}

// Run prints the records of a run.
func (c *metricsCmd) Run(p *program) error {
	r, err := report.Read(c.Of)
	if err != nil {
		return blame.BadRequest(err)
	}
	records := r.Records
	if r.Before != nil {
		records = append([]trace.Metrics{*r.Before}, records...)
	}
	names, err := c.chosen(trace.ColumnNames(records))
	if err != nil {
		return err
	}
	if c.CSV {
		return writeCSV(p.stdout, records, names)
	}
	return writeColumns(p.stdout, records, names)
}

// chosen are the columns that are asked for, in the order in which they are asked for.
func (c *metricsCmd) chosen(all []string) (names []string, err error) {
	if len(c.Columns) == 0 {
		return all, nil
	}
	known := map[string]bool{}
	for _, pattern := range c.Columns {
		isFound := false
		for _, name := range all {
			switch matches, err := path.Match(pattern, name); {
			case err != nil:
				return nil, badFlag("--columns: %s is no pattern: use names, with * for any part of a name", pattern)
			case !matches:
				continue
			}
			if isFound = true; !known[name] {
				known[name] = true
				names = append(names, name)
			}
		}
		if !isFound {
			return nil, badFlag("--columns: the records have no %s%s", pattern,
				strings.TrimSuffix(spelling.Question(pattern, all), "?"))
		}
	}
	return names, nil
}

// rows calls row with the numbers of each record by the places of their columns, NaN where it has none. The slice is
// used again.
func rows(records []trace.Metrics, names []string, row func(m *trace.Metrics, numbers []float64) error) error {
	place := map[string]int{}
	for i, name := range names {
		place[name] = i
	}
	numbers := make([]float64, len(names))
	for i := range records {
		for at := range numbers {
			numbers[at] = math.NaN()
		}
		records[i].Columns(func(name string, x float64) {
			if at, ok := place[name]; ok {
				numbers[at] = x
			}
		})
		if err := row(&records[i], numbers); err != nil {
			return err
		}
	}
	return nil
}

// writeCSV writes a row for each record. A number that is missing, or not finite, is an empty field.
func writeCSV(to io.Writer, records []trace.Metrics, names []string) error {
	w := csv.NewWriter(to)
	if err := w.Write(append([]string{"step", "time"}, names...)); err != nil {
		return err
	}
	fields := make([]string, 2+len(names))
	err := rows(records, names, func(m *trace.Metrics, numbers []float64) error {
		fields[0], fields[1] = strconv.FormatInt(m.Step, 10), ""
		if m.Time != nil {
			fields[1] = *m.Time
		}
		for i, x := range numbers {
			if fields[2+i] = ""; isFinite(x) {
				fields[2+i] = strconv.FormatFloat(x, 'g', -1, 64)
			}
		}
		return w.Write(fields)
	})
	w.Flush()
	if err != nil {
		return err
	}
	return w.Error()
}

// columnSum sums up a column.
type columnSum struct {
	steps                 int
	last, least, greatest float64
}

// writeColumns writes a row for each column.
func writeColumns(to io.Writer, records []trace.Metrics, names []string) error {
	sums := make([]columnSum, len(names))
	err := rows(records, names, func(_ *trace.Metrics, numbers []float64) error {
		for i, x := range numbers {
			s := &sums[i]
			if !isFinite(x) {
				continue
			}
			if s.steps++; s.steps == 1 {
				s.least, s.greatest = x, x
			}
			s.last, s.least, s.greatest = x, min(s.least, x), max(s.greatest, x)
		}
		return nil
	})
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "column\tsteps\tlast\tleast\tgreatest")
	for i, name := range names {
		if s := sums[i]; s.steps > 0 {
			fmt.Fprintf(w, "%s\t%d\t%.6g\t%.6g\t%.6g\n", terminal.Text(name), s.steps, s.last, s.least, s.greatest)
		} else {
			fmt.Fprintf(w, "%s\t0\t\t\t\n", terminal.Text(name))
		}
	}
	return w.Flush()
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
