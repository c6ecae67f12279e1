package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// maxLineBytes is far more than a record needs; a longer line is not ours.
const maxLineBytes = 1 << 20

// File is an open file of metrics.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(bytes int64) error
	Sync() error
}

// MetricsFile appends records to a metrics.jsonl. A record that could not be written is kept, and is written before
// the next one: a disk that is full for a while costs no record.
type MetricsFile struct {
	f       File
	end     int64  // where the written records end
	waiting []byte // lines that are not written yet
	lines   int    // in waiting

	last   *Metrics // the last record that the file had when it was opened
	lastAt int64    // where its line begins
}

// NewMetricsFile appends to an open file. Records of steps after lastStep are removed, with a torn last line: a run
// that resumes from the checkpoint of step lastStep writes them again. A file with other contents is an error, and
// stays as it is and open.
func NewMetricsFile(f File, lastStep int64) (*MetricsFile, error) {
	m := &MetricsFile{f: f}
	err := scan(io.NewSectionReader(f, 0, math.MaxInt64), func(r Metrics, end int64) bool {
		if r.Step > lastStep {
			return false
		}
		m.last, m.lastAt, m.end = &r, m.end, end
		return true
	})
	if err != nil {
		return nil, err
	}
	return m, f.Truncate(m.end)
}

// Append writes a record as one line, after those that wait. On an error it waits as well; so does one that was
// written in part.
func (m *MetricsFile) Append(record Metrics) error {
	line, err := json.Marshal(record)
	if err != nil {
		return err
	}
	m.waiting = append(append(m.waiting, line...), '\n')
	m.lines++
	return m.Flush()
}

// Amend changes the last record that the file had when it was opened, if it is of that step. Nothing has been
// appended since.
func (m *MetricsFile) Amend(step int64, change func(*Metrics)) error {
	if m.last == nil || m.last.Step != step {
		return nil
	}
	change(m.last)
	m.end = m.lastAt
	if err := m.Append(*m.last); err != nil {
		return err
	}
	return m.f.Truncate(m.end) // the line may have become shorter
}

// Flush writes the records that wait.
func (m *MetricsFile) Flush() error {
	if m.lines == 0 {
		return nil
	}
	if _, err := m.f.WriteAt(m.waiting, m.end); err != nil {
		return errors.Join(err, m.f.Truncate(m.end)) // a reader never sees half a record for longer than this
	}
	m.end += int64(len(m.waiting))
	m.waiting, m.lines = m.waiting[:0], 0
	return nil
}

// MoveTo continues in another file, which is empty, with all records so far, and closes the one before. On an error it
// stays with that one.
func (m *MetricsFile) MoveTo(f File) error {
	if _, err := io.Copy(io.NewOffsetWriter(f, 0), io.NewSectionReader(m.f, 0, m.end)); err != nil {
		return err
	}
	old := m.f
	m.f = f
	return old.Close()
}

// Waiting is the number of records that could not be written so far.
func (m *MetricsFile) Waiting() int { return m.lines }

// Sync writes what waits and makes all records durable.
func (m *MetricsFile) Sync() error {
	if err := m.Flush(); err != nil {
		return err
	}
	return m.f.Sync()
}

// Close closes the file.
func (m *MetricsFile) Close() error { return m.f.Close() }

// ReadMetrics reads records up to the end or to a torn last line; the first one may be that of [BeforeTraining]. The
// error names the line.
func ReadMetrics(r io.Reader) ([]Metrics, error) {
	var all []Metrics
	err := scan(r, func(m Metrics, _ int64) bool { all = append(all, m); return true })
	return all, err
}

// RecordError is a line that is no record, where there should be one.
type RecordError struct {
	Line int
	why  string
}

func (e *RecordError) Error() string { return fmt.Sprintf("line %d %s", e.Line, e.why) }

// scan calls take with each record and the offset after its line, until take returns false. The last line may be torn:
// cut short, or overwritten with zeros by a file system that lost its tail.
func scan(r io.Reader, take func(m Metrics, end int64) bool) error {
	in := bufio.NewReaderSize(r, maxLineBytes)
	end := int64(0)
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			if len(line) > 0 && line[0] != '{' && line[0] != 0 {
				return &RecordError{number, "is not a record of metrics"}
			}
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			return &RecordError{number, fmt.Sprintf("is longer than %d bytes", maxLineBytes)}
		case err != nil:
			return err
		}
		m := Metrics{Step: math.MinInt64}
		if err := json.Unmarshal(bytes.TrimSpace(line), &m); err != nil || m.Step == math.MinInt64 {
			if _, more := in.Peek(1); more == io.EOF && (line[0] == '{' || line[0] == 0) {
				return nil
			}
			return &RecordError{number, "is not a record of metrics"}
		}
		end += int64(len(line))
		if !take(m, end) {
			return nil
		}
	}
}
