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

// State is something that a rule keeps of parameters.
type State struct {
	Kind store.Kind
	store.Form
}

// adamW is AdamW with moments in fp32.
type adamW struct{ together int64 }

var adamWStates = []State{{store.FirstMoment, store.Each(tensor.F32)}, {store.SecondMoment, store.Each(tensor.F32)}}

func (adamW) States() []State   { return adamWStates }
func (a adamW) Together() int64 { return a.together }

func (adamW) Update(s device.Stream, of *[store.Kinds]device.Mat, scalars device.AdamWScalars, d device.Draw,
	tally device.Mem) {
	s.AdamW(device.AdamWArgs{Weights: of[store.Weights], Low: of[store.Low], Grad: of[store.Grad],
		M: of[store.FirstMoment], V: of[store.SecondMoment], Draw: d, AdamWScalars: scalars}, tally)
}

// adamWCoded is AdamW with moments in codes.
type adamWCoded struct{ states []State }

// Codes of 8 bits and of 4, and the scales of their blocks.
var (
	codes8, scales8 = store.Each(tensor.U8), store.Form{Type: tensor.F32, Per: tensor.MomentBlock}
	codes4, scales4 = store.Form{Type: tensor.U8, Per: 2}, store.Form{Type: tensor.F32, Per: tensor.MomentBlock4}
)

// codedRules are the rules by precision of moments.
var codedRules = [...]*adamWCoded{
	Dynamic8:      coded(codes8, scales8, codes8, scales8),
	Dynamic8Root4: coded(codes8, scales8, codes4, scales4),
	Power4Root4:   coded(codes4, scales4, codes4, scales4),
}

func coded(first, firstScales, second, secondScales store.Form) *adamWCoded {
	return &adamWCoded{[]State{{store.FirstMoment, first}, {store.SecondMoment, second},
		{store.FirstScale, firstScales}, {store.SecondScale, secondScales}}}
}

func (r *adamWCoded) States() []State { return r.states }
func (r *adamWCoded) Together() int64 { return tensor.MomentBlock }

func (r *adamWCoded) Update(s device.Stream, of *[store.Kinds]device.Mat, scalars device.AdamWScalars, d device.Draw,
	tally device.Mem) {
	s.AdamW8(device.AdamW8Args{Weights: of[store.Weights], Low: of[store.Low], Grad: of[store.Grad],
		M: of[store.FirstMoment], V: of[store.SecondMoment],
		MScale: of[store.FirstScale], VScale: of[store.SecondScale], Draw: d, AdamWScalars: scalars}, tally)
}

// Rule is the rule by which the scheme's parameters are updated.
func (s Scheme) Rule() Rule {
	if s.Moments.Coded() {
		return codedRules[s.Moments]
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
