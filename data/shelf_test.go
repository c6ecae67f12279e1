package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/rng"
)

// slowRooms finds rows by looking at each of them.
type slowRooms struct {
	room, filled []int // by row: the room left, and when it was filled last
	turn         int
}

func (s *slowRooms) place(length int) int32 {
	best := -1
	for row, room := range s.room {
		if room < length || s.filled[row] == 0 && best >= 0 && s.filled[best] == 0 {
			continue
		}
		if best < 0 || room < s.room[best] || room == s.room[best] && s.filled[row] > s.filled[best] {
			best = row
		}
	}
	if best >= 0 {
		s.turn++
		s.room[best] -= length
		s.filled[best] = s.turn
	}
	return int32(best)
}

// slowFit packs the groups of documents of a shelf one by one, and all of them again where one does not fit. It returns
// the rows of the documents, of as many groups as fit.
func slowFit(groups [][]int32, rows, width int) (rowOf []int32) {
	empty := func() *slowRooms {
		return &slowRooms{slices.Repeat([]int{width}, rows), make([]int, rows), 0}
	}
	shelf := empty()
	var all []int32
	for _, lengths := range groups {
		now := slices.Clone(rowOf)
		for _, n := range lengths {
			all = append(all, n)
			now = append(now, -1)
			if !slices.Contains(now[:len(now)-1], -1) {
				now[len(now)-1] = shelf.place(int(n))
			}
		}
		if slices.Contains(now, -1) {
			order := make([]int, len(all))
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(all[b], all[a]) })
			shelf = empty()
			for _, i := range order {
				now[i] = shelf.place(int(all[i]))
			}
			if slices.Contains(now, -1) {
				return rowOf
			}
		}
		rowOf = now
	}
	return rowOf
}

// TestShelf compares the shelf, one shelf for all sizes, with the slow reference.
func TestShelf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(2, 80).Draw(t, "sequence length")
		s := newShelf(width)
		for range 3 {
			rows := rapid.IntRange(1, 6).Draw(t, "rows")
			length := rapid.Int32Range(1, int32(rapid.IntRange(1, width).Draw(t, "longest")))
			groups := rapid.SliceOfN(rapid.SliceOfN(length, 2, 2), 1, 60).Draw(t, "groups")
			s.clear(rows)
			for _, g := range groups {
				if !s.add(g) {
					break
				}
			}
			if want := slowFit(groups, rows, width); !slices.Equal(s.rowOf, want) {
				t.Fatalf("rows %v, want %v", s.rowOf, want)
			}
		}
	})
}

// chatPairs makes pairs whose sides have lengths like those of chats: a prompt of 150 tokens and answers of 270 in the
// middle, spread like logarithms of a normal distribution.
func chatPairs(b *testing.B, n int) *Dataset {
	draw := rng.New(1, "lengths", 0, 0)
	normal := func(middle, spread float64) int {
		sum := -6.0
		for range 12 {
			sum += draw.Float64()
		}
		return int(math.Exp(math.Log(middle) + spread*sum))
	}
	var examples []Example
	for range n {
		prompt := normal(150, 1.3)
		for range 2 {
			examples = append(examples, sided(1, prompt+1+normal(270, 0.8), prompt))
		}
	}
	d, err := grouped(groupedSource{examples, 2, 1})
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// BenchmarkPackPairs packs an epoch of pairs for its number of steps, as Loader.Steps does.
func BenchmarkPackPairs(b *testing.B) {
	d := chatPairs(b, 100_000)
	for _, c := range []struct{ len, rows, cohorts int }{
		{1024, 8, 1}, {2048, 8, 1}, {2048, 32, 1}, {2048, 32, 4}, {2048, 512, 1}, {8192, 64, 1},
	} {
		b.Run(fmt.Sprintf("len=%d/rows=%d/cohorts=%d", c.len, c.rows, c.cohorts), func(b *testing.B) {
			l, err := NewLoader(d, LoaderOptions{SequenceLen: c.len, BatchTokens: c.len * c.rows, Cohorts: c.cohorts, Seed: 1,
				Epochs: 1, Accounts: hostmem.New()})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			steps := 0
			for b.Loop() {
				steps = l.Steps()
			}
			b.ReportMetric(100*l.Packing().Efficiency(), "%full")
			b.ReportMetric(float64(l.Packing().Pairs)/float64(steps), "pairs/step")
		})
	}
}
