package train

import (
	"cmp"
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

// records are the files that a run writes a line to when something happens: metrics.jsonl hears of steps and
// evaluations, samples.jsonl of samples.
type records struct {
	metrics recordFile[trace.Metrics]
	samples recordFile[Sample]
}

func newRecords(env *Env, h *home) records {
	return records{recordFile[trace.Metrics]{env: env, name: h.file(metricsName), open: trace.NewMetricsFile},
		recordFile[Sample]{env: env, name: h.file(samplesName), open: newSamplesFile}}
}

// hear writes the record of an event that has one.
func (r *records) hear(event Event) {
	switch e := event.(type) {
	case StepDone:
		r.metrics.append(e.Metrics)
	case Evaluated:
		switch {
		case e.Step == 0:
			r.metrics.append(trace.BeforeTraining(e.Loss, time.Now().UTC().Format(time.RFC3339)))
		case e.Late:
			r.metrics.amend(int64(e.Step), func(m *trace.Metrics) { m.EvalLoss = &e.Loss })
		}
	case Sampled:
		r.samples.append(e.Sample)
	}
}

// sync makes sure that the records so far are on the drive, as far as they can be.
func (r *records) sync() {
	r.metrics.sync()
	r.samples.sync()
}

// end is the error of records of steps that could not be written to the end. Without samples a run is as good.
func (r *records) end() (waiting int, err error) {
	if n, err := r.samples.end(); err != nil {
		r.samples.env.warn("the last %d records of %s are not written: %s", n, samplesName, console.OneLine(err))
	}
	return r.metrics.end()
}

// remake gives the files their names again.
func (r *records) remake() error { return cmp.Or(r.metrics.remake(), r.samples.remake()) }

func (r *records) close() { r.metrics.close(); r.samples.close() }

// recordFile is a file of records of one kind. One that was not begun writes nothing: it is of a host that does not
// lead, or of a run that has no such records.
type recordFile[T any] struct {
	env      *Env
	name     string // path of the file
	open     func(f trace.File, lastStep int64) (*trace.RecordFile[T], error)
	file     *trace.RecordFile[T]
	writesTo vfs.File // of file
	isBehind bool     // the run was told that records cannot be written
}

// begin opens the run's file, which keeps the records up to step last; -1: none. A file with a line that is no record,
// as a drive that fails may leave it, goes to another name, and a new one begins: it is not for its log that a run
// ends.
func (r *recordFile[T]) begin(last int) error {
	bad := (*trace.RecordError)(nil)
	err := r.read(last)
	if errors.As(err, &bad) {
		aside := r.name + ".damaged"
		for n := 2; exists(aside); n++ {
			aside = fmt.Sprintf("%s.damaged-%d", r.name, n)
		}
		if err = r.env.files().Rename(r.name, aside); err == nil {
			r.env.warn("%s: %v; the file is %s now, and a new one begins", r.name, bad, filepath.Base(aside))
			err = r.read(last)
		}
	}
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

func (r *recordFile[T]) read(last int) error {
	f, err := r.env.files().OpenFile(r.name, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return err
	}
	if r.file, err = r.open(f, int64(last)); err != nil {
		f.Close()
	}
	r.writesTo = f
	return err
}

// had counts the records of a step in the file as it was begun; 0 if there were later ones.
func (r *recordFile[T]) had(step int) int {
	if r.file == nil {
		return 0
	}
	return r.file.Had(int64(step))
}

func (r *recordFile[T]) append(record T) {
	if r.file != nil {
		r.check(r.file.Append(record))
	}
}

func (r *recordFile[T]) amend(step int64, change func(*T)) {
	if r.file != nil {
		r.check(r.file.Amend(step, change))
	}
}

func (r *recordFile[T]) sync() {
	if r.file != nil {
		r.check(r.file.Sync())
	}
}

// check says, once, that records cannot be written. They wait, and the run continues.
func (r *recordFile[T]) check(err error) {
	if err != nil && !r.isBehind {
		r.env.warn("%s cannot be written: %s; its records wait until it can be", filepath.Base(r.name),
			console.OneLine(err))
	}
	r.isBehind = err != nil
}

// end is the error of records that could not be written to the end.
func (r *recordFile[T]) end() (waiting int, err error) {
	if r.file == nil {
		return 0, nil
	}
	if waiting = r.file.Waiting(); waiting > 0 {
		err = r.file.Sync()
	}
	return waiting, err
}

// remake gives the file its name again. The file at the name may be the one that the records are in.
func (r *recordFile[T]) remake() error {
	if r.file == nil {
		return nil
	}
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
	f, err := fsys.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o664)
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

func (r *recordFile[T]) close() {
	if r.file != nil {
		_ = r.file.Close() // what it has is on the drive, or the run was told
	}
}
