package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// expertTests lists the tests of device.RoutingOps and device.ExpertOps.
var expertTests = []test{
	{"Route", testRoute}, {"RouteGrad", testRouteGrad}, {"SortChoices", testSortChoices}, {"CountChoices",
		testCountChoices},
	{"ScaleChoices", testScaleChoices}, {"ScaleChoicesGrad", testScaleChoicesGrad},
	{"GatherRows", testGatherRows}, {"ExpertMatMul", testExpertMatMul}, {"ExpertWeightGrad", testExpertWeightGrad},
	{"ExpertBiasGrad", testExpertBiasGrad}, {"ExpertGLU", testExpertGLU},
	{"CombineRows", testCombineRows}, {"ExpertCalls", testExpertCalls},
}

// routeSpecs lists the routings that families have, and their corners.
var routeSpecs = []struct {
	rows, experts int
	device.RouteSpec
}{
	{1, 1, device.RouteSpec{TopK: 1, Scale: 1}},
	{17, 5, device.RouteSpec{TopK: 2, Scale: 1}},
	{40, 8, device.RouteSpec{TopK: 2, Renormalize: true, Scale: 1}},
	{33, 60, device.RouteSpec{TopK: 4, Renormalize: true, Scale: 1.5}},
	{9, 6, device.RouteSpec{TopK: 6, Scale: 1}},
	{31, 17, device.RouteSpec{TopK: 3, Sigmoid: true, Scale: 1}},
	{50, 24, device.RouteSpec{TopK: 4, Sigmoid: true, Renormalize: true, Scale: 2.5, Groups: 4, TopGroups: 2}},
	{20, 16, device.RouteSpec{TopK: 2, Sigmoid: true, Renormalize: true, Scale: 1, Groups: 8, TopGroups: 1}},
	{30, 24, device.RouteSpec{TopK: 3, Scale: 16, Groups: 6, TopGroups: 2, ByBest: true}},
	{12, 5, device.RouteSpec{TopK: 2, Scale: 1, Groups: 5, TopGroups: 3, ByBest: true}},
	{5, 300, device.RouteSpec{TopK: 10, Renormalize: true, Scale: 1}},
}

func testRoute(r *rig) {
	for _, s := range routeSpecs {
		for variant := range 4 {
			biased, ties := variant&1 != 0, variant&2 != 0
			what := fmt.Sprintf("%+v biased %v, ties %v", s, biased, ties)
			logits := r.filled(r.output("logits", tensor.F32, s.rows, s.experts), func(i int) float64 {
				x := r.rng.NormFloat64()
				if ties {
					x = math.Round(x)
				}
				return x + float64(i/s.experts%3)*40*when(!s.Sigmoid) // far from zero in some rows
			})
			bias := &matrix{}
			if biased {
				bias = r.normal("bias", tensor.F32, 1, s.experts)
			}
			choices, weights := r.place("choices", tensor.I32, s.rows, s.TopK, s.TopK), r.stat("weights", s.rows,
				s.TopK)
			r.run(func(st device.Stream) { st.Route(choices.Mem, weights.Mat, logits.Mat, bias.Mat, s.RouteSpec) })
			r.exact(what, choices)
			r.near(what, weights, 0)
			r.finish(what)
		}
	}
}

