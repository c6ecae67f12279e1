package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// recurrentTests lists the tests of device.ConvOps, device.GateOps and device.DeltaOps.
var recurrentTests = []test{
	{"CausalConv", testCausalConv}, {"Gate", testGate}, {"DeltaGates", testDeltaGates}, {"GatedDelta", testGatedDelta},
}

// lengths places documents of these lengths, and of what is left of rows.
func (r *rig) lengths(rows int, of ...int) device.Docs {
	var start, end []int32
	for len(start) < rows {
		n := rows - len(start)
		if len(of) > 0 {
			n, of = min(n, of[0]), of[1:]
		}
		first := len(start)
		for range n {
			start, end = append(start, int32(first)), append(end, int32(first+n))
		}
	}
	return device.Docs{Start: r.ints("start", start).Mem, End: r.ints("end", end).Mem}
}

func testCausalConv(r *rig) {
	for _, d := range types {
		for i, s := range append(r.suite.shapes(), shape{3, 4112}) { // the last has more columns than a GPU's launch
			for t, taps := range []int{4, 1, 7, device.MostTaps} {
				if taps != 4 && (s.rows > 100 || s.cols > 1024) {
					continue // these were tried
				}
				for variant := range 3 { // of documents, and of whether there is a gradient of weights
					if r.suite.rests(i, 4*t+variant) {
						continue
					}
					what := fmt.Sprint(d, s, " taps ", taps, " variant ", variant)
					docs := r.lengths(s.rows)
					if variant > 0 {
						docs = r.lengths(s.rows, 1, 2, taps-1+variant, 3, 1, 20, taps, 1)
					}
					x, dy := r.normal("x", d, s.rows, s.cols), r.normal("dy", d, s.rows, s.cols)
					w, dw := r.normal("w", d, s.cols, taps), &matrix{}
					if variant < 2 {
						dw = r.normal("dw", tensor.F32, s.cols, taps)
					}
					y, dx := r.output("y", d, s.rows, s.cols), r.output("dx", d, s.rows, s.cols)
					r.run(func(st device.Stream) {
						st.CausalConv(y.Mat, x.Mat, w.Mat, docs)
						st.CausalConvGrad(dx.Mat, dw.Mat, dy.Mat, x.Mat, w.Mat, docs)
					})
					r.near(what, y, math.Sqrt(float64(taps))+1)
					r.near(what, dx, 4*float64(taps)+4)
					if variant < 2 {
						r.near(what, dw, math.Sqrt(float64(s.rows))*math.Sqrt(float64(taps))+4)
					}
					r.finish(what)
				}
			}
		}
	}
}

func testGate(r *rig) {
	for _, d := range types {
		for i, s := range r.suite.shapes() {
			for e, each := range []int{1, 3, 16, 300} { // columns of a gate
				for k, kind := range []device.GateKind{device.SigmoidGate, device.SiLUGate} {
					for p, inPlace := range []bool{false, true} {
						if s.rows*s.cols*each > 150_000 || inPlace && each > 1 && s.rows > 17 {
							continue // no room; enough
						}
						if r.suite.rests(i+e, 2*k+p) {
							continue
						}
						what := fmt.Sprint(d, s, " each ", each, " kind ", kind, " in place ", inPlace)
						x, dy := r.normal("x", d, s.rows, s.cols*each), r.normal("dy", d, s.rows, s.cols*each)
						gate := r.filled(r.output("gate", d, s.rows, s.cols), func(i int) float64 {
							return r.rng.NormFloat64() * [...]float64{1, 1, 30}[i%3] // far into both tails
						})
						y, dx := r.output("y", d, s.rows, s.cols*each), r.output("dx", d, s.rows, s.cols*each)
						dgate, from := r.output("dgate", d, s.rows, s.cols), x
						if inPlace {
							from = r.normal("y", d, s.rows, s.cols*each)
							y, dx, dgate = from, dy, gate
						}
						r.run(func(st device.Stream) {
							st.Gate(y.Mat, from.Mat, gate.Mat, kind)
							st.GateGrad(dx.Mat, dgate.Mat, dy.Mat, x.Mat, gate.Mat, kind)
						})
						r.near(what, y, 1)
						r.near(what, dx, 1)
						r.near(what, dgate, 2*math.Sqrt(float64(each))+2)
						r.finish(what)
					}
				}
			}
		}
	}
}

func testDeltaGates(r *rig) {
	for _, d := range types {
		for _, s := range r.suite.shapes() {
			for _, trained := range []bool{true, false} {
				what := fmt.Sprint(d, s, " trained ", trained)
				wide := func(name string) *matrix { // far into both tails
					return r.filled(r.output(name, d, s.rows, s.cols), func(i int) float64 {
						return r.rng.NormFloat64() * [...]float64{1, 3, 30}[i%3]
					})
				}
				a, b := wide("a"), wide("b")
				aLog, dtBias := r.normal("aLog", d, 1, s.cols), r.normal("dtBias", d, 1, s.cols)
				decay, beta := r.stat("decay", s.rows, s.cols), r.stat("beta", s.rows, s.cols)
				normal := func(int) float64 { return r.rng.NormFloat64() }
				ddecay := r.filled(r.stat("ddecay", s.rows, s.cols), normal)
				dbeta := r.filled(r.stat("dbeta", s.rows, s.cols), normal)
				da, db := r.output("da", d, s.rows, s.cols), r.output("db", d, s.rows, s.cols)
				daLog, ddtBias := &matrix{}, &matrix{}
				if trained {
					daLog = r.normal("daLog", tensor.F32, 1, s.cols)
					ddtBias = r.normal("ddtBias", tensor.F32, 1, s.cols)
				}
				r.run(func(st device.Stream) {
					st.DeltaGates(decay.Mat, beta.Mat, a.Mat, b.Mat, aLog.Mat, dtBias.Mat)
					st.DeltaGatesGrad(da.Mat, db.Mat, daLog.Mat, ddtBias.Mat, ddecay.Mat, dbeta.Mat, a.Mat, b.Mat,
						aLog.Mat, dtBias.Mat)
				})
				r.near(what, decay, 1)
				r.near(what, beta, 1)
				r.near(what, da, 4)
				r.near(what, db, 1)
				if trained {
					r.near(what, daLog, 200*math.Sqrt(float64(s.rows)))
					r.near(what, ddtBias, 20*math.Sqrt(float64(s.rows)))
				}
				r.finish(what)
			}
		}
	}
}

