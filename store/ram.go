package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/tensor"
)

// RegionBytes is the most that one region, and so one registration with a driver, covers.
const RegionBytes = 64 << 30

// extentAlign keeps extents on whole pages, so that a region can be cut where direct I/O or pinning wants it.
const extentAlign = 4096

// RAM is a store whose extents all lie in host memory; it lends its own bytes.
type RAM struct {
	regions []*hostmem.Region
	mu      sync.Mutex
	extents map[ID]*ramExtent
}

type ramExtent struct {
	region     *hostmem.Region
	off, bytes int64
	version    uint64
	readers    int
	writing    bool
}

// NewRAM reserves memory for the extents, those of one kind together. It takes nothing if it cannot take everything.
func NewRAM(accounts *hostmem.Accounts, specs []Spec, opts ...hostmem.Option) (*RAM, error) {
	s := &RAM{extents: make(map[ID]*ramExtent, len(specs))}
	for kind := range Kind(Kinds) {
		if err := s.reserve(accounts, kind, specs, opts); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (s *RAM) reserve(accounts *hostmem.Accounts, kind Kind, specs []Spec, opts []hostmem.Option) error {
	var group []*ramExtent
	var bytes int64
	flush := func() error {
		if bytes == 0 {
			return nil
		}
		r, err := accounts.Reserve(kind.String(), bytes, opts...)
		if err != nil {
			return err
		}
		s.regions = append(s.regions, r)
		for _, e := range group {
			e.region = r
		}
		group, bytes = nil, 0
		return nil
	}
	for _, spec := range specs {
		if spec.Kind != kind || spec.Bytes == 0 {
			continue
		}
		if _, dup := s.extents[spec.ID]; dup {
			panic(fmt.Sprintf("store: %v asked for twice", spec.ID))
		}
		if bytes > 0 && bytes+spec.Bytes > RegionBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		e := &ramExtent{off: bytes, bytes: spec.Bytes}
		s.extents[spec.ID] = e
		group = append(group, e)
		bytes += AlignUp(spec.Bytes)
	}
	return flush()
}

// AlignUp is the space that an extent of n bytes takes in a region.
func AlignUp(n int64) int64 { return (n + extentAlign - 1) / extentAlign * extentAlign }

// Borrow implements Store; it never blocks.
func (s *RAM) Borrow(ctx context.Context, id ID, off, n int64, access Access, version uint64) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.extents[id]
	switch {
	case e == nil:
		panic(fmt.Sprintf("store: there are no %v", id))
	case off < 0 || n < 0 || off > e.bytes-n:
		panic(fmt.Sprintf("store: range [%d, %d+%d) outside of the %d bytes of %v", off, off, n, e.bytes, id))
	case e.version != version:
		panic(fmt.Sprintf("store: %v are at version %d, borrowed at %d", id, e.version, version))
	case e.writing || access == Write && e.readers > 0:
		panic(fmt.Sprintf("store: clash of leases on %v", id))
	}
	l := &Lease{Region: e.region, Off: e.off + off, Len: n}
	if access == Write {
		e.writing = true
		l.release = func() {
			s.mu.Lock()
			e.writing = false
			e.version++
			s.mu.Unlock()
		}
	} else {
		e.readers++
		l.release = func() {
			s.mu.Lock()
			e.readers--
			s.mu.Unlock()
		}
	}
	return l, nil
}

// Prefetch implements Store; everything is here already.
func (s *RAM) Prefetch(ID, int64, int64, uint64) {}

// Version implements Store.
func (s *RAM) Version(id ID) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.extents[id]; e != nil {
		return e.version
	}
	panic(fmt.Sprintf("store: there are no %v", id))
}

// Regions implements Store.
func (s *RAM) Regions() []*hostmem.Region { return s.regions }

// Close implements Store.
func (s *RAM) Close() error {
	for id, e := range s.extents {
		if e.writing || e.readers > 0 {
			panic(fmt.Sprintf("store: closed while %v are lent", id))
		}
	}
	for _, r := range s.regions {
		r.Close()
	}
	s.regions, s.extents = nil, nil
	return nil
}

// PartSpecs are the extents of one part: its weights, and for what is trained the low halves, gradients and moments in
// the given types (tensor.Invalid leaves a kind out).
func PartSpecs(part int, l *tensor.Layout, types [Kinds]tensor.DType) []Spec {
	var specs []Spec
	for kind := range Kind(Kinds) {
		elems := l.StateElems
		if kind == Weights {
			elems = l.WeightElems
		}
		if n := elems * types[kind].Bytes(); n > 0 {
			specs = append(specs, Spec{ID{part, kind}, n})
		}
	}
	return specs
}
