package report

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// metricsName is the file of records in an output directory.
const metricsName = "metrics.jsonl"

// Run is the records of one run, in the order of steps.
type Run struct {
	Name    string         // as the user named it, safe to show
	Before  *trace.Metrics // the evaluation before training; nil: there is no such record
	Records []trace.Metrics
	Rating  *trace.Rating // of the run's drive, as its plan has it; nil: not known
}

// Read reads the records of an output directory, or a file of records. The error says what to name instead.
func Read(name string) (Run, error) { return read(name, trace.ReadMetrics) }

// ReadBrief is [Read] with what [Summarize] and [Sparks] need of each record: see [trace.BriefReader].
func ReadBrief(name string) (Run, error) { return read(name, trace.ReadBrief) }

func read(name string, recordsOf func(io.Reader) ([]trace.Metrics, error)) (Run, error) {
	path := name
	open := func() (io.ReadCloser, error) { return vfs.OpenRegular(path) }
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		path = filepath.Join(name, metricsName)
		open = func() (io.ReadCloser, error) { return vfs.OpenBelow(vfs.OS{}, name, metricsName) }
	}
	f, err := open()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Run{}, &NoStepError{path + " does not exist; name the output_dir of a run that has done a step"}
	case err != nil:
		return Run{}, fmt.Errorf("%w; name the output_dir of a run", err)
	}
	defer f.Close()
	records, err := recordsOf(f)
	if err != nil {
		return Run{}, fmt.Errorf("%s: %w; name the output_dir of a run", path, err)
	}
	r := Run{Name: terminal.Text(name), Records: records, Rating: ratingIn(filepath.Dir(path))}
	if len(records) > 0 && records[0].Step == 0 && records[0].EvalLoss != nil {
		r.Before, r.Records = &records[0], records[1:]
	}
	if len(r.Records) == 0 {
		return Run{}, &NoStepError{path + " has no record of a step, since the run has not done one; name another run, or " +
			"wait for the step"}
	}
	return r, nil
}

// planName is the file with the plan of a run in its output directory, of which maxPlanBytes are more than any has.
const (
	planName     = "plan.json"
	maxPlanBytes = 16 << 20
)

// ratingIn is the rating that a run's plan has; nil where there is no such plan.
func ratingIn(dir string) *trace.Rating {
	doc, err := vfs.ReadBelow(vfs.OS{}, dir, planName, maxPlanBytes)
	if err != nil {
		return nil
	}
	var planned struct {
		Wear *trace.Rating `json:"wear"`
	}
	if budget.Unmarshal(doc, &planned) != nil || planned.Wear == nil || planned.Wear.Bytes <= 0 {
		return nil
	}
	return planned.Wear
}

// Summarize computes the numbers of a run that has records.
func Summarize(r Run) Summary {
	var t Totals
	if r.Before != nil {
		t.Add(r.Before)
	}
	for i := range r.Records {
		t.Add(&r.Records[i])
	}
	return t.Summary(r.Name, r.Rating)
}

func lossOf(m trace.Metrics) float64 { return m.Loss }
