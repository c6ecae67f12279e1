package devicetest

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// The operations of device/experts.go, whose text names the sources of the formulas.

// scores computes the scores of a row's experts, before any bias.
func scores(logits []float64, spec device.RouteSpec) []float64 {
	s, greatest, sum := make([]float64, len(logits)), slices.Max(logits), 0.0
	for e, l := range logits {
		if spec.Sigmoid {
			s[e] = 1 / (1 + math.Exp(-l))
			continue
		}
		s[e] = math.Exp(l - greatest)
		sum += s[e]
	}
	if !spec.Sigmoid {
		for e := range s {
			s[e] /= sum
		}
	}
	return s
}

// best are the numbers of the n greatest of x, in that order; of equal ones the first.
func best(x []float64, n int) []int {
	all := make([]int, len(x))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(x[b], x[a]) })
	return all[:n]
}

// chosen are the experts that a row chooses, ascending.
func chosen(scores, bias []float64, spec device.RouteSpec) []int {
	from := make([]float64, len(scores))
	for e := range from {
		if from[e] = scores[e]; bias != nil {
			from[e] += bias[e]
		}
	}
	if spec.Groups > 1 {
		size := len(from) / spec.Groups
		sums := make([]float64, spec.Groups)
		for g := range sums {
			for _, e := range best(from[g*size:][:size], spec.LeastInGroup()) {
				sums[g] += from[g*size+e]
			}
		}
		groups := best(sums, spec.TopGroups)
		for e := range from {
			if !slices.Contains(groups, e/size) {
				from[e] = math.Inf(-1)
			}
		}
	}
	experts := best(from, spec.TopK)
	slices.Sort(experts)
	return experts
}

// shares are the weights of the chosen experts without Scale, and what their scores were divided by.
func shares(scores []float64, experts []int, spec device.RouteSpec) (w []float64, by float64) {
	if spec.Renormalize {
		for _, e := range experts {
			by += scores[e]
		}
	} else {
		by = 1
	}
	for _, e := range experts {
		w = append(w, scores[e]/by)
	}
	return w, by
}

// Route writes the choices of each row and their weights.
func (s *referenceStream) Route(choices device.Mem, weights, logits, bias device.Mat, spec device.RouteSpec) {
	s.operands.Route(choices, weights, logits, bias, spec)
	s.do(func() {
		var b, w, numbers []float64
		if !bias.IsZero() {
			b = s.numbers(bias)
		}
		for row := range slices.Chunk(s.numbers(logits), logits.Cols) {
			of := scores(row, spec)
			experts := chosen(of, b, spec)
			parts, _ := shares(of, experts, spec)
			for i, e := range experts {
				numbers, w = append(numbers, float64(e)), append(w, parts[i]*float64(spec.Scale))
			}
		}
		s.put(device.NewVec(choices, tensor.I32, len(numbers)), numbers)
		s.put(weights, w)
	})
}

// RouteGrad goes back from the weights to the scores, and from them to the logits.
func (s *referenceStream) RouteGrad(dlogits, dweights, logits device.Mat, choices device.Mem, spec device.RouteSpec) {
	s.operands.RouteGrad(dlogits, dweights, logits, choices, spec)
	s.do(func() {
		var out []float64
		all, dw, k := s.numbers(logits), s.numbers(dweights), spec.TopK
		experts := s.vector(choices, tensor.I32, logits.Rows*k)
		for t := range logits.Rows {
			of := scores(all[t*logits.Cols:][:logits.Cols], spec)
			var mine []int
			for _, e := range experts[t*k:][:k] {
				mine = append(mine, int(e))
			}
			parts, by := shares(of, mine, spec)
			mean := 0.0
			if spec.Renormalize {
				mean = dot(parts, dw[t*k:])
			}
			dscores := make([]float64, len(of))
			for i, e := range mine {
				dscores[e] = float64(spec.Scale) * (dw[t*k+i] - mean) / by
			}
			inner := dot(of, dscores)
			for e, score := range of {
				if spec.Sigmoid {
					out = append(out, dscores[e]*score*(1-score))
				} else {
					out = append(out, score*(dscores[e]-inner))
				}
			}
		}
		s.put(dlogits, out)
	})
}

