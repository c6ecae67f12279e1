package stream_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"pgregory.net/rapid"
)

// Layers that no package knows. They prove that a mixer and a feed-forward are data to the plan and to the engine: this
// file states their tensors, values and visits, and no file of plan or stream changes.

// lowRank is a mixer without attention: h = x + down(up(norm(x))).
type lowRank struct{ Rank int }

const upped, dUpped = 0, 1 // values: [T, Rank]

func (l lowRank) Fields(hidden int) []tensor.Field {
	return []tensor.Field{matrix("mixer.up.weight", l.Rank, hidden), matrix("mixer.down.weight", hidden, l.Rank)}
}

func (l lowRank) Values(int) []nn.Value {
	return []nn.Value{upped: {Cols: l.Rank, Level: nn.KeepAttention, Lives: nn.Result}, dUpped: {Cols: l.Rank, Lives: nn.Gradient}}
}

func (l lowRank) Forward(p *nn.Pass, x device.Mat) {
	p.EachChunk(func(p *nn.Pass, rows func(device.Mat) device.Mat) {
		p.Normalize(rows(x))
		p.Project(p.Value(upped), p.Norm(), "mixer.up.weight", 1)
	})
}

func (l lowRank) Output(p *nn.Pass, x, h device.Mat) {
	p.MatMul(h, p.Value(upped), p.Weight("mixer.down.weight", 1), device.MatMulFlags{TransB: true, Onto: x})
}

func (l lowRank) Recompute(p *nn.Pass, x device.Mat) {
	if !p.Keeps(nn.KeepAttention) {
		l.Forward(p, x)
	}
}

func (l lowRank) Backward(p *nn.Pass, x, dy, dx device.Mat) {
	p.EachChunk(func(p *nn.Pass, rows func(device.Mat) device.Mat) {
		x, dy, dx := rows(x), rows(dy), rows(dx)
		p.WeightGrad("mixer.down.weight", 1, dy, p.Value(upped))
		p.ProjectGrad(p.Value(dUpped), dy, "mixer.down.weight", 1)
		p.Normalize(x)
		p.WeightGrad("mixer.up.weight", 1, p.Value(dUpped), p.Norm())
		p.ProjectGrad(p.Norm(), p.Value(dUpped), "mixer.up.weight", 1)
		p.NormalizeGrad(x, dx)
	})
}

// byPosition is a feed-forward that routes rows to parts: each part has a table of rows for a range of positions, and
// y = h + table[position]. Its parts see the rows of the whole step at once.
type byPosition struct{ Tables, Rows int }

const places, out, dOut = 0, 1, 2 // held: I32 [1], [Hidden], [Hidden]

var _ nn.Routed = byPosition{}

func (b byPosition) Fields(int) []tensor.Field { return nil }
func (b byPosition) Values(int) []nn.Value     { return nil }
func (b byPosition) Count() int                { return b.Tables }

func (b byPosition) PartFields(hidden, _ int) []tensor.Field {
	return []tensor.Field{matrix("table.weight", b.Rows, hidden)}
}

func (b byPosition) HeldValues(hidden int) []nn.Value {
	return []nn.Value{places: {Cols: 1, DType: tensor.I32}, out: {Cols: hidden}, dOut: {Cols: hidden}}
}

func (b byPosition) Open(p *nn.Pass, _ device.Mat) {
	p.Copy(p.Held(places).Mem, p.Batch().Docs.Positions)
}

func (b byPosition) OpenForward(p *nn.Pass, _ device.Mat) { p.Zero(p.Held(out).Mem) }

func (b byPosition) ForwardPart(p *nn.Pass, part int) {
	p.Gather(p.Held(out), p.Weight("table.weight", 1), p.Held(places).Mem, part*b.Rows)
}

func (b byPosition) Combine(p *nn.Pass, y device.Mat) { p.Add(y, y, p.Held(out)) }

func (b byPosition) OpenBackward(p *nn.Pass, dy device.Mat) { p.Copy(p.Held(dOut).Mem, dy.Mem) }

