package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// config has the choices of a user.
type config struct {
	budget                            time.Duration
	out, dir, gpu, only, shape, peers string
	call                              string // of calls; empty: only chooses
	model, data                       string
	tiny                              bool
	rows                              []row
}

// row is one question to the machine.
type row struct {
	name string
	// A row is left out if less than least is left of the budget, and ended after most.
	least, most time.Duration
	planned     time.Duration // in a call; 0: it has no plan
	// run answers in a few words. An error of [leftOut] is no failure.
	run func(c *check) (note string, err error)
	// opens: without an answer no GPU can be opened, and the rows after it are left out.
	opens bool
	// keeps: its runs are packed at once, since a machine may be taken away.
	keeps bool
}

// leftOut says why a row does not apply.
type leftOut string

func (l leftOut) Error() string { return string(l) }

// choose takes the rows that --only names, of those of --call if there is one.
func (o *config) choose(all []row) error {
	if o.call != "" {
		var err error
		if all, err = o.ofCall(all); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(all))
	for _, r := range all {
		names = append(names, r.name)
		for _, pattern := range strings.Fields(o.only) {
			if ok, err := path.Match(pattern, r.name); err != nil {
				return fmt.Errorf("--only: %q is no pattern", pattern)
			} else if ok {
				o.rows = append(o.rows, r)
				break
			}
		}
	}
	if len(o.rows) == 0 {
		return fmt.Errorf("--only is %q, and the rows are %s", o.only, strings.Join(names, " "))
	}
	return nil
}

// The results that a row may have.
const (
	passed = "pass"
	failed = "FAIL"
	left   = "left out"
)

// result is a row's line of the table.
type result struct {
	Row     string  `json:"row"`
	Result  string  `json:"result"`
	Seconds float64 `json:"seconds"`
	Planned float64 `json:"planned_seconds,omitempty"` // in a call
	Note    string  `json:"note"`
}

// report has the contents of results.json.
type report struct {
	Built   string                     `json:"built_from"`
	Machine string                     `json:"machine"`
	Rows    []result                   `json:"rows"`
	Output  map[string]json.RawMessage `json:"output"` // of programs that print JSON, by row
}

// check is a check in progress.
type check struct {
	*config
	ctx      context.Context // of the row that runs
	whole    context.Context
	deadline time.Time
	work     string // a folder for temporary files
	stdout   io.Writer
	logging  sync.Mutex
	log      *os.File
	logged   int64
	report   report

	hostBytes int64  // of host memory that benchmarks may take nearly all of; 0: as much as is free then
	warning   string // why the GPU is slower than it could be
	found     string // the path of a cuBLASLt on this machine
	unopened  int    // rows that are left out because no GPU could be opened
}

// mostLogBytes keeps the log a file that can be carried.
const mostLogBytes = 14 << 20

// reserve is kept of the budget for the table and the archive.
const reserve = 4 * time.Second

func newCheck(ctx context.Context, o *config, deadline time.Time, stdout io.Writer) (*check, error) {
	c := &check{config: o, ctx: ctx, whole: ctx, deadline: deadline, stdout: stdout,
		report: report{Output: map[string]json.RawMessage{}}}
	if err := os.MkdirAll(o.out, 0o777); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	var err error
	if c.out, err = filepath.Abs(o.out); err != nil {
		return nil, err
	}
	if c.dir, err = filepath.Abs(o.dir); err != nil {
		return nil, err
	}
	if c.log, err = os.Create(filepath.Join(c.out, "all.log")); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	if c.work, err = os.MkdirTemp("", "gpucheck-"); err != nil {
		return nil, err
	}
	if err := c.writeModel(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.work))
	}
	built, _ := os.ReadFile(filepath.Join(c.dir, "built-from.txt")) // missing in a folder that was not packed
	c.report.Built = strings.TrimSpace(string(built))
	return c, nil
}

// all runs the rows and returns the exit status.
func (c *check) all() int {
	defer os.RemoveAll(c.work)
	defer c.log.Close()
	c.say("%s; %.0f s for %d rows; %s\n", strings.ReplaceAll(c.report.Built, "\n", ", "), c.budget.Seconds(), len(c.rows), c.out)
	stop, err := c.watch()
	if err != nil {
		c.say("gpucheck: %v\n", err)
	} else {
		defer stop()
	}
	for i, r := range c.rows {
		var result result
		switch leftFor := time.Until(c.deadline) - reserve; {
		case c.whole.Err() != nil:
			result.Row, result.Result, result.Note = r.name, left, "interrupted"
		case leftFor < r.least:
			result.Row, result.Result, result.Note = r.name, left, fmt.Sprintf("%.0f s of the budget were left, and it needs %.0f", max(leftFor, 0).Seconds(), r.least.Seconds())
		default:
			most := r.most
			if c.tiny { // the stand-in shares the machine's cores with other tests
				most *= 4
			}
			result = c.one(r, min(most, leftFor))
		}
		result.Planned = r.planned.Seconds()
		c.report.Rows = append(c.report.Rows, result)
		c.say("%s\n", result)
		c.write()
		if r.opens && result.Result == failed {
			c.unopened = len(c.rows) - i - 1
			break
		}
		if r.keeps && result.Result != left {
			c.pack()
		}
	}
	return c.end()
}

