package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

func testMatMul(r *rig) {
	sizes := []struct{ m, n, k int }{{1, 1, 1}, {1, 37, 3}, {3, 1, 131}, {17, 37, 100}, {100, 131, 17}, {37, 3, 600},
		{259, 140, 65},
		{67, 64, 1}, {1, 64, 67}, {67, 1, 64}} // the last ones are those of a head that scores
	if r.suite.Align > 0 {
		sizes = append(sizes, []struct{ m, n, k int }{{64, 64, 64}, {144, 272, 80}, {258, 128, 208}}...)
	}
	for i, s := range sizes {
		for variant := range 12 { // of operands, and of what the product is added to
			f := device.MatMulFlags{TransA: variant&1 != 0, TransB: variant&2 != 0, Accumulate: variant&4 != 0}
			for k, kind := range []struct{ in, out tensor.DType }{
				{tensor.F32, tensor.F32}, {tensor.BF16, tensor.BF16}, {tensor.BF16, tensor.F32}, {tensor.F32, tensor.BF16}} {
				if r.suite.rests(i, 4*variant+k) {
					continue
				}
				what := fmt.Sprintf("%v %v->%v, variant %04b", s, kind.in, kind.out, variant)
				shapeOf := func(rows, cols int, trans bool) (int, int) {
					if trans {
						return cols, rows
					}
					return rows, cols
				}
				rows, cols := shapeOf(s.m, s.k, f.TransA)
				a := r.normal("a", kind.in, rows, cols)
				rows, cols = shapeOf(s.k, s.n, f.TransB)
				b := r.normal("b", kind.in, rows, cols)
				c := r.output("c", kind.out, s.m, s.n)
				if f.Accumulate {
					r.filled(c, func(int) float64 { return r.rng.NormFloat64() })
				}
				if variant&8 != 0 {
					f.Onto = r.normal("onto", kind.out, s.m, s.n).Mat
				}
				r.run(func(st device.Stream) { st.MatMul(c.Mat, a.Mat, b.Mat, f) })
				r.near(what, c, math.Sqrt(float64(s.k))+1)
				r.finish(what)
			}
		}
	}
}

func testBias(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			what := fmt.Sprint(d, s)
			y, bias := r.normal("y", d, s.rows, s.cols), r.normal("bias", d, 1, s.cols)
			db := r.normal("db", tensor.F32, 1, s.cols)
			dy := r.normal("dy", d, s.rows, s.cols)
			r.run(func(st device.Stream) {
				st.AddBias(y.Mat, bias.Mat)
				st.BiasGrad(db.Mat, dy.Mat)
			})
			r.exact(what, y)
			r.near(what, db, math.Sqrt(float64(s.rows))+1)
			r.finish(what)
		}
	}
}

func testAdd(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			for _, alias := range []string{"", "a", "b"} {
				what := fmt.Sprint(d, s, " y is ", alias)
				a, b := r.normal("a", d, s.rows, s.cols), r.normal("b", d, s.rows, s.cols)
				y := r.output("y", d, s.rows, s.cols)
				switch alias {
				case "a":
					y = a
				case "b":
					y = b
				}
				r.run(func(st device.Stream) { st.Add(y.Mat, a.Mat, b.Mat) })
				r.exact(what, y)
				r.finish(what)
			}
		}
	}
}

func testScale(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			for _, inPlace := range []bool{false, true} {
				what := fmt.Sprint(d, s, " in place ", inPlace)
				x := r.normal("x", d, s.rows, s.cols)
				y := x
				if !inPlace {
					y = r.output("y", d, s.rows, s.cols)
				}
				r.run(func(st device.Stream) { st.Scale(y.Mat, x.Mat, 1.7) })
				r.exact(what, y)
				r.finish(what)
			}
		}
	}
}

// corners lists numbers on which roundings differ: ties in BF16, its largest and smallest, denormals, infinities.
var corners = []float64{0, math.Copysign(0, -1), 1, 1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-8 + 0x1p-20, 1 + 0x1p-8 - 0x1p-20, -1 - 0x1p-8,
	math.MaxFloat32, -math.MaxFloat32, 0x1.fep127, 0x1.fefp127, 0x1.ffp127, 0x1p-126, 0x1.ffp-127, 0x1p-133, 0x1p-134, 0x1.8p-134,
	0x1p-149, -0x1p-149, math.Inf(1), math.Inf(-1), math.NaN()}

func testCast(r *rig) {
	for _, from := range types {
		for _, to := range types {
			for _, s := range r.suite.shapes() {
				what := fmt.Sprint(from, " to ", to, s)
				src := r.filled(r.output("src", from, s.rows, s.cols), func(i int) float64 {
					if i < len(corners) {
						return corners[i]
					}
					return r.rng.NormFloat64() * math.Exp2(float64(r.rng.IntN(40)-20))
				})
				dst := r.output("dst", to, s.rows, s.cols)
				r.run(func(st device.Stream) { st.Cast(dst.Mat, src.Mat) })
				r.exact(what, dst)
				r.finish(what)
			}
		}
	}
}

