package tensorboard

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millrace/millrace/vfs"
)

// Names of files: TensorBoard reads those with tfevents in their names, in the order of their names.
const (
	namePrefix = "events.out.tfevents."
	nameSuffix = ".millrace"
)

// Writer appends events to a file. One goroutine may use it.
type Writer struct {
	f       vfs.File
	end     int64 // where the written events end
	pending []byte
}

// Create begins a file of events after those that the directory has, and makes the directory if it is missing. The
// events of steps from first on in earlier files are void; a run that begins, whose first step is 0, removes those
// files. isFirst reports whether there are no earlier files.
func Create(fsys vfs.FS, dir string, first int64, wallTime float64) (w *Writer, isFirst bool, err error) {
	if err := fsys.MkdirAll(dir, 0o777); err != nil {
		return nil, false, err
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, false, err
	}
	latest := 0
	for _, e := range entries {
		n, ok := numberOf(e.Name())
		if ok && first == 0 {
			err = errors.Join(err, fsys.Remove(filepath.Join(dir, e.Name())))
		} else if ok {
			latest = max(latest, n)
		}
	}
	if err != nil {
		return nil, false, err
	}
	name := filepath.Join(dir, fmt.Sprintf("%s%010d%s", namePrefix, latest+1, nameSuffix))
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o664)
	if errors.Is(err, fs.ErrExist) {
		return nil, false, fmt.Errorf("%w: another program writes there", err)
	}
	if err != nil {
		return nil, false, err
	}
	w = &Writer{f: f}
	const sessionStarts = 1 // SessionLog.START
	w.add(message(nil).double(1, wallTime).text(3, fileVersion))
	w.add(event(wallTime, first).bytes(7, message(nil).varint(1, sessionStarts)))
	if err := w.write(); err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return w, latest == 0, nil
}

// numberOf is the number in the name of a file that this package has written.
func numberOf(name string) (n int, ok bool) {
	text, has := strings.CutPrefix(name, namePrefix)
	text, ends := strings.CutSuffix(text, nameSuffix)
	n, err := strconv.Atoi(text)
	return n, has && ends && err == nil && n > 0 && n < math.MaxInt32
}

func (w *Writer) add(m message) { w.pending = appendRecord(w.pending, m) }

// write writes what is pending. On an error the file ends where it did before, as far as it can be cut, and what was
// pending is dropped.
func (w *Writer) write() error {
	defer func() { w.pending = w.pending[:0] }()
	if _, err := w.f.WriteAt(w.pending, w.end); err != nil {
		return errors.Join(err, w.f.Truncate(w.end))
	}
	w.end += int64(len(w.pending))
	return nil
}

// Scalars writes the numbers of a step in one event. TensorBoard draws no number that is not finite: those are left
// out.
func (w *Writer) Scalars(wallTime float64, step int64, all []Scalar) error {
	var values []message
	for _, s := range all {
		if !math.IsNaN(s.Value) && !math.IsInf(s.Value, 0) {
			values = append(values, scalarValue(s))
		}
	}
	w.add(event(wallTime, step).withSummary(values...))
	return w.write()
}

// Text writes a text of a step, which is read as Markdown.
func (w *Writer) Text(wallTime float64, step int64, tag, text string) error {
	w.add(event(wallTime, step).withSummary(textValue(tag, text)))
	return w.write()
}

// Begin writes the hyperparameters of a run. Runs of one group are shown as one.
func (w *Writer) Begin(wallTime float64, settings []Setting, group string) error {
	const startField = 3
	w.add(event(wallTime, 0).withSummary(hparamsValue(startTag, startField, sessionStart(settings, group, wallTime))))
	return w.write()
}

// End writes how the run ended.
func (w *Writer) End(wallTime float64, step int64, status Status) error {
	const endField = 4
	w.add(event(wallTime, step).withSummary(hparamsValue(endTag, endField, sessionEnd(status, wallTime))))
	return w.write()
}

// Sync makes what was written durable.
func (w *Writer) Sync() error { return w.f.Sync() }

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }
