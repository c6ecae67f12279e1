package optim

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Rule is an optimizer's way to change parameters. It lists the states that it keeps of each trained parameter, and
// carries out updates. Planner, stores and engine know the states as kinds of extents, and nothing else of a rule.
type Rule interface {
	// States are kept from step to step in addition to the weights.
	States() []State
	// Together is the number of neighbouring parameters that share a state or the making of random words, and so are
	// updated together.
	Together() int64
	// Update changes parameters of one group on a stream: of has vectors by kind, weights, low halves and the gradient
	// among them, the zero Mat for a kind that is not kept. The device tells in tally how many weights became infinite or
	// NaN, and of the longest move. d names the random bits of a rule that rounds states or weights at random.
	Update(s device.Stream, of *[store.Kinds]device.Mat, scalars device.AdamWScalars, d device.Draw, tally device.Mem)
}

// State is something that a rule keeps of each parameter, or of each block of tensor.MomentBlock of them where the kind
// says so.
type State struct {
	Kind store.Kind
	Type tensor.DType
}

// adamW is AdamW with moments in fp32.
type adamW struct{ together int64 }

var adamWStates = []State{{store.FirstMoment, tensor.F32}, {store.SecondMoment, tensor.F32}}

func (adamW) States() []State   { return adamWStates }
func (a adamW) Together() int64 { return a.together }

func (adamW) Update(s device.Stream, of *[store.Kinds]device.Mat, scalars device.AdamWScalars, d device.Draw,
	tally device.Mem) {
	s.AdamW(device.AdamWArgs{Weights: of[store.Weights], Low: of[store.Low], Grad: of[store.Grad],
		M: of[store.FirstMoment], V: of[store.SecondMoment], Draw: d, AdamWScalars: scalars}, tally)
}

// adamW8 is AdamW with moments in codes of 8 bits.
type adamW8 struct{}

var adamW8States = []State{{store.FirstMoment, tensor.U8}, {store.SecondMoment, tensor.U8},
	{store.FirstScale, tensor.F32}, {store.SecondScale, tensor.F32}}

func (adamW8) States() []State { return adamW8States }
func (adamW8) Together() int64 { return tensor.MomentBlock }

func (adamW8) Update(s device.Stream, of *[store.Kinds]device.Mat, scalars device.AdamWScalars, d device.Draw,
	tally device.Mem) {
	s.AdamW8(device.AdamW8Args{Weights: of[store.Weights], Low: of[store.Low], Grad: of[store.Grad],
		M: of[store.FirstMoment], V: of[store.SecondMoment],
		MScale: of[store.FirstScale], VScale: of[store.SecondScale], Draw: d, AdamWScalars: scalars}, tally)
}

// Rule is the rule by which the scheme's parameters are updated.
func (s Scheme) Rule() Rule {
	if s.Moments == Dynamic8 {
		return adamW8{}
	}
	if s.Master == Split24 {
		return adamW{device.DrawTogether}
	}
	return adamW{1}
}

// States are the kinds of a part's state from step to step other than its weights: the low halves of a split master, and
// what the rule keeps.
func (s Scheme) States() (kinds []store.Kind) {
	if s.Master.Low() != tensor.Invalid {
		kinds = append(kinds, store.Low)
	}
	for _, state := range s.Rule().States() {
		kinds = append(kinds, state.Kind)
	}
	return kinds
}
