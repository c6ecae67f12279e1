package storetest

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
)

// Pattern fills a place with bytes that tell extents, pieces and versions apart; version 0 is zeros.
func Pattern(to []byte, id store.ID, off int64, version uint64) {
	if version == 0 {
		clear(to)
		return
	}
	r := rand.NewPCG(uint64(id.Part)<<8|uint64(id.Kind), uint64(off)<<20|version)
	for i := range to {
		if i%8 == 0 {
			for x, j := r.Uint64(), i; j < min(i+8, len(to)); j++ {
				to[j] = byte(x >> (8 * (j - i)))
			}
		}
	}
}

// Matches reports whether bytes are the pattern.
func Matches(got []byte, id store.ID, off int64, version uint64) bool {
	want := make([]byte, len(got))
	Pattern(want, id, off, version)
	return string(want) == string(got)
}

func verify(t testing.TB, id store.ID, off int64, version uint64, l *store.Lease) {
	t.Helper()
	if !Matches(l.Bytes(), id, off, version) {
		t.Errorf("%v at %d: not what version %d was", id, off, version)
	}
}

// write writes the pattern of the next version.
func write(t testing.TB, s store.Store, id store.ID, off, n int64, version uint64) {
	t.Helper()
	l, err := s.Borrow(context.Background(), trace.Update.Of(0), id, off, n, store.Write, version)
	if err != nil {
		t.Fatal(err)
	}
	Pattern(l.Bytes(), id, off, version+1)
	l.Release()
}

// lockedPiece is a piece and what a schedule would know of it.
type lockedPiece struct {
	sync.RWMutex
	id      store.ID
	off, n  int64
	version uint64
}

// lanesAtOnce lets all lanes hold a piece of every kind again and again, with hints that may be right or wrong. Locks take
// the place of the schedule that orders accesses. They are taken before anything is borrowed and always in the same order, so
// that only the store can make lanes wait for each other.
func lanesAtOnce(t *testing.T, open func(t testing.TB, specs []store.Spec) store.Store) {
	var specs []store.Spec
	byKind := make([][]*lockedPiece, store.Kinds)
	for part := range 2 {
		for kind := range store.Kind(store.Kinds) {
			s := store.Spec{ID: store.ID{Part: part, Kind: kind}, Bytes: 3*4096 + 100*int64(kind), Piece: 4096}
			specs = append(specs, s)
			for off, n := range s.Pieces() {
				byKind[kind] = append(byKind[kind], &lockedPiece{id: s.ID, off: off, n: n})
			}
		}
	}
	s := open(t, specs)
	defer s.Close()
	ctx := context.Background()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var lanes sync.WaitGroup
	for i, lane := range Crew.Workers() {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		lanes.Go(func() {
			for range 200 {
				if !visit(ctx, t, s, lane, r, byKind) {
					return
				}
			}
		})
	}
	lanes.Wait()
	for _, pieces := range byKind {
		for _, p := range pieces {
			l, err := s.Borrow(ctx, trace.Fetch.Of(0), p.id, p.off, p.n, store.Read, p.version)
			if err != nil {
				t.Fatal(err)
			}
			verify(t, p.id, p.off, p.version, l)
			l.Release()
		}
	}
}

// visit holds some pieces, at most one of a kind, and then gives them back.
func visit(ctx context.Context, t *testing.T, s store.Store, lane trace.Worker, r *rand.Rand,
	byKind [][]*lockedPiece) bool {
	pick := func(kind int) *lockedPiece { return byKind[kind][r.IntN(len(byKind[kind]))] }
	for range r.IntN(4) {
		p := pick(r.IntN(len(byKind)))
		p.RLock()
		version := p.version + r.Uint64N(3)
		p.RUnlock()
		s.Prefetch(lane, p.id, p.off, version)
	}
	for kind := range byKind {
		if r.IntN(3) == 0 {
			continue
		}
		p := pick(kind)
		access := store.Access(r.IntN(3))
		if access == store.Read {
			p.RLock()
			defer p.RUnlock()
		} else {
			p.Lock()
			defer p.Unlock()
		}
		l, err := s.Borrow(ctx, lane, p.id, p.off, p.n, access, p.version)
		if err != nil {
			t.Error(err)
			return false
		}
		if access != store.Write {
			verify(t, p.id, p.off, p.version, l)
		}
		if access != store.Read {
			p.version++
			Pattern(l.Bytes(), p.id, p.off, p.version)
		}
		defer l.Release() // before the lock
	}
	return true
}
