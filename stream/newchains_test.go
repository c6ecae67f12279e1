package stream_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
)

// A chain that no package knows. This file states its blocks, and a block of the text that takes its rows; no file of
// plan or stream changes.

const towerHidden = 6

// placing is a mixer with low rank that adds to its narrow rows those of a side: row number p at each position p of a
// document below a limit, as rows of images are put in the places of their tokens.
type placing struct {
	lowRank
	side  nn.Side
	below int
}

const put, putSum, dPut = 2, 3, 4 // values: [T, Rank]; F32 [below, Rank]; [T, Rank]

var _ nn.Sided = placing{}

func (l placing) Sides() []nn.Side { return []nn.Side{l.side} }

func (l placing) Values(hidden int) []nn.Value {
	return append(l.lowRank.Values(hidden), nn.Value{Cols: l.Rank, Lives: nn.Result},
		nn.Value{Cols: l.Rank, DType: tensor.F32, Rows: l.below, Lives: nn.Gradient},
		nn.Value{Cols: l.Rank, Lives: nn.Gradient})
}

// rows is the number of rows that are put.
func (l placing) rows(p *nn.Pass) int { return min(l.below, p.Batch().T) }

func (l placing) Forward(p *nn.Pass, x device.Mat) {
	l.lowRank.Forward(p, x)
	p.Zero(p.Value(put).Mem)
	p.Gather(p.Value(put), p.Side(0).Value.RowRange(0, l.rows(p)), p.Batch().Docs.Positions, 0)
	p.Add(p.Value(upped), p.Value(upped), p.Value(put))
}

func (l placing) Recompute(p *nn.Pass, x device.Mat) {
	if !p.Keeps(nn.KeepAttention) {
		l.Forward(p, x)
	}
}

func (l placing) Backward(p *nn.Pass, x, dy, dx device.Mat) {
	l.lowRank.Backward(p, x, dy, dx)
	sum, d := p.Value(putSum).RowRange(0, l.rows(p)), p.Value(dPut)
	p.Zero(sum.Mem)
	p.ScatterAdd(sum, p.Value(dUpped), p.Batch().Docs.Positions, 0, 1)
	p.Zero(d.Mem)
	p.Cast(d.RowRange(0, l.rows(p)), sum)
	p.AddSideGradient(0, d)
}

// towered is a family with a second chain: a tower of three blocks, narrower than the text, which has a table of its
// own and ends in a part with rows of a table; two blocks of the text take its rows.
var towered = model.Family{ModelType: "towered", Names: modeltest.WithTower(made.Names), Read: func(
	_ *hf.Config, r *hf.ConfigReader, s *model.Spec) {
	s.Attention.KVHeads = r.Size("num_key_value_heads")
	s.HeadDim(r)
	s.Rotary(r)
	narrow, side := s.Attention, nn.Side{Cols: towerHidden}
	narrow.Heads, narrow.KVHeads = 1, 1
	s.Chains = []model.ChainSpec{{Name: "tower", Hidden: towerHidden, Scale: model.Multiplier{By: 1.3}, Blocks: []nn.Block{
		{Mixer: narrow, FeedForward: nn.GLU{Inner: 9}},
		{Mixer: lowRank{3}, FeedForward: nn.SplitGLU{Inner: 6, Groups: 2}},
		{Mixer: narrow, FeedForward: byPosition{3, 2}},
	}}}
	takes := placing{lowRank{towerHidden}, side, 6}
	for l := range s.Layers {
		block := nn.Block{Mixer: s.Attention, FeedForward: s.GLU}
		if l == 0 || l == 2 {
			block.Mixer = takes
		}
		s.Blocks = append(s.Blocks, block)
	}
}}

// The law of placements holds for a second chain, on any number of devices.
func TestNewChains(t *testing.T) { placementsLaw(t, layersOf(t, 4, towered)) }

// So it does on several hosts, and where parts of the chains are frozen.
func TestNewChainsOnHosts(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	s := tiny
	s.Type, s.families, s.Layers, s.Micro, s.Cohorts = towered.ModelType, []model.Family{towered}, 4, 4, 2
	for name, change := range map[string]func(s *shape){
		"f32":                      func(*shape) {},
		"bf16, tied":               func(s *shape) { s.BF16, s.Tied = true, true },
		"sums in bf16":             func(s *shape) { s.BF16, s.Narrow = true, true },
		"the tower is frozen":      func(s *shape) { s.FrozenBlocks = 3 },
		"the embedding is frozen":  func(s *shape) { s.FrozenEmbed = true },
		"the tower's first, tied":  func(s *shape) { s.FrozenBlocks, s.Tied = 1, true },
		"the text's first as well": func(s *shape) { s.FrozenBlocks, s.FrozenEmbed = 4, true },
	} {
		s := s
		change(&s)
		sub := s.subject(t, lawSteps)
		ref := start(t, sub, setup{device: dev, change: streamed(1), serial: true})
		want := train(t, ref, sub, lawSteps)
		ref.close(t)
		for _, on := range []setup{{}, {change: alternating}, {change: streamed(2)}} {
			t.Run(fmt.Sprintf("%s on 2 hosts", name), func(t *testing.T) {
				on.device = dev
				c := startHosts(t, sub, on, on)
				defer c.close(t)
				sameOnHosts(t, c, c.train(t, sub, lawSteps), want)
			})
		}
	}
}

// The gradients of a second chain are those of the loss: of the part's element with the largest one, by differences.
func TestGradientsOfNewChains(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	s := tiny
	s.Type, s.families, s.Layers, s.Vocab = towered.ModelType, []model.Family{towered}, 4, 100
	sub := s.subject(t, 1)
	sub.outputs = plan.Outputs{NoUpdates: true}
	loss := func(change func(*model.Part, model.Values)) (mean float64, grads [][]float32) {
		moved := *sub
		moved.fill = func(p *model.Part, v model.Values) error {
			err := sub.fill(p, v)
			change(p, v)
			return err
		}
		r := start(t, &moved, setup{device: dev})
		defer r.close(t)
		result, err := r.engine.Step(t.Context(), sub.batches[0], sub.updates[0])
		if err != nil {
			t.Fatal(err)
		}
		for part := range sub.model.Parts {
			g, err := stream.Grads(t.Context(), r.plan, r.store, part)
			if err != nil {
				t.Fatal(err)
			}
			grads = append(grads, g)
		}
		return result.Loss(), grads
	}
	_, grads := loss(func(*model.Part, model.Values) {})
	for i := range sub.model.Parts {
		largest := 0
		for e, g := range grads[i] {
			if math.Abs(float64(g)) > math.Abs(float64(grads[i][largest])) {
				largest = e
			}
		}
		by := func(step float32) float64 {
			mean, _ := loss(func(p *model.Part, v model.Values) {
				if at := int64(largest) - v.First; p.Index == i && at >= 0 && at < int64(len(v.F32)) {
					v.F32[at] += step
				}
			})
			return mean
		}
		const step = 1e-2
		want, got := (by(step)-by(-step))/(2*step), float64(grads[i][largest])
		if got == 0 || math.Abs(got-want) > 0.02*math.Abs(want)+1e-4 {
			t.Errorf("%s: the gradient of element %d is %v, by differences %v", sub.model.Parts[i].Name, largest, got, want)
		}
	}
}
