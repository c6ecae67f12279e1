package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

const expertHidden = 24

// mixtures are experts of each option. Rows choose fewer than all of them, unless the name says so.
func mixtures() map[string]nn.Mixture {
	softmax := device.RouteSpec{TopK: 2, Renormalize: true, Scale: 1}
	sigmoid := device.RouteSpec{TopK: 3, Sigmoid: true, Renormalize: true, Scale: 1.5, Groups: 2, TopGroups: 1}
	byBest := device.RouteSpec{TopK: 3, Scale: 4, Groups: 4, TopGroups: 2, ByBest: true}
	all := softmax
	all.TopK, all.Renormalize = 7, false
	allShares := all
	allShares.Renormalize = true
	gelu := device.GLUSpec{Gate: device.GELUTanh}
	return map[string]nn.Mixture{
		"plain":   nn.Experts{Inner: 10, Number: 7, Route: softmax},
		"sigmoid": nn.Experts{Inner: 9, Number: 8, Route: sigmoid, Shared: 13},
		"biases": nn.Experts{Inner: 12, Number: 7, Route: softmax, Bias: true, RouterBias: true,
			Activation: device.GLUSpec{Alpha: 1.7, Limit: 0.4}},
		"groups by the best": nn.Experts{Inner: 9, Number: 12, Route: byBest, Shared: 7},
		"corrected":          nn.Experts{Inner: 9, Number: 8, Route: sigmoid, Correction: true},
		"all":                nn.Experts{Inner: 8, Number: 7, Route: all, Bias: true, RouterBias: true, Shared: 5},
		"gated":              nn.Experts{Inner: 8, Number: 6, Route: softmax, Shared: 7, SharedGate: true},
		"with dense": nn.WithDense{Experts: nn.Experts{Inner: 9, Number: 7, Route: softmax, Shared: 14,
			Activation: gelu}},
		"all, with dense": nn.WithDense{Experts: nn.Experts{Inner: 9, Number: 7, Route: allShares, Shared: 14,
			Activation: gelu}},
	}
}

// mixed is a block with experts, and the weights and gradients of its parts.
type mixed struct {
	*block
	experts        nn.Experts
	cut            nn.Cut
	weights, grads []nn.Params
	correction     device.Mat
	outcome        device.Mat
	loads          device.Mem // with a load-balancing loss
	balance        device.Mat // of this block, and of another one
}

// newMixed makes the block. An expert's weights depend on its number in order, and not on its part.
func newMixed(t *testing.T, feed nn.Mixture, dtype tensor.DType, order []int) *mixed {
	t.Helper()
	x := feed.Mixture()
	d := &nn.Block{Hidden: expertHidden, Norm: nn.Norm{Eps: 1e-5}, Mixer: variants()["plain"].Mixer, FeedForward: feed}
	if _, ok := feed.(nn.WithDense); ok {
		d.Rule, d.Scalar = nn.Branches, true
	}
	check(t, d.Check())
	m := &mixed{block: newBlock(t, d, dtype, nil), experts: x}
	for i, f := range m.layout.Fields {
		if len(f.Shape) == 2 && f.Name == "router.weight" || f.Name == "router.bias" { // a row for each expert
			old, cols := m.get(m.w.Mat(i)), int(f.Elems)/x.Number
			for e, of := range order {
				copy(old[e*cols:][:cols], normal(rand.New(rand.NewPCG(3, uint64(of))), cols, 0, 1))
			}
			m.set(m.w.Mat(i), old)
		}
	}
	if x.Correction { // so that choices are others without it
		m.correction = m.mat(tensor.F32, 1, x.Number, normal(rand.New(rand.NewPCG(6, 7)), x.Number, 0, 0.5))
	}
	if d.LeavesOutcome() {
		m.outcome = m.arena.Mat(dtype, positions, expertHidden)
	}
	if x.Balance.Weight != 0 {
		m.loads = m.arena.Take(d.LoadBytes())
		m.balance = m.mat(tensor.F32, 2, x.Number, otherBalance)
	}
	for part := range d.Parts() {
		layout, err := tensor.NewLayout(d.PartFields(part)...)
		check(t, err)
		w := nn.Weights(m.arena.Take(layout.WeightElems*dtype.Bytes()), layout, dtype)
		for i, f := range layout.Fields {
			e, name := m.expertOf(part, f.Name)
			seed := uint64(1000*order[e]) + uint64(slices.Index(expertTensors, name))
			m.set(w.Mat(i), normal(rand.New(rand.NewPCG(4, seed)), int(f.Elems), 0, 0.3))
		}
		m.weights = append(m.weights, w)
		m.grads = append(m.grads, nn.Gradients(m.arena.Take(layout.StateElems*4), layout))
	}
	return m
}

