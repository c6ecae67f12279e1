package hf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// TensorSpec declares a tensor that will be written: F32, F16 or BF16, or one of any other type, which is copied
// unchanged.
type TensorSpec struct {
	Name  string
	DType tensor.DType
	Shape tensor.Shape
	Type  string // the type as files spell it, such as "I64", instead of DType
}

// FileWriter writes one safetensors file. All tensors are declared first; then their bytes are written, in pieces of
// any length. Nothing is visible at the path before Commit.
type FileWriter struct {
	path string
	f    *vfs.Output
	body shardWriter
}

// CreateFile starts a safetensors file at path, or what path leads to; see vfs.Output. End it with Commit or Abort.
func CreateFile(path string, specs []TensorSpec) (*FileWriter, error) {
	if err := checkSpecs(specs); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f, err := vfs.CreateOutput(path)
	if err != nil {
		return nil, err
	}
	w := &FileWriter{path: path, f: f}
	if w.body, err = startShard(f.File, specs); err != nil {
		w.Abort()
		return nil, fmt.Errorf("%s cannot be written: %w", path, err)
	}
	return w, nil
}

// Write appends little-endian bytes to the named tensor. Tensors may be written in any order, and in turns.
func (w *FileWriter) Write(name string, p []byte) error {
	if err := w.body.write(name, p); err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	return nil
}

// Commit makes the file visible, in place of one that is there. It fails, and removes what it wrote, if a tensor is
// not complete.
func (w *FileWriter) Commit() error {
	if w.f == nil {
		return errors.New("the file is already committed or aborted")
	}
	err := w.body.finish()
	if err == nil {
		err = w.readBack()
	}
	if err == nil {
		err = w.f.Commit()
	}
	w.Abort()
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	return nil
}

// readBack compares the file with what was written. A device has nothing to compare.
func (w *FileWriter) readBack() error {
	if w.f.IsDevice() {
		return nil
	}
	if err := w.f.Sync(); err != nil {
		return err
	}
	return w.body.readBack()
}

// Abort removes what was written. After Commit it does nothing, so it can be deferred.
func (w *FileWriter) Abort() {
	if w.f != nil {
		w.f.Abort()
		w.f = nil
	}
}

// shardWriter writes the body of one safetensors file.
type shardWriter struct {
	f       vfs.File
	specs   []TensorSpec
	number  map[string]int // of a tensor, by its name
	at      []int64        // file offset of each tensor
	written []int64        // bytes of each tensor
	left    int            // tensors that are not complete

	header []byte
	begun  map[int]*xxh3.Hasher // of tensors that are neither empty nor complete
	sums   []uint64             // of those that are complete
}

