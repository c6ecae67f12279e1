package hf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"unsafe"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
)

// Weights are the tensors of a model directory. They are read with pread into the caller's memory; nothing is mapped or
// cached. All methods but Close may be called from several goroutines.
type Weights struct {
	dir     string
	names   []string
	tensors map[string]location
	files   []*safetensorsFile
	faults  map[string]error // of pairs of blocks and scales that are no tensor, see mxfp4.go
}

type location struct {
	fileTensor
	file   *safetensorsFile
	scales *location // of a tensor in MXFP4, whose blocks the location is then of, or in FP8
	joined []string  // the tensors that it is made of, see Join
}

// TensorInfo describes a tensor on file.
type TensorInfo struct {
	DType tensor.DType // Invalid for a type that cannot be read as weights, such as I64; BF16 for MXFP4 and scaled FP8
	Type  string       // the type as the file spells it: "BF16"; or "MXFP4", which files have as a pair of tensors
	Shape tensor.Shape
	Bytes int64
	File  string // path of the file that holds it
}

// OpenWeights opens model.safetensors of a model directory or, if that does not exist, the shards that
// model.safetensors.index.json names. All headers are read and checked, no weights.
func OpenWeights(dir string) (*Weights, error) {
	f, err := openSafetensors(dir, weightsName)
	switch {
	case err == nil:
		w := &Weights{dir: dir, tensors: make(map[string]location, len(f.tensors)), files: []*safetensorsFile{f}}
		for name, t := range f.tensors {
			w.tensors[name] = location{fileTensor: t, file: f}
		}
		w.sortNames()
		return w, nil
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	index := filepath.Join(dir, indexName)
	doc, err := below.Read(dir, indexName, maxHeaderBytes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s has neither %s nor %s: name a model directory with safetensors weights (a GGUF file is imported with millrace import)", dir, weightsName, indexName)
	}
	if err != nil {
		return nil, err
	}
	weightMap, err := parseIndex(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (download it again)", index, err)
	}
	w := &Weights{dir: dir, tensors: make(map[string]location, len(weightMap))}
	if err := w.openShards(index, weightMap); err != nil {
		w.Close()
		return nil, err
	}
	w.sortNames()
	return w, nil
}

// openShards takes the tensors of all shards that the index names, as transformers 5 does. One that a shard has and the
// index does not name is a tensor of the model as any other; one that two shards have is an error.
func (w *Weights) openShards(index string, weightMap map[string]string) error {
	open := map[string]*safetensorsFile{}
	for _, name := range slices.Sorted(maps.Keys(weightMap)) { // so that the first error is always the same one
		shard := weightMap[name]
		f := open[shard]
		if f == nil {
			var err error
			if f, err = openSafetensors(w.dir, shard); errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is missing: download the model again", filepath.Join(w.dir, shard))
			} else if err != nil {
				return err
			}
			open[shard] = f
			w.files = append(w.files, f)
		}
		t, ok := f.tensors[name]
		if !ok {
			return fmt.Errorf("%s: tensor %s is missing, though %s places it there: download both again", f.path, terminal.Quote(name), filepath.Base(index))
		}
		w.tensors[name] = location{fileTensor: t, file: f}
	}
	for _, f := range w.files {
		for _, name := range slices.Sorted(maps.Keys(f.tensors)) {
			if at, ok := w.tensors[name]; ok && at.file != f {
				return fmt.Errorf("%s: tensor %s is in %s, too: remove one of the two, or download the model again", f.path,
					terminal.Quote(name), filepath.Base(at.file.path))
			}
			w.tensors[name] = location{fileTensor: f.tensors[name], file: f}
		}
	}
	return nil
}

func (w *Weights) sortNames() {
	w.names = make([]string, 0, len(w.tensors))
	for name := range w.tensors {
		w.names = append(w.names, name)
	}
	sort.Strings(w.names)
	w.pairUp()
	w.giveScales()
}

// Under puts a prefix before the names of all tensors, but those that have the name except. All methods then know them
// by these names.
func (w *Weights) Under(prefix, except string) {
	to := func(name string) string {
		if name == except {
			return name
		}
		return prefix + name
	}
	tensors, faults := make(map[string]location, len(w.tensors)), map[string]error{}
	for name, t := range w.tensors {
		tensors[to(name)] = t
	}
	for name, err := range w.faults {
		faults[to(name)] = err
	}
	for i, name := range w.names {
		w.names[i] = to(name)
	}
	w.tensors, w.faults = tensors, faults
	sort.Strings(w.names)
}