var expertTensors = []string{"gate.weight", "up.weight", "down.weight", "gate.bias", "up.bias", "down.bias"}

// expertOf is the expert that a field of a part belongs to, and its name there.
func (m *mixed) expertOf(part int, field string) (expert int, name string) {
	var in int
	if _, err := fmt.Sscanf(field, "experts.%d.%s", &in, &name); err != nil {
		panic(err)
	}
	return m.experts.FirstExpert(part) + in, name
}

// result of a step: y, dx, the gradient of the trunk, and those of each expert's tensors.
type result struct {
	y, dx, trunk []float32
	experts      [][]float32
}

// run does the visits of a step.
func (m *mixed) run(keep nn.Keep) result {
	begin := m.arena.Mark()
	dtype := m.x.DType
	kept := m.d.NewKept(m.arena, dtype, positions, keep)
	held := m.d.NewHeld(m.arena, dtype, positions, 1, true)
	mark := m.arena.Mark()
	visits := func(to nn.Direction, work *nn.Work) {
		m.poison(device.Mem{Off: mark, Len: m.arena.Mark() - mark})
		for _, stage := range m.d.Stages(to, false) {
			v, a := stage[0], m.args(kept, work)
			if a.Held, a.Constants = held, m.correction; v.Over == nn.EachMicro {
				a.Held = held.Micro(0)
			}
			if (v.Reads | v.Writes).Has(nn.Outcomes) {
				a.Outcome = m.outcome
			}
			if m.loads.Len > 0 {
				if a.Loads, a.Balance, a.StepRows = m.loads, m.balance, positions; to == nn.Forward {
					a.Balance = m.balance.RowRange(0, 1)
				}
			}
			switch {
			case len(v.Parts) == 0:
				a.Weights, a.Gradients = nil, nil
			case v.Parts[0] > 0:
				a.Weights, a.Gradients = m.weights[v.Parts[0]-1:][:1], m.grads[v.Parts[0]-1:][:1]
			}
			if v.Writes.Has(nn.Grads) {
				fresh := a.Gradients[0]
				m.poison(fresh.Mem)
				fresh.Clear(m.stream)
				fresh.Fresh = true
				a.Gradients = []nn.Params{fresh}
			}
			v.Run(m.stream, asDeclared(v, a))
			m.sync()
		}
	}
	visits(nn.Forward, m.d.NewForwardWork(m.arena, dtype, positions, m.cut, keep))
	m.arena.Release(mark)
	m.set(m.dx, m.dy)
	visits(nn.Backward, m.d.NewBackwardWork(m.arena, dtype, positions, m.cut, keep))
	r := result{y: m.get(m.y), dx: m.get(m.dx), experts: make([][]float32, m.experts.Number*len(expertTensors))}
	for i := range m.layout.Fields {
		r.trunk = append(r.trunk, m.get(m.g.Mat(i))...)
	}
	for part, g := range m.grads {
		for i, f := range g.Layout.Fields {
			e, name := m.expertOf(part, f.Name)
			r.experts[e*len(expertTensors)+slices.Index(expertTensors, name)] = m.get(g.Mat(i))
		}
	}
	m.arena.Release(begin)
	return r
}

