package hf

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sort"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
)

// The safetensors format: a little-endian uint64 N, N bytes of JSON, and the tensors' bytes. The JSON maps each name
// to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the end of the JSON. "__metadata__" maps
// strings to strings. The tensors fill the rest of the file without gap or overlap. Source: the format description in
// the safetensors project's README.

// maxHeaderBytes is the limit that the reference implementation sets.
const maxHeaderBytes = 100 << 20

// dtypeBits lists all element types of the format with their size in bits.
var dtypeBits = map[string]int64{
	"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
	"U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"C64": 64, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}

// weightDTypes are the element types that can be read as weights.
var weightDTypes = map[string]tensor.DType{"F32": tensor.F32, "F16": tensor.F16, "BF16": tensor.BF16}

// safetensorsName is the inverse of weightDTypes.
func safetensorsName(d tensor.DType) (string, bool) {
	for name, t := range weightDTypes {
		if t == d {
			return name, true
		}
	}
	return "", false
}

// fileTensor is a tensor's entry in a header.
type fileTensor struct {
	dtype      string
	shape      tensor.Shape
	elems      int64
	begin, end int64 // offsets in the file
}

// readSafetensorsHeader reads and checks the header of a file of the given size.
func readSafetensorsHeader(r io.ReaderAt, size int64) (map[string]fileTensor, error) {
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return nil, fmt.Errorf("%d bytes are too few for a safetensors file", size)
	}
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeaderBytes {
		return nil, fmt.Errorf("the header claims %d bytes, more than the limit of %d: not a safetensors file", n, maxHeaderBytes)
	}
	if int64(n) > size-8 {
		return nil, fmt.Errorf("truncated: the header claims %d bytes, the file has %d", n, size)
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header, 8); err != nil {
		return nil, err
	}
	return parseSafetensorsHeader(header, size)
}

func parseSafetensorsHeader(header []byte, size int64) (map[string]fileTensor, error) {
	obj, err := decodeObject(header)
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	data := int64(len(header)) + 8
	tensors := make(map[string]fileTensor, len(obj.keys))
	order := make([]string, 0, len(obj.keys))
	for _, name := range obj.keys {
		if name == "__metadata__" {
			if err := checkMetadata(obj.values[name].v); err != nil {
				return nil, err
			}
			continue
		}
		t, err := parseFileTensor(obj.values[name].v, data, size)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", terminal.Quote(name), err)
		}
		tensors[name] = t
		order = append(order, name)
	}
	// Empty tensors sort before the one that starts at the same place.
	sort.Slice(order, func(i, j int) bool {
		a, b := tensors[order[i]], tensors[order[j]]
		if a.begin != b.begin {
			return a.begin < b.begin
		}
		return a.end < b.end
	})
	at := data
	for _, name := range order {
		t := tensors[name]
		if t.begin < at {
			return nil, fmt.Errorf("tensor %s overlaps the one before it", terminal.Quote(name))
		}
		if t.begin > at {
			return nil, fmt.Errorf("a gap of %d bytes before tensor %s", t.begin-at, terminal.Quote(name))
		}
		at = t.end
	}
	if at != size {
		return nil, fmt.Errorf("oversized: %d bytes after the last tensor", size-at)
	}
	return tensors, nil
}

func checkMetadata(v any) error {
	obj, ok := v.(*object)
	if !ok {
		return fmt.Errorf("header: __metadata__ is %s, not an object", jsonKind(v))
	}
	for _, k := range obj.keys {
		if _, ok := obj.values[k].v.(string); !ok {
			return fmt.Errorf("header: __metadata__ %s is %s, not a string", terminal.Quote(k), jsonKind(obj.values[k].v))
		}
	}
	return nil
}

func parseFileTensor(v any, data, size int64) (fileTensor, error) {
	var t fileTensor
	obj, ok := v.(*object)
	if !ok {
		return t, fmt.Errorf("its entry is %s, not an object", jsonKind(v))
	}
	for _, k := range obj.keys {
		if k != "dtype" && k != "shape" && k != "data_offsets" {
			return t, fmt.Errorf("unknown key %s", terminal.Quote(k))
		}
	}
	t.dtype, ok = obj.values["dtype"].v.(string)
	bits := dtypeBits[t.dtype]
	if !ok || bits == 0 {
		return t, fmt.Errorf("unknown dtype %s", show(obj.values["dtype"].v))
	}
	dims, err := int64List(obj.values["shape"].v)
	if err != nil {
		return t, fmt.Errorf("shape: %w", err)
	}
	t.shape = make(tensor.Shape, len(dims))
	for i, d := range dims {
		t.shape[i] = int(d)
	}
	t.elems = t.shape.Elems()
	if t.elems < 0 || t.elems > math.MaxInt64/64 {
		return t, fmt.Errorf("shape %v is too large", t.shape)
	}
	if t.elems*bits%8 != 0 {
		return t, fmt.Errorf("shape %v in %s does not fill whole bytes", t.shape, t.dtype)
	}
	offs, err := int64List(obj.values["data_offsets"].v)
	if err != nil {
		return t, fmt.Errorf("data_offsets: %w", err)
	}
	if len(offs) != 2 || offs[0] > offs[1] {
		return t, fmt.Errorf("data_offsets %v are not [begin, end]", offs)
	}
	if offs[1] > size-data {
		return t, fmt.Errorf("truncated: it ends at byte %d of the data, the file has %d", offs[1], size-data)
	}
	if want := t.elems * bits / 8; offs[1]-offs[0] != want {
		return t, fmt.Errorf("data_offsets span %d bytes, %s of shape %v needs %d", offs[1]-offs[0], t.dtype, t.shape, want)
	}
	t.begin, t.end = data+offs[0], data+offs[1]
	return t, nil
}

// int64List decodes a list of non-negative integers.
func int64List(v any) ([]int64, error) {
	list, ok := v.([]value)
	if !ok {
		return nil, fmt.Errorf("it is %s, not a list", jsonKind(v))
	}
	out := make([]int64, len(list))
	for i, e := range list {
		num, ok := e.v.(json.Number)
		if !ok {
			return nil, fmt.Errorf("element %d is %s, not a number", i, jsonKind(e.v))
		}
		n, err := num.Int64()
		if err != nil || n < 0 || n > math.MaxInt64/2 {
			return nil, fmt.Errorf("element %d is %s, not a size", i, terminal.Quote(string(num)))
		}
		out[i] = n
	}
	return out, nil
}

// safetensorsFile is an open file with a checked header.
type safetensorsFile struct {
	path    string
	f       *os.File
	tensors map[string]fileTensor
}

// openSafetensors opens a file of a model directory. A missing one is an os.ErrNotExist.
func openSafetensors(dir, name string) (*safetensorsFile, error) {
	path := filepath.Join(dir, name)
	f, err := below.Open(dir, name)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	var tensors map[string]fileTensor
	if err == nil {
		tensors, err = readSafetensorsHeader(f, st.Size())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w (if it should be good, download %s again)", path, err, name)
	}
	return &safetensorsFile{path, f, tensors}, nil
}
