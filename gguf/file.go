package gguf

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"unicode/utf8"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// The GGUF container, versions 2 and 3, little-endian: "GGUF", uint32 version, uint64 tensor count, uint64 metadata
// count; the metadata as (string key, uint32 type, value); for each tensor (string name, uint32 dimensions, uint64 each
// of them with the innermost first, uint32 type, uint64 offset); padding to general.alignment (32); the tensors' bytes,
// offsets counted from there. A string is a uint64 length and then its bytes. Source: docs/gguf.md of the ggml project.

const (
	maxEntries   = 1 << 16 // of metadata or tensors; the largest models have a few thousand
	maxKeyBytes  = 1<<16 - 1
	maxDims      = 4
	maxAlignment = 1 << 20

	// The length of a file bounds nothing, since one with holes takes no space on a disk. The largest string that models
	// have is a chat template, the strings of lists are tokens and pairs of them, and the largest metadata are
	// vocabularies, of some 10 MB. An import writes no more than the readers of its result take.
	maxStringBytes = template.MaxSource
	maxListedBytes = 2*tokenizer.MaxTokenBytes + 1
	maxFrontBytes  = 128 << 20 // in memory, of all metadata and names
	maxStrings     = 1 << 22   // of an array
	stringBytes    = 16        // of a string in memory, in addition to its text
)

// valueType is the type of a metadata value.
type valueType uint32

const (
	typeU8 valueType = iota
	typeI8
	typeU16
	typeI16
	typeU32
	typeI32
	typeF32
	typeBool
	typeString
	typeArray
	typeU64
	typeI64
	typeF64
)

// bytes is the smallest size of a value on file, 0 for an unknown type.
func (t valueType) bytes() int64 {
	switch t {
	case typeU8, typeI8, typeBool:
		return 1
	case typeU16, typeI16:
		return 2
	case typeU32, typeI32, typeF32:
		return 4
	case typeString, typeU64, typeI64, typeF64:
		return 8
	case typeArray:
		return 12
	}
	return 0
}

// metaValue is a metadata value. Integers are in i, floats in f, and a list of fixed-size values is kept as its bytes,
// since a vocabulary of 256 Ki entries boxed one by one would take longer to free than to read.
type metaValue struct {
	typ  valueType
	i    int64
	f    float64
	s    string
	elem valueType // of an array
	n    int64     // its length
	strs []string
	raw  []byte
}

// tensorEntry is a tensor's entry. Dims are outermost first, as everywhere in this program.
type tensorEntry struct {
	name       string
	dims       tensor.Shape
	typ        ggmlType
	elems      int64
	begin, end int64 // offsets in the file
}

// header is a parsed file: everything but the tensors' bytes.
type header struct {
	meta    map[string]metaValue
	tensors map[string]tensorEntry
	names   []string // of the tensors, in file order
}

// maxSize bounds every size that metadata state, so that products of two cannot overflow int64.
const maxSize = math.MaxInt32

// headerReader reads the front part of a file and knows how much of the file is left.
type headerReader struct {
	r    *bufio.Reader
	at   int64
	size int64
	used int64 // bytes of memory that what was read takes
	use  budget.Use
	err  error // sticks
	num  [8]byte
}

func (r *headerReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// take reads n bytes, n having been checked to be sane. Past the end it fails before it allocates.
func (r *headerReader) take(n int64) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > r.size-r.at {
		r.fail("truncated: %d bytes are needed at byte %d, the file has %d", n, r.at, r.size)
		return nil
	}
	if !r.charge(n) {
		return nil
	}
	buf := make([]byte, n)
	if !r.fill(buf) {
		return nil
	}
	return buf
}

// charge counts memory before it is allocated.
func (r *headerReader) charge(n int64) bool {
	if r.err == nil && n > maxFrontBytes-r.used {
		r.fail("its metadata take more than %d bytes: the file is damaged", maxFrontBytes)
	}
	if r.err == nil {
		r.err = r.use.Take(context.Background(), n)
	}
	r.used += n
	return r.err == nil
}