func (b byPosition) BackwardPart(p *nn.Pass, part int) {
	if g := p.WeightGradient("table.weight", 1); !g.IsZero() {
		p.Zero(g.Mem) // rows of the whole step come once
		p.ScatterAdd(g, p.Held(dOut), p.Held(places).Mem, part*b.Rows, 1)
	}
}

// CloseBackward knows that rows do not depend on x.
func (b byPosition) CloseBackward(p *nn.Pass, _, _, dNorm device.Mat) { p.Zero(dNorm.Mem) }

func matrix(name string, shape ...int) tensor.Field {
	return tensor.Field{Name: name, Shape: shape, Trainable: true, Decay: true}
}

// made is a family of such blocks in turn with attention and a GLU.
var made = model.Family{ModelType: "made", Names: append(model.Names{
	{Role: "mixer.up.*", HF: "model.layers.{layer}.mixer.up.*"},
	{Role: "mixer.down.*", HF: "model.layers.{layer}.mixer.down.*"},
	{Role: "part.table.*", HF: "model.layers.{layer}.tables.{part}.*"},
	{Role: "part.gate.*", HF: "model.layers.{layer}.mlp.groups.{part}.gate_proj.*"},
	{Role: "part.up.*", HF: "model.layers.{layer}.mlp.groups.{part}.up_proj.*"},
	{Role: "part.down.*", HF: "model.layers.{layer}.mlp.groups.{part}.down_proj.*"},
}, model.Llama...), Read: func(_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	mixers, feeds := []nn.Mixer{lowRank{5}, s.Attention}, []nn.FeedForward{byPosition{3, 4}, s.GLU, nn.SplitGLU{Inner: 6, Groups: 2}}
	for l := range s.Layers {
		s.Blocks = append(s.Blocks, nn.Block{Mixer: mixers[l%2], FeedForward: feeds[l%3]})
	}
}}

// The law of placements holds for layers that no package knows.
func TestNewLayers(t *testing.T) { placementsLaw(t, layersOf(t, 6, made)) }

// named is a subject of a law.
type named struct {
	name string
	*subject
}

const lawSteps = 3

// layersOf are models with n layers of each of some families, in f32 and in bf16, and with steps in cohorts.
func layersOf(t *testing.T, n int, families ...model.Family) (all []named) {
	s := tiny
	s.Layers, s.BlockChunk = n, plan.BlockChunkMultiple
	for _, family := range families {
		s.Type, s.families = family.ModelType, []model.Family{family}
		for _, kind := range []struct {
			bf16    bool
			cohorts int
		}{{false, 1}, {true, 1}, {true, 2}} {
			s.BF16, s.Cohorts, s.Micro = kind.bf16, kind.cohorts, 2*kind.cohorts
			sub := s.subject(t, lawSteps)
			name := fmt.Sprintf("%s, bf16 %v, cohorts %d", family.ModelType, kind.bf16, kind.cohorts)
			all = append(all, named{name, sub})
		}
	}
	return all
}

// placementsLaw holds subjects to the law of placements, in turn.
func placementsLaw(t *testing.T, subjects []named) {
	dev := newCPU(t)
	defer dev.Close()
	var wants []outcome
	for _, s := range subjects {
		ref := start(t, s.subject, setup{change: streamed(1), serial: true, device: dev})
		want := train(t, ref, s.subject, lawSteps)
		ref.close(t)
		for _, p := range s.model.Parts {
			if moments := want.state[store.ID{Part: p.Index, Kind: store.FirstMoment}]; len(bytes.Trim(moments, "\x00")) == 0 {
				t.Errorf("%s: %s has no gradient", s.name, p.Name)
			}
		}
		wants = append(wants, want)
	}
	rapid.Check(t, func(rt *rapid.T) {
		i := rapid.IntRange(0, len(subjects)-1).Draw(rt, "subject")
		r := start(rt, subjects[i].subject, setup{device: dev, serial: rapid.Bool().Draw(rt, "serial"),
			change: func(p *plan.Placement) { placements(rt, subjects[i].model, p, true) }})
		defer r.close(rt)
		rt.Log(subjects[i].name)
		sameBits(rt, train(rt, r, subjects[i].subject, lawSteps), wants[i], r.plan)
	})
}