// groupings returns shapes of norms: rows, groups, and the columns of a group.
func (s *Suite) groupings() []grouping {
	all := []grouping{{1, 1, 1}, {3, 1, 100}, {17, 3, 37}, {67, 1, 576}, {37, 9, 64}, {131, 2, 131}, {523, 1, 32}}
	if s.Align > 0 {
		all = append(all, grouping{5, 1, 3584}, grouping{9, 4, 128}, grouping{523, 1, 272})
	}
	return all
}

type grouping struct{ rows, groups, d int }

// A norm has a weight, one that 1 is added to, or none.
const (
	plainWeight = iota
	offsetWeight
	noWeight
	weightKinds
)

// normWeight makes the weight of a norm of a kind, and its spec.
func (r *rig) normWeight(kind int, d tensor.DType, s grouping, eps float32) (*matrix, device.NormSpec) {
	spec := device.NormSpec{Groups: s.groups, Eps: eps}
	if kind == noWeight {
		return &matrix{}, spec
	}
	if kind == offsetWeight {
		spec.Offset = 1
	}
	return r.normal("w", d, 1, s.d), spec
}

func testRMSNorm(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.groupings() {
			for kind := range weightKinds {
				what := fmt.Sprint(d, s, " kind of weight ", kind)
				x := r.normal("x", d, s.rows, s.groups*s.d)
				w, spec := r.normWeight(kind, d, s, 0x1p-17)
				y, rstd := r.output("y", d, s.rows, s.groups*s.d), r.stat("rstd", s.rows, s.groups)
				r.run(func(st device.Stream) { st.RMSNorm(y.Mat, rstd.Mat, x.Mat, w.Mat, spec) })
				r.near(what, y, 0)
				r.near(what, rstd, 0)
				r.finish(what)
			}
		}
	}
}

func testRMSNormGrad(r *rig) {
	for _, d := range types {
		for i, s := range r.suite.groupings() {
			for variant := range 8 * weightKinds {
				// A plain weight in all ways. The other kinds are the same code with another number, or less of it:
				// they have two ways at each size, and others at the next.
				kind := variant / 8
				if kind == offsetWeight && variant%4 != i%4 || kind == noWeight && variant%4 != i%2*2 ||
					kind == plainWeight && r.suite.rests(i, variant) {
					continue
				}
				hasGrad, hasResid, alias := kind != noWeight && variant&1 != 0, variant&2 != 0, (variant>>2+i)%3
				what := fmt.Sprint(d, s, " kind of weight ", kind, " dw ", hasGrad, " resid ", hasResid, " alias ",
					alias)
				cols := s.groups * s.d
				dy, x := r.normal("dy", d, s.rows, cols), r.normal("x", d, s.rows, cols)
				w, spec := r.normWeight(kind, d, s, 1e-5)
				dx, dw, resid := r.output("dx", d, s.rows, cols), &matrix{}, &matrix{}
				rstd, y := r.stat("rstd", s.rows, s.groups), r.output("y", d, s.rows, cols)
				r.prepare(func(st device.Stream) { st.RMSNorm(y.Mat, rstd.Mat, x.Mat, w.Mat, spec) })
				if hasResid {
					resid = r.normal("resid", d, s.rows, cols)
				}
				switch {
				case alias == 1:
					dx = dy
				case alias == 2 && hasResid:
					dx = resid
				}
				if hasGrad {
					dw = r.normal("dw", tensor.F32, 1, s.d)
				}
				r.run(func(st device.Stream) {
					st.RMSNormGrad(dx.Mat, dw.Mat, dy.Mat, x.Mat, w.Mat, rstd.Mat, resid.Mat, spec)
				})
				r.near(what, dx, 4)
				if hasGrad {
					r.near(what, dw, math.Sqrt(float64(s.rows*s.groups))+1)
				}
				r.finish(what)
			}
		}
	}
}

// wholeRows returns the rows and columns of layer norms: one group for each row, and one that is more than a piece.
func (s *Suite) wholeRows() (all []shape) {
	for _, g := range s.groupings() {
		all = append(all, shape{g.rows, g.groups * g.d})
	}
	return append(all, shape{3, 2500})
}

// offCentre places a matrix whose rows have means far from zero, as residual streams have.
func (r *rig) offCentre(name string, d tensor.DType, s shape) *matrix {
	return r.filled(r.output(name, d, s.rows, s.cols), func(i int) float64 {
		return r.rng.NormFloat64() + float64(i/s.cols%5)
	})
}

func testLayerNorm(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.wholeRows() {
			for _, biased := range []bool{false, true} {
				what := fmt.Sprint(d, s, " bias ", biased)
				x, w, bias := r.offCentre("x", d, s), r.normal("w", d, 1, s.cols), &matrix{}
				if biased {
					bias = r.normal("b", d, 1, s.cols)
				}
				y, stat := r.output("y", d, s.rows, s.cols), r.stat("stat", s.rows, 2)
				r.run(func(st device.Stream) { st.LayerNorm(y.Mat, stat.Mat, x.Mat, w.Mat, bias.Mat, 0x1p-17) })
				r.near(what, y, 4)
				r.near(what, stat, 1)
				r.finish(what)
			}
		}
	}
}