func (r *headerReader) fill(buf []byte) bool {
	if r.err != nil {
		return false
	}
	n, err := io.ReadFull(r.r, buf)
	r.at += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		r.fail("truncated: the file ends at byte %d, before its tensors", r.at)
	} else if err != nil {
		r.fail("at byte %d: %w", r.at, err)
	}
	return r.err == nil
}

func (r *headerReader) u32() uint32 {
	if !r.fill(r.num[:4]) {
		return 0
	}
	return binary.LittleEndian.Uint32(r.num[:4])
}

func (r *headerReader) u64() uint64 {
	if !r.fill(r.num[:]) {
		return 0
	}
	return binary.LittleEndian.Uint64(r.num[:])
}

func (r *headerReader) str(limit int64) string {
	n := r.u64()
	if r.err == nil && n > uint64(r.size-r.at) {
		r.fail("truncated: a string of %d bytes at byte %d, the file has %d", n, r.at, r.size)
	}
	if r.err == nil && n > uint64(limit) {
		r.fail("a string of %d bytes at byte %d, more than %d: the file is damaged", n, r.at, limit)
	}
	if !r.charge(stringBytes) {
		return ""
	}
	s := r.take(int64(n))
	if r.err == nil && !utf8.Valid(s) {
		r.fail("the string before byte %d is not UTF-8", r.at)
		return ""
	}
	return string(s)
}

func (r *headerReader) value(t valueType) metaValue {
	v := metaValue{typ: t}
	switch t {
	case typeString:
		v.s = r.str(maxStringBytes)
	case typeArray:
		v.elem = valueType(r.u32())
		n := r.u64()
		size := v.elem.bytes()
		if size == 0 || v.elem == typeArray {
			r.fail("an array of type %d is not supported", v.elem)
		} else if n > uint64(r.size-r.at)/uint64(size) {
			r.fail("truncated: an array of %d elements at byte %d, the file has %d", n, r.at, r.size)
		}
		if v.elem == typeString && n > maxStrings {
			r.fail("an array of %d strings at byte %d, more than %d: the file is damaged", n, r.at, maxStrings)
		}
		if r.err != nil {
			return v
		}
		v.n = int64(n)
		if v.elem != typeString {
			v.raw = r.take(v.n * size)
			return v
		}
		v.strs = make([]string, 0, min(v.n, 1<<20))
		for i := int64(0); i < v.n && r.err == nil; i++ {
			v.strs = append(v.strs, r.str(maxListedBytes))
		}
	default:
		size := t.bytes()
		if size == 0 {
			r.fail("unknown value type %d", t)
			return v
		}
		if b := r.take(size); b != nil {
			v.i, v.f = scalar(t, b)
			if t == typeBool && v.i > 1 {
				r.fail("a boolean is %d", v.i)
			}
		}
	}
	return v
}

// scalar decodes a number: f holds it for every type, i for the integers. A uint64 above the largest int64 becomes
// -1 in i, which no reader of a size accepts.
func scalar(t valueType, b []byte) (i int64, f float64) {
	le := binary.LittleEndian
	switch t {
	case typeU8, typeBool:
		i = int64(b[0])
	case typeI8:
		i = int64(int8(b[0]))
	case typeU16:
		i = int64(le.Uint16(b))
	case typeI16:
		i = int64(int16(le.Uint16(b)))
	case typeU32:
		i = int64(le.Uint32(b))
	case typeI32:
		i = int64(int32(le.Uint32(b)))
	case typeU64:
		u := le.Uint64(b)
		if u > math.MaxInt64 {
			return -1, float64(u)
		}
		i = int64(u)
	case typeI64:
		i = int64(le.Uint64(b))
	case typeF32:
		return 0, float64(math.Float32frombits(le.Uint32(b)))
	case typeF64:
		return 0, math.Float64frombits(le.Uint64(b))
	}
	return i, float64(i)
}

