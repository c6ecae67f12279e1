package nn_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// grouped is a block in groups with the weights of a whole one.
type grouped struct {
	*block         // the trunk
	weights, grads []nn.Params
	whole          *block
}

const groupInner, groupCount = 8, 3

func newGrouped(t *testing.T, a nn.Mixer) *grouped {
	t.Helper()
	whole := newBlock(t, &nn.Block{Hidden: 24, Norm: nn.Norm{Eps: 1e-5}, Mixer: a,
		FeedForward: nn.GLU{Inner: groupInner * groupCount}},
		tensor.F32, nil)
	d := &nn.Block{Hidden: 24, Norm: nn.Norm{Eps: 1e-5}, Mixer: a,
		FeedForward: nn.SplitGLU{Inner: groupInner, Groups: groupCount}}
	g := &grouped{block: newBlock(t, d, tensor.F32, nil), whole: whole}
	for i, f := range g.layout.Fields {
		g.set(g.w.Mat(i), whole.get(whole.w.Mat(whole.field(f.Name))))
	}
	copy(g.dy, whole.dy)
	g.side.begin, g.side.later = whole.side.begin, whole.side.later
	g.set(g.x, whole.get(whole.x))
	layout, err := tensor.NewLayout(d.PartFields(0)...)
	check(t, err)
	gate, up, down := whole.columns("gate.weight"), whole.columns("up.weight"),
		whole.columns("down.weight")
	for i := range groupCount {
		w := nn.Weights(g.arena.Take(layout.WeightElems*4), layout, tensor.F32)
		g.set(w.Mat(0), gate[i*groupInner*24:][:groupInner*24])
		g.set(w.Mat(1), up[i*groupInner*24:][:groupInner*24])
		g.set(w.Mat(2), slice(down, i))
		g.weights, g.grads = append(g.weights, w), append(g.grads, nn.Gradients(g.arena.Take(layout.StateElems*4), layout))
	}
	return g
}

// field is the index of a tensor, and columns are its values.
func (k *block) field(name string) int {
	for i, f := range k.layout.Fields {
		if f.Name == name {
			return i
		}
	}
	panic(name)
}

func (k *block) columns(name string) []float32 { return k.get(k.w.Mat(k.field(name))) }

// slice are the columns of a group in the down projection, [24, inner].
func slice(down []float32, group int) (x []float32) {
	for row := range 24 {
		x = append(x, down[row*groupInner*groupCount+group*groupInner:][:groupInner]...)
	}
	return x
}

// run does the visits of a step, and returns what block.run does, of the trunk, and the gradients of groups.
func (g *grouped) run(keep nn.Keep) (y, dx, trunk []float32, groups [][]float32) {
	begin := g.arena.Mark()
	kept := g.d.NewKept(g.arena, tensor.F32, positions, keep)
	held := g.d.NewHeld(g.arena, tensor.F32, positions, 1, true)
	mark := g.arena.Mark()
	visits := func(to nn.Direction, work *nn.Work) {
		for _, stage := range g.d.Stages(to, false) {
			v, a := stage[0], g.args(kept, work)
			a.Held = held
			if part := v.Parts[0]; part > 0 {
				a.Weights, a.Gradients = g.weights[part-1:part], g.grads[part-1:part]
			}
			if v.Writes.Has(nn.Grads) {
				fresh := a.Gradients[0]
				fresh.Clear(g.stream)
				fresh.Fresh = true
				a.Gradients = []nn.Params{fresh}
			}
			v.Run(g.stream, asDeclared(v, a))
		}
	}
	g.beginSide()
	visits(nn.Forward, g.d.NewForwardWork(g.arena, tensor.F32, positions, nn.Cut{Chunk: g.rows}, keep))
	g.arena.Release(mark)
	g.sync()
	g.set(g.dx, g.dy)
	g.turnSide()
	visits(nn.Backward, g.d.NewBackwardWork(g.arena, tensor.F32, positions, nn.Cut{Chunk: g.rows}, keep))
	g.sync()
	for _, d := range g.grads {
		groups = append(groups, append(append(g.get(d.Mat(0)), g.get(d.Mat(1))...), g.get(d.Mat(2))...))
	}
	for i := range g.layout.Fields {
		trunk = append(trunk, g.get(g.g.Mat(i))...)
	}
	y, dx = g.get(g.y), g.get(g.dx)
	g.arena.Release(begin)
	return y, dx, trunk, groups
}

