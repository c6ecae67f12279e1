//go:build linux || darwin

package hostmem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapAddresses reserves addresses that fault, on a huge-page boundary if there are many: it maps more than is needed
// and gives back both ends.
func mapAddresses(bytes int64) (mapping, error) {
	extra := int64(0)
	if bytes >= hugeBytes {
		extra = hugeBytes
	}
	all, err := unix.MmapPtr(-1, 0, nil, uintptr(bytes+extra), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return mapping{}, err
	}
	head := int64(0)
	if extra > 0 {
		head = int64(-uintptr(all) % hugeBytes)
	}
	start := unsafe.Add(all, head)
	if head > 0 {
		_ = unix.MunmapPtr(all, uintptr(head))
	}
	if tail := extra - head; tail > 0 {
		_ = unix.MunmapPtr(unsafe.Add(start, bytes), uintptr(tail))
	}
	return mapping{start: start, free: func() error { return unix.MunmapPtr(start, uintptr(bytes)) }}, nil
}
