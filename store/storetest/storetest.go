// Package storetest is the suite that every store.Store passes.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/millrace/millrace/store"
	"pgregory.net/rapid"
)

// Run runs the suite. open makes a store with the given extents; the suite closes it.
func Run(t *testing.T, open func(t testing.TB, specs []store.Spec) store.Store) {
	specs := []store.Spec{
		{ID: store.ID{Part: 0, Kind: store.Weights}, Bytes: 512},
		{ID: store.ID{Part: 0, Kind: store.Grad}, Bytes: 1024},
		{ID: store.ID{Part: 1, Kind: store.Weights}, Bytes: 3 << 20},
		{ID: store.ID{Part: 1, Kind: store.SecondMoment}, Bytes: 4100},
	}
	ctx := context.Background()

	t.Run("what is written is read, at each version", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			s := open(t, specs)
			defer s.Close()
			want := map[store.ID][]byte{}
			version := map[store.ID]uint64{}
			for _, spec := range specs {
				want[spec.ID] = make([]byte, spec.Bytes)
			}
			for range rapid.IntRange(1, 20).Draw(rt, "accesses") {
				spec := rapid.SampledFrom(specs).Draw(rt, "extent")
				off := rapid.Int64Range(0, spec.Bytes-1).Draw(rt, "off")
				n := rapid.Int64Range(0, spec.Bytes-off).Draw(rt, "n")
				if rapid.Bool().Draw(rt, "write") {
					l, err := s.Borrow(ctx, spec.ID, off, n, store.Write, version[spec.ID])
					if err != nil {
						rt.Fatal(err)
					}
					fill := rapid.Byte().Draw(rt, "fill")
					for i := range l.Bytes() {
						l.Bytes()[i] = fill
						want[spec.ID][off+int64(i)] = fill
					}
					l.Release()
					l.Release() // the second call does nothing
					version[spec.ID]++
				}
				s.Prefetch(spec.ID, off, n, version[spec.ID])
				l, err := s.Borrow(ctx, spec.ID, off, n, store.Read, version[spec.ID])
				if err != nil {
					rt.Fatal(err)
				}
				if !bytes.Equal(l.Bytes(), want[spec.ID][off:off+n]) {
					rt.Fatalf("%v: read other bytes than were written", spec.ID)
				}
				l.Release()
				if got := s.Version(spec.ID); got != version[spec.ID] {
					rt.Fatalf("%v: version %d, want %d", spec.ID, got, version[spec.ID])
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
					l, err := s.Borrow(ctx, specs[0].ID, 0, 512, store.Read, 0)
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
		l, err := s.Borrow(ctx, id, off, n, a, v)
		if err != nil {
			panic("an error, not a panic: " + err.Error())
		}
		return l
	}
	panics("unknown extent", func(s store.Store) { borrow(s, store.ID{Part: 9}, 0, 0, store.Read, 0) })
	panics("range outside", func(s store.Store) { borrow(s, specs[0].ID, 500, 13, store.Read, 0) })
	panics("wrong version", func(s store.Store) { borrow(s, specs[0].ID, 0, 1, store.Read, 1) })
	panics("reader while writing", func(s store.Store) {
		defer borrow(s, specs[0].ID, 0, 1, store.Write, 0).Release()
		borrow(s, specs[0].ID, 0, 1, store.Read, 0)
	})
	panics("writer while reading", func(s store.Store) {
		defer borrow(s, specs[0].ID, 0, 1, store.Read, 0).Release()
		borrow(s, specs[0].ID, 0, 1, store.Write, 0)
	})

	t.Run("a cancelled context is an error", func(t *testing.T) {
		s := open(t, specs)
		defer s.Close()
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := s.Borrow(ctx, specs[0].ID, 0, 1, store.Read, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
