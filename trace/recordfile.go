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

// File is an open file of records.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(bytes int64) error
	Sync() error
}

// Records says how the records of a kind are read. Each is a JSON object in a line, and belongs to a step.
type Records[T any] struct {
	What      string // their name in errors, such as "metrics"
	LineBytes int    // far more than a record needs; a longer line is not ours
	// Parse reads a line. ok is false if it is no record, such as one without a step.
	Parse func(line []byte) (record T, step int64, ok bool)
}

// metricsRecords reads the records of metrics.jsonl.
var metricsRecords = Records[Metrics]{"metrics", 1 << 20, func(line []byte) (m Metrics, step int64, ok bool) {
	m.Step = math.MinInt64
	err := json.Unmarshal(line, &m)
	return m, m.Step, err == nil && m.Step != math.MinInt64
}}

// RecordFile appends records to a file of a run. A record that could not be written is kept, and is written before
// the next one: a disk that is full for a while costs no record.
type RecordFile[T any] struct {
	f       File
	end     int64  // where the written records end
	waiting []byte // lines that are not written yet
	lines   int    // in waiting

	last     *T    // the last record that the file had when it was opened
	lastStep int64 // its step
	ofStep   int   // records of that step
	lastAt   int64 // where its line begins
}

// NewMetricsFile is [NewRecordFile] of a metrics.jsonl.
func NewMetricsFile(f File, lastStep int64) (*RecordFile[Metrics], error) {
	return NewRecordFile(f, metricsRecords, lastStep)
}

// NewRecordFile appends to an open file. Records of steps after lastStep are removed, with a torn last line: a run
// that resumes from the checkpoint of step lastStep writes them again. A file with other contents is an error, and
// stays as it is and open.
func NewRecordFile[T any](f File, kind Records[T], lastStep int64) (*RecordFile[T], error) {
	m := &RecordFile[T]{f: f}
	err := scan(io.NewSectionReader(f, 0, math.MaxInt64), kind, func(r T, step, end int64) bool {
		if step > lastStep {
			return false
		}
		if m.last == nil || step != m.lastStep {
			m.ofStep = 0
		}
		m.ofStep++
		m.last, m.lastStep, m.lastAt, m.end = &r, step, m.end, end
		return true
	})
	if err != nil {
		return nil, err
	}
	return m, f.Truncate(m.end)
}

// Had counts the records of the file's latest step when it was opened; of another step it returns 0.
func (m *RecordFile[T]) Had(step int64) int {
	if m.last == nil || m.lastStep != step {
		return 0
	}
	return m.ofStep
}

// Append writes a record as one line, after those that wait. On an error it waits as well; so does one that was
// written in part.
func (m *RecordFile[T]) Append(record T) error {
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
func (m *RecordFile[T]) Amend(step int64, change func(*T)) error {
	if m.Had(step) == 0 {
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
func (m *RecordFile[T]) Flush() error {
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
func (m *RecordFile[T]) MoveTo(f File) error {
	if _, err := io.Copy(io.NewOffsetWriter(f, 0), io.NewSectionReader(m.f, 0, m.end)); err != nil {
		return err
	}
	old := m.f
	m.f = f
	return old.Close()
}

// Waiting is the number of records that could not be written so far.
func (m *RecordFile[T]) Waiting() int { return m.lines }

// Sync writes what waits and makes all records durable.
func (m *RecordFile[T]) Sync() error {
	if err := m.Flush(); err != nil {
		return err
	}
	return m.f.Sync()
}

// Close closes the file.
func (m *RecordFile[T]) Close() error { return m.f.Close() }

// ReadMetrics reads records up to the end or to a torn last line; the first one may be that of [BeforeTraining]. The
// error names the line.
func ReadMetrics(r io.Reader) ([]Metrics, error) {
	var all []Metrics
	err := scan(r, metricsRecords, func(m Metrics, _, _ int64) bool { all = append(all, m); return true })
	return all, err
}

// RecordError is a line that is no record, where there should be one.
type RecordError struct {
	Line int
	why  string
}

func (e *RecordError) Error() string { return fmt.Sprintf("line %d %s", e.Line, e.why) }

// scan calls take with each record, its step and the offset after its line, until take returns false. The last line may
// be torn: cut short, or overwritten with zeros by a file system that lost its tail.
func scan[T any](r io.Reader, kind Records[T], take func(record T, step, end int64) bool) error {
	in := bufio.NewReaderSize(r, kind.LineBytes)
	end := int64(0)
	isNot := "is not a record of " + kind.What
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			if len(line) > 0 && line[0] != '{' && line[0] != 0 {
				return &RecordError{number, isNot}
			}
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			return &RecordError{number, fmt.Sprintf("is longer than %d bytes", kind.LineBytes)}
		case err != nil:
			return err
		}
		record, step, ok := kind.Parse(bytes.TrimSpace(line))
		if !ok {
			if _, more := in.Peek(1); more == io.EOF && (line[0] == '{' || line[0] == 0) {
				return nil
			}
			return &RecordError{number, isNot}
		}
		end += int64(len(line))
		if !take(record, step, end) {
			return nil
		}
	}
}
