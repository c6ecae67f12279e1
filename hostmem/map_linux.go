//go:build linux && !race

package hostmem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory maps anonymous memory, on a huge-page boundary if it is large. Huge pages are a request: a kernel without
// them is slower and not wrong.
func mapMemory(bytes int64) (mapping, error) {
	m, err := mapAddresses(bytes)
	if err != nil {
		return m, err
	}
	// In place of the reservation, which found the boundary without asking for permission to overcommit. Here it is not
	// asked for, either: the system would refuse by the memory that the machine has now, and Populate knows better.
	_, err = unix.MmapPtr(-1, 0, m.start, uintptr(bytes), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED|unix.MAP_NORESERVE)
	if err != nil {
		_ = m.free() // the first error is the one that says why
		return mapping{}, err
	}
	if bytes >= hugeBytes {
		_ = unix.Madvise(unsafe.Slice((*byte)(m.start), int(bytes)), unix.MADV_HUGEPAGE)
	}
	return m, nil
}

// spread asks for the pages of memory that has none yet to be taken from nodes in turn. Where that cannot be, nothing
// changes.
func spread(start unsafe.Pointer, bytes int64, nodes []int) {
	mask := maskOf(nodes)
	// The kernel reads one bit less than it is told of.
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, uintptr(start), uintptr(bytes), interleave, uintptr(unsafe.Pointer(&mask[0])),
		maskBits, 0)
}

const (
	interleave = 3 // MPOL_INTERLEAVE
	maxNodes   = 1024
	maskBits   = maxNodes + 1
)

// maskOf has a bit for each node that a kernel can have.
func maskOf(nodes []int) (mask [maxNodes / 64]uint64) {
	for _, n := range nodes {
		if n >= 0 && n < maxNodes {
			mask[n/64] |= 1 << (n % 64)
		}
	}
	return mask
}

func populate(start unsafe.Pointer, bytes int64) error {
	err := unix.Madvise(unsafe.Slice((*byte)(start), int(bytes)), unix.MADV_POPULATE_WRITE)
	if err == unix.EINVAL { // before Linux 5.14
		touch(start, bytes)
		return nil
	}
	return err
}
