package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

const defaultAlignment = 32 // what a file has that does not state general.alignment

// metaEntry is a metadata entry to write: a uint32, float32, bool, string, []string, []bool, []int32 or []float32 under
// a key.
type metaEntry struct {
	key   string
	value any
}

// tensorSpec declares a tensor that will be written. Dims are outermost first.
type tensorSpec struct {
	name string
	dims tensor.Shape
	typ  ggmlType
}

func (s tensorSpec) bytes() int64 {
	q, _ := s.typ.quant()
	return s.dims.Elems() / q.elems * q.bytes
}

// fileWriter writes one GGUF file, version 3. All metadata and tensors are declared first; then the tensors' bytes are
// written, in pieces of any length, of any tensor. Nothing is visible at the path before commit.
type fileWriter struct {
	path    string
	out     *vfs.Output
	specs   []tensorSpec
	bytes   int64         // of the whole file
	done    int64         // bytes that are written
	front   uint64        // checksum of what is before the tensors
	at      []int64       // where each tensor begins, and at last where the file ends
	written []int64       // bytes of each tensor
	sums    []xxh3.Hasher // of each tensor, with what follows it up to the next one
}

// create starts a file at path, which must not exist unless it is a device; see vfs.Output. End it with commit or
// abort. room, unless it is nil, is asked whether a file of that size fits.
func create(path string, meta []metaEntry, specs []tensorSpec, room func(bytes int64) error) (*fileWriter, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return nil, errExists(path)
	}
	front, bytes := layOut(meta, specs)
	if room != nil {
		if err := room(bytes); err != nil {
			return nil, err
		}
	}
	out, err := vfs.CreateOutput(path)
	if err != nil {
		return nil, err
	}
	w := &fileWriter{path: path, out: out, specs: specs, bytes: bytes, done: int64(len(front)), front: xxh3.Hash(front),
		at: []int64{int64(len(front))}, written: make([]int64, len(specs)), sums: make([]xxh3.Hasher, len(specs))}
	for i, s := range specs {
		w.at = append(w.at, w.at[i]+padded(s.bytes()))
	}
	if _, err := w.out.WriteAt(front, 0); err != nil {
		w.abort()
		return nil, fmt.Errorf("%s cannot be written: %w", path, err)
	}
	return w, nil
}

func errExists(path string) error {
	return fmt.Errorf("%s exists: name another file, or remove it", path)
}

// layOut is all of a file before its tensors' bytes, and the size of the file.
func layOut(meta []metaEntry, specs []tensorSpec) (front []byte, bytes int64) {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	array := func(b []byte, t valueType, n int) []byte {
		return le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(typeArray)), uint32(t)), uint64(n))
	}
	b := le.AppendUint32([]byte("GGUF"), 3)
	b = le.AppendUint64(le.AppendUint64(b, uint64(len(specs))), uint64(len(meta)))
	for _, e := range meta {
		b = str(b, e.key)
		switch v := e.value.(type) {
		case uint32:
			b = le.AppendUint32(le.AppendUint32(b, uint32(typeU32)), v)
		case float32:
			b = le.AppendUint32(le.AppendUint32(b, uint32(typeF32)), math.Float32bits(v))
		case bool:
			one := byte(0)
			if v {
				one = 1
			}
			b = append(le.AppendUint32(b, uint32(typeBool)), one)
		case string:
			b = str(le.AppendUint32(b, uint32(typeString)), v)
		case []string:
			b = array(b, typeString, len(v))
			for _, s := range v {
				b = str(b, s)
			}
		case []bool:
			b = array(b, typeBool, len(v))
			for _, x := range v {
				one := byte(0)
				if x {
					one = 1
				}
				b = append(b, one)
			}
		case []int32:
			b = array(b, typeI32, len(v))
			for _, n := range v {
				b = le.AppendUint32(b, uint32(n))
			}
		case []float32:
			b = array(b, typeF32, len(v))
			for _, x := range v {
				b = le.AppendUint32(b, math.Float32bits(x))
			}
		default:
			panic(fmt.Sprintf("metadata %s is a %T", e.key, v))
		}
	}
	offset := int64(0)
	for _, s := range specs {
		b = le.AppendUint32(str(b, s.name), uint32(len(s.dims)))
		for i := range s.dims {
			b = le.AppendUint64(b, uint64(s.dims[len(s.dims)-1-i]))
		}
		b = le.AppendUint64(le.AppendUint32(b, uint32(s.typ)), uint64(offset))
		offset += padded(s.bytes())
	}
	b = append(b, make([]byte, padded(int64(len(b)))-int64(len(b)))...)
	return b, int64(len(b)) + offset
}

func padded(n int64) int64 { return (n + defaultAlignment - 1) / defaultAlignment * defaultAlignment }

// write appends bytes to the tensor with that number.
func (w *fileWriter) write(tensor int, p []byte) error {
	n := w.specs[tensor].bytes()
	if int64(len(p)) > n-w.written[tensor] {
		return fmt.Errorf("%s: tensor %s has %d bytes more than were declared", w.path,
			terminal.Quote(w.specs[tensor].name), w.written[tensor]+int64(len(p))-n)
	}
	if w.written[tensor]+int64(len(p)) == n {
		p = append(p[:len(p):len(p)], make([]byte, padded(n)-n)...)
	}
	if _, err := w.out.WriteAt(p, w.at[tensor]+w.written[tensor]); err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	_, _ = w.sums[tensor].Write(p) // a hash takes everything
	w.written[tensor] += int64(len(p))
	w.done += int64(len(p))
	return nil
}

// incomplete is the first tensor that lacks bytes, and how many; -1 if all are complete.
func (w *fileWriter) incomplete() (tensor int, missing int64) {
	for i, s := range w.specs {
		if w.written[i] < s.bytes() {
			return i, s.bytes() - w.written[i]
		}
	}
	return -1, 0
}

// readBack compares the file, which was synced, with what was written.
func (w *fileWriter) readBack() error {
	if err := hf.ReadBack(w.out.File, 0, w.at[0], w.front); err != nil {
		return err
	}
	for i := range w.specs {
		if err := hf.ReadBack(w.out.File, w.at[i], w.at[i+1]-w.at[i], w.sums[i].Sum64()); err != nil {
			return err
		}
	}
	return nil
}

// commit makes the file visible, after it was synced and read back.
func (w *fileWriter) commit() error {
	if w.out == nil {
		return errors.New("the file is already committed or aborted")
	}
	var err error
	if i, missing := w.incomplete(); i >= 0 {
		err = fmt.Errorf("tensor %s is not complete: %d bytes are missing", terminal.Quote(w.specs[i].name), missing)
	}
	if err == nil && !w.out.IsDevice() {
		if err = w.out.Sync(); err == nil {
			err = w.readBack()
		}
	}
	if err == nil {
		err = w.out.CommitNew()
	}
	w.abort()
	if errors.Is(err, fs.ErrExist) {
		return errExists(w.path) // it came while this one was written
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	return nil
}

// abort removes what was written. After commit it does nothing, so it can be deferred.
func (w *fileWriter) abort() {
	if w.out != nil {
		w.out.Abort()
		w.out = nil
	}
}