func (r result) same(t *testing.T, what string, want result) {
	t.Helper()
	sameBits(t, what+": y", r.y, want.y)
	sameBits(t, what+": dx", r.dx, want.dx)
	sameBits(t, what+": the trunk's gradient", r.trunk, want.trunk)
	for i := range want.experts {
		sameBits(t, fmt.Sprintf("%s: the gradient of expert %d's %s", what, i/len(expertTensors),
			expertTensors[i%len(expertTensors)]),
			r.experts[i], want.experts[i])
	}
}

func numbered(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// The bits of a mixture depend neither on how many experts a part has nor on the rows of a call nor on what the trunk
// keeps.
func TestExpertsInParts(t *testing.T) {
	for name, feed := range mixtures() {
		x := feed.Mixture()
		for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
			for _, rows := range []int{0, 8} {
				var want *result
				for i, perPart := range []int{x.Number, 1, 3, 5} {
					x.PerPart = perPart
					m := newMixed(t, feed.With(x), dtype, numbered(x.Number))
					m.cut = nn.Cut{Chunk: rows, Call: 20 * i}
					got := m.run(nn.Keep(i % nn.Keeps))
					if want == nil {
						want = &got
					}
					got.same(t, fmt.Sprintf("%s, %v, chunks of %d, parts of %d", name, dtype, rows, perPart), *want)
				}
			}
		}
	}
}

// Experts in another order have the same gradients in that order. Of two experts the sum does not depend on their
// order.
func TestPermutedExperts(t *testing.T) {
	for _, name := range []string{"plain", "biases"} {
		x := mixtures()[name].Mixture()
		x.PerPart = 3
		order := []int{4, 2, 6, 0, 1, 5, 3}
		want := newMixed(t, x, tensor.F32, numbered(x.Number)).run(nn.KeepInput)
		got := newMixed(t, x, tensor.F32, order).run(nn.KeepInput)
		sameBits(t, name+": y", got.y, want.y)
		n := len(expertTensors)
		for i, e := range order {
			for j := range n {
				sameBits(t, fmt.Sprintf("%s: %s of expert %d", name, expertTensors[j], e), got.experts[i*n+j],
					want.experts[e*n+j])
			}
		}
	}
}

// One expert is a dense block.
func TestOneExpert(t *testing.T) {
	x := nn.Experts{Inner: 17, Number: 1, PerPart: 1, Route: device.RouteSpec{TopK: 1, Scale: 1}}
	m := newMixed(t, x, tensor.F32, []int{0})
	d := newBlock(t, &nn.Block{Hidden: expertHidden, Norm: nn.Norm{Eps: 1e-5}, Mixer: m.d.Mixer,
		FeedForward: nn.GLU{Inner: 17}},
		tensor.F32, nil)
	for i, f := range d.layout.Fields {
		if at := m.index(f.Name); at >= 0 {
			d.set(d.w.Mat(i), m.get(m.w.Mat(at)))
			continue
		}
		d.set(d.w.Mat(i), m.get(m.weights[0].Mat(slices.Index(expertTensors, f.Name))))
	}
	copy(d.dy, m.dy)
	d.set(d.x, m.get(m.x))
	got := m.run(nn.KeepInput)
	y, dx, _ := d.run(nn.KeepInput)
	sameBits(t, "y", got.y, y)
	near(t, "dx", got.dx, dx) // which is rounded once more in the dense block
	for i, f := range d.layout.Fields {
		if j := slices.Index(expertTensors, f.Name); j >= 0 {
			sameBits(t, f.Name, got.experts[j], d.get(d.g.Mat(i)))
		}
	}
}

// index is the number of a field of the trunk; -1 if it has no such field.
func (k *block) index(name string) int {
	return slices.IndexFunc(k.layout.Fields, func(f tensor.Placed) bool { return f.Name == name })
}

