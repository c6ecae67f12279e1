package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// maxLineBytes is far more than a record needs; a longer line is not ours.
const maxLineBytes = 1 << 20

// MetricsFile appends records to a metrics.jsonl.
type MetricsFile struct{ f *os.File }

// OpenMetrics opens a metrics file to append to, and makes it where there is none. Records of steps after lastStep are
// removed, with a torn last line: a run that resumes from the checkpoint of step lastStep writes them again. A file with
// other contents is an error and stays as it is.
func OpenMetrics(name string, lastStep int64) (*MetricsFile, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	keep := int64(0)
	if err := scan(f, func(m Metrics, end int64) bool {
		if m.Step > lastStep {
			return false
		}
		keep = end
		return true
	}); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w; move it away, or choose another output_dir", name, err)
	}
	if err := f.Truncate(keep); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(keep, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return &MetricsFile{f}, nil
}

// Append writes one record as one line, in one write.
func (m *MetricsFile) Append(record Metrics) error {
	line, err := json.Marshal(record)
	if err != nil {
		return err
	}
	_, err = m.f.Write(append(line, '\n'))
	return err
}

// Sync makes the records durable; a checkpoint calls it, so that its step is in the file.
func (m *MetricsFile) Sync() error { return m.f.Sync() }

// Close closes the file.
func (m *MetricsFile) Close() error { return m.f.Close() }

// ReadMetrics reads records up to the end or to a torn last line. The error names the line.
func ReadMetrics(r io.Reader) ([]Metrics, error) {
	var all []Metrics
	err := scan(r, func(m Metrics, _ int64) bool { all = append(all, m); return true })
	return all, err
}

// scan calls take with each record and the offset behind its line, until take says no. The last line may be torn: cut
// short, or overwritten with zeros by a file system that lost its tail.
func scan(r io.Reader, take func(m Metrics, end int64) bool) error {
	in := bufio.NewReaderSize(r, maxLineBytes)
	end := int64(0)
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			if len(line) > 0 && line[0] != '{' && line[0] != 0 {
				return fmt.Errorf("line %d is not a record of metrics", number)
			}
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("line %d is longer than %d bytes", number, maxLineBytes)
		case err != nil:
			return err
		}
		m := Metrics{Step: math.MinInt64}
		if err := json.Unmarshal(bytes.TrimSpace(line), &m); err != nil || m.Step == math.MinInt64 {
			if _, more := in.Peek(1); more == io.EOF && (line[0] == '{' || line[0] == 0) {
				return nil
			}
			return fmt.Errorf("line %d is not a record of metrics", number)
		}
		end += int64(len(line))
		if !take(m, end) {
			return nil
		}
	}
}
