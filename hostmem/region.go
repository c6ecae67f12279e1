package hostmem

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// mapping is page-aligned memory and how to give it back.
type mapping struct {
	start unsafe.Pointer
	free  func() error
}

// Region is a stretch of host memory that stays where it is until Close.
type Region struct {
	accounts    *Accounts
	purpose     string
	mapped      int64 // bytes, whole pages
	addressOnly bool

	mem       mapping
	bytes     []byte
	populated bool
	closing   sync.Once
	closeErr  error
}

// Bytes is the memory, as long as was asked for and page-aligned; nil once closed. Slices of it must not outlive the
// region: an access after Close faults.
func (r *Region) Bytes() []byte { return r.bytes }

// Len is the length of Bytes.
func (r *Region) Len() int64 { return int64(len(r.bytes)) }

// ReservedBytes returns the bytes that the accounts have for the region: its length in whole pages.
func (r *Region) ReservedBytes() int64 { return r.mapped }

// Purpose returns the purpose that the region was reserved for.
func (r *Region) Purpose() string { return r.purpose }

// AddressOnly reports whether the addresses have no memory.
func (r *Region) AddressOnly() bool { return r.addressOnly }

// Close gives the memory back. Only the first call does anything; all return its error. It must not run during any use
// of the region.
func (r *Region) Close() error {
	r.closing.Do(func() {
		r.bytes = nil
		r.accounts.add(r.purpose, -r.mapped)
		if r.mem.free != nil {
			r.closeErr = r.mem.free()
		}
	})
	return r.closeErr
}

// populatePiece is the number of bytes that one worker populates at a time.
const populatePiece = 64 << 20

// Populate makes every page resident, on all cores, without changing its contents; calls after the first success do
// nothing. It fails, instead of letting the system kill the process later, when the region is larger than what is
// available: before it begins or, where memory grows ([Accounts.GrowOnUse]), when growth ends. Close gives back the
// pages that were populated by then.
func (r *Region) Populate() error {
	if r.populated || r.addressOnly || len(r.bytes) == 0 {
		return nil
	}
	var g *growth
	if n, _, err := Available(); err == nil {
		grow, err := r.accounts.mustGrow(r.mapped, n, func() int64 { return cgroupLeft(os.DirFS("/")) })
		if err != nil {
			return shortage("populate", r.purpose, r.Len(), err)
		}
		if grow {
			g = systemGrowth(os.DirFS("/"))
		}
	}
	err := inPieces(r.mapped, runtime.GOMAXPROCS(0), g, func(off, n int64) error {
		return populate(unsafe.Add(r.mem.start, off), n)
	})
	if err != nil {
		return shortage("populate", r.purpose, r.Len(), err)
	}
	r.populated = true
	return nil
}

// touch is populate for systems that have no call for it: an atomic addition of zero to each page, which writes without
// disturbing anyone.
func touch(start unsafe.Pointer, bytes int64) {
	for off := int64(0); off < bytes; off += PageBytes {
		atomic.AddUint32((*uint32)(unsafe.Add(start, off)), 0)
	}
}
