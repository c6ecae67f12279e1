package standin

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
)

const (
	// Device memory starts at firstAddress. No process has memory there, so code that uses an address as a
	// pointer faults.
	firstAddress = 0x0d00_0000_0000_0000
	alignBytes   = 256
	// guardBytes separate allocations, so that a step over the end hits nothing.
	guardBytes = 64 << 10
)

// memory holds all cards' allocations, in one address space. Readers take the list as it is; changes need
// Driver.making.
type memory struct {
	list  atomic.Pointer[[]*allocation] // by address
	next  uint64
	freed []*allocation // without their bytes: to say what a stale address was
}

type allocation struct {
	card    *card
	address uint64
	size    uint64
	bytes   []byte
	site    string
	freedAt string
}

// errAddress is wrapped by what a kernel gets for a bad address.
var errAddress = errors.New("illegal address")

func (m *memory) all() []*allocation {
	if list := m.list.Load(); list != nil {
		return *list
	}
	return nil
}

// find is the allocation that has address, nil if none.
func find(list []*allocation, address uint64) *allocation {
	i, exact := slices.BinarySearchFunc(list, address, func(a *allocation, address uint64) int {
		switch {
		case a.address < address:
			return -1
		case a.address > address:
			return 1
		}
		return 0
	})
	if !exact {
		i--
	}
	if i < 0 || address-list[i].address >= list[i].size {
		return nil
	}
	return list[i]
}

// clear forgets all of a card's.
func (m *memory) clear(c *card) {
	list := slices.DeleteFunc(slices.Clone(m.all()), func(a *allocation) bool { return a.card == c })
	m.list.Store(&list)
	c.used = 0
}

func roundUp(n uint64) uint64 { return (n + alignBytes - 1) &^ (alignBytes - 1) }

func (d *Driver) memGetInfo(free, total *uint64) driver.Result {
	c, r := d.enter("MemGetInfo")
	if r != driver.Success {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	*free, *total = d.options.MemoryBytes-c.used, d.options.MemoryBytes
	return driver.Success
}

func (d *Driver) memAlloc(p *driver.DevicePtr, bytes uint64) driver.Result {
	c, r := d.enter("MemAlloc")
	if r != driver.Success {
		return r
	}
	if bytes == 0 {
		return d.refuse(driver.InvalidValue, "MemAlloc: 0 bytes")
	}
	d.making.Lock()
	defer d.making.Unlock()
	if free := d.options.MemoryBytes - c.used; bytes > free || roundUp(bytes) > free {
		d.log("MemAlloc: %d bytes, and %d are free", bytes, free)
		return driver.OutOfMemory
	}
	a := &allocation{card: c, address: d.memory.next | alignBytes, size: bytes, bytes: garbage(bytes), site: callSite()}
	d.memory.next = (a.address + bytes + guardBytes) &^ (2*alignBytes - 1)
	c.used += roundUp(bytes)
	list := append(slices.Clone(d.memory.all()), a) // addresses only grow
	d.memory.list.Store(&list)
	*p = driver.DevicePtr(a.address)
	return driver.Success
}

// garbage returns aligned memory that is all NaN. The race detector does not see the filling: a read of unwritten
// memory is wrong, but no race.
//
//go:norace
func garbage(bytes uint64) []byte {
	words := make([]uint64, (bytes+alignBytes)/8+1)
	for i := range words {
		words[i] = ^uint64(0)
	}
	skip := -uintptr(unsafe.Pointer(&words[0])) % alignBytes / 8
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[skip])), bytes)
}

func (d *Driver) memFree(p driver.DevicePtr) driver.Result {
	c, r, proceed := d.enterRelease("MemFree")
	if !proceed {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	a := find(d.memory.all(), uint64(p))
	if a == nil || a.address != uint64(p) {
		return first(r, d.refuse(driver.InvalidValue, "MemFree: %s", d.where(uint64(p), 1)))
	}
	if owned := c.owns("MemFree", "memory", a.card, a.site); owned != driver.Success {
		return first(r, owned)
	}
	list := slices.DeleteFunc(slices.Clone(d.memory.all()), func(other *allocation) bool { return other == a })
	d.memory.list.Store(&list)
	c.used -= roundUp(a.size)
	d.memory.freed = append(d.memory.freed, &allocation{address: a.address, size: a.size, site: a.site,
		freedAt: callSite()})
	return r
}

// space is the memory that kernels and copies of a card can reach, as of one moment: its own, that of cards to which it
// has been given access, and host memory that is registered for it.
type space struct {
	card   *card
	alone  bool // its own memory, and of no other card
	device []*allocation
	host   map[uintptr]*registration
}

func (c *card) space() space { return space{c, false, c.driver.memory.all(), c.driver.host.all()} }

// At returns the n bytes at an address of unified memory. The error says which memory is near the address instead.
func (s space) At(address uint64, n int) ([]byte, error) {
	if address < firstAddress {
		if r := findHost(s.host, uintptr(address), uint64(n)); r != nil && r.isFor(s.card) {
			at := uintptr(address) - r.base
			return r.bytes[at : at+uintptr(n) : at+uintptr(n)], nil
		}
	} else if a := find(s.device, address); a != nil && (a.card == s.card || !s.alone && s.card.reaches(a.card)) {
		if at := address - a.address; uint64(n) <= a.size-at {
			return a.bytes[at : at+uint64(n) : at+uint64(n)], nil
		}
	}
	return nil, &addressError{s.card, address, uint64(n)}
}

// addressError is lazy: kernels also ask for addresses to find out whether they are valid.
type addressError struct {
	card       *card
	address, n uint64
}

func (e *addressError) Error() string {
	d := e.card.driver
	d.making.Lock()
	defer d.making.Unlock()
	if a := find(d.memory.all(), e.address); a != nil && a.card != e.card {
		return fmt.Sprintf("%d bytes at %#x are memory of card %d (allocated at %s), which card %d does not reach", e.n,
			e.address, a.card.number, a.site, e.card.number)
	}
	return d.where(e.address, e.n)
}

func (e *addressError) Unwrap() error { return errAddress }

// where says what is wrong with n bytes at an address. The caller holds making.
func (d *Driver) where(address, n uint64) string {
	bytes := fmt.Sprintf("%d bytes at %#x", n, address)
	if address == 0 {
		return bytes
	}
	if address < firstAddress {
		return bytes + " are host memory that is not registered, or for another card alone"
	}
	if a := find(d.memory.freed, address); a != nil {
		return fmt.Sprintf("%s are in %d bytes that were freed at %s (allocated at %s)", bytes, a.size, a.freedAt, a.site)
	}
	for _, a := range d.memory.all() {
		switch {
		case address >= a.address && address-a.address < a.size+guardBytes/2:
			return fmt.Sprintf("%s are byte %d and on of %d bytes that were allocated at %s", bytes, address-a.address, a.size,
				a.site)
		case address < a.address && a.address-address < guardBytes/2:
			return fmt.Sprintf("%s are %d bytes before the %d bytes that were allocated at %s", bytes, a.address-address, a.size,
				a.site)
		}
	}
	return bytes + ", where nothing is"
}