// parse reads the metadata and the tensor list of a file of the given size, and checks all of it.
func parse(src io.Reader, size int64) (*header, error) {
	r := &headerReader{r: bufio.NewReaderSize(src, 1<<16), size: size}
	defer r.use.End()
	magic := r.take(4)
	if r.err != nil || string(magic) != "GGUF" {
		return nil, errors.New("not a GGUF file: it does not start with \"GGUF\"")
	}
	if version := r.u32(); r.err == nil && version != 2 && version != 3 {
		// Version 1 had 32-bit sizes and disappeared in 2023; a big-endian file shows its version in the upper byte.
		return nil, fmt.Errorf("GGUF version %d is not supported: supported are 2 and 3, little-endian", version)
	}
	tensors, entries := r.u64(), r.u64()
	if tensors > maxEntries || entries > maxEntries {
		return nil, fmt.Errorf("%d tensors and %d metadata entries are more than %d: the file is damaged", tensors, entries, maxEntries)
	}
	g := &header{meta: map[string]metaValue{}, tensors: map[string]tensorEntry{}}
	for i := uint64(0); i < entries && r.err == nil; i++ {
		key := r.str(maxKeyBytes)
		t := valueType(r.u32())
		if r.err != nil {
			break
		}
		if _, dup := g.meta[key]; dup {
			return nil, fmt.Errorf("metadata key %s appears twice", terminal.Quote(key))
		}
		g.meta[key] = r.value(t)
		if r.err != nil {
			return nil, fmt.Errorf("metadata key %s: %w", terminal.Quote(key), r.err)
		}
	}
	for i := uint64(0); i < tensors && r.err == nil; i++ {
		t := r.tensorInfo()
		if r.err != nil {
			break
		}
		if _, dup := g.tensors[t.name]; dup {
			return nil, fmt.Errorf("tensor %s appears twice", terminal.Quote(t.name))
		}
		g.tensors[t.name] = t
		g.names = append(g.names, t.name)
	}
	if r.err != nil {
		return nil, r.err
	}
	return g, g.place(r.at, size)
}

// tensorInfo reads a tensor's entry; begin is its offset in the data part, as the file says it.
func (r *headerReader) tensorInfo() tensorEntry {
	t := tensorEntry{name: r.str(maxKeyBytes)}
	n := r.u32()
	if r.err == nil && (n == 0 || n > maxDims) {
		r.fail("tensor %s has %d dimensions", terminal.Quote(t.name), n)
	}
	if r.err != nil {
		return t
	}
	t.dims = make(tensor.Shape, n)
	for i := range t.dims {
		d := r.u64()
		if r.err == nil && (d == 0 || d > math.MaxInt64/64) {
			r.fail("tensor %s has a dimension of %d", terminal.Quote(t.name), d)
		}
		t.dims[int(n)-1-i] = int(d)
	}
	typ, offset := r.u32(), r.u64()
	if r.err != nil {
		return t
	}
	t.typ = ggmlType(typ)
	q, ok := t.typ.quant()
	if !ok {
		r.fail("tensor %s has type %v: supported are %s; use another quantization of the model", terminal.Quote(t.name), t.typ, supportedQuants())
		return t
	}
	if t.elems = t.dims.Elems(); t.elems < 0 || t.elems > math.MaxInt64/64 {
		r.fail("tensor %s: shape %v is too large", terminal.Quote(t.name), t.dims)
		return t
	}
	if row := int64(t.dims[n-1]); row%q.elems != 0 {
		r.fail("tensor %s: its rows of %d elements are not whole blocks of %d (%v)", terminal.Quote(t.name), row, q.elems, t.typ)
		return t
	}
	if offset > math.MaxInt64/2 {
		r.fail("tensor %s: its offset %d is absurd", terminal.Quote(t.name), offset)
		return t
	}
	t.begin = int64(offset)
	t.end = t.begin + t.elems/q.elems*q.bytes
	return t
}

