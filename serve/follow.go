package serve

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/trace"
)

// Sizes of what is read of a file of records.
const (
	atOnceBytes      = 4 << 20 // what a list of runs waits for; of longer files it has the ends
	chunkBytes       = 1 << 20 // read at a time; a record is not longer
	endBytes         = 64 << 10
	sampleLines      = 2000
	mostSampledBytes = 32 << 20
	checkedBytes     = 4096 // before the offset, which show that the file was not written again
)

// records is a file of records, and what is known of it so far.
type records struct {
	dir, name string // the file is dir/name, and no link leads out of dir

	file    os.FileInfo // as it was last looked at; nil: it was not there
	offset  int64       // up to which it is read: the beginning of a line
	checked []byte      // what comes before the offset
	isLong  bool        // the line at the offset is too long for a record, and is passed over
	atEnd   bool        // all is read, except for what was written since

	table   *table
	totals  report.Totals
	first   int64 // step of the first record; 0: no record has one
	newest  []byte
	last    trace.Metrics // of newest, some of its numbers
	when    time.Time     // of newest
	damaged int           // lines that are no records
	// sample has some of the records, until the file is read to its end: the first and the last one, or with isSampled
	// those at even distances.
	sample    *table
	isSampled bool

	reader trace.BriefReader
	cells  []cell // of the latest record
	buffer []byte
}

func newRecords(dir, name string, limitBytes int64) records {
	return records{dir: dir, name: name, table: newTable(limitBytes)}
}

// look finds out whether the file has changed. It reports whether there is something new.
func (r *records) look() (isNew bool, err error) {
	info, err := below.Stat(r.dir, r.name)
	if errors.Is(err, fs.ErrNotExist) {
		if isNew = r.file != nil; isNew {
			r.restart()
		}
		return isNew, nil
	}
	if err != nil {
		return false, err
	}
	isNew = r.file == nil || !isUnchanged(r.file, info)
	if r.file != nil && !os.SameFile(info, r.file) {
		r.restart()
	}
	r.file = info
	return isNew, nil
}

// restart forgets what was read.
func (r *records) restart() {
	buffer := r.buffer
	*r = newRecords(r.dir, r.name, r.table.limitBytes)
	r.buffer = buffer
}

// read continues to read, up to about mostBytes. A file that was written again, as by a run that resumes, is read
// from its beginning.
func (r *records) read(mostBytes int64) error {
	f, err := below.Open(r.dir, r.name)
	if err != nil {
		return err
	}
	defer f.Close()
	there := make([]byte, len(r.checked))
	if n, err := f.ReadAt(there, r.offset-int64(len(there))); n < len(there) || !bytes.Equal(there, r.checked) {
		if err != nil && err != io.EOF {
			return err
		}
		file := r.file
		r.restart()
		r.file = file
	}
	if r.buffer == nil {
		r.buffer = make([]byte, chunkBytes)
	}
	for done := int64(0); done < mostBytes; {
		n, err := f.ReadAt(r.buffer, r.offset)
		if err != nil && err != io.EOF {
			return err
		}
		used := r.takeLines(r.buffer[:n])
		if used == 0 && n == len(r.buffer) { // no line of ours is so long
			r.isLong, used = true, n
		}
		r.offset += int64(used)
		done += int64(used)
		if used > 0 {
			r.checked = append(r.checked[:0], r.buffer[max(0, used-checkedBytes):used]...)
		}
		if n < len(r.buffer) {
			r.atEnd, r.sample = true, nil
			break
		}
	}
	return nil
}

// takeLines takes the whole lines that a piece of the file begins with, and returns how many bytes they have.
func (r *records) takeLines(piece []byte) (used int) {
	for {
		line, _, whole := bytes.Cut(piece[used:], []byte("\n"))
		if !whole {
			return used
		}
		used += len(line) + 1
		switch {
		case r.isLong:
			r.isLong = false
			r.damaged++
		case len(bytes.TrimSpace(line)) > 0 && !r.takeLine(line):
			r.damaged++
		}
	}
}