// startShard writes the header. Tensors of wider types are first, as the reference implementation places them, so that
// each is aligned to its element size; the order of writing is the declared one all the same.
func startShard(f vfs.File, specs []TensorSpec) (shardWriter, error) {
	w := shardWriter{f: f, specs: specs, number: make(map[string]int, len(specs)), at: make([]int64, len(specs)),
		written: make([]int64, len(specs)), begun: map[int]*xxh3.Hasher{}, sums: make([]uint64, len(specs))}
	order := make([]int, len(specs))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool {
		return specs[order[a]].bits() > specs[order[b]].bits()
	})
	var header bytes.Buffer
	header.WriteString(`{"__metadata__":{"format":"pt"}`)
	var off int64
	for _, i := range order {
		s := specs[i]
		name, err := json.Marshal(s.Name)
		if err != nil {
			return w, err
		}
		dims := s.Shape
		if dims == nil {
			dims = tensor.Shape{} // a scalar: [], not null
		}
		shape, err := json.Marshal(dims)
		if err != nil {
			return w, err
		}
		end := off + s.Bytes()
		fmt.Fprintf(&header, `,%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, s.typeName(), shape, off, end)
		w.at[i], off = off, end
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	if header.Len() > maxHeaderBytes {
		return w, fmt.Errorf("the header of %d tensors is longer than %d bytes", len(specs), maxHeaderBytes)
	}
	doc := binary.LittleEndian.AppendUint64(nil, uint64(header.Len()))
	doc = append(doc, header.Bytes()...)
	for i := range w.at {
		w.at[i] += int64(len(doc))
	}
	if _, err := f.WriteAt(doc, 0); err != nil {
		return w, err
	}
	w.header = doc
	for i, s := range specs {
		w.number[s.Name] = i
		w.sums[i] = xxh3.Hash(nil)
		if s.Bytes() > 0 {
			w.left++
		}
	}
	return w, nil
}

// typeName is the type as files spell it; empty for one that they do not have.
func (s TensorSpec) typeName() string {
	if s.Type != "" {
		return s.Type
	}
	name, _ := safetensorsName(s.DType)
	return name
}

func (s TensorSpec) bits() int64 { return dtypeBits[s.typeName()] }

// Bytes is the size of the tensor on file.
func (s TensorSpec) Bytes() int64 { return s.Shape.Elems() * s.bits() / 8 }

func (w *shardWriter) write(name string, p []byte) error {
	i, ok := w.number[name]
	if !ok {
		return fmt.Errorf("tensor %s is not among the declared ones", terminal.Quote(name))
	}
	s := w.specs[i]
	if w.written[i] == s.Bytes() && len(p) > 0 {
		return fmt.Errorf("tensor %s is complete, and %d bytes more were written", terminal.Quote(name), len(p))
	}
	if int64(len(p)) > s.Bytes()-w.written[i] {
		return fmt.Errorf("tensor %s: %d bytes were written, its shape %v holds %d", terminal.Quote(name),
			w.written[i]+int64(len(p)), s.Shape, s.Bytes())
	}
	if _, err := w.f.WriteAt(p, w.at[i]+w.written[i]); err != nil {
		return err
	}
	if w.begun[i] == nil {
		w.begun[i] = xxh3.New()
	}
	_, _ = w.begun[i].Write(p) // a hash takes everything
	if w.written[i] += int64(len(p)); w.written[i] == s.Bytes() && len(p) > 0 {
		w.sums[i] = w.begun[i].Sum64()
		w.left--
		delete(w.begun, i)
	}
	return nil
}

func (w *shardWriter) finish() error {
	if w.left == 0 {
		return nil
	}
	for i, s := range w.specs {
		if w.written[i] < s.Bytes() {
			return fmt.Errorf("tensor %s is not complete: %d of %d bytes were written", terminal.Quote(s.Name),
				w.written[i], s.Bytes())
		}
	}
	return nil
}

// readBack compares the file, which was synced, with what was written.
func (w *shardWriter) readBack() error {
	if err := ReadBack(w.f, 0, int64(len(w.header)), xxh3.Hash(w.header)); err != nil {
		return err
	}
	for i, s := range w.specs {
		if err := ReadBack(w.f, w.at[i], s.Bytes(), w.sums[i]); err != nil {
			return err
		}
	}
	return nil
}

func checkSpecs(specs []TensorSpec) error {
	seen := make(map[string]bool, len(specs))
	var total int64
	for _, s := range specs {
		if s.Name == "" || s.Name == "__metadata__" || !utf8.ValidString(s.Name) {
			return fmt.Errorf("%s cannot be the name of a tensor", terminal.Quote(s.Name))
		}
		if seen[s.Name] {
			return fmt.Errorf("tensor %s is declared twice", terminal.Quote(s.Name))
		}
		seen[s.Name] = true
		switch {
		case s.Type != "" && s.bits() == 0:
			return fmt.Errorf("tensor %s: there is no type %s", terminal.Quote(s.Name), terminal.Quote(s.Type))
		case s.bits() == 0:
			return fmt.Errorf("tensor %s: %v is not written as weights", terminal.Quote(s.Name), s.DType)
		}
		n := s.Shape.Elems()
		if n < 0 || n > math.MaxInt64/128 || n*s.bits()/8 > math.MaxInt64/2-total {
			return fmt.Errorf("tensor %s: shape %v is too large", terminal.Quote(s.Name), s.Shape)
		}
		if n*s.bits()%8 != 0 {
			return fmt.Errorf("tensor %s: shape %v in %s does not fill whole bytes", terminal.Quote(s.Name), s.Shape, s.Type)
		}
		total += s.Bytes()
	}
	return nil
}
