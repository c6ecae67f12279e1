// Package storetest is the suite that every store.Store passes.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"pgregory.net/rapid"
)

// Crew has the workers that borrow.
var Crew = trace.Crew{Ranks: 2, Network: true}

// Run runs the suite. open makes a store with the given extents, in which each worker of Crew may hold a piece
// of each kind; the suite closes it.
func Run(t *testing.T, open func(t testing.TB, specs []store.Spec) store.Store) {
	specs := []store.Spec{
		{ID: store.ID{Part: 0, Kind: store.Weights}, Bytes: 512, Piece: 4096},
		{ID: store.ID{Part: 0, Kind: store.Grad}, Bytes: 1024, Piece: 512},
		{ID: store.ID{Part: 1, Kind: store.Weights}, Bytes: 3 << 13, Piece: 1 << 13},
		{ID: store.ID{Part: 1, Kind: store.SecondMoment}, Bytes: 4100, Piece: 4096},
	}
	ctx := context.Background()

	t.Run("what is written is read, at each version", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			s := open(t, specs)
			defer s.Close()
			type piece struct {
				id  store.ID
				off int64
			}
			want := map[piece][]byte{}
			version := map[piece]uint64{}
			for range rapid.IntRange(1, 20).Draw(rt, "accesses") {
				spec := rapid.SampledFrom(specs).Draw(rt, "extent")
				at := piece{spec.ID, rapid.Int64Range(0, (spec.Bytes-1)/spec.Piece).Draw(rt, "piece") * spec.Piece}
				n := min(spec.Piece, spec.Bytes-at.off)
				if want[at] == nil {
					want[at] = make([]byte, n)
				}
				lane := rapid.SampledFrom(Crew.Workers()).Draw(rt, "lane")
				access := rapid.SampledFrom([]store.Access{store.Read, store.Write, store.ReadWrite}).Draw(rt, "access")
				if access != store.Read {
					l, err := s.Borrow(ctx, lane, at.id, at.off, n, access, version[at])
					if err != nil {
						rt.Fatal(err)
					}
					defer l.Release() // of a test that fails
					first := 0
					if access == store.ReadWrite {
						first = rapid.IntRange(0, int(n)-1).Draw(rt, "unchanged")
						if !bytes.Equal(l.Bytes(), want[at]) {
							rt.Fatalf("%v: to change were lent other bytes than were written", at.id)
						}
					}
					fill := rapid.Byte().Draw(rt, "fill")
					for i := first; i < int(n); i++ {
						l.Bytes()[i], want[at][i] = fill+byte(i), fill+byte(i)
					}
					l.Release()
					l.Release() // the second call does nothing
					version[at]++
				}
				s.Prefetch(lane, at.id, at.off, version[at])
				l, err := s.Borrow(ctx, lane, at.id, at.off, n, store.Read, version[at])
				if err != nil {
					rt.Fatal(err)
				}
				defer l.Release()
				if !bytes.Equal(l.Bytes(), want[at]) {
					rt.Fatalf("%v: read other bytes than were written", at.id)
				}
				l.Release()
				if at.off == 0 && s.Version(at.id) != version[at] {
					rt.Fatalf("%v: version %d, want %d", at.id, s.Version(at.id), version[at])
				}
			}
		})
	})

	t.Run("many readers at once", func(t *testing.T) {
		s := open(t, specs)
		defer s.Close()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					l, err := s.Borrow(ctx, trace.Update.Of(0), specs[0].ID, 0, 512, store.Read, 0)
					if err != nil {
						t.Error(err)
						return
					}
					l.Release()
				}
			})
		}
		wg.Wait()
	})

	t.Run("many readers in different lanes", func(t *testing.T) {
		s := open(t, specs)
		defer s.Close()
		write(t, s, specs[3].ID, 0, 4096, 0)
		var leases []*store.Lease
		for _, lane := range Crew.Workers() {
			l, err := s.Borrow(ctx, lane, specs[3].ID, 0, 4096, store.Read, 1)
			if err != nil {
				t.Fatal(err)
			}
			verify(t, specs[3].ID, 0, 1, l)
			leases = append(leases, l)
		}
		for _, l := range leases {
			l.Release()
		}
	})

	t.Run("a hint may come before its version", func(t *testing.T) {
		s := open(t, specs)
		defer s.Close()
		id := specs[2].ID
		for version := range uint64(3) {
			for off := range specs[2].Pieces() {
				s.Prefetch(trace.Fetch.Of(0), id, off, version+1)
				s.Prefetch(trace.Fetch.Of(0), id, off, version+100) // never comes
			}
			for off, n := range specs[2].Pieces() {
				write(t, s, id, off, n, version)
			}
			for off, n := range specs[2].Pieces() {
				l, err := s.Borrow(ctx, trace.Fetch.Of(0), id, off, n, store.Read, version+1)
				if err != nil {
					t.Fatal(err)
				}
				verify(t, id, off, version+1, l)
				l.Release()
			}
		}
	})

	t.Run("lanes at once", func(t *testing.T) { lanesAtOnce(t, open) })

	panics := func(name string, f func(s store.Store)) {
		t.Run("panics: "+name, func(t *testing.T) {
			s := open(t, specs)
			defer s.Close()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(s)
		})
	}
	borrow := func(s store.Store, id store.ID, off, n int64, a store.Access, v uint64) *store.Lease {
		l, err := s.Borrow(ctx, trace.Update.Of(0), id, off, n, a, v)
		if err != nil {
			panic("an error, not a panic: " + err.Error())
		}
		return l
	}
	panics("unknown extent", func(s store.Store) { borrow(s, store.ID{Part: 9}, 0, 0, store.Read, 0) })
	panics("range outside", func(s store.Store) { borrow(s, specs[0].ID, 500, 13, store.Read, 0) })
	panics("wrong version", func(s store.Store) { borrow(s, specs[0].ID, 0, 1, store.Read, 1) })
	panics("write of half a piece", func(s store.Store) { borrow(s, specs[0].ID, 0, 1, store.ReadWrite, 0) })
	panics("reader while writing", func(s store.Store) {
		defer borrow(s, specs[0].ID, 0, 512, store.Write, 0).Release()
		borrow(s, specs[0].ID, 0, 1, store.Read, 0)
	})
	panics("writer while reading", func(s store.Store) {
		defer borrow(s, specs[0].ID, 0, 1, store.Read, 0).Release()
		borrow(s, specs[0].ID, 0, 512, store.Write, 0)
	})

	t.Run("a cancelled context is an error", func(t *testing.T) {
		s := open(t, specs)
		defer s.Close()
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		_, err := s.Borrow(ctx, trace.Update.Of(0), specs[0].ID, 0, 1, store.Read, 0)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
