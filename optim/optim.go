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

// The two precisions of moments.
const (
	MomentsF32 Moments = iota
	// Dynamic8 keeps them as 8-bit codes with an fp32 scale for each block of tensor.MomentBlock, much as 8-bit optimizers
	// of bitsandbytes do; see device.OptimizerOps.
	Dynamic8
)

// Codes names how moments are rounded to codes, for records of a run: another way gives other bits from the same state.
// It is empty where they are fp32.
func (m Moments) Codes() string {
	if m == Dynamic8 {
		return "second moments at random, without zero"
	}
	return ""
}

// String is the name that run.yaml uses.
func (m Moments) String() string { return [...]string{"f32", "8bit"}[m] }

// MarshalText writes as String does.
func (m Moments) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what String writes.
func (m *Moments) UnmarshalText(name []byte) (err error) {
	*m, err = ParseMoments(string(name))
	return err
}

// ParseMoments reads what String writes.
func ParseMoments(s string) (Moments, error) {
	switch s {
	case "f32":
		return MomentsF32, nil
	case "8bit":
		return Dynamic8, nil
	}
	return 0, fmt.Errorf("moments is %q: use f32 or 8bit", s)
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

// Types are the element types of the kinds of extents under the scheme; tensor.Invalid where a kind is not kept.
func (s Scheme) Types() [store.Kinds]tensor.DType {
	t := [store.Kinds]tensor.DType{store.Weights: s.Streamed(), store.Grad: s.Streamed(), store.Low: s.Master.Low()}
	for _, state := range s.Rule().States() {
		t[state.Kind] = state.Type
	}
	return t
}

// BytesPerParam is the state of one trained parameter between steps, its stored gradient included or not. It is exact: 14 with
// a split master, 8.03125 with moments in 8 bits, of which the scales are 1/32; a master of 24 bits takes 1 less.
func (s Scheme) BytesPerParam(grad bool) float64 {
	var n int64
	for kind, t := range s.Types() {
		if k := store.Kind(kind); k != store.Grad || grad {
			n += k.Elems(tensor.MomentBlock) * t.Bytes()
		}
	}
	return float64(n) / tensor.MomentBlock
}