func testLayerNormGrad(r *rig) {
	for _, d := range types {
		for i, s := range r.suite.wholeRows() {
			for variant := range 8 {
				if r.suite.rests(i, variant) {
					continue
				}
				hasGrad, hasResid, alias := variant&1 != 0, variant&2 != 0, (variant>>2+i)%3
				what := fmt.Sprint(d, s, " dw ", hasGrad, " resid ", hasResid, " alias ", alias)
				dy, x := r.normal("dy", d, s.rows, s.cols), r.offCentre("x", d, s)
				w, stat := r.normal("w", d, 1, s.cols), r.stat("stat", s.rows, 2)
				dx, dw, resid := r.output("dx", d, s.rows, s.cols), &matrix{}, &matrix{}
				y := r.output("y", d, s.rows, s.cols)
				// Of a row of one column only roundings times rstd are left.
				r.prepare(func(st device.Stream) {
					st.LayerNorm(y.Mat, stat.Mat, x.Mat, w.Mat, device.Mat{}, 0.01)
				})
				if hasResid {
					resid = r.normal("resid", d, s.rows, s.cols)
				}
				switch {
				case alias == 1:
					dx = dy
				case alias == 2 && hasResid:
					dx = resid
				}
				if hasGrad {
					dw = r.normal("dw", tensor.F32, 1, s.cols)
				}
				r.run(func(st device.Stream) {
					st.LayerNormGrad(dx.Mat, dw.Mat, dy.Mat, x.Mat, w.Mat, stat.Mat, resid.Mat)
				})
				r.near(what, dx, 4)
				if hasGrad {
					r.near(what, dw, math.Sqrt(float64(s.rows))+1)
				}
				r.finish(what)
			}
		}
	}
}

func testRoPE(r *rig) {
	for _, d := range types {
		for _, s := range []struct{ rows, heads, headDim int }{{1, 1, 2}, {3, 1, 64}, {17, 3, 6}, {37, 9, 64}, {300, 3, 80}, {9, 2, 128}} {
			for variant := range 6 {
				inverse, biased, inPlace := variant%3 == 1, variant%3 == 2, variant > 2
				what := fmt.Sprint(d, s, " inverse ", inverse, " bias ", biased, " in place ", inPlace)
				const span = 50
				angle := func(i int) float64 {
					return float64(i/(s.headDim/2)) * math.Pow(1e4, -float64(i%(s.headDim/2))*2/float64(s.headDim))
				}
				cos := r.filled(r.stat("cos", span, s.headDim/2), func(i int) float64 { return math.Cos(angle(i)) })
				sin := r.filled(r.stat("sin", span, s.headDim/2), func(i int) float64 { return math.Sin(angle(i)) })
				positions := make([]int32, s.rows)
				for i := range positions {
					positions[i] = int32(r.rng.IntN(span))
				}
				x, p := r.normal("x", d, s.rows, s.heads*s.headDim), r.ints("positions", positions)
				bias, parts := &matrix{}, &matrix{}
				if biased {
					bias = r.normal("bias", d, 1, s.heads*s.headDim)
					parts = r.output("in two parts", d, s.rows, s.heads*s.headDim)
					values := numbers(x.Mat, r.image)
					r.filled(parts, func(i int) float64 { return values[i] })
				}
				y := x
				if !inPlace {
					y = r.output("y", d, s.rows, s.heads*s.headDim)
				}
				r.run(func(st device.Stream) {
					st.RoPE(y.Mat, x.Mat, bias.Mat, s.heads, cos.Mat, sin.Mat, p.Mem, inverse)
					if biased {
						st.AddBias(parts.Mat, bias.Mat)
						st.RoPE(parts.Mat, parts.Mat, device.Mat{}, s.heads, cos.Mat, sin.Mat, p.Mem, inverse)
					}
				})
				r.near(what, y, 2)
				if biased {
					r.same(what, parts, y)
				}
				r.finish(what)
			}
		}
	}
}

