package devicetest

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
)

// cacheTests lists the tests of operations on caches.
var cacheTests = []test{{"AttendCache", testAttendCache}, {"Put", testPut}, {"ContinueConv", testContinueConv},
	{"ContinueDelta", testContinueDelta}}

func testAttendCache(r *rig) {
	type attention struct {
		rows, heads, kvHeads, headDim, window int
		softCap                               float32
		sinks                                 bool
		lengths                               []int // of the sequences, each of which has its last rows in the pass
		capacity                              int   // rows of the cache of a sequence
		block                                 int   // rows of the blocks that a table deals out; 0: there is no table
	}
	cases := []attention{{1, 1, 1, 2, 0, 0, false, []int{1}, 1, 0}, {1, 3, 1, 16, 0, 0, false, []int{300}, 301, 0},
		{4, 2, 2, 6, 3, 0, false, []int{5, 1, 17, 9}, 17, 0}, {130, 4, 2, 64, 0, 0, false, []int{131}, 140, 0},
		{37, 6, 2, 8, 130, 0, false, []int{290, 40}, 300, 0}, {5, 2, 1, 80, 0, 50, false, []int{131, 3}, 131, 0},
		{9, 4, 1, 16, 20, 0, true, []int{70, 12, 200}, 210, 0}, {3, 2, 2, 64, 4, 2, true, []int{33}, 64, 0},
		{2, 140, 1, 2, 0, 0, false, []int{3}, 5, 0},
		{4, 2, 2, 6, 3, 0, false, []int{5, 1, 17, 9}, 18, 3}, {9, 4, 1, 16, 20, 0, true, []int{70, 12, 200}, 210, 7},
		{5, 2, 1, 80, 0, 50, false, []int{131, 3}, 144, 16}, {37, 6, 2, 8, 130, 0, false, []int{290, 40}, 384, 128},
		{3, 2, 1, 256, 0, 0, false, []int{40}, 40, 10}}
	if r.suite.Align > 0 {
		cases = append(cases, attention{1, 9, 3, 64, 0, 0, false, []int{513}, 520, 0},
			attention{4, 8, 2, 128, 100, 0, false, []int{200, 64}, 200, 0},
			attention{2, 4, 1, 256, 0, 30, true, []int{129, 300}, 304, 0},
			attention{4, 8, 2, 128, 100, 0, false, []int{200, 64}, 256, 64},
			attention{2, 4, 1, 256, 0, 30, true, []int{129, 300}, 320, 16})
	}
	for _, s := range cases {
		for _, d := range types {
			what := fmt.Sprintf("%v %+v", d, s)
			cached := s.capacity * len(s.lengths)
			start, end := make([]int32, s.rows), make([]int32, s.rows)
			for i := range start { // rows of the sequences follow each other
				seq := i * len(s.lengths) / s.rows
				left := 0
				for j := i + 1; j < s.rows && j*len(s.lengths)/s.rows == seq; j++ {
					left++
				}
				start[i] = int32(seq * s.capacity)
				end[i] = start[i] + int32(max(s.lengths[seq]-left, 0)) // there may be none
			}
			spec := device.AttentionSpec{Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, Window: s.window,
				Scale: float32(1 / math.Sqrt(float64(s.headDim))), SoftCap: s.softCap,
				Docs: device.Docs{Start: r.ints("start", start).Mem, End: r.ints("end", end).Mem}}
			if s.sinks {
				sinks := r.output("sinks", d, 1, s.heads)
				spec.Sinks = r.filled(sinks, func(i int) float64 { return float64(3*i-6) + r.rng.NormFloat64() }).Mat
			}
			row := func(r int) int { return r }
			if s.block > 0 { // in another order, and some blocks more that no row sees
				cached += 2 * s.block
				table := make([]int32, s.capacity*len(s.lengths)/s.block)
				for i, at := range r.rng.Perm(cached / s.block)[:len(table)] {
					table[i] = int32(at)
				}
				row = func(r int) int { return int(table[r/s.block])*s.block + r%s.block }
				spec.Blocks = device.CacheBlocks{Table: r.ints("table", table).Mem, Rows: s.block, Each: s.capacity}
			}
			// What no row sees is poison.
			seen := map[int]bool{}
			for i := range start {
				for r := start[i]; r < end[i]; r++ {
					seen[row(int(r))] = true
				}
			}
			cache := func(name string) *matrix {
				m := r.output(name, d, cached, s.kvHeads*s.headDim)
				return r.filled(m, func(i int) float64 {
					if !seen[i/m.Cols] {
						return math.NaN()
					}
					return r.rng.NormFloat64()
				})
			}
			q, k, v := r.normal("q", d, s.rows, s.heads*s.headDim), cache("k"), cache("v")
			out := r.output("out", d, s.rows, s.heads*s.headDim)
			r.run(func(st device.Stream) { st.AttendCache(out.Mat, q.Mat, k.Mat, v.Mat, spec) })
			r.near(what, out, 4)
			r.finish(what)
		}
	}
}

