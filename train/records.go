package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// records writes metrics.jsonl: it hears of steps and evaluations.
type records struct {
	env      *Env
	name     string // path of the file
	file     *trace.MetricsFile
	writesTo vfs.File // of file
	isBehind bool     // the run was told that records cannot be written
}

// open opens the run's file of metrics, which keeps the records up to step begun. A file with a line that is no record,
// as a drive that fails may leave it, goes to another name, and a new one begins: it is not for its log that a run ends.
func (r *records) open(begun int) error {
	bad := (*trace.RecordError)(nil)
	err := r.read(begun)
	if errors.As(err, &bad) {
		aside := r.name + ".damaged"
		for n := 2; exists(aside); n++ {
			aside = fmt.Sprintf("%s.damaged-%d", r.name, n)
		}
		if err = r.env.files().Rename(r.name, aside); err == nil {
			r.env.warn("%s: %v; the file is %s now, and a new one begins", r.name, bad, filepath.Base(aside))
			err = r.read(begun)
		}
	}
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

func (r *records) read(begun int) error {
	f, err := r.env.files().OpenFile(r.name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	last := int64(begun)
	if last == 0 {
		last = -1 // a run that begins evaluates before it trains, and so writes the record of step 0 again
	}
	if r.file, err = trace.NewMetricsFile(f, last); err != nil {
		f.Close()
	}
	r.writesTo = f
	return err
}

// hear writes the record of an event that has one. Records that were not opened are those of a host that does not lead.
func (r *records) hear(event Event) {
	if r.file == nil {
		return
	}
	switch e := event.(type) {
	case StepDone:
		r.check(r.file.Append(e.Metrics))
	case Evaluated:
		switch {
		case e.Step == 0:
			r.check(r.file.Append(trace.BeforeTraining(e.Loss, time.Now().UTC().Format(time.RFC3339))))
		case e.Late:
			r.check(r.file.Amend(int64(e.Step), func(m *trace.Metrics) { m.EvalLoss = &e.Loss }))
		}
	}
}

// sync makes sure that the records so far are on the drive, as far as they can be.
func (r *records) sync() {
	if r.file != nil {
		r.check(r.file.Sync())
	}
}

// check says, once, that records cannot be written. They wait, and the run continues.
func (r *records) check(err error) {
	if err != nil && !r.isBehind {
		r.env.warn("%s cannot be written: %s; its records wait until it can be", metricsName, console.OneLine(err))
	}
	r.isBehind = err != nil
}

// end is the error of records that could not be written to the end.
func (r *records) end() (waiting int, err error) {
	if r.file == nil {
		return 0, nil
	}
	if waiting = r.file.Waiting(); waiting > 0 {
		err = r.file.Sync()
	}
	return waiting, err
}

// remake gives the file its name again. The file at the name may be the one that the records are in.
func (r *records) remake() error {
	fsys := r.env.files()
	held, err := r.writesTo.Stat()
	if err != nil {
		return err
	}
	if there, err := fsys.Stat(r.name); err == nil && os.SameFile(held, there) {
		return nil
	}
	temp := r.name + ".tmp"
	if err := fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if err := r.file.MoveTo(f); err != nil {
		_ = f.Close() // the first error is the one to report
		return err
	}
	r.writesTo = f
	return fsys.Rename(temp, r.name)
}

func (r *records) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