// delta has the operands of a gated delta net.
type delta struct {
	device.DeltaSpec
	qkv, decay, beta, dout                    *matrix
	out, states, dqkv, ddecay, dbeta, dstates *matrix
}

// Decay draws the decay with the number i, counted row by row, of a gated delta net. Decays are of all sizes; some
// leave nothing of a state.
func Decay(rng *rand.Rand, i, heads int) float64 {
	size := [...]float64{0.01, 0.3, 0.001, 1, 0, 0.1, 0.05}[(i+i/heads)%7]
	if i%53 == 31 {
		size = 200
	}
	return -size * rng.Float64()
}

// delta places operands of a gated delta net.
func (r *rig) delta(d tensor.DType, rows int, spec device.DeltaSpec) *delta {
	chunks, cols := spec.States(rows)
	n := &delta{DeltaSpec: spec, qkv: r.normal("qkv", d, rows, spec.QKVCols()),
		decay: r.stat("decay", rows, spec.Heads), beta: r.stat("beta", rows, spec.Heads),
		dout: r.normal("dout", d, rows, spec.Values())}
	r.filled(n.decay, func(i int) float64 { return Decay(r.rng, i, spec.Heads) })
	r.filled(n.beta, func(int) float64 { return r.rng.Float64() })
	n.place(r, d, rows, chunks, cols)
	return n
}

// place places outputs.
func (n *delta) place(r *rig, d tensor.DType, rows, chunks, cols int) {
	n.out, n.states = r.output("out", d, rows, n.Values()), r.stat("states", chunks, cols)
	n.dqkv, n.dstates = r.output("dqkv", d, rows, n.QKVCols()), r.stat("dstates", chunks, cols)
	n.ddecay, n.dbeta = r.stat("ddecay", rows, n.Heads), r.stat("dbeta", rows, n.Heads)
}

// run carries out both directions.
func (n *delta) run(st device.Stream) {
	st.GatedDelta(n.out.Mat, n.states.Mat, n.qkv.Mat, n.decay.Mat, n.beta.Mat, n.DeltaSpec)
	st.GatedDeltaGrad(n.dqkv.Mat, n.ddecay.Mat, n.dbeta.Mat, n.dstates.Mat, n.dout.Mat, n.qkv.Mat, n.decay.Mat,
		n.beta.Mat, n.states.Mat, n.DeltaSpec)
}

// outputs holds what was written, with the magnitude of the terms that were summed, but states.
func (n *delta) outputs() (all []*matrix, scales []float64) {
	root := math.Sqrt(float64(n.ValueDim))
	keys := math.Sqrt(float64(n.Heads/n.KeyHeads)) * root
	return []*matrix{n.out, n.dqkv, n.ddecay, n.dbeta}, []float64{2, 4 + 4*keys, 8 * root, 8 * root}
}

// deltaShape has the sizes of a gated delta net, and its documents.
type deltaShape struct {
	rows, keyHeads, heads, keyDim, valueDim int
	docs                                    []int
}

// deltaShapes are odd ones.
var deltaShapes = []deltaShape{
	{1, 1, 1, 1, 1, nil}, {3, 1, 2, 5, 3, []int{1, 1}}, {64, 1, 1, 16, 8, nil}, {65, 2, 2, 7, 9, nil},
	{130, 2, 6, 12, 10, []int{63, 2, 64}}, {150, 1, 3, 8, 20, []int{64, 64, 5}}, {200, 1, 1, 33, 17, []int{3, 1, 120}},
	{421, 2, 4, 16, 16, nil}, {300, 3, 3, 24, 16, []int{10, 20, 30, 40, 50}}, {129, 1, 1, 64, 64, []int{1}},
}

func testGatedDelta(r *rig) {
	for _, d := range types {
		shapes := deltaShapes
		if r.suite.Align > 0 {
			shapes = []deltaShape{{100, 1, 2, 128, 128, []int{70, 3}}, {150, 1, 3, 48, 16, []int{64, 64, 5}},
				{421, 2, 4, 16, 16, nil}, {129, 1, 1, 64, 64, []int{1}}}
		}
		for _, s := range shapes {
			what := fmt.Sprintf("%v %+v", d, s)
			n := r.delta(d, s.rows, device.DeltaSpec{KeyHeads: s.keyHeads, Heads: s.heads, KeyDim: s.keyDim,
				ValueDim: s.valueDim, Docs: r.lengths(s.rows, s.docs...)})
			r.run(n.run)
			all, scales := n.outputs()
			for i, m := range all {
				r.near(what, m, scales[i])
			}
			for _, m := range []*matrix{n.states, n.dstates} { // they may be those of any rows: gradients show that they are right
				r.same(what, m, m)
			}
			r.finish(what)
		}
	}
}