func testAttention(r *rig) {
	type attention struct {
		rows, heads, kvHeads, headDim, window, docs int
		softCap                                     float32
		sinks                                       bool
	}
	cases := []attention{{1, 1, 1, 2, 0, 1, 0, false}, {3, 2, 1, 16, 0, 1, 0, false}, {17, 3, 3, 6, 4, 2, 0, false}, {37, 4, 2, 64, 0, 5, 0, false},
		{131, 3, 1, 64, 100, 3, 0, false}, {131, 2, 2, 80, 1, 1, 0, false}, {300, 2, 1, 16, 0, 2, 0, false}, {300, 3, 1, 8, 131, 1, 0, false},
		{17, 2, 1, 6, 4, 2, 0.5, false}, {131, 2, 1, 80, 0, 3, 50, false}, {131, 4, 2, 16, 60, 2, 0, true}, {70, 2, 2, 64, 20, 2, 2, true}}
	cases = append(cases, attention{40, 2, 1, 320, 9, 2, 0, true})
	if r.suite.Align > 0 {
		cases = append(cases, []attention{{197, 2, 1, 64, 0, 2, 0, false}, {197, 2, 1, 128, 0, 2, 0, false}, {131, 1, 1, 128, 70, 1, 0, false},
			{150, 1, 1, 256, 0, 2, 0, false}, {133, 2, 1, 256, 40, 1, 0, false},
			{70, 2, 1, 512, 0, 2, 0, false},
			{140, 2, 1, 64, 50, 2, 0, true}, {140, 2, 1, 64, 0, 2, 1, false}, {133, 2, 1, 80, 30, 2, 3, true}, {133, 1, 1, 128, 0, 2, 50, true},
			{99, 2, 1, 256, 40, 2, 50, false}, {70, 1, 1, 256, 0, 2, 0, true}}...)
	}
	for _, s := range cases {
		for _, d := range types {
			if most := r.dev.Info().MaxHeadDim.Of(d, s.softCap > 0); most > 0 && s.headDim > most {
				continue
			}
			what := fmt.Sprintf("%v %+v", d, s)
			starts, ends := r.documents(s.rows, s.docs)
			positions := make([]int32, s.rows)
			for i := range positions {
				positions[i] = int32(i) - starts[i]
			}
			spec := device.AttentionSpec{Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, Window: s.window,
				Scale: float32(1 / math.Sqrt(float64(s.headDim))), SoftCap: s.softCap,
				Docs: device.Docs{Positions: r.ints("positions", positions).Mem, Start: r.ints("start", starts).Mem,
					End: r.ints("end", ends).Mem}}
			queries, keys := s.heads*s.headDim, s.kvHeads*s.headDim

			if s.sinks { // from far below the scores to far above them
				sinks := r.output("sinks", d, 1, s.heads)
				spec.Sinks = r.filled(sinks, func(i int) float64 { return float64(9*i-6) + r.rng.NormFloat64() }).Mat
			}

			// Queries, keys and values are columns of one matrix, as a fused projection leaves them; so are their gradients.
			qkv := r.normal("qkv", d, s.rows, queries+2*keys)
			q, k, v := qkv.columns(0, queries), qkv.columns(queries, keys), qkv.columns(queries+keys, keys)
			out, lse := r.output("out", d, s.rows, queries), r.stat("lse", s.rows, s.heads)
			r.run(func(st device.Stream) { st.Attention(out.Mat, lse.Mat, q.Mat, k.Mat, v.Mat, spec) })
			r.near(what, out, 4)
			r.near(what, lse, 4)

			// What forward wrote is an input now, as it was written.
			dout := r.normal("dout", d, s.rows, queries)
			dqkv := r.output("dqkv", d, s.rows, queries+2*keys)
			dq, dk, dv := dqkv.columns(0, queries), dqkv.columns(queries, keys), dqkv.columns(queries+keys, keys)
			delta := r.stat("delta", s.rows, s.heads)
			r.run(func(st device.Stream) {
				st.AttentionGrad(dq.Mat, dk.Mat, dv.Mat, dout.Mat, q.Mat, k.Mat, v.Mat, out.Mat, lse.Mat, delta.Mat, spec)
			})
			r.near(what, dq, 8)
			r.near(what, dk, 8*math.Sqrt(float64(s.heads/s.kvHeads)))
			r.near(what, dv, 8*math.Sqrt(float64(s.heads/s.kvHeads)))
			r.near(what, delta, math.Sqrt(float64(s.headDim)))
			if s.sinks {
				dsinks := r.normal("dsinks", tensor.F32, 1, s.heads)
				r.run(func(st device.Stream) { st.SinkGrad(dsinks.Mat, spec.Sinks, lse.Mat, delta.Mat) })
				r.near(what, dsinks, math.Sqrt(float64(s.rows*s.headDim)))
			}
			r.finish(what)
		}
	}
}

// documents cuts rows into documents at random places.
func (r *rig) documents(rows, docs int) (start, end []int32) {
	begins := map[int]bool{0: true}
	for range docs - 1 {
		begins[r.rng.IntN(rows)] = true
	}
	start, end = make([]int32, rows), make([]int32, rows)
	for i := range rows {
		if begins[i] {
			start[i] = int32(i)
		} else {
			start[i] = start[i-1]
		}
	}
	for i := rows - 1; i >= 0; i-- {
		if i == rows-1 || begins[i+1] {
			end[i] = int32(i + 1)
		} else {
			end[i] = end[i+1]
		}
	}
	return start, end
}

// columns views columns [first, first+n) of m.
func (m *matrix) columns(first, n int) *matrix {
	return &matrix{m.ColRange(first, n), fmt.Sprintf("%s[:, %d:%d]", m.name, first, first+n)}
}

// scratch accepts whatever an operation left in m.
func (r *rig) scratch(m *matrix) {
	at := int(m.Off)
	copy(r.image[at:at+int(m.Len)], r.host[at:])
}

// gluSpecs are all kinds of gated units; many numbers are beyond the limit of the last one.
var gluSpecs = []device.GLUSpec{{}, {Gate: device.GELU}, {Gate: device.GELUTanh}, {Ungated: true},
	{Gate: device.GELU, Ungated: true}, {Gate: device.GELUTanh, Ungated: true}, {Alpha: 1.702, Limit: 0.75}}

