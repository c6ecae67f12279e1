//go:build !linux || race

package hostmem

import (
	"runtime"
	"unsafe"
)

// mapMemory takes memory from the Go heap, page-aligned.
func mapMemory(bytes int64) (mapping, error) {
	heap := make([]byte, bytes+PageBytes)
	skip := -uintptr(unsafe.Pointer(&heap[0])) % PageBytes
	return mapping{
		start: unsafe.Pointer(&heap[skip]),
		free:  func() error { runtime.KeepAlive(heap); return nil },
	}, nil
}

// spread does nothing: memory of the Go heap cannot be moved to a node.
func spread(unsafe.Pointer, int64, []int) {}

func populate(start unsafe.Pointer, bytes int64) error {
	touch(start, bytes)
	return nil
}
