package hf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

const ggufAlignment = 32 // what a file has that does not state general.alignment

// ggufEntry is a metadata entry to write: a uint32, float32, bool, string, []string, []int32 or []float32 under a key.
type ggufEntry struct {
	key   string
	value any
}

// ggufSpec declares a tensor that will be written. Dims are outermost first.
type ggufSpec struct {
	name string
	dims tensor.Shape
	typ  ggmlType
}

func (s ggufSpec) bytes() int64 {
	q, _ := s.typ.quant()
	return s.dims.Elems() / q.elems * q.bytes
}

// ggufWriter writes one GGUF file, version 3. All metadata and tensors are declared first; then the tensors' bytes are
// written in the declared order, in pieces of any length. Nothing is visible at the path before commit.
type ggufWriter struct {
	path    string
	out     *vfs.Output
	specs   []ggufSpec
	bytes   int64 // of the whole file
	at      int64 // where the next byte goes
	left    int64 // bytes that the current tensor lacks
	current int
	sum     xxh3.Hasher
}

// createGGUF starts a file at path, which must not exist unless it is a device; see vfs.Output. End it with commit or
// abort. room, unless it is nil, is asked whether a file of that size fits.
func createGGUF(path string, meta []ggufEntry, specs []ggufSpec, room func(bytes int64) error) (*ggufWriter, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return nil, errGGUFExists(path)
	}
	front, bytes := ggufFront(meta, specs)
	if room != nil {
		if err := room(bytes); err != nil {
			return nil, err
		}
	}
	out, err := vfs.CreateOutput(path)
	if err != nil {
		return nil, err
	}
	w := &ggufWriter{path: path, out: out, specs: specs, bytes: bytes}
	if err := w.append(front); err != nil {
		w.abort()
		return nil, fmt.Errorf("%s cannot be written: %w", path, err)
	}
	w.start(0)
	return w, nil
}

func errGGUFExists(path string) error {
	return fmt.Errorf("%s exists: name another file, or remove it", path)
}

// ggufFront is all of a file before its tensors' bytes, and the size of the file.
func ggufFront(meta []ggufEntry, specs []ggufSpec) (front []byte, bytes int64) {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	array := func(b []byte, t ggufType, n int) []byte {
		return le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(ggufArray)), uint32(t)), uint64(n))
	}
	b := le.AppendUint32([]byte("GGUF"), 3)
	b = le.AppendUint64(le.AppendUint64(b, uint64(len(specs))), uint64(len(meta)))
	for _, e := range meta {
		b = str(b, e.key)
		switch v := e.value.(type) {
		case uint32:
			b = le.AppendUint32(le.AppendUint32(b, uint32(ggufU32)), v)
		case float32:
			b = le.AppendUint32(le.AppendUint32(b, uint32(ggufF32)), math.Float32bits(v))
		case bool:
			one := byte(0)
			if v {
				one = 1
			}
			b = append(le.AppendUint32(b, uint32(ggufBool)), one)
		case string:
			b = str(le.AppendUint32(b, uint32(ggufString)), v)
		case []string:
			b = array(b, ggufString, len(v))
			for _, s := range v {
				b = str(b, s)
			}
		case []int32:
			b = array(b, ggufI32, len(v))
			for _, n := range v {
				b = le.AppendUint32(b, uint32(n))
			}
		case []float32:
			b = array(b, ggufF32, len(v))
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
		offset += ggufPadded(s.bytes())
	}
	b = append(b, make([]byte, ggufPadded(int64(len(b)))-int64(len(b)))...)
	return b, int64(len(b)) + offset
}

func ggufPadded(n int64) int64 { return (n + ggufAlignment - 1) / ggufAlignment * ggufAlignment }

func (w *ggufWriter) append(p []byte) error {
	if _, err := w.out.WriteAt(p, w.at); err != nil {
		return err
	}
	_, _ = w.sum.Write(p) // a hash takes everything
	w.at += int64(len(p))
	return nil
}

func (w *ggufWriter) start(tensor int) {
	w.current, w.left = tensor, 0
	if tensor < len(w.specs) {
		w.left = w.specs[tensor].bytes()
	}
}

// write appends bytes to the current tensor.
func (w *ggufWriter) write(p []byte) error {
	if w.current == len(w.specs) || int64(len(p)) > w.left {
		return fmt.Errorf("%s: %d bytes more than were declared", w.path, int64(len(p))-w.left)
	}
	err := w.append(p)
	if w.left -= int64(len(p)); err == nil && w.left == 0 {
		n := w.specs[w.current].bytes()
		err = w.append(make([]byte, ggufPadded(n)-n))
		w.start(w.current + 1)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	return nil
}

// commit makes the file visible, after it was synced and read back.
func (w *ggufWriter) commit() error {
	if w.out == nil {
		return errors.New("the file is already committed or aborted")
	}
	var err error
	if w.current < len(w.specs) {
		err = fmt.Errorf("tensor %s is not complete: %d bytes are missing", quote(w.specs[w.current].name), w.left)
	}
	if err == nil && !w.out.IsDevice() {
		if err = w.out.Sync(); err == nil {
			err = readBack(w.out.File, 0, w.at, w.sum.Sum64())
		}
	}
	if err == nil {
		err = w.out.CommitNew()
	}
	w.abort()
	if errors.Is(err, fs.ErrExist) {
		return errGGUFExists(w.path) // it came while this one was written
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	return nil
}

// abort removes what was written. After commit it does nothing, so it can be deferred.
func (w *ggufWriter) abort() {
	if w.out != nil {
		w.out.Abort()
		w.out = nil
	}
}
