package hf

import (
	"slices"

	"github.com/millrace/millrace/tensor"
)

// Join makes one tensor of several, one after the other, if the files have all of them and none of that name: experts
// that have tensors of their own are then stacked. All methods know it by its name, and Info and ReadAt know its parts,
// too; Stored names them. Parts that differ in type or shape are left as they are, and the tensor is then missing.
func (w *Weights) Join(name string, shape tensor.Shape, parts []string) {
	if _, there := w.tensors[name]; there || len(parts) == 0 {
		return
	}
	whole := location{joined: parts}
	for i, part := range parts {
		t, ok := w.tensors[part]
		if i == 0 {
			whole.fileTensor, whole.file = t.fileTensor, t.file
		}
		if !ok || t.dtype != whole.dtype || t.elems != whole.elems || len(t.shape) != 2 ||
			t.shape[1] != shape[len(shape)-1] || (t.scales != nil) != (whole.scales != nil) {
			return
		}
		whole.scales = t.scales
	}
	if whole.elems*int64(len(parts)) != shape.Elems() {
		return
	}
	whole.shape, whole.begin, whole.end = shape, 0, 0
	for _, part := range parts {
		t := w.tensors[part]
		whole.end += t.end - t.begin
	}
	whole.elems = shape.Elems()
	w.tensors[name] = whole
	isPart := map[string]bool{}
	for _, part := range parts {
		isPart[part] = true
	}
	w.names = slices.DeleteFunc(w.names, func(n string) bool { return isPart[n] })
	at, _ := slices.BinarySearch(w.names, name)
	w.names = slices.Insert(w.names, at, name)
}

// eachPart hands out ranges of the parts of a joined tensor, in units of which each part has that many.
func eachPart[T any](parts []string, each int64, dst []T, first int64, read func(part string, dst []T, first int64) error) error {
	for len(dst) > 0 {
		i, at := first/each, first%each
		n := min(int64(len(dst)), each-at)
		if err := read(parts[i], dst[:n], at); err != nil {
			return err
		}
		dst, first = dst[n:], first+n
	}
	return nil
}
