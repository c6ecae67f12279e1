package modeltest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// tensors is a golden.safetensors in memory. It is read here rather than by package hf, so that the expected values do not
// pass through code under test. The file is ours: what it lacks is a broken checkout and panics.
type tensors struct {
	path    string
	entries map[string]entry
	meta    map[string]string
	body    []byte
}

type entry struct {
	DType       string `json:"dtype"`
	Shape       []int  `json:"shape"`
	DataOffsets [2]int `json:"data_offsets"`
}

func openTensors(path string) (*tensors, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &tensors{path: path, entries: map[string]entry{}}
	var header map[string]json.RawMessage
	if len(data) < 8 || binary.LittleEndian.Uint64(data) > uint64(len(data)-8) {
		return nil, fmt.Errorf("%s is truncated", path)
	}
	n := int(binary.LittleEndian.Uint64(data))
	f.body = data[8+n:]
	if err := json.Unmarshal(data[8:8+n], &header); err != nil {
		return nil, fmt.Errorf("%s: header: %w", path, err)
	}
	for name, raw := range header {
		var e entry
		if name == "__metadata__" {
			err = json.Unmarshal(raw, &f.meta)
		} else if err = json.Unmarshal(raw, &e); err == nil {
			f.entries[name] = e
		}
		if err != nil {
			return nil, fmt.Errorf("%s: header of %s: %w", path, name, err)
		}
	}
	return f, nil
}

// read decodes a tensor's elements.
func read[T int32 | float32 | float64](f *tensors, name string) []T {
	var zero T
	dtype := map[any]string{int32(0): "I32", float32(0): "F32", float64(0): "F64"}[zero]
	e, ok := f.entries[name]
	if !ok || e.DType != dtype {
		panic(fmt.Sprintf("modeltest: %s has no tensor %s of type %s", f.path, name, dtype))
	}
	bytes := f.body[e.DataOffsets[0]:e.DataOffsets[1]]
	x := make([]T, len(bytes)/binary.Size(zero))
	if _, err := binary.Decode(bytes, binary.LittleEndian, x); err != nil {
		panic(fmt.Sprintf("modeltest: %s: %s: %v", f.path, name, err))
	}
	return x
}

// dim is one extent of a tensor's shape.
func (f *tensors) dim(name string, i int) int { return f.entries[name].Shape[i] }

// setting is a number in the metadata.
func (f *tensors) setting(key string) float64 {
	x, err := strconv.ParseFloat(f.meta[key], 64)
	if err != nil {
		panic(fmt.Sprintf("modeltest: %s: metadata %s: %v", f.path, key, err))
	}
	return x
}