func testGLU(r *rig) {
	for _, d := range types {
		for i, s := range r.suite.shapes() {
			for g, spec := range gluSpecs {
				for p, inPlace := range []bool{false, true} {
					if r.suite.rests(i, 4*g+p) {
						continue
					}
					what := fmt.Sprintf("%v %v %+v in place %v", d, s, spec, inPlace)
					// Gates reach far into both tails of the activation.
					inputs := spec.Inputs() * s.cols
					gateUp := r.filled(r.output("gateUp", d, s.rows, inputs), func(i int) float64 {
						x := r.rng.NormFloat64()
						if i%7 == 0 && i%inputs < s.cols {
							x *= 60
						}
						return x
					})
					dy := r.normal("dy", d, s.rows, s.cols)
					y := r.output("y", d, s.rows, s.cols)
					dGateUp, act := gateUp, dy
					if !inPlace {
						dGateUp, act = r.output("dGateUp", d, s.rows, inputs), r.output("act", d, s.rows, s.cols)
					}
					r.run(func(st device.Stream) {
						st.GLU(y.Mat, gateUp.Mat, spec)
						st.GLUGrad(dGateUp.Mat, act.Mat, dy.Mat, gateUp.Mat, spec)
					})
					r.near(what, y, 1)
					r.same(what, act, y)
					r.near(what, dGateUp, 4)
					r.finish(what)
				}
			}
		}
	}
}

func testCrossEntropy(r *rig) {
	for _, s := range []struct {
		rows, vocab, tile int
		softCap           float32
		ties              bool // logits are whole numbers
		entropies         bool // have slopes
	}{{1, 1, 1, 0, false, false}, {3, 17, 17, 0, false, false}, {17, 100, 37, 0, true, false},
		{37, 1031, 300, 0, false, false}, {131, 700, 131, 0, false, false}, {17, 100, 37, 30, false, false},
		{5, 2500, 1300, 3, false, false},
		{1, 1, 1, 0, false, true}, {17, 100, 37, 0, true, true}, {37, 1031, 300, 0, false, true},
		{17, 100, 37, 30, false, true}, {5, 2500, 1300, 3, false, true}} {
		for _, d := range types {
			what := fmt.Sprintf("%v %+v", d, s)
			largest, least := make([]int32, s.rows), make([]int32, s.rows) // columns of logits
			numbers := make([]float64, s.rows*s.vocab)
			for i := range numbers {
				numbers[i] = 10*r.rng.NormFloat64() + float64(i/s.vocab%3)*80 // far from zero in some rows
				if s.ties {
					numbers[i] = math.Round(numbers[i])
				}
			}
			for i := range largest {
				row := numbers[i*s.vocab:][:s.vocab]
				largest[i], least[i] = int32(slices.Index(row, slices.Max(row))), int32(slices.Index(row, slices.Min(row)))
			}
			logits := r.filled(r.output("logits", tensor.F32, s.rows, s.vocab), func(i int) float64 { return numbers[i] })
			targets := make([]int32, s.rows)
			for i := range targets {
				switch targets[i] = int32(r.rng.IntN(s.vocab)); {
				case i%5 == 1:
					targets[i] = -1 - int32(i%2)*99
				case i%4 == 0, s.softCap > 0 && i%3 > 0: // all logits of a row may be near the cap
					targets[i] = largest[i]
				case s.softCap > 0:
					targets[i] = least[i]
				}
			}
			ids := r.ints("targets", targets)
			stat, figures := r.stat("stat", s.rows, device.HeadStats), r.stat("figures", device.TokenFigures, s.rows)
			grad := r.output("dlogits", d, s.rows, s.vocab)
			const heaviest = 0x1p-5
			weights := r.filled(r.place("weights", tensor.F32, 1, s.rows, s.rows), func(t int) float64 {
				return [...]float64{0x1p-7, -heaviest, 0, 0x1p-30, heaviest}[t%5]
			})
			var slopes device.Mem
			if s.entropies {
				slopes = r.filled(r.place("entropySlopes", tensor.F32, 1, s.rows, s.rows), func(t int) float64 {
					return [...]float64{-heaviest / 8, 0, heaviest / 16, -0x1p-30}[t%4]
				}).Mem
			}
			tiles := func(f func(first, n int)) {
				for first := 0; first < s.vocab; first += s.tile {
					f(first, min(s.tile, s.vocab-first))
				}
			}
			r.run(func(st device.Stream) {
				st.LSEInit(stat.Mat)
				tiles(func(first, n int) { st.LSEUpdate(stat.Mat, logits.ColRange(first, n), ids.Mem, first, s.softCap) })
				st.TokenLoss(figures.Mat, stat.Mat, ids.Mem)
				tiles(func(first, n int) {
					st.CrossEntropyGrad(grad.ColRange(first, n), logits.ColRange(first, n), stat.Mat, ids.Mem, weights.Mem, slopes,
						first, s.softCap)
				})
			})
			for i, scale := range []float64{200, 10, 0} { // losses, entropies, hits
				r.near(what, &matrix{figures.RowRange(i, 1), fmt.Sprint("figures ", i)}, scale)
			}
			r.near(what, grad, 4*heaviest)
			r.scratch(stat)
			r.finish(what)
		}
	}
}