// SortChoices sorts by expert; choices of one expert stay in their order.
func (s *referenceStream) SortChoices(r device.Routing) {
	s.operands.SortChoices(r)
	s.do(func() {
		n := r.Rows * r.TopK
		experts := s.vector(r.Choices, tensor.I32, n)
		order, rank, starts := make([]float64, n), make([]float64, n), make([]float64, r.Experts+1)
		at := 0
		for e := range r.Experts {
			starts[e] = float64(at)
			for c, of := range experts {
				if int(of) == e {
					order[at], rank[c] = float64(c), float64(at)
					at++
				}
			}
		}
		starts[r.Experts] = float64(at)
		s.put(device.NewVec(r.Order, tensor.I32, n), order)
		s.put(device.NewVec(r.Rank, tensor.I32, n), rank)
		s.put(device.NewVec(r.Starts, tensor.I32, r.Experts+1), starts)
	})
}

// CountChoices: the difference of two Starts, times scale.
func (s *referenceStream) CountChoices(counts device.Mat, r device.Routing, scale float32) {
	s.operands.CountChoices(counts, r, scale)
	s.do(func() {
		starts, out := s.vector(r.Starts, tensor.I32, r.Experts+1), make([]float64, r.Experts)
		for e := range out {
			out[e] = (starts[e+1] - starts[e]) * float64(scale)
		}
		s.put(counts, out)
	})
}

// ScaleChoices multiplies the number of each choice by that of its expert.
func (s *referenceStream) ScaleChoices(y, x, factors device.Mat, choices device.Mem) {
	s.operands.ScaleChoices(y, x, factors, choices)
	s.do(func() {
		of, out := s.numbers(factors), s.numbers(x)
		for i, e := range s.vector(choices, tensor.I32, len(out)) {
			out[i] *= of[int(e)]
		}
		s.put(y, out)
	})
}

// ScaleChoicesGrad sums what each expert's choices have.
func (s *referenceStream) ScaleChoicesGrad(dfactors, dy, x device.Mat, choices device.Mem) {
	s.operands.ScaleChoicesGrad(dfactors, dy, x, choices)
	s.do(func() {
		sums, slopes, of := s.numbers(dfactors), s.numbers(dy), s.numbers(x)
		for i, e := range s.vector(choices, tensor.I32, len(of)) {
			sums[int(e)] += slopes[i] * of[i]
		}
		s.put(dfactors, sums)
	})
}

// block is one that a call computes: of an expert, counted from the first one whose weights are there.
type block struct {
	expert  int
	row     int       // of matrices of blocks, the first
	place   int       // of its first choice in the order
	choices []float64 // of its rows
}

// blocks lists the blocks of a call.
func (s *referenceStream) blocks(b device.Blocks) (all []block) {
	r := b.Routing
	order, starts := s.vector(r.Order, tensor.I32, r.Rows*r.TopK), s.vector(r.Starts, tensor.I32, r.Experts+1)
	number := 0
	for e := range b.Experts {
		place := int(starts[b.First+e])
		for choices := range slices.Chunk(order[place:int(starts[b.First+e+1])], b.Rows) {
			if at := number - b.From; 0 <= at && at < b.Count {
				all = append(all, block{e, at * b.Rows, place, choices})
			}
			number, place = number+1, place+len(choices)
		}
	}
	return all
}

// GatherRows: y[i] = x[row of i].
func (s *referenceStream) GatherRows(y, x device.Mat, b device.Blocks) {
	s.operands.GatherRows(y, x, b)
	s.do(func() {
		for _, of := range s.blocks(b) {
			for i, choice := range of.choices {
				s.put(y.RowRange(of.row+i, 1), s.numbers(x.RowRange(int(choice)/b.Routing.TopK, 1)))
			}
		}
	})
}

// ExpertMatMul is a product for each block, onto its bias.
func (s *referenceStream) ExpertMatMul(c, a, w, bias device.Mat, how device.ExpertProduct, b device.Blocks) {
	s.operands.ExpertMatMul(c, a, w, bias, how, b)
	s.do(func() {
		for _, of := range s.blocks(b) {
			n, to := len(of.choices), of.row
			if how.Placed {
				to = of.place
			}
			rows := c.RowRange(to, n)
			flags := device.MatMulFlags{TransB: how.Transposed}
			if !bias.IsZero() {
				for i := range n {
					s.put(rows.RowRange(i, 1), s.numbers(bias.RowRange(of.expert, 1)))
				}
				flags.Accumulate = true
			}
			s.MatMul(rows, a.RowRange(of.row, n), stacked(w, of.expert, b), flags)
		}
	})
}

// stacked are the rows of an expert in a matrix that has those of all.
func stacked(w device.Mat, expert int, b device.Blocks) device.Mat {
	n := w.Rows / b.Experts
	return w.RowRange(expert*n, n)
}