// Gradients are the derivatives of the output. All rows use all experts, since a choice that changes is a jump.
func TestExpertsGradient(t *testing.T) {
	for _, name := range []string{"all", "all, with dense"} {
		t.Run(name, func(t *testing.T) { expertsGradient(t, mixtures()[name]) })
	}
}

func expertsGradient(t *testing.T, feed nn.Mixture) {
	x := feed.Mixture()
	x.PerPart = 4
	m := newMixed(t, feed.With(x), tensor.F32, numbered(x.Number))
	r := m.run(nn.KeepInput)
	rnd := rand.New(rand.NewPCG(5, 6))
	loss := func() float64 { return dot(m.run(nn.KeepInput).y, m.dy) }
	check := func(what string, of device.Mat, grad []float32) {
		checkGradient(t, rnd, what, m.get(of), grad, func(v []float32) { m.set(of, v) }, loss)
	}
	check("x", m.x, r.dx)
	at := 0
	for i, f := range m.layout.Fields {
		check(f.Name, m.w.Mat(i), r.trunk[at:][:f.Elems])
		at += int(f.Elems)
	}
	for part, w := range m.weights {
		for i, f := range w.Layout.Fields {
			e, name := m.expertOf(part, f.Name)
			check(f.Name, w.Mat(i), r.experts[e*len(expertTensors)+slices.Index(expertTensors, name)])
		}
	}
}

// All rows may choose the same experts: those get all rows, the others get a gradient of zeros.
func TestOneExpertForAll(t *testing.T) {
	x := mixtures()["biases"].Mixture()
	x.PerPart = 2
	m := newMixed(t, x, tensor.F32, numbered(x.Number))
	bias := make([]float32, x.Number)
	bias[3], bias[5] = 100, 90
	m.set(m.w.Mat(m.index("router.bias")), bias)
	r := m.run(nn.KeepInput)
	for i, g := range r.experts {
		chosen := i/len(expertTensors) == 3 || i/len(expertTensors) == 5
		if zero := !slices.ContainsFunc(g, func(x float32) bool { return x != 0 }); zero == chosen {
			t.Errorf("expert %d: the gradient of %s is zero: %v", i/len(expertTensors),
				expertTensors[i%len(expertTensors)], zero)
		}
	}
}

// A correction has a part in choosing, and in nothing else: experts that it lifts compute what they do where there are
// no others, and a correction that is the same for all changes no bit.
func TestCorrection(t *testing.T) {
	route := device.RouteSpec{TopK: 3, Sigmoid: true, Renormalize: true, Scale: 1.7}
	x := nn.Experts{Inner: 9, Number: 8, PerPart: 3, Shared: 5, Route: route, Correction: true}
	if n := (&nn.Block{FeedForward: x}).Constants(); n != x.Number {
		t.Errorf("%d constants, want %d", n, x.Number)
	}
	if n := (&nn.Block{FeedForward: nn.Experts{Number: 8}}).Constants() +
		(&nn.Block{FeedForward: nn.GLU{}}).Constants(); n != 0 {
		t.Errorf("%d constants of blocks without", n)
	}
	for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
		like := newMixed(t, x, dtype, numbered(x.Number))
		run := func(x nn.Experts, order []int, correction []float32) result {
			m := newMixed(t, x, dtype, order)
			for i, f := range m.layout.Fields {
				if f.Name != "router.weight" { // of which the order says the rows
					m.set(m.w.Mat(i), like.get(like.w.Mat(like.index(f.Name))))
				}
			}
			m.set(m.x, like.get(like.x))
			copy(m.dy, like.dy)
			if x.Correction {
				m.set(m.correction, correction)
			}
			return m.run(nn.KeepInput)
		}
		lifted := []int{1, 4, 6}
		correction := normal(rand.New(rand.NewPCG(8, 9)), x.Number, 0, 0.1)
		for _, e := range lifted {
			correction[e] += 5
		}
		got := run(x, numbered(x.Number), correction)
		few := x
		few.Number, few.Correction = len(lifted), false
		want := run(few, lifted, nil)
		sameBits(t, "y", got.y, want.y)
		if dtype == tensor.F32 {
			near(t, "dx", got.dx, want.dx) // the router's share is a sum over more experts
		}
		n := len(expertTensors)
		for i := range got.experts {
			switch at := slices.Index(lifted, i/n); {
			case at >= 0:
				sameBits(t, fmt.Sprintf("%s of expert %d", expertTensors[i%n], i/n), got.experts[i],
					want.experts[at*n+i%n])
			case slices.ContainsFunc(got.experts[i], func(x float32) bool { return x != 0 }):
				t.Errorf("expert %d is not chosen, and its %s has a gradient", i/n, expertTensors[i%n])
			}
		}
		plain := x
		plain.Correction = false
		run(x, numbered(x.Number), slices.Repeat([]float32{0.25}, x.Number)).same(t, "alike", run(plain,
			numbered(x.Number), nil))
	}
}