// place turns offsets in the data part into offsets in the file, and checks alignment, ends and overlaps.
func (g *header) place(front, size int64) error {
	alignment := int64(32)
	if v, ok := g.meta["general.alignment"]; ok {
		alignment = v.i
	}
	if alignment < 1 || alignment > maxAlignment || alignment&(alignment-1) != 0 {
		return fmt.Errorf("general.alignment is %d, not a power of two", alignment)
	}
	data := (front + alignment - 1) / alignment * alignment
	order := make([]string, len(g.names))
	copy(order, g.names)
	sort.Slice(order, func(i, j int) bool { return g.tensors[order[i]].begin < g.tensors[order[j]].begin })
	at := data
	for _, name := range order {
		t := g.tensors[name]
		if t.begin%alignment != 0 {
			return fmt.Errorf("tensor %s: its offset %d is not a multiple of %d", terminal.Quote(name), t.begin, alignment)
		}
		t.begin, t.end = t.begin+data, t.end+data
		if t.begin < at {
			return fmt.Errorf("tensor %s overlaps the one before it", terminal.Quote(name))
		}
		if t.end > size {
			return fmt.Errorf("truncated: tensor %s ends at byte %d, the file has %d", terminal.Quote(name), t.end, size)
		}
		at = t.end
		g.tensors[name] = t
	}
	return nil
}

// open opens and parses a file. The caller closes it.
func open(path string) (*header, *os.File, error) {
	f, err := vfs.OpenRegular(path)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	var g *header
	if err == nil {
		g, err = parse(f, st.Size())
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: %w (if it should be good, download it again)", path, err)
	}
	return g, f, nil
}

// The accessors below return an error that names the key, and ok = false if it is absent.

func (g *header) integer(key string) (n int64, ok bool, err error) {
	v, ok := g.meta[key]
	if !ok {
		return 0, false, nil
	}
	switch v.typ {
	case typeU8, typeI8, typeU16, typeI16, typeU32, typeI32, typeU64, typeI64:
		return v.i, true, nil
	}
	return 0, false, fmt.Errorf("metadata %s is not a whole number", key)
}

// size is an integer from 1 to maxSize that must be there.
func (g *header) size(key string) (int, error) {
	n, ok, err := g.integer(key)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("metadata %s is missing", key)
	}
	if n < 1 || n > maxSize {
		return 0, fmt.Errorf("metadata %s is %d: a positive whole number is expected", key, n)
	}
	return int(n), nil
}

// float is a number as fp32, which llama.cpp has it in.
func (g *header) float(key string) (x float64, ok bool, err error) {
	v, ok := g.meta[key]
	if !ok {
		return 0, false, nil
	}
	if v.typ != typeF32 && v.typ != typeF64 {
		return 0, false, fmt.Errorf("metadata %s is not a floating-point number", key)
	}
	return float64(float32(v.f)), true, checkF32(key, v.f)
}

// checkF32 fails for a number that metadata make unless it is finite in fp32.
func checkF32(key string, x float64) error {
	if narrow := float64(float32(x)); math.IsNaN(narrow) || math.IsInf(narrow, 0) {
		return fmt.Errorf("metadata %s makes the number %g, which is not finite in fp32: the file is damaged, "+
			"download it again", key, x)
	}
	return nil
}

func (g *header) text(key string) (s string, ok bool, err error) {
	v, ok := g.meta[key]
	if !ok {
		return "", false, nil
	}
	if v.typ != typeString {
		return "", false, fmt.Errorf("metadata %s is not a string", key)
	}
	return v.s, true, nil
}

func (g *header) boolean(key string, def bool) (bool, error) {
	v, ok := g.meta[key]
	if !ok {
		return def, nil
	}
	if v.typ != typeBool {
		return false, fmt.Errorf("metadata %s is not a boolean", key)
	}
	return v.i == 1, nil
}

func (g *header) strings(key string) ([]string, error) {
	v, ok := g.meta[key]
	if !ok {
		return nil, fmt.Errorf("metadata %s is missing", key)
	}
	if v.typ != typeArray || v.elem != typeString {
		return nil, fmt.Errorf("metadata %s is not a list of strings", key)
	}
	return v.strs, nil
}