// ExpertWeightGrad is a product for each block.
func (s *referenceStream) ExpertWeightGrad(dw, dy, x device.Mat, b device.Blocks) {
	s.operands.ExpertWeightGrad(dw, dy, x, b)
	s.do(func() {
		for _, of := range s.blocks(b) {
			n := len(of.choices)
			s.MatMul(stacked(dw, of.expert, b), dy.RowRange(of.row, n), x.RowRange(of.row, n),
				device.MatMulFlags{TransA: true, Accumulate: true})
		}
	})
}

// ExpertBiasGrad: db of its expert += weight*dy[r], and dweights of its choice += dy[r]·bias.
func (s *referenceStream) ExpertBiasGrad(db, dweights, dy, bias, weights device.Mat, b device.Blocks) {
	s.operands.ExpertBiasGrad(db, dweights, dy, bias, weights, b)
	s.do(func() {
		for _, of := range s.blocks(b) {
			for i, choice := range of.choices {
				row, weight := s.numbers(dy.RowRange(of.row+i, 1)), 1.0
				if !weights.IsZero() {
					at := element(dweights, int(choice))
					s.put(at, []float64{s.numbers(at)[0] + dot(row, s.numbers(bias.RowRange(of.expert, 1)))})
					weight = s.numbers(element(weights, int(choice)))[0]
				}
				if !db.IsZero() {
					sum := s.numbers(db.RowRange(of.expert, 1))
					addTo(sum, row, weight)
					s.put(db.RowRange(of.expert, 1), sum)
				}
			}
		}
	})
}

// element returns the element of a choice in a matrix that has one for each.
func element(m device.Mat, choice int) device.Mat {
	return m.RowRange(choice/m.Cols, 1).ColRange(choice%m.Cols, 1)
}

// ExpertGLU: y = act(gate, up).
func (s *referenceStream) ExpertGLU(y, gateUp device.Mat, spec device.GLUSpec, b device.Blocks) {
	s.operands.ExpertGLU(y, gateUp, spec, b)
	s.do(func() {
		for _, of := range s.blocks(b) {
			for i := range of.choices {
				in, out := s.numbers(gateUp.RowRange(of.row+i, 1)), make([]float64, y.Cols)
				for j := range out {
					out[j], _, _ = gated(in[j], in[y.Cols+j], spec)
				}
				s.put(y.RowRange(of.row+i, 1), out)
			}
		}
	})
}

// ExpertGLUGrad: dGateUp = weight*dy*act', act = weight*act, dweights = dy·act.
func (s *referenceStream) ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights device.Mat, spec device.GLUSpec,
	b device.Blocks) {
	s.operands.ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights, spec, b)
	s.do(func() {
		for _, of := range s.blocks(b) {
			for i, choice := range of.choices {
				m, weight := dy.Cols, s.numbers(element(weights, int(choice)))[0]
				in, d := s.numbers(gateUp.RowRange(of.row+i, 1)), s.numbers(dy.RowRange(of.row+i, 1))
				out, gradient, sum := make([]float64, m), make([]float64, 2*m), 0.0
				for j := range out {
					y, byGate, byUp := gated(in[j], in[m+j], spec)
					out[j], gradient[j], gradient[m+j] = weight*y, weight*d[j]*byGate, weight*d[j]*byUp
					sum += d[j] * y
				}
				s.put(act.RowRange(of.row+i, 1), out)
				s.put(dGateUp.RowRange(of.row+i, 1), gradient)
				s.put(element(dweights, int(choice)), []float64{sum})
			}
		}
	})
}

// CombineRows: y[t] = from[t] + the sum of weight*x[place].
func (s *referenceStream) CombineRows(y, x, from, weights device.Mat, places device.Mem, topK int) {
	s.operands.CombineRows(y, x, from, weights, places, topK)
	s.do(func() {
		all := s.vector(places, tensor.I32, y.Rows*topK)
		for t := range y.Rows {
			total := make([]float64, y.Cols)
			for j, place := range all[t*topK:][:topK] {
				weight := 1.0
				if !weights.IsZero() {
					weight = s.numbers(element(weights, t*topK+j))[0]
				}
				addTo(total, s.numbers(x.RowRange(int(place), 1)), weight)
			}
			addTo(total, s.numbers(from.RowRange(t, 1)), 1)
			s.put(y.RowRange(t, 1), total)
		}
	})
}