// otherBalance are two rows of what a load-balancing loss takes of blocks: of a block that writes the first one, and of
// another one.
var otherBalance = []float32{0, 0, 0, 0, 0, 0, 0, 0.03, 0.01, 0.05, 0.02, 0.09, 0.04, 0.07}

// A block with a load-balancing loss tells how often each expert was chosen, and the sums of their probabilities. The
// gradients of its router and of its input then have that loss: the sum of what all blocks say of an expert, times the
// sum of its probabilities. It changes nothing else.
func TestLoadBalancing(t *testing.T) {
	x := mixtures()["biases"].Mixture()
	x.PerPart = 3
	without := newMixed(t, x, tensor.F32, numbered(x.Number))
	x.Balance = nn.Balance{Weight: 3, Blocks: 2}
	m := newMixed(t, x, tensor.F32, numbered(x.Number))
	for _, m.cut = range []nn.Cut{{}, {Chunk: 8, Call: 40}} {
		without.cut = m.cut
		plain, r := without.run(nn.KeepAttention), m.run(nn.KeepAttention)
		told, all := m.get(device.NewMat(m.loads, tensor.F32, 2, x.Number)), m.get(m.balance)
		counts, sums := 0.0, 0.0
		for e := range x.Number {
			counts, sums = counts+float64(told[e]), sums+float64(told[x.Number+e])
			// By the formula of nn.Balance, for two blocks of that number of rows.
			if want := 3 * float32(x.Number) * told[e] / (4 * positions * positions); math.Abs(float64(all[e]-want)) > 1e-6 {
				t.Errorf("expert %d, chosen %v times, has %v in the loss, want %v", e, told[e], all[e], want)
			}
		}
		if counts != positions*2 || math.Abs(sums-positions) > 1e-4 {
			t.Errorf("experts were chosen %v times, and their probabilities are %v", counts, sums)
		}
		sameBits(t, "y", r.y, plain.y)
		for i := range r.experts {
			sameBits(t, fmt.Sprint("gradient ", i), r.experts[i], plain.experts[i])
		}
		minus := func(a, b []float32) []float32 {
			d := slices.Clone(a)
			for i := range b {
				d[i] -= b[i]
			}
			return d
		}
		weights := slices.Clone(all[:x.Number])
		for e := range weights {
			weights[e] += otherBalance[x.Number+e]
		}
		loss := func() float64 {
			m.run(nn.KeepInput)
			return dot(m.get(device.NewMat(m.loads, tensor.F32, 2, x.Number))[x.Number:], weights)
		}
		rnd, at := rand.New(rand.NewPCG(5, 6)), 0
		of := minus(r.trunk, plain.trunk)
		for i, f := range m.layout.Fields {
			if name := f.Name; name == "router.weight" || name == "router.bias" {
				checkGradient(t, rnd, name, m.get(m.w.Mat(i)), of[at:][:f.Elems], func(v []float32) { m.set(m.w.Mat(i), v) }, loss)
			}
			at += int(f.Elems)
		}
		checkGradient(t, rnd, "x", m.get(m.x), minus(r.dx, plain.dx), func(v []float32) { m.set(m.x, v) }, loss)
	}
}