// Close closes all files.
func (w *Weights) Close() error {
	var first error
	for _, f := range w.files {
		if err := f.f.Close(); err != nil && first == nil {
			first = err
		}
	}
	w.files = nil
	return first
}

// Files returns the number of files that hold the tensors.
func (w *Weights) Files() int { return len(w.files) }

// Names are the names of all tensors, sorted; a pair of blocks and scales in MXFP4 is one tensor. The caller must not
// change the slice.
func (w *Weights) Names() []string { return w.names }

// Info describes a tensor; ok is false if no tensor has that name.
func (w *Weights) Info(name string) (info TensorInfo, ok bool) {
	t, ok := w.tensors[name]
	if !ok {
		return TensorInfo{}, false
	}
	info = TensorInfo{DType: weightDTypes[t.dtype], Type: t.dtype, Shape: t.shape, Bytes: t.end - t.begin,
		File: t.file.path}
	if t.scales != nil {
		info.DType = tensor.BF16
	}
	if t.dtype == MXFP4 {
		info.Bytes += t.scales.end - t.scales.begin
	}
	return info, true
}

// Expect fails unless the tensor exists, has the shape, and can be read as weights.
func (w *Weights) Expect(name string, shape tensor.Shape) error {
	t, err := w.weight(name)
	if err != nil {
		return err
	}
	if !t.shape.Equal(shape) {
		return fmt.Errorf("%s: tensor %s has shape %v, config.json asks for %v: the weights and config.json are not of one model", t.file.path, terminal.Quote(name), t.shape, shape)
	}
	return nil
}

func (w *Weights) weight(name string) (location, error) {
	t, ok := w.tensors[name]
	if err := w.faults[name]; err != nil {
		return t, err
	}
	if !ok {
		return t, w.missing(name)
	}
	if _, ok := weightDTypes[t.dtype]; !ok && t.scales == nil {
		return t, fmt.Errorf("%s: tensor %s is %s, which cannot be trained: use a copy of the model in BF16, F16 or F32", t.file.path, terminal.Quote(name), t.dtype)
	}
	return t, nil
}

// ReadAt reads len(dst) bytes of the tensor's own bytes, starting at byte off of the tensor, in the file's type and
// byte order (little-endian). It works for every type; a tensor in MXFP4 is read by its Stored names.
func (w *Weights) ReadAt(name string, dst []byte, off int64) error {
	t, ok := w.tensors[name]
	if !ok {
		return w.missing(name)
	}
	if t.joined != nil {
		if off < 0 || off > t.end || int64(len(dst)) > t.end-off {
			return t.pread(name, dst, off) // an error
		}
		return eachPart(t.joined, t.end/int64(len(t.joined)), dst, off, w.ReadAt)
	}
	if t.dtype == MXFP4 {
		return fmt.Errorf("%s: tensor %s is stored as %s and %s", t.file.path, terminal.Quote(name), mxBlocks, mxScales)
	}
	return t.pread(name, dst, off)
}

func (t location) pread(name string, dst []byte, off int64) error {
	if off < 0 || off > t.end-t.begin || int64(len(dst)) > t.end-t.begin-off {
		return fmt.Errorf("%s: tensor %s: bytes %d to %d are outside of its %d", t.file.path, terminal.Quote(name), off, off+int64(len(dst)), t.end-t.begin)
	}
	if n, err := t.file.f.ReadAt(dst, t.begin+off); n < len(dst) {
		if err == io.EOF {
			err = errors.New("the file became shorter while it was read")
		}
		return fmt.Errorf("%s: tensor %s: %w", t.file.path, terminal.Quote(name), err)
	}
	return nil
}

// convertElems bounds the elements that are converted at a time: 256 KiB of fp32, which stays in the second-level
// cache.
const convertElems = 64 << 10