// testPickedLogits takes logits of some tokens from tiles, and puts gradients where they were: of tokens outside of the
// vocabulary nothing.
func testPickedLogits(r *rig) {
	for _, s := range []struct {
		rows, vocab, tile, n int
		softCap              float32
	}{{1, 1, 1, 1, 0}, {3, 17, 17, 5, 0}, {17, 100, 37, 9, 0}, {131, 700, 131, 65, 0}, {17, 100, 37, 33, 30},
		{5, 2500, 1300, 300, 3}} {
		for _, d := range types {
			what := fmt.Sprintf("%v %+v", d, s)
			logits := r.filled(r.output("logits", tensor.F32, s.rows, s.vocab), func(int) float64 {
				return 10 * r.rng.NormFloat64()
			})
			ids := make([]int32, 0, s.rows*s.n)
			for range s.rows { // each token once, in any order
				row := r.rng.Perm(s.vocab + s.n)[:s.n]
				for i, id := range row {
					if row[i] = id - s.n/2; i%7 == 5 {
						row[i] = -1
					}
					ids = append(ids, int32(row[i]))
				}
			}
			at := r.ints("ids", ids)
			picked, values := r.stat("picked", s.rows, s.n), r.stat("values", s.rows, s.n)
			for _, m := range []*matrix{picked, values} {
				r.filled(m, func(int) float64 { return r.rng.NormFloat64() })
			}
			grad := r.normal("dlogits", d, s.rows, s.vocab)
			r.run(func(st device.Stream) {
				for first := 0; first < s.vocab; first += s.tile {
					n := min(s.tile, s.vocab-first)
					st.PickLogits(picked.Mat, logits.ColRange(first, n), at.Mem, first, s.softCap)
					st.PutLogitGrads(grad.ColRange(first, n), logits.ColRange(first, n), values.Mat, at.Mem, first, s.softCap)
				}
			})
			if s.softCap == 0 {
				r.exact(what, picked)
				r.exact(what, grad)
			} else {
				r.near(what, picked, float64(s.softCap))
				r.near(what, grad, 4)
			}
			r.finish(what)
		}
	}
}

// testDrawTokens draws tokens of tiles, at several temperatures, with padding after the vocabulary that would win. Some
// rows are all but one token's, some nearly flat.
func testDrawTokens(r *rig) {
	temperatures := []float64{0, 1, 0.7, 2, 1e-3}
	draws := func(rows int) *matrix {
		var all []int32
		for i := range rows {
			var of [device.DrawWords]int32
			device.TokenDraw{Key: [2]uint32{r.rng.Uint32(), r.rng.Uint32()}, Text: r.rng.Uint64(), At: 1 + r.rng.Uint32()>>3,
				Inverse: device.Inverse(temperatures[(i+1)%len(temperatures)])}.Put(of[:])
			all = append(all, of[:]...)
		}
		return r.ints("draws", all)
	}
	draw := func(s drawnShape, logits, draws, stat, drawn *matrix) {
		r.run(func(st device.Stream) {
			for first := 0; first < s.cols; first += s.tile {
				n, to := min(s.tile, s.cols-first), device.Mat{}
				if first+n == s.cols {
					to = drawn.Mat
				}
				st.DrawTokens(to, stat.Mat, logits.ColRange(first, n), draws.Mem, first, s.vocab, s.softCap)
			}
		})
	}
	shapes := []drawnShape{{1, 1, 1, 1, 0}, {3, 19, 19, 17, 0}, {17, 100, 37, 99, 0}, {131, 300, 131, 290, 0},
		{40, 100, 50, 40, 0}, {17, 100, 37, 99, 30}, {5, 2500, 1300, 2500, 3}, {7, 5000, 5000, 4999, 0}}
	if r.suite.Align > 0 {
		shapes = append(shapes, drawnShape{4, 4096, 1024, 4090, 0})
	}
	for _, s := range shapes {
		what := fmt.Sprintf("%+v", s)
		logits := r.filled(r.output("logits", tensor.F32, s.rows, s.cols), func(i int) float64 {
			row, col := i/s.cols, i%s.cols
			if col >= s.vocab {
				return 90
			}
			return [...]float64{0.01, 1, 8}[row/len(temperatures)%3] * r.rng.NormFloat64()
		})
		named, stat, drawn := draws(s.rows), r.stat("stat", s.rows, device.HeadStats),
			r.stat("drawn", s.rows, device.DrawnFigures)
		draw(s, logits, named, stat, drawn)
		r.exact(what, &matrix{drawn.ColRange(0, 1), "ids"})
		r.near(what, &matrix{drawn.ColRange(1, 1), "log-probabilities"}, 20)
		r.scratch(stat)
		r.finish(what)
	}
	// Of equal logits the lowest id is the likeliest. A row may have infinite logits below others, and padding that is no
	// number; but none of its logits may be NaN or +Inf.
	up, down, nan := math.Inf(1), math.Inf(-1), math.NaN()
	rows := [][]float64{{1, 3, 3, 2, 3, nan}, {down, down, -7, down, down, up}, {down, down, down, down, down, 0},
		{0, 1, nan, 1, 0, 0}, {0, 1, 2, 1, up, 0}, {nan, down, down, down, down, 0}, {up, up, 0, 0, 0, 0},
		{down, down, down, down, nan, 0}, {math.MaxFloat32, 0, -math.MaxFloat32, 0, 0, 0}}
	for _, greedy := range []bool{true, false} {
		s := drawnShape{rows: len(rows), cols: 6, tile: 2, vocab: 5}
		what := fmt.Sprintf("%+v at the edges, greedy %v", s, greedy)
		logits := r.filled(r.output("logits", tensor.F32, s.rows, s.cols), func(i int) float64 {
			return rows[i/s.cols][i%s.cols]
		})
		all := make([]int32, 0, s.rows*device.DrawWords)
		for range s.rows {
			var of [device.DrawWords]int32
			if !greedy {
				device.TokenDraw{Text: 5, Inverse: 1}.Put(of[:])
			}
			all = append(all, of[:]...)
		}
		named, stat, drawn := r.ints("draws", all), r.stat("stat", s.rows, device.HeadStats),
			r.stat("drawn", s.rows, device.DrawnFigures)
		draw(s, logits, named, stat, drawn)
		r.exact(what, &matrix{drawn.ColRange(0, 1), "ids"})
		r.near(what, &matrix{drawn.ColRange(1, 1), "log-probabilities"}, 20)
		r.scratch(stat)
		r.finish(what)
	}
}