func testPut(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			what := fmt.Sprint(d, s)
			at := make([]int32, s.rows)
			for i, row := range r.rng.Perm(s.rows + 3)[:s.rows] {
				at[i] = int32(row)
				if row%5 == 1 {
					at[i] = -1 - int32(row)
				}
			}
			cache, x := r.normal("cache", d, s.rows+3, s.cols), r.normal("x", d, s.rows, s.cols)
			v := r.ints("at", at)
			r.run(func(st device.Stream) { st.Put(cache.Mat, x.Mat, v.Mem) })
			r.exact(what, cache)
			r.finish(what)
		}
	}
}

// continuing are passes over rows of sequences that begin, or that continue what passes before have left.
type continuing struct {
	each, sequences int // rows of a sequence in a cache; and sequences of which a cache has rows
	passes          []device.Continued
	rows            []int // of passes
	first           []int // row of all passes together
	seen            map[int]bool
}

// continuing draws that many passes of up to most rows each over mixtures of some sequences, in the order of rows that
// the passes have together. One of the sequences begins again; the last one has no rows.
func (r *rig) continuing(passes, most, sequences int) continuing {
	c := continuing{each: passes*most + 2, sequences: sequences, seen: map[int]bool{}}
	at, total := make([]int, sequences), 0
	for pass := range passes {
		var start, end []int32
		for len(start) < 1+r.rng.IntN(most) {
			sequence := r.rng.IntN(max(sequences-1, 1))
			c.seen[sequence] = true
			for range 1 + r.rng.IntN(most-len(start)) {
				if pass == passes-1 && sequence == 0 && at[0] > 0 && len(start) == 0 {
					at[0] = 0
				}
				start = append(start, int32(sequence*c.each))
				at[sequence]++
				end = append(end, int32(sequence*c.each+at[sequence]))
			}
		}
		c.first, c.rows = append(c.first, total), append(c.rows, len(start))
		c.passes = append(c.passes, device.Continued{Each: c.each,
			Docs: device.Docs{Start: r.ints("start", start).Mem, End: r.ints("end", end).Mem}})
		total += len(start)
	}
	return c
}

// total is the number of rows of all passes.
func (c continuing) total() int { return c.first[len(c.first)-1] + c.rows[len(c.rows)-1] }

// forEach calls do for each pass, with what picks its rows of matrices that have those of all passes.
func (c continuing) forEach(do func(of device.Continued, rows func(*matrix) device.Mat)) {
	for i, of := range c.passes {
		do(of, func(m *matrix) device.Mat { return m.RowRange(c.first[i], c.rows[i]) })
	}
}

func testContinueConv(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			for _, taps := range []int{4, 2, device.MostTaps} {
				if taps != 4 && s.rows > 100 {
					continue // these were tried
				}
				for _, sequences := range []int{1, 3} {
					what := fmt.Sprint(d, s, " taps ", taps, " sequences ", sequences)
					c := r.continuing(3, max(s.rows/2, 1), sequences)
					x, y := r.normal("x", d, c.total(), s.cols), r.output("y", d, c.total(), s.cols)
					w, tail := r.normal("w", d, s.cols, taps), r.output("tail", d, sequences*(taps-1), s.cols)
					r.run(func(st device.Stream) {
						c.forEach(func(of device.Continued, rows func(*matrix) device.Mat) {
							st.ContinueConv(rows(y), tail.Mat, rows(x), w.Mat, of)
						})
					})
					r.near(what, y, math.Sqrt(float64(taps))+1)
					r.exact(what, tail)
					r.finish(what)
				}
			}
		}
	}
}

func testContinueDelta(r *rig) {
	for _, d := range types {
		shapes := []deltaShape{{1, 1, 1, 1, 1, nil}, {3, 1, 2, 5, 3, nil}, {20, 2, 6, 12, 10, nil},
			{70, 1, 3, 8, 20, nil}, {33, 1, 1, 33, 17, nil}, {130, 2, 4, 16, 16, nil}, {9, 1, 2, 64, 64, nil}}
		if r.suite.Align > 0 {
			shapes = []deltaShape{{40, 1, 2, 128, 128, nil}, {70, 1, 3, 48, 16, nil}, {9, 1, 1, 64, 64, nil}}
		}
		for _, s := range shapes {
			for _, sequences := range []int{1, 3} {
				what := fmt.Sprintf("%v %+v of %d sequences", d, s, sequences)
				c := r.continuing(3, max(s.rows/2, 1), sequences)
				spec := device.DeltaSpec{KeyHeads: s.keyHeads, Heads: s.heads, KeyDim: s.keyDim, ValueDim: s.valueDim}
				_, cols := spec.States(1)
				n := r.delta(d, c.total(), spec)
				left := r.stat("left", sequences, cols)
				r.run(func(st device.Stream) {
					c.forEach(func(of device.Continued, rows func(*matrix) device.Mat) {
						spec.Docs = of.Docs
						st.ContinueDelta(rows(n.out), left.Mat, rows(n.qkv), rows(n.decay), rows(n.beta), spec, of.Each)
					})
				})
				r.near(what, n.out, 2)
				for sequence := range c.seen {
					r.near(what, &matrix{left.RowRange(sequence, 1), fmt.Sprint("left ", sequence)}, 4)
				}
				r.finish(what)
			}
		}
	}
}
