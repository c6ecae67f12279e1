package store_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/trace"
)

// aliased makes a store of four parts with weights in two pieces, of which odd ones are on part 1 and even ones on
// part 0.
func aliased(t *testing.T) *store.Aliased {
	t.Helper()
	var specs []store.Spec
	for part := range 4 {
		specs = append(specs, store.Spec{ID: store.ID{Part: part, Kind: store.Weights}, Bytes: 1536, Piece: 1024})
	}
	ram, err := store.NewRAM(hostmem.New(), specs[:2])
	if err != nil {
		t.Fatal(err)
	}
	s := store.NewAliased(ram, specs, func(part int) int { return part % 2 })
	t.Cleanup(func() { s.Close() })
	return s
}

func weightsOf(part int) store.ID { return store.ID{Part: part, Kind: store.Weights} }

// TestAliasedAlone is a store of which nothing is shared.
func TestAliasedAlone(t *testing.T) {
	storetest.Run(t, func(t testing.TB, specs []store.Spec) store.Store {
		ram, err := store.NewRAM(hostmem.New(), specs)
		if err != nil {
			t.Fatal(err)
		}
		return store.NewAliased(ram, specs, func(part int) int { return part })
	})
}

func TestAliasedSharesBytesAndNotVersions(t *testing.T) {
	s, ctx := aliased(t), context.Background()
	for version := range uint64(3) {
		l, err := s.Borrow(ctx, trace.Update.Of(0), weightsOf(2), 0, 1024, store.ReadWrite, version)
		if err != nil {
			t.Fatal(err)
		}
		l.Bytes()[7] = byte(version + 1)
		l.Release()
	}
	for part, want := range []byte{3, 0, 3, 0} {
		version := uint64(0)
		if part == 2 {
			version = 3
		}
		if got := s.Version(weightsOf(part)); got != version {
			t.Errorf("part %d: version %d, want %d", part, got, version)
		}
		l, err := s.Borrow(ctx, trace.Fetch.Of(0), weightsOf(part), 0, 1024, store.Read, version)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Bytes()[7]; got != want {
			t.Errorf("part %d: %d, want %d", part, got, want)
		}
		l.Release()
	}
	if n := len(s.Regions()); n != 1 || s.Regions()[0].Len() != 2*4096 {
		t.Errorf("%d regions, the first one of %d bytes: copies take memory", n, s.Regions()[0].Len())
	}
}

// TestAliasedWaits holds what must wait for what: a writer for readers and writers of the same bytes, a reader for a
// writer.
func TestAliasedWaits(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second store.Access
		part          int
		off           int64
		waits         bool
	}{
		{"a writer for a reader", store.Read, store.ReadWrite, 2, 0, true},
		{"a writer for a writer", store.ReadWrite, store.Write, 2, 0, true},
		{"a reader for a writer", store.Write, store.Read, 2, 0, true},
		{"readers do not wait", store.Read, store.Read, 2, 0, false},
		{"no wait for another piece", store.Write, store.Write, 2, 1024, false},
		{"no wait for another copy", store.Write, store.Write, 3, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ctx := aliased(t), context.Background()
				first, err := s.Borrow(ctx, trace.Fetch.Of(0), weightsOf(0), 0, 1024, c.first, 0)
				if err != nil {
					t.Fatal(err)
				}
				n := min(int64(1024), 1536-c.off)
				got := make(chan error, 1)
				go func() {
					l, err := s.Borrow(ctx, trace.Update.Of(0), weightsOf(c.part), c.off, n, c.second, 0)
					if err == nil {
						l.Release()
					}
					got <- err
				}()
				if c.waits {
					synctest.Wait()
					select {
					case err := <-got:
						t.Fatalf("it did not wait: %v", err)
					default:
					}
					first.Release()
					first.Release() // the second call does nothing
				} else {
					defer first.Release()
				}
				if err := <-got; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAliasedWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := aliased(t)
		l, err := s.Borrow(context.Background(), trace.Fetch.Of(0), weightsOf(1), 0, 1024, store.Read, 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() {
			_, err := s.Borrow(ctx, trace.Update.Of(0), weightsOf(3), 0, 1024, store.Write, 0)
			got <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		l.Release()
		// The lease that failed has left no trace.
		l, err = s.Borrow(context.Background(), trace.Update.Of(0), weightsOf(3), 0, 1024, store.Write, 0)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	})
}

func TestAliasedPanics(t *testing.T) {
	ctx := context.Background()
	for name, f := range map[string]func(*store.Aliased){
		"a wrong version": func(s *store.Aliased) {
			s.Borrow(ctx, trace.Update.Of(0), weightsOf(2), 0, 1024, store.Read, 1)
		},
		"two pieces": func(s *store.Aliased) {
			s.Borrow(ctx, trace.Update.Of(0), weightsOf(2), 0, 1536, store.Read, 0)
		},
		"a clash on one extent": func(s *store.Aliased) {
			l, _ := s.Borrow(ctx, trace.Fetch.Of(0), weightsOf(2), 0, 1024, store.Read, 0)
			defer l.Release()
			s.Borrow(ctx, trace.Update.Of(0), weightsOf(2), 0, 1024, store.Write, 0)
		},
		"another shape": func(s *store.Aliased) {
			ram, _ := store.NewRAM(hostmem.New(), []store.Spec{{ID: weightsOf(0), Bytes: 1536, Piece: 1024}})
			defer ram.Close()
			store.NewAliased(ram, []store.Spec{{ID: weightsOf(1), Bytes: 1536, Piece: 512}}, func(int) int { return 0 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := aliased(t)
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(s)
		})
	}
}