// String writes a line of the table.
func (r result) String() string {
	took := fmt.Sprintf("%6.1f s", r.Seconds)
	if r.Planned > 0 {
		took += fmt.Sprintf(" of %3.0f", r.Planned)
	}
	return fmt.Sprintf("%-8s %-18s %s  %s", r.Result, r.Row, took, r.Note)
}

// one runs a row.
func (c *check) one(r row, limit time.Duration) (result result) {
	begin := time.Now()
	result.Row = r.name
	c.logf("\n## %s, for %.0f s at most\n", r.name, limit.Seconds())
	ctx, cancel := context.WithTimeout(c.whole, limit)
	defer cancel()
	c.ctx = ctx
	note, err := func() (note string, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("this program: %v", p)
			}
		}()
		return r.run(c)
	}()
	result.Seconds = time.Since(begin).Seconds()
	var out leftOut
	switch {
	case err == nil:
		result.Result, result.Note = passed, note
	case errors.As(err, &out):
		result.Result, result.Note = left, out.Error()
	case c.whole.Err() != nil:
		result.Result, result.Note = left, "interrupted"
	case ctx.Err() != nil:
		result.Result, result.Note = failed, fmt.Sprintf("ended after %.0f s", limit.Seconds())
	default:
		result.Result, result.Note = failed, oneLine(err.Error())
	}
	if note != "" && result.Result == failed {
		result.Note += "; " + note
	}
	c.logf("## %s: %s after %.1f s: %s\n", r.name, result.Result, result.Seconds, result.Note)
	return result
}

// oneLine returns the last line of a text that says something, and not too much of it.
func oneLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}

// say prints, to the log as well.
func (c *check) say(format string, args ...any) {
	fmt.Fprintf(c.stdout, format, args...)
	c.logf(format, args...)
}

func (c *check) logf(format string, args ...any) { fmt.Fprintf(logWriter{c}, format, args...) }

// logWriter writes to the log until that is too long.
type logWriter struct{ *check }

func (w logWriter) Write(b []byte) (int, error) {
	w.logging.Lock()
	defer w.logging.Unlock()
	if w.logged < mostLogBytes {
		n, _ := w.log.Write(b) // a full disk must not end the check
		w.logged += int64(n)
	}
	return len(b), nil
}

// write keeps what there is so far.
func (c *check) write() {
	text, err := json.MarshalIndent(c.report, "", " ")
	if err == nil {
		err = os.WriteFile(filepath.Join(c.out, "results.json"), append(text, '\n'), 0o664)
	}
	var table strings.Builder
	for _, r := range c.report.Rows {
		fmt.Fprintln(&table, r)
	}
	if err := errors.Join(err, os.WriteFile(filepath.Join(c.out, "table.txt"), []byte(table.String()), 0o664)); err != nil {
		c.say("gpucheck: %v\n", err)
	}
}

// end prints the table and what it means.
func (c *check) end() int {
	c.pack()
	counts := map[string]int{}
	c.say("\n")
	if c.report.Machine != "" {
		c.say("%s\n\n", c.report.Machine)
	}
	for _, r := range c.report.Rows {
		counts[r.Result]++
		c.say("%s\n", r)
	}
	c.say("\n%d passed, %d failed, %d left out; %s\n", counts[passed], counts[failed],
		counts[left]+c.unopened, c.products())
	switch {
	case c.whole.Err() != nil:
		return exitInterrupted
	case counts[failed] > 0:
		return exitFailed
	}
	return exitDone
}

// products names the device that multiplied, since nothing costs more speed in silence.
func (c *check) products() string {
	switch {
	case c.warning != "":
		return "SLOWER THAN IT COULD BE: " + c.warning
	case c.unopened > 0:
		return "no GPU could be opened"
	case c.report.Machine == "":
		return "the row open did not say what computes"
	}
	return "computed on " + c.report.Machine
}

// pack keeps what runs left so far that is small: their metrics, plans and traces.
func (c *check) pack() {
	to := filepath.Join(c.out, "runs.tar.gz")
	err := c.packRuns(to + ".tmp")
	if err == nil {
		err = os.Rename(to+".tmp", to) // a check that ends now keeps the earlier one
	}
	if err != nil {
		c.say("gpucheck: %v\n", err)
	}
}

func (c *check) packRuns(to string) (err error) {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(file)
	t := tar.NewWriter(z)
	defer func() { err = errors.Join(err, t.Close(), z.Close(), file.Close()) }()
	const mostBytes = 8 << 20
	return filepath.WalkDir(c.work, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch filepath.Ext(name) {
		case ".jsonl", ".json", ".yaml", ".txt":
		default:
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil || len(text) > mostBytes {
			return err
		}
		relative, err := filepath.Rel(c.work, name)
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Name: relative, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err = t.Write(text)
		return err
	})
}