// The account of a mixture is what one counts by hand: each choice of a row takes three products of an expert forward,
// and combining reads the rows of all choices, and y, which it writes. A step of several micro-batches has the rows
// of all.
func TestMeasureOfExperts(t *testing.T) {
	x := mixtures()["plain"].Mixture()
	x.PerPart = 3
	measure := func(x nn.Experts, to nn.Direction, micros int, is func(nn.Visit) bool) (all nn.Account) {
		m := newMixed(t, x, tensor.F32, numbered(x.Number))
		for _, stage := range m.d.Stages(to, false) {
			v := stage[0]
			layouts := []*tensor.Layout{m.layout}
			if len(v.Parts) > 0 && v.Parts[0] > 0 {
				layouts = []*tensor.Layout{m.weights[v.Parts[0]-1].Layout}
			}
			if is(v) {
				all = all.Plus(m.d.Measure(v, nn.Shape{Docs: docs, DType: tensor.F32, Micros: micros}, layouts...))
			}
		}
		return all
	}
	combines := func(v nn.Visit) bool { return v.Name == "combine" }
	if got := measure(x, nn.Forward, 2, combines); got.Work[nn.OfElements] != 4*positions*expertHidden*4 || got.Ops != 1 {
		t.Errorf("combining takes %+v", got)
	}
	ofParts := func(v nn.Visit) bool { return len(v.Parts) > 0 && v.Parts[0] > 0 }
	for micros, rows := range []int64{positions, positions, 2 * positions} {
		product := 2 * 2 * rows * expertHidden * 10
		up, down := measure(x, nn.Forward, micros, ofParts), measure(x, nn.Backward, micros, ofParts)
		if up.Work[nn.OfExperts] != 3*product || up.ExpertRows != int(2*rows/7) {
			t.Errorf("%d micro-batches: forward %+v", micros, up)
		}
		if down.Work[nn.OfExperts] != 5*product || down.Work[nn.OfExpertGrads] != 3*product {
			t.Errorf("%d micro-batches: backward %+v", micros, down)
		}
	}
	x.Balance = nn.Balance{Weight: 1, Blocks: 1}
	balanced := x
	x.Balance.Weight = 0
	// On the way up it is told of the choices, and takes the probabilities of one chunk.
	up, plainUp := measure(balanced, nn.Forward, 1, ofParts), measure(x, nn.Forward, 1, ofParts)
	if up.Ops != plainUp.Ops+4 {
		t.Errorf("with a load-balancing loss forward takes %+v, without %+v", up, plainUp)
	}
	first := func(v nn.Visit) bool { return v.First }
	with, without := measure(balanced, nn.Backward, 1, first), measure(x, nn.Backward, 1, first)
	if with.Ops != without.Ops+2 || with.Bytes() != without.Bytes()+2*4*7 {
		t.Errorf("with a load-balancing loss backward takes %+v, without %+v", with, without)
	}
}

// A mixture holds a row of numbers for a load-balancing loss where it has one.
func TestHeldForBalance(t *testing.T) {
	x := mixtures()["plain"].Mixture()
	held := func(x nn.Experts) (n int) {
		for _, v := range x.HeldValues(expertHidden) {
			n += v.Rows * v.Cols
		}
		return n
	}
	plain := held(x)
	for _, x.Balance.Weight = range []float32{0.01, 1} {
		if got := held(x); got != plain+x.Number {
			t.Errorf("weight %v: it holds %d numbers, and %d without", x.Balance.Weight, got, plain)
		}
	}
}