// drawnShape has the sizes of logits that draw tokens.
type drawnShape struct {
	rows, cols, tile, vocab int
	softCap                 float32
}

func testGather(r *rig) {
	r.lookUps(func(what string, d tensor.DType, s shape, ids []int32, first int) {
		table, y := r.normal("table", d, 40, s.cols), r.normal("y", d, s.rows, s.cols)
		v := r.ints("ids", ids)
		r.run(func(st device.Stream) { st.Gather(y.Mat, table.Mat, v.Mem, first) })
		r.exact(what, y)
		r.finish(what)
	})
}

func testScatterAdd(r *rig) {
	add := func(what string, d tensor.DType, s shape, ids []int32, first int) {
		dtable, dy := r.normal("dtable", tensor.F32, 40, s.cols), r.normal("dy", d, s.rows, s.cols)
		v := r.ints("ids", ids)
		by := float32(1)
		if first > 0 {
			by = 1.7
		}
		r.run(func(st device.Stream) { st.ScatterAdd(dtable.Mat, dy.Mat, v.Mem, first, by) })
		r.exact(what, dtable)
		r.finish(what)
	}
	r.lookUps(add)
	for _, d := range types { // one token is nearly all there is, as padding may be
		ids := slices.Repeat([]int32{53}, 700)
		ids[10], ids[300], ids[301] = 52, 89, 10
		add(fmt.Sprint(d, " one row"), d, shape{len(ids), 525}, ids, 50)
	}
}

// lookUps calls f for cases of ids, some of them in the 40 rows of a table that begins at first, many of them twice.
func (r *rig) lookUps(f func(what string, d tensor.DType, s shape, ids []int32, first int)) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			for _, first := range []int{0, 50} {
				ids := make([]int32, s.rows)
				for i := range ids {
					ids[i] = int32(r.rng.IntN(100))
				}
				f(fmt.Sprint(d, s, " from ", first), d, s, ids, first)
			}
		}
	}
}

// updates calls test for the types that weights and gradients have in an update.
func (r *rig) updates(test func(u *update)) {
	for _, low := range []tensor.DType{tensor.I16, tensor.I8} {
		test(&update{r, tensor.BF16, low, tensor.BF16})
		test(&update{r, tensor.BF16, low, tensor.F32})
	}
	test(&update{r, tensor.F32, tensor.Invalid, tensor.F32})
}

// update has the types of an update of parameters.
type update struct {
	*rig
	weights, low, grad tensor.DType
}

// split is a master weight in two halves; one of 24 bits is rounded by r.
func (u *update) split(x float32, r uint8) (high float64, low float64) {
	if u.low == tensor.I8 {
		hi, lo := tensor.SplitF24(x, r)
		return float64(tensor.F32FromBF16(hi)), float64(lo)
	}
	hi, lo := tensor.SplitF32(x)
	return float64(tensor.F32FromBF16(hi)), float64(lo)
}

// draw names random words of parameters from a multiple of together on.
func (r *rig) draw(together uint64) device.Draw {
	return device.Draw{Key: [2]uint32{r.rng.Uint32(), r.rng.Uint32()}, Part: r.rng.Uint64() >> r.rng.IntN(64),
		First: r.rng.Uint64() >> (2 + r.rng.IntN(62)) / together * together}
}

// test compares an update of n parameters, of its moments and of what it tells. Some weights are corners.
func (u *update) test(n int, moments []*matrix, run func(st device.Stream, weights, low device.Mat, tally device.Mem)) {
	master := make([]float32, n)
	for i := range master {
		master[i] = float32(u.rng.NormFloat64())
		if i < len(corners) && n > len(corners) {
			master[i] = float32(corners[i])
		}
	}
	weights, low := u.output("weights", u.weights, 1, n), &matrix{}
	// Updates before this one have told of five weights, and in some cases of a longer move than any here.
	before := []float64{5, []float64{0, 0, float64(math.Float32bits(math.MaxFloat32))}[n%3]}
	tally := u.filled(u.place("tally", tensor.I64, 1, 2, 2), func(i int) float64 { return before[i] })
	written := append(moments, weights, tally)
	if u.weights == tensor.F32 {
		u.filled(weights, func(i int) float64 { return float64(master[i]) })
	} else {
		low = u.output("low", u.low, 1, n)
		written = append(written, low)
		highs, lows := make([]float64, n), make([]float64, n)
		for i, x := range master {
			highs[i], lows[i] = u.split(x, uint8(u.rng.Uint32()))
		}
		u.filled(weights, func(i int) float64 { return highs[i] })
		u.filled(low, func(i int) float64 { return lows[i] })
	}
	u.run(func(st device.Stream) { run(st, weights.Mat, low.Mat, tally.Mem) })
	what := fmt.Sprint(u.weights, u.low, u.grad, n)
	for _, m := range written {
		u.exact(what, m)
	}
	u.finish(what)
}