// when is 1 or 0.
func when(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func testRouteGrad(r *rig) {
	for _, d := range types {
		for _, s := range routeSpecs {
			what := fmt.Sprintf("%v %+v", d, s)
			logits := r.normal("logits", tensor.F32, s.rows, s.experts)
			choices, weights := r.place("choices", tensor.I32, s.rows, s.TopK, s.TopK), r.stat("weights", s.rows,
				s.TopK)
			r.prepare(func(st device.Stream) {
				st.Route(choices.Mem, weights.Mat, logits.Mat, device.Mat{},
					s.RouteSpec)
			})
			dweights := r.filled(r.stat("dweights", s.rows, s.TopK), func(int) float64 { return r.rng.NormFloat64() })
			dlogits := r.output("dlogits", d, s.rows, s.experts)
			r.run(func(st device.Stream) {
				st.RouteGrad(dlogits.Mat, dweights.Mat, logits.Mat, choices.Mem,
					s.RouteSpec)
			})
			r.near(what, dlogits, float64(s.Scale))
			r.finish(what)
		}
	}
}

// mixture is a routing, and the blocks of one call.
type mixture struct {
	*rig
	device.Blocks
	experts []int32 // of each choice
}

// mixtures are sizes of routings. All rows of those with skew choose the same experts.
var mixtures = []struct {
	rows, topK, experts, blockRows int
	skew                           bool
}{
	{1, 1, 1, 1, false}, {1, 2, 7, 3, false}, {5, 1, 3, 2, false}, {33, 2, 5, 8, false}, {70, 3, 9, 16, false},
	{40, 4, 4, 7, false}, {100, 8, 40, 16, false}, {60, 2, 6, 16, true}, {150, 1, 3, 32, true}, {300, 2, 4, 64, false},
}

// mixtures calls f for calls of several sizes, for some of the experts and for all of them.
func (r *rig) mixtures(f func(what string, m *mixture)) {
	for _, s := range mixtures {
		for variant := range 4 {
			m := r.mixture(s.rows, s.topK, s.experts, s.blockRows, s.skew)
			if variant&1 != 0 {
				m.First = r.rng.IntN(s.experts)
				m.Experts = 1 + r.rng.IntN(s.experts-m.First)
			}
			if m.Count = m.Most(); variant&2 != 0 {
				m.Count = 1 + r.rng.IntN(m.Most())
				m.From = r.rng.IntN(m.Most())
			}
			f(fmt.Sprintf("%+v, experts [%d, %d), blocks [%d, %d)", s, m.First, m.First+m.Experts, m.From,
				m.From+m.Count), m)
		}
	}
}

// mixture places a routing, of whose experts all are there.
func (r *rig) mixture(rows, topK, experts, blockRows int, skew bool) *mixture {
	m := &mixture{rig: r, Blocks: device.Blocks{Experts: experts, Rows: blockRows}}
	favourites := r.rng.Perm(experts)[:topK]
	for range rows {
		mine := favourites
		if !skew {
			mine = r.rng.Perm(experts)[:topK]
		}
		mine = slices.Sorted(slices.Values(mine))
		for _, e := range mine {
			m.experts = append(m.experts, int32(e))
		}
	}
	n := rows * topK
	m.Routing = device.Routing{Rows: rows, TopK: topK, Experts: experts, Choices: r.ints("choices", m.experts).Mem,
		Order: r.place("order", tensor.I32, 1, n, n).Mem, Rank: r.place("rank", tensor.I32, 1, n, n).Mem,
		Starts: r.place("starts", tensor.I32, 1, experts+1, experts+1).Mem}
	r.prepare(func(st device.Stream) { st.SortChoices(m.Routing) })
	return m
}

// filled are the rows of matrices of blocks that the call's blocks fill, their choices, and the places of these in the
// order.
func (m *mixture) filled() (rows, choices, places []int) {
	number, before := 0, 0
	for _, of := range m.experts {
		if int(of) < m.First {
			before++
		}
	}
	for e := m.First; e < m.First+m.Experts; e++ {
		n := 0
		for c, of := range m.experts {
			if int(of) != e {
				continue
			}
			if at := number + n/m.Rows - m.From; 0 <= at && at < m.Count {
				rows, choices = append(rows, at*m.Rows+n%m.Rows), append(choices, c)
				places = append(places, before+n)
			}
			n++
		}
		number, before = number+(n+m.Rows-1)/m.Rows, before+n
	}
	return rows, choices, places
}

// ofBlocks places a matrix of blocks, with numbers in the rows that blocks fill and poison in the others.
func (m *mixture) ofBlocks(name string, d tensor.DType, cols int) *matrix {
	x := m.output(name, d, m.Count*m.Blocks.Rows, cols)
	rows, _, _ := m.filled()
	for _, row := range rows {
		m.rig.filled(&matrix{Mat: x.RowRange(row, 1)}, func(int) float64 { return m.rng.NormFloat64() })
	}
	return x
}

// perChoice places a number for each choice.
func (m *mixture) perChoice(name string) *matrix {
	return m.rig.filled(m.stat(name, m.Routing.Rows, m.Routing.TopK), func(int) float64 { return m.rng.NormFloat64() })
}

// nearRows compares the rows of a matrix of blocks that blocks fill, or those of their choices in one that has them
// all.
func (m *mixture) nearRows(what string, x *matrix, scale float64, placed bool) {
	m.Helper()
	rows, _, places := m.filled()
	if placed {
		rows = places
	}
	for _, row := range rows {
		m.near(what, &matrix{x.RowRange(row, 1), fmt.Sprint(x.name, " row ", row)}, scale)
	}
}

// nearChoices compares the numbers of the call's choices.
func (m *mixture) nearChoices(what string, x *matrix, scale float64) {
	m.Helper()
	_, choices, _ := m.filled()
	for _, c := range choices {
		m.near(what, &matrix{element(x.Mat, c), fmt.Sprint(x.name, " of choice ", c)}, scale)
	}
}

func testSortChoices(r *rig) {
	for _, s := range mixtures {
		what := fmt.Sprintf("%+v", s)
		m := r.mixture(s.rows, s.topK, s.experts, s.blockRows, s.skew)
		n := s.rows * s.topK
		of := m.Routing
		order, rank := r.place("order", tensor.I32, 1, n, n), r.place("rank", tensor.I32, 1, n, n)
		starts := r.place("starts", tensor.I32, 1, s.experts+1, s.experts+1)
		of.Order, of.Rank, of.Starts = order.Mem, rank.Mem, starts.Mem
		r.run(func(st device.Stream) { st.SortChoices(of) })
		r.exact(what, order)
		r.exact(what, rank)
		r.exact(what, starts)
		r.finish(what)
	}
}

func testCountChoices(r *rig) {
	for _, s := range mixtures {
		for _, scale := range []float32{1, 0.3} {
			what := fmt.Sprintf("%+v, scale %g", s, scale)
			m := r.mixture(s.rows, s.topK, s.experts, s.blockRows, s.skew)
			counts := r.stat("counts", 1, s.experts)
			r.run(func(st device.Stream) { st.CountChoices(counts.Mat, m.Routing, scale) })
			r.near(what, counts, 0)
			r.finish(what)
		}
	}
}

func testScaleChoices(r *rig) {
	for _, d := range types {
		for i, s := range mixtures {
			what := fmt.Sprintf("%v %+v", d, s)
			m := r.mixture(s.rows, s.topK, s.experts, s.blockRows, s.skew)
			factors, x := r.normal("factors", d, 1, s.experts), m.perChoice("x")
			y := x // in place
			if i%2 == 0 {
				y = r.stat("y", s.rows, s.topK)
			}
			r.run(func(st device.Stream) { st.ScaleChoices(y.Mat, x.Mat, factors.Mat, m.Routing.Choices) })
			r.near(what, y, 0)
			r.finish(what)
		}
	}
}

func testScaleChoicesGrad(r *rig) {
	for _, s := range mixtures {
		what := fmt.Sprintf("%+v", s)
		m := r.mixture(s.rows, s.topK, s.experts, s.blockRows, s.skew)
		dy, x, dfactors := m.perChoice("dy"), m.perChoice("x"), r.normal("dfactors", tensor.F32, 1, s.experts)
		r.run(func(st device.Stream) { st.ScaleChoicesGrad(dfactors.Mat, dy.Mat, x.Mat, m.Routing.Choices) })
		r.near(what, dfactors, math.Sqrt(float64(s.rows*s.topK))+1)
		r.finish(what)
	}
}

func testGatherRows(r *rig) {
	for _, d := range types {
		r.mixtures(func(what string, m *mixture) {
			x, y := r.normal("x", d, m.Routing.Rows, 37), r.output("y", d, m.Count*m.Rows, 37)
			r.run(func(st device.Stream) { st.GatherRows(y.Mat, x.Mat, m.Blocks) })
			m.nearRows(what, y, 0, false)
			r.finish(what)
		})
	}
}

// widths are of products of experts: of what is multiplied, and of the result.
func (s *Suite) widths() [][2]int {
	if s.Align > 0 {
		return [][2]int{{64, 48}, {16, 128}}
	}
	return [][2]int{{37, 13}, {5, 66}}
}

// rests is true, in a brief suite, of the calls of another turn. Calls are numbered so that each four belong together:
// turns change within them, and from four to four.
func (s *Suite) rests(turn, call int) bool { return s.Brief && (turn+call+call/4)%2 == 0 }

func testExpertMatMul(r *rig) {
	for _, d := range types {
		for i, width := range r.suite.widths() {
			for variant := range 4 {
				of, call := device.ExpertProduct{Transposed: variant&1 != 0, Placed: variant&2 != 0}, 0
				r.mixtures(func(what string, m *mixture) {
					if call++; r.suite.rests(i+variant, call) {
						return
					}
					what = fmt.Sprintf("%v %v %+v %s", d, width, of, what)
					rows, cols, results := width[0], width[1], m.Count*m.Rows
					if of.Transposed {
						rows, cols = cols, rows
					}
					if of.Placed {
						results = m.Routing.Rows * m.Routing.TopK
					}
					a, w, bias := m.ofBlocks("a", d, width[0]), r.normal("w", d, m.Experts*rows, cols), &matrix{}
					if of.Transposed && m.Routing.Rows%3 != 0 {
						bias = r.normal("bias", d, m.Experts, width[1])
					}
					c := r.output("c", d, results, width[1])
					r.run(func(st device.Stream) { st.ExpertMatMul(c.Mat, a.Mat, w.Mat, bias.Mat, of, m.Blocks) })
					m.nearRows(what, c, math.Sqrt(float64(width[0]))+1, of.Placed)
					r.finish(what)
				})
			}
		}
	}
}

func testExpertWeightGrad(r *rig) {
	for _, d := range types {
		for i, width := range r.suite.widths() {
			call := 0
			r.mixtures(func(what string, m *mixture) {
				if call++; r.suite.rests(i, call) {
					return
				}
				what = fmt.Sprintf("%v %v %s", d, width, what)
				dy, x := m.ofBlocks("dy", d, width[1]), m.ofBlocks("x", d, width[0])
				dw := r.normal("dw", tensor.F32, m.Experts*width[1], width[0])
				r.run(func(st device.Stream) { st.ExpertWeightGrad(dw.Mat, dy.Mat, x.Mat, m.Blocks) })
				r.near(what, dw, math.Sqrt(float64(m.Routing.Rows))+1)
				r.finish(what)
			})
		}
	}
}

func testExpertBiasGrad(r *rig) {
	for _, d := range types {
		for variant := range 3 {
			r.mixtures(func(what string, m *mixture) {
				what = fmt.Sprintf("%v variant %d %s", d, variant, what)
				dy := m.ofBlocks("dy", d, 21)
				db, dweights, bias, weights := &matrix{}, &matrix{}, &matrix{}, &matrix{}
				if variant != 1 {
					db = r.normal("db", tensor.F32, m.Experts, 21)
				}
				if variant != 0 {
					dweights, weights = m.perChoice("dweights"), m.perChoice("weights")
					bias = r.normal("bias", d, m.Experts, 21)
				}
				r.run(func(st device.Stream) {
					st.ExpertBiasGrad(db.Mat, dweights.Mat, dy.Mat, bias.Mat, weights.Mat, m.Blocks)
				})
				if variant != 1 {
					r.near(what, db, math.Sqrt(float64(m.Routing.Rows))+1)
				}
				if variant != 0 {
					m.nearChoices(what, dweights, 5)
				}
				r.finish(what)
			})
		}
	}
}

func testExpertGLU(r *rig) {
	for _, d := range types {
		for i, spec := range gluSpecs {
			if spec.Ungated {
				continue // experts have gated units alone
			}
			for _, inPlace := range []bool{false, true} {
				for _, inner := range []int{19, 600} {
					call := i
					r.mixtures(func(what string, m *mixture) {
						if inner > 100 && m.Routing.Rows > 40 {
							return // of one piece only
						}
						// All calls in place and not, for one kind of unit and short rows; the others take turns.
						if call++; (i > 0 || inner > 100) && (call%2 == 0) == inPlace || r.suite.rests(i, call/2) {
							return
						}
						what = fmt.Sprintf("%v %+v in place %v %d %s", d, spec, inPlace, inner, what)
						gateUp, dy := m.ofBlocks("gateUp", d, 2*inner), m.ofBlocks("dy", d, inner)
						y := r.output("y", d, m.Count*m.Rows, inner)
						dGateUp, act := gateUp, dy
						if !inPlace {
							dGateUp, act = r.output("dGateUp", d, m.Count*m.Rows, 2*inner), r.output("act", d,
								m.Count*m.Rows, inner)
						}
						weights, dweights := m.perChoice("weights"), m.perChoice("dweights")
						r.run(func(st device.Stream) {
							st.ExpertGLU(y.Mat, gateUp.Mat, spec, m.Blocks)
							st.ExpertGLUGrad(dGateUp.Mat, act.Mat, dweights.Mat, dy.Mat, gateUp.Mat, weights.Mat,
								spec, m.Blocks)
						})
						m.nearRows(what, y, 1, false)
						m.nearRows(what, act, 1, false)
						m.nearRows(what, dGateUp, 4, false)
						m.nearChoices(what, dweights, math.Sqrt(float64(inner)))
						r.finish(what)
					})
				}
			}
		}
	}
}

func testCombineRows(r *rig) {
	for _, d := range types {
		for variant := range 8 {
			for _, s := range []struct{ rows, topK, cols int }{{1, 1, 37}, {9, 8, 600}, {33, 2, 16}} {
				what := fmt.Sprintf("%v variant %d %+v", d, variant, s)
				n := s.rows * s.topK
				var places []int32
				for _, place := range r.rng.Perm(n + 5)[:n] { // some rows of x belong to others
					places = append(places, int32(place))
				}
				x, y, weights := r.normal("x", d, n+5, s.cols), r.output("y", d, s.rows, s.cols), &matrix{}
				if variant&1 != 0 {
					weights = r.filled(r.stat("weights", s.rows, s.topK),
						func(int) float64 { return r.rng.NormFloat64() })
				}
				from := y
				switch {
				case variant&2 != 0:
					from = r.normal("from", tensor.F32, s.rows, s.cols)
				case variant&4 != 0:
					from = r.normal("from", d, s.rows, s.cols)
				default:
					r.filled(y, func(int) float64 { return r.rng.NormFloat64() })
				}
				at := r.ints("places", places)
				r.run(func(st device.Stream) { st.CombineRows(y.Mat, x.Mat, from.Mat, weights.Mat, at.Mem, s.topK) })
				r.near(what, y, 4)
				r.finish(what)
			}
		}
	}
}

// The bits of a mixture's results depend neither on the number of experts whose weights are there nor on the number of
// blocks in a call.
func testExpertCalls(r *rig) {
	hidden, inner := 13, 27 // a driver's kernels for aligned operands take none of these, wherever they begin
	if r.suite.Align > 0 {
		hidden, inner = r.suite.Align, 2*r.suite.Align
	}
	for t, d := range types {
		for i, s := range mixtures {
			if s.experts > 10 || r.suite.rests(t, i) {
				continue // many calls that find little
			}
			m := r.mixture(s.rows, s.topK, s.experts, s.blockRows, s.skew)
			x, dy := r.normal("x", d, s.rows, hidden), r.normal("dy", d, s.rows, hidden)
			up, down := r.normal("up", d, s.experts*2*inner, hidden), r.normal("down", d, s.experts*hidden, inner)
			bias, weights := r.normal("bias", d, s.experts, hidden), m.perChoice("weights")
			var results [][]*matrix
			// The first way has all at once.
			for _, way := range []struct{ experts, count int }{{s.experts, m.Most()}, {1, 2}, {3, 1}, {2, 3}} {
				outs, dins := r.output("outs", d, s.rows*s.topK, hidden), r.output("dins", d, s.rows*s.topK, hidden)
				dup, ddown := r.stat("dup", up.Rows, hidden), r.stat("ddown", down.Rows, inner)
				dbias, dweights := r.stat("dbias", s.experts, hidden), r.stat("dweights", s.rows, s.topK)
				results = append(results, []*matrix{outs, dins, dup, ddown, dbias, dweights})
				rows := way.count * s.blockRows
				in, out := r.output("in", d, rows, hidden), r.output("out", d, rows, hidden)
				gateUp, act := r.output("gateUp", d, rows, 2*inner), r.output("act", d, rows, inner)
				r.run(func(st device.Stream) {
					for _, of := range results[len(results)-1][2:5] {
						st.Zero(of.Mem)
					}
					for first := 0; first < s.experts; first += way.experts {
						b := m.Blocks
						b.First, b.Experts, b.Count = first, min(way.experts, s.experts-first), way.count
						part := func(of *matrix) device.Mat {
							n := of.Rows / s.experts
							return of.RowRange(first*n, b.Experts*n)
						}
						for most := b.Most(); b.From < most; b.From += b.Count {
							product := func(c, a, w, bias device.Mat, transposed, placed bool) {
								of := device.ExpertProduct{Transposed: transposed, Placed: placed}
								st.ExpertMatMul(c, a, w, bias, of, b)
							}
							none := device.Mat{}
							st.GatherRows(in.Mat, x.Mat, b)
							product(gateUp.Mat, in.Mat, part(up), none, true, false)
							st.ExpertGLU(act.Mat, gateUp.Mat, device.GLUSpec{}, b)
							product(outs.Mat, act.Mat, part(down), part(bias), true, true)

							st.GatherRows(out.Mat, dy.Mat, b)
							product(act.Mat, out.Mat, part(down), none, false, false)
							st.ExpertGLUGrad(gateUp.Mat, act.Mat, dweights.Mat, act.Mat, gateUp.Mat, weights.Mat,
								device.GLUSpec{}, b)
							st.ExpertWeightGrad(part(ddown), out.Mat, act.Mat, b)
							st.ExpertBiasGrad(part(dbias), dweights.Mat, out.Mat, part(bias), weights.Mat, b)
							st.ExpertWeightGrad(part(dup), gateUp.Mat, in.Mat, b)
							product(dins.Mat, gateUp.Mat, part(up), none, false, true)
						}
					}
				})
				what := fmt.Sprintf("%v %+v %+v", d, s, way)
				for i, of := range results[len(results)-1] {
					r.same(what, of, results[0][i])
				}
				for _, scratch := range []*matrix{in, out, gateUp, act} {
					r.scratch(scratch)
				}
			}
			r.finish(fmt.Sprint(d, s))
		}
	}
}
