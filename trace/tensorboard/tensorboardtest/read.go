// Package tensorboardtest reads event files as TensorBoard does, for tests: it checks each record's checksums, knows
// the fields of the messages by their numbers, and leaves out what a later start of the run has made void.
package tensorboardtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/trace/tensorboard"
)

// Point is a number of a step.
type Point struct {
	Step     int64
	WallTime float64
	Value    float32
}

// At is a point.
func At(step int64, wallTime float64, value float32) Point { return Point{step, wallTime, value} }

// Run holds what the event files of a directory say.
type Run struct {
	Files    int
	Scalars  map[string][]Point
	Texts    map[string]map[int64]string // by tag and step
	Settings map[string]any              // hyperparameters: float64, bool or string
	Status   int64                       // of the end; 0: the run has not ended
}

// Read reads the event files of a directory.
func Read(dir string) (*Run, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*tfevents*"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	r := &Run{Files: len(names), Scalars: map[string][]Point{}, Texts: map[string]map[int64]string{},
		Settings: map[string]any{}}
	for _, name := range names {
		file, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for at := 0; len(file) > 0; at++ {
			var data []byte
			if data, file, err = record(file); err == nil {
				err = r.event(data)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: record %d: %w", name, at, err)
			}
		}
	}
	return r, nil
}

// record takes a TFRecord from a file.
func record(file []byte) (data, rest []byte, err error) {
	if len(file) < 12 {
		return nil, nil, errors.New("it is torn")
	}
	n := binary.LittleEndian.Uint64(file)
	if binary.LittleEndian.Uint32(file[8:]) != tensorboard.MaskedCRC(file[:8]) {
		return nil, nil, errors.New("the checksum of its length is wrong")
	}
	if uint64(len(file)) < 16+n {
		return nil, nil, errors.New("it is torn")
	}
	data, rest = file[12:12+n], file[16+n:]
	if binary.LittleEndian.Uint32(file[12+n:]) != tensorboard.MaskedCRC(data) {
		return nil, nil, errors.New("its checksum is wrong")
	}
	return data, rest, nil
}

// field is a field of a message: a number of 64 or 32 bits, or bytes.
type field struct {
	number int
	bits   uint64
	data   []byte
}

// fields reads those of a message.
func fields(m []byte) (all []field, err error) {
	for len(m) > 0 {
		key, n := binary.Uvarint(m)
		if n <= 0 {
			return nil, errors.New("a key is torn")
		}
		m = m[n:]
		f := field{number: int(key >> 3)}
		switch key & 7 {
		case 0:
			if f.bits, n = binary.Uvarint(m); n <= 0 {
				return nil, errors.New("a number is torn")
			}
			m = m[n:]
		case 1:
			f.bits, m = binary.LittleEndian.Uint64(m), m[8:]
		case 2:
			length, n := binary.Uvarint(m)
			if n <= 0 || uint64(len(m)-n) < length {
				return nil, errors.New("bytes are torn")
			}
			f.data, m = m[n:][:length], m[n+int(length):]
		case 5:
			f.bits, m = uint64(binary.LittleEndian.Uint32(m)), m[4:]
		default:
			return nil, fmt.Errorf("wire type %d", key&7)
		}
		all = append(all, f)
	}
	return all, nil
}

// path is the first field that numbers lead to; ok is false where there is no such field.
func path(m []byte, numbers ...int) (f field, ok bool) {
	for _, number := range numbers {
		all, err := fields(m)
		i := slices.IndexFunc(all, func(f field) bool { return f.number == number })
		if err != nil || i < 0 {
			return field{}, false
		}
		f, m = all[i], all[i].data
	}
	return f, true
}

// event takes in an Event.
func (r *Run) event(data []byte) error {
	all, err := fields(data)
	if err != nil {
		return err
	}
	wall, _ := path(data, 1)
	stepOf, _ := path(data, 2)
	step := int64(stepOf.bits)
	for _, f := range all {
		switch f.number {
		case 3:
			if string(f.data) != "brain.Event:2" {
				return fmt.Errorf("version %q", f.data)
			}
		case 5:
			values, err := fields(f.data)
			if err != nil {
				return err
			}
			for _, v := range values {
				if err := r.value(v.data, step, math.Float64frombits(wall.bits)); err != nil {
					return err
				}
			}
		case 7:
			if status, _ := path(f.data, 1); status.bits == 1 {
				r.restart(step)
			}
		}
	}
	return nil
}

// restart forgets the steps from one on.
func (r *Run) restart(step int64) {
	for tag, points := range r.Scalars {
		r.Scalars[tag] = slices.DeleteFunc(points, func(p Point) bool { return p.Step >= step })
	}
	for _, texts := range r.Texts {
		for at := range texts {
			if at >= step {
				delete(texts, at)
			}
		}
	}
}

// value takes in a value of a summary.
func (r *Run) value(v []byte, step int64, wall float64) error {
	tagOf, _ := path(v, 1)
	tag := string(tagOf.data)
	if x, ok := path(v, 2); ok {
		r.Scalars[tag] = append(r.Scalars[tag], Point{step, wall, math.Float32frombits(uint32(x.bits))})
		return nil
	}
	plugin, _ := path(v, 9, 1, 1)
	switch string(plugin.data) {
	case "text":
		text, ok := path(v, 8, 8)
		if kind, _ := path(v, 8, 1); !ok || kind.bits != 7 {
			return fmt.Errorf("%s has no text", tag)
		}
		if r.Texts[tag] == nil {
			r.Texts[tag] = map[int64]string{}
		}
		r.Texts[tag][step] = string(text.data)
	case "hparams":
		if start, ok := path(v, 9, 1, 2, 3); ok {
			return r.settings(start.data)
		}
		end, _ := path(v, 9, 1, 2, 4, 1)
		r.Status = int64(end.bits)
	default:
		return fmt.Errorf("%s is of the plugin %q", tag, plugin.data)
	}
	return nil
}

// settings takes in a SessionStartInfo.
func (r *Run) settings(start []byte) error {
	all, err := fields(start)
	if err != nil {
		return err
	}
	for _, f := range all {
		if f.number != 1 {
			continue
		}
		name, _ := path(f.data, 1)
		value, ok := path(f.data, 2)
		kinds, err := fields(value.data)
		if !ok || err != nil || len(kinds) != 1 {
			return fmt.Errorf("the setting %s has no value", name.data)
		}
		switch kind := kinds[0]; kind.number {
		case 2:
			r.Settings[string(name.data)] = math.Float64frombits(kind.bits)
		case 3:
			r.Settings[string(name.data)] = string(kind.data)
		case 4:
			r.Settings[string(name.data)] = kind.bits == 1
		default:
			return fmt.Errorf("the setting %s has a value of kind %d", name.data, kind.number)
		}
	}
	return nil
}
