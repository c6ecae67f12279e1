// Package trackers tells programs that people watch runs with what happens in a run: TensorBoard, by event files in the
// output directory, and an MLflow server.
//
// The run's own records have all of it, and come first. So a tracker that cannot be written to, or
// reached, costs a run nothing: a warning says so once, and the run continues without it. Nothing is sent anywhere that
// the key report_to does not name.
package trackers

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/trace/tensorboard"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// Names in the output directory.
const (
	BoardName  = "tensorboard" // a directory of event files
	ServerName = "mlflow.json" // which run on the server the run is
)

// About says what the trackers are told of a run.
type About struct {
	Files  rundir.Files // takes warnings, from the goroutine that calls the trackers
	Config *runfile.Config
	Run    string // the run's id
	Name   string // of the output directory
	First  int64  // the first step that this start of the run tells; 0: the run begins
	// Mathematics identifies the settings that change numbers: a run that continues with others tells other numbers.
	Mathematics string

	pause pause // in tests; nil: pauseFor
}

// Trackers has those of a run; nil: it reports to no tracker. One goroutine uses them.
type Trackers struct {
	about    About
	settings []runfile.FlatValue
	board    *tensorboard.Writer // nil: not asked for, or it cannot be written to
	server   *server             // nil: not asked for
	latest   int64               // step that was told
	hasEnded bool
}

// Open opens the trackers that a run asks for.
func Open(a About) *Trackers {
	if len(a.Config.ReportTo) == 0 {
		return nil
	}
	t := &Trackers{about: a, latest: max(a.First-1, 0)}
	var err error
	if t.settings, err = settingsOf(a.Config); err != nil {
		a.Files.Warn("report_to: %s; the run reports to no tracker", console.OneLine(err))
		return nil
	}
	for _, to := range a.Config.ReportTo {
		if to.TensorBoard {
			t.openBoard(a.First)
		} else {
			t.server = openServer(a, to.MLflow, t.settings)
		}
	}
	return t
}

// settingsOf lists the keys of a run file that have a value.
func settingsOf(c *runfile.Config) ([]runfile.FlatValue, error) {
	own := *c
	own.Notify = nil // addresses of web hooks are secrets
	doc, err := own.YAML()
	if err != nil {
		return nil, err
	}
	all, err := runfile.Flat(doc)
	return slices.DeleteFunc(all, func(v runfile.FlatValue) bool { return v.Text == "" }), err
}

// openBoard begins a file of events of the steps from first on.
func (t *Trackers) openBoard(first int64) {
	var all []tensorboard.Setting
	for _, s := range t.settings {
		all = append(all, tensorboard.Setting{Name: s.Key, Value: s.Text})
	}
	fsys, out, now := t.about.Files.FS, t.about.Config.OutputDir, secondsOf(time.Now())
	err, isFirst := vfs.CheckBelow(fsys, out, BoardName), false
	if err == nil {
		t.board, isFirst, err = tensorboard.Create(fsys, filepath.Join(out, BoardName), first, now)
	}
	t.boardSays(err)
	if isFirst {
		t.write(func(w *tensorboard.Writer) error { return w.Begin(now, all, t.about.Run) })
	}
}

// boardSays gives the event files up on an error.
func (t *Trackers) boardSays(err error) {
	if err == nil {
		return
	}
	t.about.Files.Warn("%s cannot be written: %s; the run continues without its event files", BoardName,
		console.OneLine(err))
	if t.board != nil {
		_ = t.board.Close() // the first error is the one to report
		t.board = nil
	}
}

// write writes to the event files, as long as that works.
func (t *Trackers) write(write func(*tensorboard.Writer) error) {
	if t.board != nil {
		t.boardSays(write(t.board))
	}
}

// Step tells the record of a step.
func (t *Trackers) Step(m *trace.Metrics) {
	if t == nil {
		return
	}
	wall := time.Now()
	if m.Time != nil {
		if ended, err := time.Parse(time.RFC3339, *m.Time); err == nil {
			wall = ended
		}
	}
	t.numbers(m, wall, func(string) bool { return true })
}

// Evaluation tells an evaluation that has no record of a step: before training, whose step is 0, or one that the run
// makes up for.
func (t *Trackers) Evaluation(step int64, e trace.Evaluation) {
	if t == nil {
		return
	}
	m := trace.BeforeTraining(e, "")
	m.Step = step
	t.numbers(&m, time.Now(), func(name string) bool {
		return strings.HasPrefix(name, trace.EvalPrefix) || strings.HasPrefix(name, trace.EvalSetPrefix)
	})
}

// numbers tells those numbers of a record whose names are wanted.
func (t *Trackers) numbers(m *trace.Metrics, wall time.Time, wants func(name string) bool) {
	var all []tensorboard.Scalar
	m.Columns(func(name string, x float64) {
		if wants(name) {
			all = append(all, tensorboard.Scalar{Tag: name, Value: x})
		}
	})
	t.latest = max(t.latest, m.Step)
	t.write(func(w *tensorboard.Writer) error { return w.Scalars(secondsOf(wall), m.Step, all) })
	t.server.tell(point{m.Step, wall.UnixMilli(), all})
}

// Text tells a text of a step, such as what the model has written, under a name.
func (t *Trackers) Text(step int64, name, text string) {
	if t != nil {
		t.write(func(w *tensorboard.Writer) error { return w.Text(secondsOf(time.Now()), step, name, text) })
	}
}

// Sync makes sure that what was told is on the drive, as far as it is in files.
func (t *Trackers) Sync() {
	if t != nil {
		t.write((*tensorboard.Writer).Sync)
	}
}

// Remake makes event files again whose directory was removed below the run: what they had is in the records alone.
func (t *Trackers) Remake() {
	if t != nil && t.board != nil {
		_ = t.board.Close() // its file has no name
		t.openBoard(t.latest + 1)
	}
}

// Ending says how a run ends.
type Ending int

// The endings.
const (
	Done    Ending = iota // well
	Stopped               // it can continue
	Failed
)

// End tells how the run ends, once, and closes the trackers. It waits for the server a little.
func (t *Trackers) End(how Ending) {
	if t == nil || t.hasEnded {
		return
	}
	t.hasEnded = true
	if how != Stopped {
		status := map[Ending]tensorboard.Status{Done: tensorboard.Succeeded, Failed: tensorboard.Failed}[how]
		t.write(func(w *tensorboard.Writer) error { return w.End(secondsOf(time.Now()), t.latest, status) })
	}
	if t.board != nil {
		t.boardSays(t.board.Close())
		t.board = nil
	}
	t.server.end(how)
}

// secondsOf is a time in seconds since 1970.
func secondsOf(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