// ReadF32 reads len(dst) elements, starting at element first in row-major order, as fp32. All weight types
// convert exactly. A NaN or an infinity is an error, since nothing can be trained from it.
func (w *Weights) ReadF32(name string, dst []float32, first int64) error {
	t, err := w.weight(name)
	if err != nil {
		return err
	}
	if t.joined != nil {
		if err := t.checkRange(name, first, int64(len(dst))); err != nil {
			return err
		}
		return eachPart(t.joined, t.elems/int64(len(t.joined)), dst, first, w.ReadF32)
	}
	if t.isFP8() {
		return t.readFP8(name, dst, first)
	}
	if t.scales != nil {
		large, err := readMXFP4(t, name, dst, first, &mxF32)
		if err == nil && large {
			err = t.checkFinite(name, dst, first)
		}
		return err
	}
	if t.dtype == "F32" && littleEndian {
		if err := t.readElems(name, BytesOf(dst), first, int64(len(dst)), 4); err != nil {
			return err
		}
		return t.checkFinite(name, dst, first)
	}
	size := dtypeBits[t.dtype] / 8
	buf := make([]byte, min(int64(len(dst)), convertElems)*size)
	for len(dst) > 0 {
		n := min(len(dst), convertElems)
		if err := t.readElems(name, buf[:int64(n)*size], first, int64(n), size); err != nil {
			return err
		}
		decodeF32(dst[:n], buf, t.dtype)
		if err := t.checkFinite(name, dst[:n], first); err != nil {
			return err
		}
		dst, first = dst[n:], first+int64(n)
	}
	return nil
}

// ReadBF16 reads len(dst) elements, starting at element first, as bf16 bits. F32 and F16 are rounded to nearest, ties
// to even. A NaN or an infinity, also one that rounding makes, is an error.
func (w *Weights) ReadBF16(name string, dst []uint16, first int64) error {
	t, err := w.weight(name)
	if err != nil {
		return err
	}
	if t.joined != nil {
		if err := t.checkRange(name, first, int64(len(dst))); err != nil {
			return err
		}
		return eachPart(t.joined, t.elems/int64(len(t.joined)), dst, first, w.ReadBF16)
	}
	if t.isFP8() {
		return t.readFP8AsBF16(name, dst, first)
	}
	if t.scales != nil {
		large, err := readMXFP4(t, name, dst, first, &mxBF16)
		if err == nil && large {
			err = t.checkFiniteBF16(name, dst, first)
		}
		return err
	}
	if t.dtype == "BF16" && littleEndian {
		if err := t.readElems(name, BytesOf(dst), first, int64(len(dst)), 2); err != nil {
			return err
		}
		return t.checkFiniteBF16(name, dst, first)
	}
	size := dtypeBits[t.dtype] / 8
	n := min(int64(len(dst)), convertElems)
	buf, vals := make([]byte, n*size), make([]float32, n)
	for len(dst) > 0 {
		n := min(len(dst), convertElems)
		if err := t.readElems(name, buf[:int64(n)*size], first, int64(n), size); err != nil {
			return err
		}
		decodeF32(vals[:n], buf, t.dtype)
		for i, x := range vals[:n] {
			dst[i] = tensor.BF16FromF32(x)
		}
		if err := t.checkFiniteBF16(name, dst[:n], first); err != nil {
			return err
		}
		dst, first = dst[n:], first+int64(n)
	}
	return nil
}

// readElems reads the bytes of elements [first, first+n).
func (t location) readElems(name string, dst []byte, first, n, size int64) error {
	if err := t.checkRange(name, first, n); err != nil {
		return err
	}
	return t.pread(name, dst, first*size)
}

func (t location) checkRange(name string, first, n int64) error {
	if first < 0 || first > t.elems || n > t.elems-first {
		return fmt.Errorf("%s: tensor %s: elements %d to %d are outside of its %d", t.file.path, terminal.Quote(name), first, first+n, t.elems)
	}
	return nil
}

func (t location) checkFinite(name string, vals []float32, first int64) error {
	for i, x := range vals {
		if !isFinite(x) {
			return t.notFinite(name, first+int64(i))
		}
	}
	return nil
}

func isFinite(x float32) bool { return math.Float32bits(x)&0x7f800000 != 0x7f800000 }

func (t location) checkFiniteBF16(name string, vals []uint16, first int64) error {
	for i, x := range vals {
		if x&0x7f80 == 0x7f80 {
			return t.notFinite(name, first+int64(i))
		}
	}
	return nil
}

func (t location) notFinite(name string, elem int64) error {
	return fmt.Errorf("%s: tensor %s: element %d is not a finite number in bf16 or fp32: the model is damaged or had diverged, use another copy", t.file.path, terminal.Quote(name), elem)
}

// decodeF32 decodes len(dst) little-endian elements of a weight type.
func decodeF32(dst []float32, src []byte, dtype string) {
	switch dtype {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case "F16":
		for i := range dst {
			dst[i] = tensor.F32FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = tensor.F32FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// littleEndian says that numbers in memory look as they do on file, so that they can be read in place.
var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// BytesOf views numbers as the bytes that safetensors wants; little-endian machines only, as all that we build for are.
func BytesOf[T float32 | uint16 | int16 | int8](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}
