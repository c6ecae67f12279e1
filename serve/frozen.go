package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/report/page"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// Points of the columns of a frozen page: fewer of each where it has more columns.
const (
	frozenPoints      = 1000
	leastFrozenPoints = 100
	frozenNumbers     = 150_000
)

// Frozen has runs for a page that stands alone.
type Frozen struct{ server *Server }

// Freeze reads runs: output directories, or files of records. The errors are those of report.Read. With started alone,
// runs that have not done a step are left out, and lines that are no records.
func Freeze(names []string, version string, started bool) (*Frozen, error) {
	s := &Server{options: Options{Version: version, LimitBytes: DefaultLimitBytes}}
	for _, name := range names {
		f := found{name, ".", rundir.MetricsName}
		if st, err := os.Stat(name); err == nil && !st.IsDir() {
			f = found{filepath.Dir(name), ".", filepath.Base(name)}
		}
		s.ids++
		r := s.newRun(f)
		r.name = terminal.Text(name)
		none := (*report.NoStepError)(nil)
		switch err := r.readAll(); {
		case err == nil && r.records.damaged > 0 && !started:
			return nil, fmt.Errorf("%s: %s cannot be read as records of metrics; correct or remove them, or name another run",
				filepath.Join(r.base, r.records.name), spelling.Count(r.records.damaged, "line"))
		case errors.As(err, &none) && started:
		case err != nil:
			return nil, err
		default:
			s.runs = append(s.runs, r)
		}
	}
	return &Frozen{s}, nil
}

// readAll reads the records to their end.
func (r *run) readAll() error {
	_, err := r.records.look()
	path := filepath.Join(r.base, r.records.name)
	if !vfs.Exists(r.base) {
		path = r.base
	}
	switch {
	case err == nil && r.records.file == nil:
		return report.NoStep(path + " does not exist; name the output_dir of a run that has done a step")
	case err == nil:
		err = r.records.read(1 << 62)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; name the output_dir of a run", err)
	}
	if r.records.damaged > 0 && r.records.totals.Steps() == 0 {
		return fmt.Errorf("%s has no records of metrics; name the output_dir of a run", path)
	}
	if r.records.totals.Steps() == 0 {
		return report.NoStep(path + " has no record of a step, since the run has not done one; name another run, or wait " +
			"for the step")
	}
	r.hasEnded()
	r.state = r.stateAt(time.Now())
	return nil
}

// Notes say which lines of files are left out.
func (f *Frozen) Notes() (all []string) {
	for _, r := range f.server.runs {
		if r.records.damaged > 0 {
			all = append(all, r.leftOut())
		}
	}
	return all
}

// Summaries are the numbers of the runs.
func (f *Frozen) Summaries() (all []report.Summary) {
	for _, r := range f.server.runs {
		all = append(all, *r.document().Summary)
	}
	return all
}

// WritePage writes the page. With refreshSec above 0 a browser loads it again after as many seconds.
func (f *Frozen) WritePage(w io.Writer, refreshSec int) error {
	answers := map[string]json.RawMessage{}
	var err error
	add := func(path string, doc any, errDoc error) {
		text, errText := json.Marshal(doc)
		answers[path], err = text, errors.Join(err, errDoc, errText)
	}
	list := f.server.runsDocument()
	add("api/runs", list, nil)
	columns := 1
	for _, r := range list.Runs {
		columns += len(r.Columns)
	}
	points := min(max(frozenNumbers/columns, leastFrozenPoints), frozenPoints)
	for _, r := range f.server.runs {
		at := "api/runs/" + r.id + "/"
		numbers, errRead := r.columns(asked{to: 1 << 62, points: points})
		add(at+"columns", json.RawMessage(numbers), errRead)
		add(at+"settings", r.settingsDocument(), nil)
		samples, errRead := r.samplesDocument(-1)
		add(at+"samples", samples, errRead)
		add(at+"plan", r.planDocument(), nil)
		add(at+"timeline", r.timelineDocument(), nil)
		add(at+"rows", map[string]any{"rows": nil}, nil) // their tokens are too much for one file
	}
	if err != nil {
		return err
	}
	return page.WriteFrozen(w, answers, refreshSec)
}