// A block in groups computes what the whole block does, except for the order of sums. The bits of y and dx depend
// neither on the kept activations nor on chunks.
func TestGroups(t *testing.T) {
	for name, d := range variants() {
		g := newGrouped(t, d.Mixer)
		wantY, wantDX, _ := g.whole.run(nn.KeepInput)
		var wantTrunk []float32
		for _, f := range g.layout.Fields {
			wantTrunk = append(wantTrunk, g.whole.get(g.whole.g.Mat(g.whole.field(f.Name)))...)
		}
		gate, up := g.whole.get(g.whole.g.Mat(g.whole.field("gate.weight"))),
			g.whole.get(g.whole.g.Mat(g.whole.field("up.weight")))
		down := g.whole.get(g.whole.g.Mat(g.whole.field("down.weight")))
		var first []float32
		for i := range 2 * nn.Keeps {
			keep, rows := nn.Keep(i%nn.Keeps), i/nn.Keeps*5
			g.rows = rows
			y, dx, trunk, groups := g.run(keep)
			what := fmt.Sprintf("%s, keep %v, chunks of %d", name, keep, rows)
			near(t, what+": y", y, wantY)
			near(t, what+": dx", dx, wantDX)
			near(t, what+": the trunk's gradient", trunk, wantTrunk)
			for n, got := range groups {
				size := groupInner * 24
				near(t, what+": a group's gradient", got, append(append(append([]float32{}, gate[n*size:][:size]...),
					up[n*size:][:size]...), slice(down, n)...))
			}
			all := append(append([]float32{}, y...), dx...)
			if first == nil {
				first = all
			}
			sameBits(t, what, all, first)
		}
	}
}

func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range want {
		worst = max(worst, math.Abs(float64(got[i]-want[i]))/(1+math.Abs(float64(want[i]))))
	}
	if !(worst < 1e-4) {
		t.Errorf("%s: off by %g", what, worst)
	}
}

// The visits of a block in parts cost what those of the whole block do, and what is computed again.
func TestMeasureOfParts(t *testing.T) {
	g := newGrouped(t, variants()["plain"].Mixer.(nn.Attention))
	m := nn.Shape{Docs: docs, DType: tensor.F32, Level: nn.KeepGateUp}
	sum := func(d *nn.Block, to nn.Direction, layouts ...*tensor.Layout) (all nn.Account) {
		for _, stage := range d.Stages(to, false) {
			all = all.Plus(d.Measure(stage[0], m, layouts[stage[0].Parts[0]]))
		}
		return all
	}
	part := g.weights[0].Layout
	gotF, gotB := sum(g.d, nn.Forward, g.layout, part, part, part), sum(g.d, nn.Backward, g.layout, part, part, part)
	wantF, wantB := sum(g.whole.d, nn.Forward, g.whole.layout), sum(g.whole.d, nn.Backward, g.whole.layout)
	if gotF.Work[nn.OfProducts] != wantF.Work[nn.OfProducts] || gotF.Work[nn.OfAttention] != wantF.Work[nn.OfAttention] {
		t.Errorf("forward: %+v, a whole block %+v", gotF, wantF)
	}
	again := int64(2 * positions * 24 * 2 * groupInner * groupCount) // gate and up, which a part does not keep
	// What "reopen" computes again, closing computes again as well, all but the mixer's output.
	qkv := int64(2*positions*24) * int64(4*6+2*2*6)
	if gotB.Work[nn.OfProducts] != wantB.Work[nn.OfProducts]+again+qkv ||
		gotB.Work[nn.OfAttentionGrad] != wantB.Work[nn.OfAttentionGrad] {
		t.Errorf("backward: %+v, a whole block %+v and %d", gotB, wantB, again+qkv)
	}
}