// takeLine takes a record. It reports whether the line is one.
func (r *records) takeLine(line []byte) bool {
	m, ok := r.metricsOf(line, r.table)
	if !ok {
		return false
	}
	r.table.add(m.Step, r.cells)
	r.totals.Add(m)
	if m.Step > 0 && r.first == 0 {
		r.first = m.Step
	}
	r.setNewest(line, m)
	return true
}

func (r *records) setNewest(line []byte, m *trace.Metrics) {
	r.newest, r.last = append(r.newest[:0], line...), *m
	if m.Time != nil {
		r.when, _ = time.Parse(time.RFC3339, *m.Time)
	}
}

// metricsOf has the numbers of a record that its summary needs, until the next one is read, and leaves all of them in
// cells, for a table. ok is false for a line that is no record.
func (r *records) metricsOf(line []byte, t *table) (m *trace.Metrics, ok bool) {
	r.cells = r.cells[:0]
	r.reader.Each = func(name []byte, x float64) {
		if c := t.column(name); c != nil {
			r.cells = append(r.cells, cell{c, x})
		}
	}
	return r.reader.Read(line)
}

// readEnds takes the first and the last record of a file that is not read yet, so that a list of runs is quick.
func (r *records) readEnds() error {
	f, err := below.Open(r.dir, r.name)
	if err != nil {
		return err
	}
	defer f.Close()
	r.sample, r.isSampled = newTable(r.table.limitBytes), false
	size, piece := r.file.Size(), make([]byte, endBytes)
	n, err := f.ReadAt(piece, 0)
	if err != nil && err != io.EOF {
		return err
	}
	for line := range bytes.Lines(piece[:n]) {
		if m, ok := r.metricsOf(line, r.sample); ok {
			r.sample.add(m.Step, r.cells)
			r.setNewest(line, m)
			if m.Step > 0 {
				r.first = m.Step
				break
			}
		}
	}
	n, err = f.ReadAt(piece, max(0, size-endBytes))
	if err != nil && err != io.EOF {
		return err
	}
	for end := bytes.LastIndexByte(piece[:n], '\n'); end > 0; {
		begin := bytes.LastIndexByte(piece[:end], '\n')
		if m, ok := r.metricsOf(piece[begin+1:end], r.sample); ok && begin >= 0 {
			if m.Step > r.first {
				r.sample.add(m.Step, r.cells)
				r.setNewest(piece[begin+1:end], m)
			}
			break
		}
		end = begin
	}
	return nil
}

// takeSample reads records at even distances, for who cannot wait until all is read.
func (r *records) takeSample() error {
	if r.isSampled {
		return nil
	}
	f, err := below.Open(r.dir, r.name)
	if err != nil {
		return err
	}
	defer f.Close()
	piece := make([]byte, min(max(4*len(r.newest), 2048), chunkBytes))
	lines := min(sampleLines, mostSampledBytes/len(piece))
	t, size := newTable(r.table.limitBytes), r.file.Size()
	for i, step := 0, int64(-1); i < lines; i++ {
		n, err := f.ReadAt(piece, int64(float64(i)/float64(lines)*float64(size)))
		if err != nil && err != io.EOF {
			return err
		}
		text := piece[:n]
		if i > 0 { // the rest of a line
			_, text, _ = bytes.Cut(text, []byte("\n"))
		}
		line, _, isWhole := bytes.Cut(text, []byte("\n"))
		if m, ok := r.metricsOf(line, t); ok && isWhole && m.Step > step {
			t.add(m.Step, r.cells)
			step = m.Step
		}
	}
	if m, ok := r.metricsOf(r.newest, t); ok && len(t.steps) > 0 && m.Step > t.steps[len(t.steps)-1] {
		t.add(m.Step, r.cells)
	}
	r.sample, r.isSampled = t, true
	return nil
}
