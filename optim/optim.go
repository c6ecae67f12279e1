// Package optim says what training keeps of each parameter and how a step changes it: the state scheme, AdamW's scalars,
// learning-rate schedules and clipping by the global norm.
//
// It holds no state and runs no kernels. The arithmetic itself is an operation of device.Stream.
package optim

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Master is the precision of the weights between steps.
type Master uint8

// The masters.
const (
	// Split keeps an fp32 master as the bf16 weight that is streamed and a 16-bit remainder, exactly.
	Split Master = iota
	// F32 keeps and streams fp32 weights: the reference.
	F32
	// Split24 keeps 24 bits of it, as the bf16 weight that is streamed and an 8-bit remainder. Each update rounds to them
	// at random; see tensor.SplitF24.
	Split24
)

var masters = [...]string{Split: "split", F32: "f32", Split24: "split24"}

// Low is the element type of the low halves of master weights; tensor.Invalid where they are in one piece.
func (m Master) Low() tensor.DType {
	return [...]tensor.DType{Split: tensor.I16, F32: tensor.Invalid, Split24: tensor.I8}[m]
}

// String is the name that run.yaml uses.
func (m Master) String() string { return masters[m] }

// MarshalText writes as String does.
func (m Master) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what String writes.
func (m *Master) UnmarshalText(name []byte) (err error) {
	*m, err = ParseMaster(string(name))
	return err
}

// ParseMaster reads what String writes.
func ParseMaster(s string) (Master, error) {
	if i := slices.Index(masters[:], s); i >= 0 {
		return Master(i), nil
	}
	return 0, fmt.Errorf("master is %q: use split, split24 or f32", s)
}

// Moments is the precision of AdamW's moments between steps.
type Moments uint8

// The precisions of moments. Codes have an fp32 scale for each block; see device.OptimizerOps.
const (
	MomentsF32 Moments = iota
	// Dynamic8 keeps them as 8-bit codes in blocks of tensor.MomentBlock, much as 8-bit optimizers of bitsandbytes do.
	Dynamic8
	// Dynamic8Root4 keeps first moments as Dynamic8 does, and the roots of second ones as 4-bit codes in blocks of
	// tensor.MomentBlock4. An experiment.
	Dynamic8Root4
	// Power4Root4 keeps first moments in 4 bits, too. An experiment.
	Power4Root4
)

var momentsNames = [...]string{"f32", "8bit", "8+4", "4bit"}

// Coded reports whether moments are codes.
func (m Moments) Coded() bool { return m != MomentsF32 }

// IsExperiment reports whether the precision is an experiment: it was compared with others in small models and short
// runs only.
func (m Moments) IsExperiment() bool { return m >= Dynamic8Root4 }

// Codes names how moments are rounded to codes, for records of a run: another way gives other bits from the same state.
// It is empty where they are fp32.
func (m Moments) Codes() string {
	switch m {
	case Dynamic8:
		return "second moments at random, without zero"
	case Dynamic8Root4:
		return "roots of second moments at random, powers of 1.3"
	case Power4Root4:
		return "first moments and roots of second ones at random, (j/7)^2.5 and powers of 1.3"
	}
	return ""
}

// String is the name that run.yaml uses.
func (m Moments) String() string { return momentsNames[m] }

// MarshalText writes as String does.
func (m Moments) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what String writes.
func (m *Moments) UnmarshalText(name []byte) (err error) {
	*m, err = ParseMoments(string(name))
	return err
}

// ParseMoments reads what String writes.
func ParseMoments(s string) (Moments, error) {
	if i := slices.Index(momentsNames[:], s); i >= 0 {
		return Moments(i), nil
	}
	return 0, fmt.Errorf("moments is %q: use f32, 8bit, 8+4 or 4bit", s)
}

// Scheme says what is kept of each parameter between steps.
type Scheme struct {
	Master  Master
	Moments Moments
}

// Streamed is the element type of weights as they are streamed, and of gradients as they are stored.
func (s Scheme) Streamed() tensor.DType {
	if s.Master == F32 {
		return tensor.F32
	}
	return tensor.BF16
}

// Forms are the forms of the kinds of extents under the scheme.
func (s Scheme) Forms() store.Forms {
	forms := store.Forms{store.Weights: store.Each(s.Streamed()), store.Grad: store.Each(s.Streamed())}
	if low := s.Master.Low(); low != tensor.Invalid {
		forms[store.Low] = store.Each(low)
	}
	for _, state := range s.Rule().States() {
		forms[state.Kind] = state.Form
	}
	return forms
}

// BytesPerParam is the state of one trained parameter between steps, its stored gradient included or not. It is exact:
// 14 with a split master, 8.03125 with moments in 8 bits, of which the scales are 1/32, 7.546875 with second moments in
// 4 bits, and 7.0625 with both; a master of 24 bits takes 1 less.
func (s Scheme) BytesPerParam(grad bool) float64 {
	var n int64
	for kind, form := range s.Forms() {
		if store.Kind(kind) != store.Grad || grad {
			n += form.Bytes(tensor.Align)
		}
	}
	return float64(n) / tensor.Align
}
