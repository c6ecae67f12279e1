// Package hostmem owns the host memory of a run: large mappings outside of the Go heap, counted by purpose.
//
// [Accounts] hands out [Region]s and counts, per purpose ("weights", "moments", "saved inputs"), the bytes that are
// reserved now and the peak. A plan predicts these numbers and a run is held to them. A region is anonymous memory
// in huge pages where the system has them; [F32] and its siblings view its bytes as numbers. [Available] says how much
// memory this process may still take, cgroup limits included, [Total] how much there is, and [PeakRSS] what it took.
//
// Invariants:
//
//   - A region counts with its mapped length, which is rounded up to whole pages. Large regions start on a huge-page
//     boundary, which costs address space and nothing else.
//   - Reserving costs no memory until pages are touched. [Region.Populate] touches all of them, so that a run finds out
//     before its first step, and as an error, when there is too little.
//   - Under the race detector regions are Go memory, since the detector does not see mappings. They are counted alike.
//   - A region reserved [AddressOnly] is counted alike and has addresses without memory: any access to it faults.
//     Rehearsals of models that are larger than the machine use it.
package hostmem

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"unsafe"
)

// PageBytes is the unit that lengths are rounded up to.
const PageBytes = 4096

// hugeBytes is the boundary that large regions start on, and the size from which a region is large.
const hugeBytes = 2 << 20

// Option changes what Reserve makes.
type Option uint8

// AddressOnly reserves addresses without memory: reading or writing them faults.
const AddressOnly Option = 1

// PurposeBytes is the account of one purpose.
type PurposeBytes struct {
	Purpose   string
	Bytes     int64 // reserved now
	PeakBytes int64 // reserved at most
}

// Accounts reserves regions and counts them. It is safe for concurrent use.
type Accounts struct {
	mu        sync.Mutex
	purposes  map[string]*PurposeBytes
	sum, peak int64
	growOnUse bool
	nodes     []int // large regions are spread over the memory of these; none: it is where the system puts it
}

// New makes accounts with nothing reserved.
func New() *Accounts { return &Accounts{purposes: make(map[string]*PurposeBytes)} }

// Spread has large regions that are reserved from now on placed on NUMA nodes in turn, a page after the other. It is a
// wish: where a node is not there, or the system has none, the system chooses one.
func (a *Accounts) Spread(nodes []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodes = slices.Clone(nodes)
}

// spreadOver returns the nodes that Spread was given.
func (a *Accounts) spreadOver() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodes
}

// Reserve maps zeroed memory of the given length. A length of 0 gives an empty region. The error is one line that says
// what could not be reserved, how much there is, and which number to change.
func (a *Accounts) Reserve(purpose string, bytes int64, opts ...Option) (*Region, error) {
	if bytes < 0 || bytes > 1<<56 {
		return nil, fmt.Errorf("reserve memory for %s: %d bytes is not a length", purpose, bytes)
	}
	r := &Region{accounts: a, purpose: purpose, mapped: (bytes + PageBytes - 1) / PageBytes * PageBytes}
	for _, o := range opts {
		r.addressOnly = r.addressOnly || o == AddressOnly
	}
	if bytes > 0 {
		reserve := mapMemory
		if r.addressOnly {
			reserve = mapAddresses
		}
		mem, err := reserve(r.mapped)
		if err != nil {
			return nil, shortage("reserve", purpose, bytes, err)
		}
		if nodes := a.spreadOver(); len(nodes) > 0 && r.mapped >= hugeBytes && !r.addressOnly {
			spread(mem.start, r.mapped, nodes)
		}
		r.mem, r.bytes = mem, unsafe.Slice((*byte)(mem.start), int(bytes))
	}
	a.add(purpose, r.mapped)
	return r, nil
}

// Usage lists the purposes that were ever reserved for, by name.
func (a *Accounts) Usage() []PurposeBytes {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]PurposeBytes, 0, len(a.purposes))
	for _, p := range a.purposes {
		all = append(all, *p)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Purpose < all[j].Purpose })
	return all
}

// Of is the account of one purpose.
func (a *Accounts) Of(purpose string) PurposeBytes {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.purposes[purpose]; p != nil {
		return *p
	}
	return PurposeBytes{Purpose: purpose}
}

// Total returns the bytes that are reserved now, and those that were at most, over all purposes. The peak of the sum is
// at most the sum of the peaks.
func (a *Accounts) Total() (bytes, peakBytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sum, a.peak
}

func (a *Accounts) add(purpose string, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.purposes[purpose]
	if p == nil {
		p = &PurposeBytes{Purpose: purpose}
		a.purposes[purpose] = p
	}
	p.Bytes += n
	p.PeakBytes = max(p.PeakBytes, p.Bytes)
	a.sum += n
	a.peak = max(a.peak, a.sum)
}

// errShort is the cause where the system would grant the memory and kill the process when it is used.
var errShort = errors.New("more than there is")

// shortage is the one line that a user sees.
func shortage(verb, purpose string, bytes int64, cause error) error {
	there, grow := "how much there is cannot be told", ""
	if n, source, err := Available(); err == nil {
		there = fmt.Sprintf("%s is available (%s)", gib(n), source)
		if cause == errShort && source == machineSource {
			grow = "; on a machine whose memory grows as it is used, set memory.host to a size, or MILLRACE_MEMORY_GROWS=1"
		}
	}
	return fmt.Errorf("%s %s of host memory for %s: %w: %s; lower batch_tokens or memory.host, or choose a smaller model%s",
		verb, gib(bytes), purpose, cause, there, grow)
}

func gib(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30))
}
