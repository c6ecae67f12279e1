// Package optim says what training keeps of each parameter and how a step changes it: the state scheme, AdamW's scalars,
// learning-rate schedules and clipping by the global norm.
//
// It holds no state and runs no kernels. The arithmetic itself is an operation of device.Stream.
package optim

import (
	"fmt"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Master is the precision of the weights between steps.
type Master uint8

// The two masters.
const (
	// Split keeps an fp32 master as the bf16 weight that is streamed and a 16-bit remainder, exactly.
	Split Master = iota
	// F32 keeps and streams fp32 weights: the reference.
	F32
)

// String is the name that run.yaml uses.
func (m Master) String() string { return [...]string{"split", "f32"}[m] }

// ParseMaster reads what String writes.
func ParseMaster(s string) (Master, error) {
	switch s {
	case "split":
		return Split, nil
	case "f32":
		return F32, nil
	}
	return 0, fmt.Errorf("master %q: known are split and f32", s)
}

// Scheme is what is kept of each parameter between steps.
type Scheme struct {
	Master Master
}

// Types are the element types of the kinds of extents under the scheme.
func (s Scheme) Types() [store.Kinds]tensor.DType {
	if s.Master == F32 {
		return [store.Kinds]tensor.DType{store.Weights: tensor.F32, store.Grad: tensor.F32,
			store.FirstMoment: tensor.F32, store.SecondMoment: tensor.F32}
	}
	return [store.Kinds]tensor.DType{store.Weights: tensor.BF16, store.Low: tensor.I16, store.Grad: tensor.BF16,
		store.FirstMoment: tensor.F32, store.SecondMoment: tensor.F32}
}

// BytesPerParam is the state of one trained parameter between steps, its gradient included.
func (s Scheme) BytesPerParam() int64 {
	var n int64
	for _, t := range s.Types() {
		n += t.Bytes()
	}
	return n
}
