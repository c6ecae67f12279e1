package isa

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Of asm/prctl.h and the Intel SDM: the request for a component of the extended state, and the tiles' number.
const (
	archReqXcompPerm = 0x1023
	xtileData        = 18
)

// tilesAllowed asks Linux, once, whether all threads of this process may use tiles. Linux says no before version 5.16,
// where it or the hypervisor has not enabled tiles (CR4.OSXSAVE, bits 17 and 18 of XCR0), and where a thread's stack
// for signals has no room for them; Go's have.
var tilesAllowed = sync.OnceValue(func() bool {
	_, _, failed := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archReqXcompPerm, xtileData, 0)
	return failed == 0
})
