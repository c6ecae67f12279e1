package device_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// length is a buffer without memory.
type length int64

func (n length) Bytes() int64 { return int64(n) }
func (n length) Close() error { return nil }

// Overlaps is held against the sets of bytes of two sub-matrices of one matrix, and of two unrelated ones.
func TestOverlaps(t *testing.T) {
	buf := device.Whole(length(4096))
	draw := func(t *rapid.T, m device.Mat) device.Mat {
		r := rapid.IntRange(0, m.Rows-1).Draw(t, "row")
		c := rapid.IntRange(0, m.Cols-1).Draw(t, "col")
		m = m.RowRange(r, rapid.IntRange(1, m.Rows-r).Draw(t, "rows"))
		return m.ColRange(c, rapid.IntRange(1, m.Cols-c).Draw(t, "cols"))
	}
	touched := func(m device.Mat) map[int64]bool {
		set := map[int64]bool{}
		for r := range m.Rows {
			for c := range m.Cols {
				set[m.Off/m.DType.Bytes()+int64(r*m.Stride+c)] = true
			}
		}
		return set
	}
	rapid.Check(t, func(t *rapid.T) {
		whole := device.NewMat(buf, tensor.F32, rapid.IntRange(1, 6).Draw(t, "all rows"), rapid.IntRange(1, 8).Draw(t, "all cols"))
		a, b := draw(t, whole), draw(t, whole)
		want := false
		set := touched(a)
		for i := range touched(b) {
			want = want || set[i]
		}
		if got := a.Overlaps(b); got != want {
			t.Fatalf("%+v and %+v: %v, want %v", a, b, got, want)
		}
		if a.Overlaps(b) != b.Overlaps(a) {
			t.Fatal("not symmetric")
		}
		other := a
		other.Buf = length(9999)
		if a.Overlaps(other) {
			t.Fatal("matrices of two buffers overlap")
		}
	})
}

// Counting pieces again counts what taking them would.
func TestArenaAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 3000), 0, 5).Draw(t, "bytes")
		times, before := rapid.IntRange(1, 5).Draw(t, "times"), rapid.Int64Range(0, 3000).Draw(t, "before")
		walk := func(take func(a *device.Arena, all func())) (mark, peak int64) {
			a := device.NewArena(device.Mem{})
			a.Take(before)
			take(a, func() {
				for _, n := range sizes {
					a.Take(n)
				}
			})
			return a.Mark(), a.Peak()
		}
		mark, peak := walk(func(a *device.Arena, all func()) {
			for range times {
				all()
			}
		})
		againMark, againPeak := walk(func(a *device.Arena, all func()) {
			since := a.Mark()
			all()
			a.Again(times-1, since)
		})
		if againMark != mark || againPeak != peak {
			t.Fatalf("%d bytes with a peak of %d, one by one %d and %d", againMark, againPeak, mark, peak)
		}
	})
}

// An arena that counts places pieces where one over memory does, and its peak is what the other needs.
func TestArena(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := device.NewArena(device.Mem{})
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 3000), 1, 20).Draw(t, "bytes")
		release := rapid.IntRange(0, len(sizes)-1).Draw(t, "release at")
		walk := func(a *device.Arena) (places []int64) {
			mark := a.Mark()
			for i, n := range sizes {
				if i == release {
					a.Release(mark)
				}
				m := a.Take(n)
				if m.Len != n || m.Off%device.ArenaAlign != 0 {
					t.Fatalf("piece %d is %+v", i, m)
				}
				places = append(places, m.Off)
			}
			return places
		}
		counted := walk(count)
		placed := walk(device.NewArena(device.Whole(length(max(1, count.Peak())))))
		for i := range counted {
			if counted[i] != placed[i] {
				t.Fatalf("piece %d is at %d, counted at %d", i, placed[i], counted[i])
			}
		}
		if count.Peak() < device.ArenaAlign {
			return
		}
		defer func() {
			if recover() == nil {
				t.Fatal("an arena that is too small gives all pieces")
			}
		}()
		walk(device.NewArena(device.Whole(length(count.Peak() - device.ArenaAlign))))
	})
}
