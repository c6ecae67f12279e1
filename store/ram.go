package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// regionBytes is the most that one region covers.
const regionBytes = 64 << 30

// extentAlign keeps extents on whole pages, so that a region can be cut where direct I/O or pinning wants it.
const extentAlign = 4096

// RAM is a store whose extents all are in host memory; it lends its own bytes.
type RAM struct {
	regions []*hostmem.Region
	mu      sync.Mutex
	extents map[ID]*ramExtent
}

type ramExtent struct {
	Spec
	region *hostmem.Region
	off    int64
	pieces []pieceState
}

// pieceState records the borrowers of a piece, and the number of times it was written.
type pieceState struct {
	version uint64
	readers int
	writing bool
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
	for _, room := range roomsOf(kind, specs) {
		if bytes > 0 && bytes+room.bytes > regionBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		for _, spec := range room.specs {
			if _, dup := s.extents[spec.ID]; dup {
				panic(fmt.Sprintf("store: %v asked for twice", spec.ID))
			}
			e := &ramExtent{Spec: spec, off: bytes, pieces: make([]pieceState, (spec.Bytes+spec.Piece-1)/spec.Piece)}
			s.extents[spec.ID] = e
			group = append(group, e)
		}
		bytes += AlignUp(room.bytes)
	}
	return flush()
}

// room is memory for one extent, or for those that share it.
type room struct {
	bytes int64 // of the longest
	specs []Spec
}

// roomsOf are the rooms that the extents of a kind need, in the order in which they first come.
func roomsOf(kind Kind, specs []Spec) (rooms []*room) {
	shared := map[int]*room{}
	for _, spec := range specs {
		if spec.Kind != kind || spec.Bytes == 0 {
			continue
		}
		r := shared[spec.Share]
		if r == nil {
			r = &room{}
			rooms = append(rooms, r)
			if spec.Share > 0 {
				shared[spec.Share] = r
			}
		}
		r.bytes, r.specs = max(r.bytes, spec.Bytes), append(r.specs, spec)
	}
	return rooms
}

// RAMBytes is the memory that the extents take in a RAM, by kind: that of roomsOf, without making rooms, since a
// planner asks it thousands of times.
func RAMBytes(specs []Spec) (bytes [Kinds]int64) {
	var longest [Kinds]map[int]int64 // of the extents that share a room
	for _, spec := range specs {
		if spec.Share == 0 {
			bytes[spec.Kind] += AlignUp(spec.Bytes)
			continue
		}
		of := &longest[spec.Kind]
		if *of == nil {
			*of = map[int]int64{}
		}
		(*of)[spec.Share] = max((*of)[spec.Share], spec.Bytes)
	}
	for kind, of := range longest {
		for _, n := range of {
			bytes[kind] += AlignUp(n)
		}
	}
	return bytes
}

// AlignUp is the space that an extent of n bytes takes in a region.
func AlignUp(n int64) int64 { return (n + extentAlign - 1) / extentAlign * extentAlign }

// Borrow implements Store; it never blocks, and lends any number of pieces at once.
func (s *RAM) Borrow(ctx context.Context, _ trace.Worker, id ID, off, n int64, access Access,
	version uint64) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.extents[id]
	if e == nil {
		panic(fmt.Sprintf("store: there are no %v", id))
	}
	e.checkRange(off, n, access)
	var pieces []pieceState
	if n > 0 {
		pieces = e.pieces[off/e.Piece : (off+n-1)/e.Piece+1]
	}
	for i := range pieces {
		pieces[i].check(id, access, version)
	}
	for i := range pieces {
		pieces[i].take(access)
	}
	return &Lease{Region: e.region, Off: e.off + off, Len: n, release: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range pieces {
			pieces[i].endAccess(access)
		}
	}}, nil
}

// checkRange panics unless the range can be lent.
func (s *Spec) checkRange(off, n int64, access Access) {
	switch {
	case off < 0 || n < 0 || off > s.Bytes-n:
		panic(fmt.Sprintf("store: range [%d, %d+%d) outside of the %d bytes of %v", off, off, n, s.Bytes, s.ID))
	case access != Read && (off%s.Piece != 0 || (off+n)%s.Piece != 0 && off+n != s.Bytes):
		panic(fmt.Sprintf("store: range [%d, %d+%d) cuts a piece of %v that is to be written", off, off, n, s.ID))
	}
}

// check panics unless the piece can be lent.
func (p *pieceState) check(id ID, access Access, version uint64) {
	switch {
	case p.version != version:
		panic(fmt.Sprintf("store: %v are at version %d, borrowed at %d", id, p.version, version))
	case p.writing || access != Read && p.readers > 0:
		panic(fmt.Sprintf("store: clash of leases on %v", id))
	}
}

func (p *pieceState) take(access Access) {
	if access == Read {
		p.readers++
	} else {
		p.writing = true
	}
}

// abandon undoes take when Borrow fails after it.
func (p *pieceState) abandon(access Access) {
	if access == Read {
		p.readers--
	} else {
		p.writing = false
	}
}

func (p *pieceState) endAccess(access Access) {
	if access == Read {
		p.readers--
		return
	}
	p.writing = false
	p.version++
}

// Prefetch implements Store; everything is here already.
func (s *RAM) Prefetch(trace.Worker, ID, int64, uint64) {}

// Version implements Store.
func (s *RAM) Version(id ID) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.extents[id]; e != nil {
		return e.pieces[0].version
	}
	panic(fmt.Sprintf("store: there are no %v", id))
}

// Regions implements Store.
func (s *RAM) Regions() []*hostmem.Region { return s.regions }

// Close implements Store.
func (s *RAM) Close() error {
	for id, e := range s.extents {
		for _, p := range e.pieces {
			if p.writing || p.readers > 0 {
				panic(fmt.Sprintf("store: closed while %v are lent", id))
			}
		}
	}
	for _, r := range s.regions {
		r.Close()
	}
	s.regions, s.extents = nil, nil
	return nil
}

// PartSpecs returns the extents of one part: its weights, and for trained tensors the low halves, gradients and moments
// in the given forms (the zero Form leaves a kind out). Pieces have pieceParams parameters, a multiple of
// tensor.Align, so that pieces with the same number hold the same parameters in every kind.
func PartSpecs(part int, l *tensor.Layout, forms Forms, pieceParams int64) []Spec {
	return AppendPartSpecs(make([]Spec, 0, Kinds), part, l, forms, pieceParams)
}

// AppendPartSpecs is PartSpecs after other specs.
func AppendPartSpecs(specs []Spec, part int, l *tensor.Layout, forms Forms, pieceParams int64) []Spec {
	for kind := range Kind(Kinds) {
		elems := l.StateElems
		if kind == Weights {
			elems = l.WeightElems
		}
		if n := forms[kind].Bytes(elems); n > 0 {
			specs = append(specs, Spec{ID: ID{part, kind}, Bytes: n, Piece: forms[kind].Bytes(pieceParams)})
		}
	}
	return specs
}
