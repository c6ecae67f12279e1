package cpu

import (
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// router chooses for one row after another. Its arithmetic is in float64: it takes little time compared with the
// products of experts.
type router struct {
	device.RouteSpec
	scores, from []float64 // of each expert: its score, and what the row chooses by
	sums         []float64 // of each group
	experts      []int
}

func newRouter(spec device.RouteSpec, experts int) *router {
	return &router{RouteSpec: spec, scores: make([]float64, experts), from: make([]float64, experts),
		sums: make([]float64, max(spec.Groups, 1)), experts: make([]int, 0, max(spec.TopK, spec.TopGroups, 2))}
}

// score computes the scores of a row.
func (r *router) score(logits []float32) {
	if r.Sigmoid {
		for e, l := range logits {
			r.scores[e] = 1 / (1 + math.Exp(-float64(l)))
		}
		return
	}
	greatest, sum := float64(slices.Max(logits)), 0.0
	for e, l := range logits {
		r.scores[e] = math.Exp(float64(l) - greatest)
		sum += r.scores[e]
	}
	for e := range r.scores {
		r.scores[e] /= sum
	}
}

// best are the numbers of the n greatest of x; of equal ones the first. A NaN is less than all numbers.
func (r *router) best(x []float64, n int) []int {
	better := func(a, b float64) bool { return a > b || a == a && b != b }
	top := r.experts[:0]
	if n == len(x) { // all of them; every use sorts them
		for i := range x {
			top = append(top, i)
		}
		r.experts = top
		return top
	}
	for i, v := range x {
		if len(top) == n && !better(v, x[top[n-1]]) {
			continue
		}
		top = append(top[:min(len(top), n-1)], i)
		for at := len(top) - 1; at > 0 && better(v, x[top[at-1]]); at-- {
			top[at-1], top[at] = top[at], top[at-1]
		}
	}
	r.experts = top
	return top
}

// choose are the experts of a row whose scores are there, ascending.
func (r *router) choose(bias []float32) []int {
	copy(r.from, r.scores)
	for e, b := range bias {
		r.from[e] += float64(b)
	}
	if r.Groups > 1 {
		size := len(r.from) / r.Groups
		for g := range r.sums {
			group := r.from[g*size:][:size]
			r.sums[g] = 0
			for _, e := range r.best(group, r.LeastInGroup()) {
				r.sums[g] += group[e]
			}
		}
		groups := r.best(r.sums, r.TopGroups)
		for e := range r.from {
			if !slices.Contains(groups, e/size) {
				r.from[e] = math.Inf(-1)
			}
		}
	}
	experts := r.best(r.from, r.TopK)
	slices.Sort(experts)
	return experts
}

// divisor returns the number by which the scores of chosen experts are divided.
func (r *router) divisor(experts []int32) float64 {
	if !r.Renormalize {
		return 1
	}
	sum := 0.0
	for _, e := range experts {
		sum += r.scores[e]
	}
	return sum
}

// Route implements device.RoutingOps.
func (s *Stream) Route(choices device.Mem, weights, logits, bias device.Mat, spec device.RouteSpec) {
	s.operands.Route(choices, weights, logits, bias, spec)
	s.enqueue(func() {
		k := spec.TopK
		to, w := ints(choices, logits.Rows*k), floats(weights)
		var b []float32
		if !bias.IsZero() {
			b = floats(bias)
		}
		s.crew.split(logits.Rows, 1, routeBytes(logits), func(lo, hi int) {
			r := newRouter(spec, logits.Cols)
			for t := lo; t < hi; t++ {
				r.score(floats(logits.RowRange(t, 1)))
				mine := to[t*k:][:k]
				for i, e := range r.choose(b) {
					mine[i] = int32(e)
				}
				by := r.divisor(mine)
				for i, e := range mine {
					w[t*k+i] = float32(r.scores[e] / by * float64(spec.Scale))
				}
			}
		})
	})
}

// routeBytes are as many as an operation would go through in the time that a row of a router takes: exponentials take
// most of it.
func routeBytes(logits device.Mat) int64 { return int64(logits.Cols) * 64 }

// RouteGrad implements device.RoutingOps.
func (s *Stream) RouteGrad(dlogits, dweights, logits device.Mat, choices device.Mem, spec device.RouteSpec) {
	s.operands.RouteGrad(dlogits, dweights, logits, choices, spec)
	s.enqueue(func() {
		k := spec.TopK
		chosen, dw := ints(choices, logits.Rows*k), floats(dweights)
		s.crew.split(logits.Rows, 1, routeBytes(logits), func(lo, hi int) {
			r, dscores := newRouter(spec, logits.Cols), make([]float64, logits.Cols)
			for t := lo; t < hi; t++ {
				r.score(floats(logits.RowRange(t, 1)))
				mine, d := chosen[t*k:][:k], dw[t*k:][:k]
				by, mean := r.divisor(mine), 0.0
				if spec.Renormalize {
					for i, e := range mine {
						mean += r.scores[e] / by * float64(d[i])
					}
				}
				clear(dscores)
				inner := 0.0 // by which a softmax takes the mean away
				for i, e := range mine {
					dscores[e] = float64(spec.Scale) * (float64(d[i]) - mean) / by
					inner += r.scores[e] * dscores[e]
				}
				row := dlogits.RowRange(t, 1)
				for e, score := range r.scores {
					slope := dscores[e] - inner
					if spec.Sigmoid {
						slope = dscores[e] * (1 - score)
					}
					put(row, e, float32(score*slope))
				}
			}
		})
	})
}

// put stores an element of a matrix of one row.
func put(row device.Mat, i int, x float32) {
	if row.DType == tensor.F32 {
		floats(row)[i] = x
		return
	}
	halves(row)[i] = tensor.BF16FromF32(x)
}

// SortChoices implements device.RoutingOps: a counting sort.
func (s *Stream) SortChoices(r device.Routing) {
	s.operands.SortChoices(r)
	s.enqueue(func() {
		n := r.Rows * r.TopK
		choices, order, rank := ints(r.Choices, n), ints(r.Order, n), ints(r.Rank, n)
		starts := ints(r.Starts, r.Experts+1)
		clear(starts)
		for _, e := range choices {
			starts[e+1]++
		}
		for e := range r.Experts {
			starts[e+1] += starts[e]
		}
		next := slices.Clone(starts)
		for c, e := range choices {
			order[next[e]], rank[c] = int32(c), next[e]
			next[e]++
		}
	})
}

// CountChoices implements device.RoutingOps.
func (s *Stream) CountChoices(counts device.Mat, r device.Routing, scale float32) {
	s.operands.CountChoices(counts, r, scale)
	s.enqueue(func() {
		to, starts := floats(counts), ints(r.Starts, r.Experts+1)
		for e := range to {
			to[e] = float32(starts[e+1]-starts[e]) * scale
		}
	})
}

// ScaleChoices implements device.RoutingOps.
func (s *Stream) ScaleChoices(y, x, factors device.Mat, choices device.Mem) {
	s.operands.ScaleChoices(y, x, factors, choices)
	s.enqueue(func() {
		of := vec(factors)
		to, from := floats(y), floats(x)
		for i, e := range ints(choices, len(to)) {
			to[i] = from[i] * of.At(int(e))
		}
	})
}

// ScaleChoicesGrad implements device.RoutingOps. The sum is taken in the order of choices.
func (s *Stream) ScaleChoicesGrad(dfactors, dy, x device.Mat, choices device.Mem) {
	s.operands.ScaleChoicesGrad(dfactors, dy, x, choices)
	s.enqueue(func() {
		to, slopes, of := floats(dfactors), floats(dy), floats(x)
		sums := make([]float64, len(to))
		for i, e := range ints(choices, len(of)) {
			sums[e] += float64(float64(slopes[i]) * float64(of[i]))
		}
		for e, sum := range sums {
			to[e] += float32(sum)
		}
	})
}
