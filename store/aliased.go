package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/trace"
)

// Aliased lends extents of which several are on the same bytes: a model's traffic with a fraction of its memory, for
// measuring models whose state is larger than the machine. It holds no training state, since each write of an extent
// overwrites the extents that share its bytes.
//
// Each extent has versions of its own, and clashes on it panic as in every store. Leases of different extents on the
// same bytes are no bug of the caller, who does not know of the sharing. The later lease waits for the earlier one, so
// that bytes have many readers or one writer here too. Waiting can deadlock if a lane keeps leases while it waits for
// another lane. Enough copies prevent that: more than the number of parts of which one lane holds leases at once.
type Aliased struct {
	ram *RAM

	mu      sync.Mutex
	changed chan struct{} // closed when a lease ends
	extents map[ID]*aliasedExtent
}

type aliasedExtent struct {
	Spec
	pieces []pieceState // as the caller sees them
	on     *sharedExtent
}

// sharedExtent is an extent of the RAM, with the writes and leases of all who are on it.
type sharedExtent struct {
	ID
	pieces []pieceState
}

// NewAliased takes the RAM over and lends the extents on it. The extents of a part share the bytes of part
// copyOf(part), which have the same lengths and pieces; a part whose copyOf is itself has bytes of its own. It panics
// where the RAM lacks an extent of that shape.
func NewAliased(ram *RAM, specs []Spec, copyOf func(part int) int) *Aliased {
	s := &Aliased{ram: ram, changed: make(chan struct{}), extents: make(map[ID]*aliasedExtent, len(specs))}
	shared := map[ID]*sharedExtent{}
	for _, spec := range specs {
		if spec.Bytes == 0 {
			continue
		}
		id := ID{copyOf(spec.Part), spec.Kind}
		under := ram.extents[id]
		if under == nil || under.Bytes != spec.Bytes || under.Piece != spec.Piece {
			panic(fmt.Sprintf("store: %v cannot be on %v", spec.ID, id))
		}
		if shared[id] == nil {
			shared[id] = &sharedExtent{id, append([]pieceState(nil), under.pieces...)}
		}
		s.extents[spec.ID] = &aliasedExtent{spec, make([]pieceState, len(under.pieces)), shared[id]}
	}
	return s
}

// Borrow implements Store. It lends one piece, or a part of one, at a time, and blocks while another extent's lease
// on the same bytes stands against it.
func (s *Aliased) Borrow(ctx context.Context, lane trace.Worker, id ID, off, n int64, access Access,
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
	if n > 0 && off/e.Piece != (off+n-1)/e.Piece {
		panic(fmt.Sprintf("store: range [%d, %d+%d) is more than a piece of %v", off, off, n, id))
	}
	if n == 0 {
		return s.ram.Borrow(ctx, lane, e.on.ID, off, 0, access, 0)
	}
	own, under := &e.pieces[off/e.Piece], &e.on.pieces[off/e.Piece]
	own.check(id, access, version)
	own.take(access)
	for under.writing || access != Read && under.readers > 0 {
		if err := s.wait(ctx); err != nil {
			own.abandon(access)
			return nil, err
		}
	}
	l, err := s.ram.Borrow(ctx, lane, e.on.ID, off, n, access, under.version)
	if err != nil {
		own.abandon(access)
		return nil, err
	}
	under.take(access)
	release := l.release
	l.release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		release()
		own.endAccess(access)
		under.endAccess(access)
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return l, nil
}

// wait gives up the lock until a lease has ended, or until ctx ends, which is an error.
func (s *Aliased) wait(ctx context.Context) error {
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Prefetch implements Store; everything is here already.
func (s *Aliased) Prefetch(trace.Worker, ID, int64, uint64) {}

// Version implements Store: the writes of this extent, not those of others on the same bytes.
func (s *Aliased) Version(id ID) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.extents[id]; e != nil {
		return e.pieces[0].version
	}
	panic(fmt.Sprintf("store: there are no %v", id))
}

// Regions implements Store.
func (s *Aliased) Regions() []*hostmem.Region { return s.ram.Regions() }

// Close implements Store.
func (s *Aliased) Close() error { return s.ram.Close() }
