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

func newGrouped(t *testing.T, a nn.Attention) *grouped {
	t.Helper()
	whole := newBlock(t, &nn.Block{Hidden: 24, Eps: 1e-5, Mixer: a, FeedForward: nn.GLU{Inner: groupInner * groupCount}},
		tensor.F32, nil)
	d := &nn.Block{Hidden: 24, Eps: 1e-5, Mixer: a, FeedForward: nn.SplitGLU{Inner: groupInner, Groups: groupCount}}
	g := &grouped{block: newBlock(t, d, tensor.F32, nil), whole: whole}
	for i, f := range g.layout.Fields {
		g.set(g.w.Mat(i), whole.get(whole.w.Mat(whole.field(f.Name))))
	}
	copy(g.dy, whole.dy)
	g.set(g.x, whole.get(whole.x))
	layout, err := tensor.NewLayout(d.GroupFields()...)
	check(t, err)
	gate, up, down := whole.columns("mlp.gate_proj.weight"), whole.columns("mlp.up_proj.weight"),
		whole.columns("mlp.down_proj.weight")
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
	between := g.d.NewBetween(g.arena, tensor.F32, positions, true)
	mark := g.arena.Mark()
	work := g.d.NewForwardWork(g.arena, tensor.F32, positions, g.rows, keep)
	g.d.ForwardTrunk(g.stream, g.w, g.x, g.y, g.b, g.r, kept, work, between)
	for _, w := range g.weights {
		g.d.ForwardGroup(g.stream, w, g.y, g.b, work, between)
	}
	g.arena.Release(mark)
	work = g.d.NewBackwardWork(g.arena, tensor.F32, positions, g.rows, keep)
	g.set(g.dx, g.dy)
	g.g.Clear(g.stream)
	trunkGrad := g.g
	trunkGrad.Fresh = true
	g.d.Reopen(g.stream, g.w, g.x, g.b, g.r, kept, work, between)
	for i := len(g.weights) - 1; i >= 0; i-- {
		grad := g.grads[i]
		grad.Fresh = true
		grad.Clear(g.stream)
		g.d.BackwardGroup(g.stream, g.weights[i], grad, g.dx, g.b, work, between, i == len(g.weights)-1)
	}
	g.d.Close(g.stream, g.w, trunkGrad, g.x, g.dx, g.b, g.r, kept, work, between)
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
		g := newGrouped(t, d.Mixer.(nn.Attention))
		wantY, wantDX, _ := g.whole.run(nn.KeepInput)
		var wantTrunk []float32
		for _, f := range g.layout.Fields {
			wantTrunk = append(wantTrunk, g.whole.get(g.whole.g.Mat(g.whole.field(f.Name)))...)
		}
		gate, up := g.whole.get(g.whole.g.Mat(g.whole.field("mlp.gate_proj.weight"))),
			g.whole.get(g.whole.g.Mat(g.whole.field("mlp.up_proj.weight")))
		down := g.whole.get(g.whole.g.Mat(g.whole.field("mlp.down_proj.weight")))
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

// The accounts of visits are what they ask for.
func TestGroupAccounts(t *testing.T) {
	for name, d := range variants() {
		g := newGrouped(t, d.Mixer.(nn.Attention))
		pairs := g.d.Mixer.Pairs(docs)
		for i := range 2 * nn.Keeps {
			keep, rows := nn.Keep(i%nn.Keeps), i/nn.Keeps*5
			chunks := 1
			if rows > 0 {
				chunks = (positions + rows - 1) / rows
			}
			mark := g.arena.Mark()
			kept, between := g.d.NewKept(g.arena, tensor.F32, positions, keep),
				g.d.NewBetween(g.arena, tensor.F32, positions, true)
			fw := g.d.NewForwardWork(g.arena, tensor.F32, positions, rows, keep)
			bw := g.d.NewBackwardWork(g.arena, tensor.F32, positions, rows, keep)
			forward, reopen, closing := g.d.TrunkAccounts(positions, chunks, pairs, keep)
			groupForward, groupBackward := g.d.GroupAccounts(positions, chunks)
			for what, c := range map[string]struct {
				want  nn.Account
				visit func(m *meter)
			}{
				"forward": {forward, func(m *meter) { g.d.ForwardTrunk(m, g.w, g.x, g.y, g.b, g.r, kept, fw, between) }},
				"reopen":  {reopen, func(m *meter) { g.d.Reopen(m, g.w, g.x, g.b, g.r, kept, bw, between) }},
				"close":   {closing, func(m *meter) { g.d.Close(m, g.w, g.g, g.x, g.dx, g.b, g.r, kept, bw, between) }},
				"group forward": {groupForward, func(m *meter) {
					g.d.ForwardGroup(m, g.weights[0], g.y, g.b, fw, between)
				}},
				"group backward": {groupBackward, func(m *meter) {
					g.d.BackwardGroup(m, g.weights[0], g.grads[0], g.dx, g.b, bw, between, true)
				}},
			} {
				m := &meter{pairs: pairs}
				c.visit(m)
				if got := (nn.Account{FLOPs: m.flops, Ops: m.ops, Traffic: m.elems / positions}); got != c.want {
					t.Errorf("%s, keep %v, %d chunks, %s: %+v, account %+v", name, keep, chunks, what, got, c.want)
				}
			}
			g.arena.Release(mark)
		}
	}
}
