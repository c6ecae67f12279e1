package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// RecordFile is a file of records of one kind. One that was not begun writes nothing: it is of a host that does not
// lead, or of a run that has no such records.
type RecordFile[T any] struct {
	files    Files
	name     string // path of the file
	open     func(f trace.File, lastStep int64) (*trace.RecordFile[T], error)
	file     *trace.RecordFile[T]
	writesTo vfs.File // of file
	isBehind bool     // the run was told that records cannot be written
}

// NewRecordFile is the file at a path; open reads a file that is there, as trace.NewRecordFile does.
func NewRecordFile[T any](f Files, path string, open func(trace.File, int64) (*trace.RecordFile[T],
	error)) RecordFile[T] {
	return RecordFile[T]{files: f, name: path, open: open}
}

// Begin opens the run's file, which keeps the records up to step last; -1: none. A file with a line that is no record,
// as a drive that fails may leave it, goes to another name, and a new one begins: it is not for its log that a run
// ends.
func (r *RecordFile[T]) Begin(last int) error {
	bad := (*trace.RecordError)(nil)
	err := r.read(last)
	if errors.As(err, &bad) {
		aside := r.name + ".damaged"
		for n := 2; vfs.Exists(aside); n++ {
			aside = fmt.Sprintf("%s.damaged-%d", r.name, n)
		}
		if err = r.files.FS.Rename(r.name, aside); err == nil {
			r.files.Warn("%s: %v; the file is %s now, and a new one begins", r.name, bad, filepath.Base(aside))
			err = r.read(last)
		}
	}
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

func (r *RecordFile[T]) read(last int) error {
	f, err := r.files.FS.OpenFile(r.name, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return err
	}
	if r.file, err = r.open(f, int64(last)); err != nil {
		f.Close()
	}
	r.writesTo = f
	return err
}

// Had counts the records of a step in the file as it was begun; 0 if there were later ones.
func (r *RecordFile[T]) Had(step int) int {
	if r.file == nil {
		return 0
	}
	return r.file.Had(int64(step))
}

// Append writes a record.
func (r *RecordFile[T]) Append(record T) {
	if r.file != nil {
		r.check(r.file.Append(record))
	}
}

// Amend changes the record of a step.
func (r *RecordFile[T]) Amend(step int64, change func(*T)) {
	if r.file != nil {
		r.check(r.file.Amend(step, change))
	}
}

// Sync makes sure that the records so far are on the drive, as far as they can be.
func (r *RecordFile[T]) Sync() {
	if r.file != nil {
		r.check(r.file.Sync())
	}
}

// check says, once, that records cannot be written. They wait, and the run continues.
func (r *RecordFile[T]) check(err error) {
	if err != nil && !r.isBehind {
		r.files.Warn("%s cannot be written: %s; its records wait until it can be", filepath.Base(r.name),
			console.OneLine(err))
	}
	r.isBehind = err != nil
}

// End is the error of records that could not be written to the end.
func (r *RecordFile[T]) End() (waiting int, err error) {
	if r.file == nil {
		return 0, nil
	}
	if waiting = r.file.Waiting(); waiting > 0 {
		err = r.file.Sync()
	}
	return waiting, err
}

// Remake gives the file its name again. The file at the name may be the one that the records are in.
func (r *RecordFile[T]) Remake() error {
	if r.file == nil {
		return nil
	}
	fsys := r.files.FS
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

// Close closes the file.
func (r *RecordFile[T]) Close() {
	if r.file != nil {
		_ = r.file.Close() // what it has is on the drive, or the run was told
	}
}
