package devicetest

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
)

// cacheTests are those of operations on caches.
var cacheTests = []test{{"AttendCache", testAttendCache}, {"Put", testPut}}

func testAttendCache(r *rig) {
	type attention struct {
		rows, heads, kvHeads, headDim, window int
		softCap                               float32
		sinks                                 bool
		lengths                               []int // of the sequences, each of which has its last rows in the pass
		capacity                              int   // rows of the cache of a sequence
	}
	cases := []attention{{1, 1, 1, 2, 0, 0, false, []int{1}, 1}, {1, 3, 1, 16, 0, 0, false, []int{300}, 301},
		{4, 2, 2, 6, 3, 0, false, []int{5, 1, 17, 9}, 17}, {130, 4, 2, 64, 0, 0, false, []int{131}, 140},
		{37, 6, 2, 8, 130, 0, false, []int{290, 40}, 300}, {5, 2, 1, 80, 0, 50, false, []int{131, 3}, 131},
		{9, 4, 1, 16, 20, 0, true, []int{70, 12, 200}, 210}, {3, 2, 2, 64, 4, 2, true, []int{33}, 64},
		{2, 140, 1, 2, 0, 0, false, []int{3}, 5}}
	if r.suite.Align > 0 {
		cases = append(cases, attention{1, 9, 3, 64, 0, 0, false, []int{513}, 520},
			attention{4, 8, 2, 128, 100, 0, false, []int{200, 64}, 200},
			attention{2, 4, 1, 256, 0, 30, true, []int{129, 300}, 304})
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
			// What no row sees is poison.
			seen := map[int]bool{}
			for i := range start {
				for row := start[i]; row < end[i]; row++ {
					seen[int(row)] = true
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