var adamWScalars = device.AdamWScalars{ClipScale: 0.75, Decay: 1 - 1e-3, OneMinusBeta1: 0.1, Beta2: 0.999,
	OneMinusBeta2: 1 - 0.999, StepSize: 3e-3, SqrtBC2: 0.05, Eps: 1e-8}

func testAdamW(r *rig) {
	for _, n := range []int{1, 3, 17, 131, 4099, 70001} {
		r.updates(func(u *update) {
			grad := r.filled(r.output("grad", u.grad, 1, n), func(i int) float64 {
				switch {
				case i%31 == 5:
					return r.rng.NormFloat64() * 0x1p-130 // moments become denormal
				case i%31 == 6:
					return 0
				case i == 100 && n != 4099: // moves of 4099 are all finite
					return math.NaN()
				case i == 101 && n != 4099:
					return math.Inf(1)
				}
				return r.rng.NormFloat64()
			})
			m := r.filled(r.output("m", tensor.F32, 1, n), func(i int) float64 {
				if i%31 <= 6 {
					return 0x1p-126
				}
				return r.rng.NormFloat64()
			})
			first := numbers(m.Mat, r.image)
			v := r.filled(r.output("v", tensor.F32, 1, n), func(i int) float64 { return math.Abs(first[i]) })
			draw := r.draw(device.DrawTogether)
			u.test(n, []*matrix{m, v}, func(st device.Stream, weights, low device.Mat, tally device.Mem) {
				st.AdamW(device.AdamWArgs{Weights: weights, Low: low, Grad: grad.Mat, M: m.Mat, V: v.Mat, Draw: draw,
					AdamWScalars: adamWScalars}, tally)
			})
		})
	}
}

// moment8 places n moments in codes of some bits, 4 or 8: random codes and scales. Some scales are 0, like those that
// were never written, and of 4 bits some are the least.
func (r *rig) moment8(name string, n, bits int) (codes, scales *matrix) {
	of, bytes, block := []float64{1, 0, 0x1p-30, 3}, n, tensor.MomentBlock
	if bits == 4 {
		of, bytes, block = append(of, 0x1p-126, 0x1p-63, 0x1p40), n/2, tensor.MomentBlock4
	}
	blocks := n / block
	scales = r.filled(r.place(name+" scales", tensor.F32, 1, blocks, blocks), func(b int) float64 { return of[b%len(of)] })
	codes = r.filled(r.place(name, tensor.U8, 1, bytes, bytes), func(i int) float64 {
		if of[i/(bytes/blocks)%len(of)] == 0 {
			return 0
		}
		return float64(r.rng.IntN(256))
	})
	return codes, scales
}

func testAdamW8(r *rig) {
	for _, blocks := range []int{1, 2, 7, 301} {
		testAdamW8In(r, [2]int{8, 8}, blocks)
	}
	for _, blocks := range []int{1, 7} { // PTX on the CPU takes its time
		testAdamW8In(r, [2]int{8, 4}, blocks)
		testAdamW8In(r, [2]int{4, 4}, blocks)
	}
}

// testAdamW8In updates parameters whose first and second moments have some bits.
func testAdamW8In(r *rig, bits [2]int, blocks int) {
	n := blocks * tensor.MomentBlock
	r.updates(func(u *update) {
		grad := r.filled(r.output("grad", u.grad, 1, n), func(i int) float64 {
			switch {
			case i/tensor.MomentBlock%5 == 1 || i%31 == 6:
				return 0
			case i%31 == 5:
				return r.rng.NormFloat64() * 0x1p-20
			case i == 100 && (blocks == 1 || blocks == 301): // other moves are finite
				return math.NaN()
			case i == 1001 && blocks == 301:
				return math.Inf(1)
			}
			return r.rng.NormFloat64()
		})
		m, mScale := r.moment8("m", n, bits[0])
		v, vScale := r.moment8("v", n, bits[1])
		draw := r.draw(tensor.MomentBlock)
		u.test(n, []*matrix{m, mScale, v, vScale}, func(st device.Stream, weights, low device.Mat, tally device.Mem) {
			st.AdamW8(device.AdamW8Args{Weights: weights, Low: low, Grad: grad.Mat, M: m.Mat, V: v.Mat,
				MScale: mScale.Mat, VScale: vScale.Mat, Draw: draw, AdamWScalars: adamWScalars}, tally)
		})
	})
}

func testSums(r *rig) {
	for _, n := range []int{1, 17, 131, 65535, 65536, 65537, 300001} {
		for _, d := range types {
			what := fmt.Sprint(d, n)
			x := r.filled(r.output("x", d, 1, n), func(i int) float64 { return r.rng.NormFloat64() * math.Exp2(float64(i%40-20)) })
			squares, total := r.place("squares", tensor.F64, 1, 1, 1), r.place("total", tensor.F64, 1, 1, 1)
			r.run(func(st device.Stream) {
				st.SumSquares(squares.Mem, x.Mat)
				if d == tensor.F32 {
					st.Sum(total.Mem, x.Mat)
				}
			})
			r.exact(what, squares)
			if d == tensor.F32 {
				r.exact(what, total)
			}
			r.finish(what)
		}
	}
}
