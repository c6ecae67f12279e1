package devicetest

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

func testMatMul(r *rig) {
	sizes := []struct{ m, n, k int }{{1, 1, 1}, {1, 37, 3}, {3, 1, 131}, {17, 37, 100}, {100, 131, 17}, {37, 3, 600}, {259, 140, 65}}
	if r.suite.Align > 0 {
		sizes = append(sizes, []struct{ m, n, k int }{{64, 64, 64}, {144, 272, 80}, {258, 128, 208}}...)
	}
	for _, s := range sizes {
		for variant := range 12 { // of operands, and of what the product is added to
			f := device.MatMulFlags{TransA: variant&1 != 0, TransB: variant&2 != 0, Accumulate: variant&4 != 0}
			for _, kind := range []struct{ in, out tensor.DType }{
				{tensor.F32, tensor.F32}, {tensor.BF16, tensor.BF16}, {tensor.BF16, tensor.F32}, {tensor.F32, tensor.BF16}} {
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
				want := refMatMul(a.v, b.v, s.m, s.n, s.k, f.TransA, f.TransB)
				if f.Accumulate {
					r.filled(c, func(int) float64 { return r.rng.NormFloat64() })
					want = sum(want, c.v)
				}
				if variant&8 != 0 {
					onto := r.normal("onto", kind.out, s.m, s.n)
					want, f.Onto = sum(want, onto.v), onto.Mat
				}
				r.run(func(st device.Stream) { st.MatMul(c.Mat, a.Mat, b.Mat, f) })
				r.near(what, c, want, math.Sqrt(float64(s.k))+1)
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
			want, sums := make([]float64, len(y.v)), append([]float64(nil), db.v...)
			dy := r.normal("dy", d, s.rows, s.cols)
			for i := range y.v {
				want[i] = float64(float32(y.v[i]) + float32(bias.v[i%s.cols]))
				sums[i%s.cols] += dy.v[i]
			}
			r.run(func(st device.Stream) {
				st.AddBias(y.Mat, bias.Mat)
				st.BiasGrad(db.Mat, dy.Mat)
			})
			r.exact(what, y, want)
			r.near(what, db, sums, math.Sqrt(float64(s.rows))+1)
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
				want := make([]float64, len(a.v))
				for i := range want {
					want[i] = float64(float32(a.v[i]) + float32(b.v[i]))
				}
				y := r.output("y", d, s.rows, s.cols)
				switch alias {
				case "a":
					y = a
				case "b":
					y = b
				}
				r.run(func(st device.Stream) { st.Add(y.Mat, a.Mat, b.Mat) })
				r.exact(what, y, want)
				r.finish(what)
			}
		}
	}
}

// corners are numbers on which roundings differ: ties in BF16, its largest and smallest, denormals, infinities.
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
				r.exact(what, dst, src.v)
				r.finish(what)
			}
		}
	}
}

// groupings are norms: rows, groups, and the columns of a group.
func (s *Suite) groupings() []grouping {
	all := []grouping{{1, 1, 1}, {3, 1, 100}, {17, 3, 37}, {67, 1, 576}, {37, 9, 64}, {131, 2, 131}, {523, 1, 32}}
	if s.Align > 0 {
		all = append(all, grouping{5, 1, 3584}, grouping{9, 4, 128}, grouping{523, 1, 272})
	}
	return all
}

type grouping struct{ rows, groups, d int }

func testRMSNorm(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.groupings() {
			what := fmt.Sprint(d, s)
			x, w := r.normal("x", d, s.rows, s.groups*s.d), r.normal("w", d, 1, s.d)
			y, rstd := r.output("y", d, s.rows, s.groups*s.d), r.stat("rstd", s.rows, s.groups)
			const eps = 0x1p-17
			wantY, wantR := refRMSNorm(x.v, w.v, s.rows, s.groups, eps)
			r.run(func(st device.Stream) { st.RMSNorm(y.Mat, rstd.Mat, x.Mat, w.Mat, s.groups, eps) })
			r.near(what, y, wantY, 0)
			r.near(what, rstd, wantR, 0)
			r.finish(what)
		}
	}
}

