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

// metaEntry is a metadata entry to write: a uint32, float32, bool, string, []string, []int32 or []float32 under a key.
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
// written in the declared order, in pieces of any length. Nothing is visible at the path before commit.
type fileWriter struct {
	path    string
	out     *vfs.Output
	specs   []tensorSpec
	bytes   int64 // of the whole file
	at      int64 // where the next byte goes
	left    int64 // bytes that the current tensor lacks
	current int
	sum     xxh3.Hasher
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
	w := &fileWriter{path: path, out: out, specs: specs, bytes: bytes}
	if err := w.append(front); err != nil {
		w.abort()
		return nil, fmt.Errorf("%s cannot be written: %w", path, err)
	}
	w.start(0)
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

func (w *fileWriter) append(p []byte) error {
	if _, err := w.out.WriteAt(p, w.at); err != nil {
		return err
	}
	_, _ = w.sum.Write(p) // a hash takes everything
	w.at += int64(len(p))
	return nil
}

func (w *fileWriter) start(tensor int) {
	w.current, w.left = tensor, 0
	if tensor < len(w.specs) {
		w.left = w.specs[tensor].bytes()
	}
}

// write appends bytes to the current tensor.
func (w *fileWriter) write(p []byte) error {
	if w.current == len(w.specs) || int64(len(p)) > w.left {
		return fmt.Errorf("%s: %d bytes more than were declared", w.path, int64(len(p))-w.left)
	}
	err := w.append(p)
	if w.left -= int64(len(p)); err == nil && w.left == 0 {
		n := w.specs[w.current].bytes()
		err = w.append(make([]byte, padded(n)-n))
		w.start(w.current + 1)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	return nil
}

// commit makes the file visible, after it was synced and read back.
func (w *fileWriter) commit() error {
	if w.out == nil {
		return errors.New("the file is already committed or aborted")
	}
	var err error
	if w.current < len(w.specs) {
		err = fmt.Errorf("tensor %s is not complete: %d bytes are missing", terminal.Quote(w.specs[w.current].name), w.left)
	}
	if err == nil && !w.out.IsDevice() {
		if err = w.out.Sync(); err == nil {
			err = hf.ReadBack(w.out.File, 0, w.at, w.sum.Sum64())
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