func testRMSNormGrad(r *rig) {
	for _, d := range types {
		for i, s := range r.suite.groupings() {
			for variant := range 8 {
				hasWeight, hasResid, alias := variant&1 != 0, variant&2 != 0, (variant>>2+i)%3
				what := fmt.Sprint(d, s, " dw ", hasWeight, " resid ", hasResid, " alias ", alias)
				cols := s.groups * s.d
				dy, x, w := r.normal("dy", d, s.rows, cols), r.normal("x", d, s.rows, cols), r.normal("w", d, 1, s.d)
				_, exact := refRMSNorm(x.v, w.v, s.rows, s.groups, 1e-5)
				rstd := r.filled(r.stat("rstd", s.rows, s.groups), func(i int) float64 { return exact[i] })
				wantX, wantW := refRMSNormGrad(dy.v, x.v, w.v, rstd.v)
				dx, dw, resid := r.output("dx", d, s.rows, cols), &matrix{}, &matrix{}
				if hasResid {
					resid = r.normal("resid", d, s.rows, cols)
					wantX = sum(wantX, resid.v)
				}
				switch {
				case alias == 1:
					dx = dy
				case alias == 2 && hasResid:
					dx = resid
				}
				if hasWeight {
					dw = r.normal("dw", tensor.F32, 1, s.d)
					wantW = sum(wantW, dw.v)
				}
				r.run(func(st device.Stream) {
					st.RMSNormGrad(dx.Mat, dw.Mat, dy.Mat, x.Mat, w.Mat, rstd.Mat, resid.Mat, s.groups)
				})
				r.near(what, dx, wantX, 4)
				if hasWeight {
					r.near(what, dw, wantW, math.Sqrt(float64(s.rows*s.groups))+1)
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
				turned, bias, parts := x.v, &matrix{}, &matrix{}
				if biased {
					bias = r.normal("bias", d, 1, s.heads*s.headDim)
					parts = r.filled(r.output("in two parts", d, s.rows, s.heads*s.headDim), func(i int) float64 { return x.v[i] })
					turned = make([]float64, len(x.v))
					for i := range turned {
						turned[i] = rounded(d, x.v[i]+bias.v[i%len(bias.v)])
					}
				}
				want := refRoPE(turned, s.rows, s.heads, cos.v, sin.v, positions, inverse)
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
				r.near(what, y, want, 2)
				if biased { // to the bit
					for i := range want {
						want[i] = y.decode(r.host, i)
					}
					r.exact(what, parts, want)
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
	if r.suite.Align > 0 {
		cases = append(cases, []attention{{197, 2, 1, 64, 0, 2, 0, false}, {197, 2, 1, 128, 0, 2, 0, false}, {131, 1, 1, 128, 70, 1, 0, false},
			{150, 1, 1, 256, 0, 2, 0, false}, {133, 2, 1, 256, 40, 1, 0, false},
			{140, 2, 1, 64, 50, 2, 0, true}, {140, 2, 1, 64, 0, 2, 1, false}, {133, 2, 1, 80, 30, 2, 3, true}, {133, 1, 1, 128, 0, 2, 50, true},
			{99, 2, 1, 256, 40, 2, 50, false}, {70, 1, 1, 256, 0, 2, 0, true}}...)
	}
	for _, s := range cases {
		for _, d := range types {
			what := fmt.Sprintf("%v %+v", d, s)
			starts, ends := r.documents(s.rows, s.docs)
			ref := &refSpec{heads: s.heads, kvHeads: s.kvHeads, headDim: s.headDim, scale: float64(float32(1 / math.Sqrt(float64(s.headDim)))),
				window: s.window, softCap: float64(s.softCap), start: starts}
			positions := make([]int32, s.rows)
			for i := range positions {
				positions[i] = int32(i) - starts[i]
			}
			spec := device.AttentionSpec{Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, Scale: float32(ref.scale), Window: s.window,
				SoftCap: s.softCap,
				Docs:    device.Docs{Positions: r.ints("positions", positions).Mem, Start: r.ints("start", starts).Mem, End: r.ints("end", ends).Mem}}
			queries, keys := s.heads*s.headDim, s.kvHeads*s.headDim

			sinks := &matrix{}
			if s.sinks { // from far below the scores to far above them
				sinks = r.filled(r.output("sinks", d, 1, s.heads), func(i int) float64 { return float64(9*i-6) + r.rng.NormFloat64() })
				spec.Sinks, ref.sinks = sinks.Mat, sinks.v
			}

			// Queries, keys and values are columns of one matrix, as a fused projection leaves them; so are their gradients.
			qkv := r.normal("qkv", d, s.rows, queries+2*keys)
			q, k, v := qkv.columns(0, queries), qkv.columns(queries, keys), qkv.columns(queries+keys, keys)
			out, lse := r.output("out", d, s.rows, queries), r.stat("lse", s.rows, s.heads)
			wantOut, wantLSE := refAttention(q.v, k.v, v.v, ref)
			r.run(func(st device.Stream) { st.Attention(out.Mat, lse.Mat, q.Mat, k.Mat, v.Mat, spec) })
			r.near(what, out, wantOut, 4)
			r.near(what, lse, wantLSE, 4)

			// What forward wrote is an input now, as it was written.
			out.refresh(r.image)
			lse.refresh(r.image)
			dout := r.normal("dout", d, s.rows, queries)
			dqkv := r.output("dqkv", d, s.rows, queries+2*keys)
			dq, dk, dv := dqkv.columns(0, queries), dqkv.columns(queries, keys), dqkv.columns(queries+keys, keys)
			delta := r.stat("delta", s.rows, s.heads)
			wantQ, wantK, wantV := refAttentionGrad(dout.v, q.v, k.v, v.v, out.v, lse.v, ref)
			r.run(func(st device.Stream) {
				st.AttentionGrad(dq.Mat, dk.Mat, dv.Mat, dout.Mat, q.Mat, k.Mat, v.Mat, out.Mat, lse.Mat, delta.Mat, spec)
			})
			r.near(what, dq, wantQ, 8)
			r.near(what, dk, wantK, 8*math.Sqrt(float64(s.heads/s.kvHeads)))
			r.near(what, dv, wantV, 8*math.Sqrt(float64(s.heads/s.kvHeads)))
			r.near(what, delta, refDelta(dout.v, out.v, ref), math.Sqrt(float64(s.headDim)))
			if s.sinks {
				delta.refresh(r.image)
				dsinks := r.normal("dsinks", tensor.F32, 1, s.heads)
				want := sum(dsinks.v, refSinkGrad(sinks.v, lse.v, delta.v))
				r.run(func(st device.Stream) { st.SinkGrad(dsinks.Mat, sinks.Mat, lse.Mat, delta.Mat) })
				r.near(what, dsinks, want, math.Sqrt(float64(s.rows*s.headDim)))
			}
			r.finish(what)
		}
	}
}

// refresh takes what an operation wrote to m for its numbers.
func (m *matrix) refresh(image []byte) {
	for i := range m.v {
		m.v[i] = m.decode(image, i)
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

// columns is a range of columns of m.
func (m *matrix) columns(first, n int) *matrix {
	c := &matrix{Mat: m.ColRange(first, n), name: fmt.Sprintf("%s[:, %d:%d]", m.name, first, first+n)}
	for r := range m.Rows {
		c.v = append(c.v, m.v[r*m.Cols+first:][:n]...)
	}
	return c
}

// scratch accepts whatever an operation left in m.
func (r *rig) scratch(m *matrix) {
	at := int(m.Off)
	copy(r.image[at:at+int(m.Len)], r.host[at:])
}

func testSwiGLU(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			for _, inPlace := range []bool{false, true} {
				what := fmt.Sprint(d, s, " in place ", inPlace)
				// Gates reach far into both tails of the sigmoid.
				gateUp := r.filled(r.output("gateUp", d, s.rows, 2*s.cols), func(i int) float64 {
					x := r.rng.NormFloat64()
					if i%7 == 0 && i%(2*s.cols) < s.cols {
						x *= 60
					}
					return x
				})
				dy := r.normal("dy", d, s.rows, s.cols)
				y := r.output("y", d, s.rows, s.cols)
				wantY, wantD := refSwiGLU(gateUp.v, s.rows), refSwiGLUGrad(dy.v, gateUp.v, s.rows)
				dGateUp, act := gateUp, dy
				if !inPlace {
					dGateUp, act = r.output("dGateUp", d, s.rows, 2*s.cols), r.output("act", d, s.rows, s.cols)
				}
				r.run(func(st device.Stream) {
					st.SwiGLU(y.Mat, gateUp.Mat)
					st.SwiGLUGrad(dGateUp.Mat, act.Mat, dy.Mat, gateUp.Mat)
				})
				r.near(what, y, wantY, 1)
				again := make([]float64, len(y.v))
				for i := range again {
					again[i] = y.decode(r.host, i)
				}
				r.exact(what, act, again)
				r.near(what, dGateUp, wantD, 4)
				r.finish(what)
			}
		}
	}
}

func testCrossEntropy(r *rig) {
	for _, s := range []struct {
		rows, vocab, tile int
		softCap           float32
	}{{1, 1, 1, 0}, {3, 17, 17, 0}, {17, 100, 37, 0}, {37, 1031, 300, 0}, {131, 700, 131, 0}, {17, 100, 37, 30}, {5, 2500, 1300, 3}} {
		for _, d := range types {
			what := fmt.Sprintf("%v %+v", d, s)
			logits := r.filled(r.output("logits", tensor.F32, s.rows, s.vocab), func(i int) float64 {
				return 10*r.rng.NormFloat64() + float64(i/s.vocab%3)*80 // far from zero in some rows
			})
			targets := make([]int32, s.rows)
			for i := range targets {
				targets[i] = int32(r.rng.IntN(s.vocab))
				if i%5 == 1 {
					targets[i] = -1 - int32(i%2)*99
				}
			}
			ids := r.ints("targets", targets)
			stat, loss := r.stat("stat", s.rows, 3), r.output("loss", tensor.F32, 1, s.rows)
			grad := r.output("dlogits", d, s.rows, s.vocab)
			wantLoss, wantGrad := refCrossEntropy(logits.v, targets, s.vocab, float64(s.softCap))
			const largest = 0x1p-5
			weights := r.filled(r.place("weights", tensor.F32, 1, s.rows, s.rows), func(t int) float64 {
				return [...]float64{0x1p-7, -largest, 0, 0x1p-30, largest}[t%5]
			})
			for i := range wantGrad {
				wantGrad[i] *= weights.v[i/s.vocab]
			}
			tiles := func(f func(first, n int)) {
				for first := 0; first < s.vocab; first += s.tile {
					f(first, min(s.tile, s.vocab-first))
				}
			}
			r.run(func(st device.Stream) {
				st.LSEInit(stat.Mat)
				tiles(func(first, n int) { st.LSEUpdate(stat.Mat, logits.ColRange(first, n), ids.Mem, first, s.softCap) })
				st.TokenLoss(loss.Mat, stat.Mat, ids.Mem)
				tiles(func(first, n int) {
					st.CrossEntropyGrad(grad.ColRange(first, n), logits.ColRange(first, n), stat.Mat, ids.Mem, weights.Mem, first,
						s.softCap)
				})
			})
			r.near(what, loss, wantLoss, 200)
			r.near(what, grad, wantGrad, 4*largest)
			r.scratch(stat)
			r.finish(what)
		}
	}
}

func testGather(r *rig) {
	r.lookUps(func(what string, d tensor.DType, s shape, ids []int32, first int) {
		table, y := r.normal("table", d, 40, s.cols), r.normal("y", d, s.rows, s.cols)
		want := append([]float64(nil), y.v...)
		for t, id := range ids {
			if row := int(id) - first; row >= 0 && row < table.Rows {
				copy(want[t*s.cols:(t+1)*s.cols], table.v[row*s.cols:])
			}
		}
		v := r.ints("ids", ids)
		r.run(func(st device.Stream) { st.Gather(y.Mat, table.Mat, v.Mem, first) })
		r.exact(what, y, want)
		r.finish(what)
	})
}

func testScatterAdd(r *rig) {
	r.lookUps(func(what string, d tensor.DType, s shape, ids []int32, first int) {
		dtable, dy := r.normal("dtable", tensor.F32, 40, s.cols), r.normal("dy", d, s.rows, s.cols)
		want := append([]float64(nil), dtable.v...)
		for t, id := range ids {
			if row := int(id) - first; row >= 0 && row < dtable.Rows {
				for c := range s.cols {
					at := row*s.cols + c
					want[at] = float64(float32(want[at]) + float32(dy.v[t*s.cols+c]))
				}
			}
		}
		v := r.ints("ids", ids)
		r.run(func(st device.Stream) { st.ScatterAdd(dtable.Mat, dy.Mat, v.Mem, first) })
		r.exact(what, dtable, want)
		r.finish(what)
	})
}

// lookUps are cases of ids, some of them in the 40 rows of a table that begins at first, many of them twice.
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

func testAdamW(r *rig) {
	scalars := device.AdamWScalars{ClipScale: 0.75, Decay: 1 - 1e-3, OneMinusBeta1: 0.1, Beta2: 0.999, OneMinusBeta2: 1 - 0.999,
		StepSize: 3e-3, SqrtBC2: 0.05, Eps: 1e-8}
	for _, n := range []int{1, 3, 17, 131, 4099, 70001} {
		for _, kind := range []struct{ weights, grad tensor.DType }{
			{tensor.BF16, tensor.BF16}, {tensor.BF16, tensor.F32}, {tensor.F32, tensor.F32}} {
			what := fmt.Sprint(kind, n)
			master := make([]float32, n)
			for i := range master {
				master[i] = float32(r.rng.NormFloat64())
				if i < len(corners) && n > len(corners) {
					master[i] = float32(corners[i])
				}
			}
			grad := r.filled(r.output("grad", kind.grad, 1, n), func(i int) float64 {
				switch {
				case i%31 == 5:
					return r.rng.NormFloat64() * 0x1p-130 // moments become denormal
				case i%31 == 6:
					return 0
				case i == 100:
					return math.NaN()
				case i == 101:
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
			v := r.filled(r.output("v", tensor.F32, 1, n), func(i int) float64 { return math.Abs(m.v[i]) })
			bad := r.filled(r.place("bad", tensor.I64, 1, 1, 1), func(int) float64 { return 5 })

			args := device.AdamWArgs{Grad: grad.Mat, M: m.Mat, V: v.Mat, AdamWScalars: scalars}
			var weights, low *matrix
			if kind.weights == tensor.F32 {
				weights = r.filled(r.output("weights", tensor.F32, 1, n), func(i int) float64 { return float64(master[i]) })
			} else {
				weights, low = r.output("weights", tensor.BF16, 1, n), r.output("low", tensor.I16, 1, n)
				r.filled(weights, func(i int) float64 { hi, _ := tensor.SplitF32(master[i]); return float64(tensor.F32FromBF16(hi)) })
				r.filled(low, func(i int) float64 { _, lo := tensor.SplitF32(master[i]); return float64(lo) })
				args.Low = low.Mat
			}
			args.Weights = weights.Mat

			wantP, wantLow, wantM, wantV := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
			wantBad := 5.0
			for i := range n {
				p, m, v := refAdamW(master[i], float32(m.v[i]), float32(v.v[i]), float32(grad.v[i]), &scalars)
				if p-p != 0 { // infinite, or a NaN
					wantBad++
				}
				wantM[i], wantV[i], wantP[i] = float64(m), float64(v), float64(p)
				if kind.weights == tensor.BF16 {
					hi, lo := tensor.SplitF32(p)
					wantP[i], wantLow[i] = float64(tensor.F32FromBF16(hi)), float64(lo)
				}
			}
			r.run(func(st device.Stream) { st.AdamW(args, bad.Mem) })
			r.exact(what, weights, wantP)
			if low != nil {
				r.exact(what, low, wantLow)
			}
			r.exact(what, m, wantM)
			r.exact(what, v, wantV)
			r.exact(what, bad, []float64{wantBad})
			r.finish(what)
		}
	}
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
			r.exact(what, squares, []float64{refSum(x.v, func(x float64) float64 { return x * x })})
			if d == tensor.F32 {
				r.exact(what, total, []float64{refSum(x.v, func(x float64) float64 { return x })})
			}
			r.finish(what)
		}
	}
}

func sum(a, b []float64) []float64 {
	c := make([]float64, len(a))
	for i := range a {
		c[i] = a[i] + b[i]
	}
	return c
}
