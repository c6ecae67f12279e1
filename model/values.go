package model

import (
	"fmt"

	"github.com/millrace/millrace/tensor"
)

// Values are a part's weights in host memory, in one of two forms: F32, or High with Low or Low8, the halves of split
// master weights (tensor.SplitF32) or of those with 24 bits (tensor.SplitF24). F32 and High have Layout.WeightElems
// elements, indexed by Placed.First; low halves have Layout.StateElems, indexed by Placed.State, so that a frozen
// tensor has bf16 weights only. Without low halves all have: what a model computes with.
type Values struct {
	F32  []float32
	High []uint16
	Low  []int16
	Low8 []int8
	// Of24 says that High without low halves are, where tensors are trained, those of a master of 24 bits: where another
	// host has its low halves.
	Of24 bool

	// First is the element of the part that stands first. 0 for a whole part; a piece of one, to be filled, begins
	// elsewhere.
	First int64
}

// of returns the elements of a field, from first before end, that are among the values.
func (v Values) of(f *tensor.Placed) (first, end int64) {
	n := int64(max(len(v.F32), len(v.High)))
	return max(v.First-f.First, 0), min(v.First+n-f.First, f.Elems)
}

// Span returns the elements of a part with layout from that make these values, which have layout to: n elements from
// first on. Both layouts have the same fields in the same order.
func (v Values) Span(from, to *tensor.Layout) (first, n int64) {
	first, end := from.WeightElems, int64(0)
	for i := range to.Fields {
		if a, b := v.of(&to.Fields[i]); a < b {
			at := from.Fields[i].First
			first, end = min(first, at+a), max(end, at+b)
		}
	}
	return first, max(end-first, 0)
}

// Elems writes len(dst) elements of a field, from element first of it on, as fp32: the exact master weights, or without
// low halves the bf16 ones.
func (v Values) Elems(f *tensor.Placed, first int64, dst []float32) {
	at, n := f.First+first-v.First, int64(len(dst))
	switch {
	case v.F32 != nil:
		copy(dst, v.F32[at:at+n])
	case f.State < 0 || v.Low == nil && v.Low8 == nil:
		for i, h := range v.High[at : at+n] {
			dst[i] = tensor.F32FromBF16(h)
		}
	case v.Low8 != nil:
		low := v.Low8[f.State+first-v.First:][:n]
		for i, h := range v.High[at : at+n] {
			dst[i] = tensor.JoinF24(h, low[i])
		}
	default:
		low := v.Low[f.State+first-v.First:][:n]
		for i, h := range v.High[at : at+n] {
			dst[i] = tensor.JoinF32(h, low[i])
		}
	}
}

// setElems stores src as elements of a field, from element first of it on, without low halves the bf16 halves alone,
// and returns the index in src of the first value that bf16 cannot hold, or -1.
func (v Values) setElems(f *tensor.Placed, first int64, src []float32) int {
	at, n := f.First+first-v.First, int64(len(src))
	switch {
	case v.F32 != nil:
		copy(v.F32[at:at+n], src)
	case f.State >= 0 && v.Of24 && v.Low8 == nil:
		high := v.High[at : at+n]
		for i, x := range src {
			if high[i], _ = tensor.SplitF24(x, tensor.NearestF24); !finite(high[i]) {
				return i
			}
		}
	case f.State < 0 || v.Low == nil && v.Low8 == nil:
		high := v.High[at : at+n]
		for i, x := range src {
			// The compute weight is that of a split master, so that a model evaluates alike frozen and in training.
			if high[i], _ = tensor.SplitF32(x); !finite(high[i]) {
				return i
			}
		}
	case v.Low8 != nil:
		high, low := v.High[at:at+n], v.Low8[f.State+first-v.First:][:n]
		for i, x := range src {
			if high[i], low[i] = tensor.SplitF24(x, tensor.NearestF24); !finite(high[i]) {
				return i
			}
		}
	default:
		high, low := v.High[at:at+n], v.Low[f.State+first-v.First:][:n]
		for i, x := range src {
			if high[i], low[i] = tensor.SplitF32(x); !finite(high[i]) {
				return i
			}
		}
	}
	return -1
}

// CopyTo fills values of the same part, padding included: all of them, or those of a piece. They may have another
// form, and those of a frozen part have no low halves. from and to are the layouts of both. A value that the other
// form cannot hold is an error.
func (v Values) CopyTo(from *tensor.Layout, dst Values, to *tensor.Layout) error {
	dst.clearPadding(to)
	buf := make([]float32, readElems)
	for i := range to.Fields {
		f := &to.Fields[i]
		first, end := dst.of(f)
		for at := first; at < end; at += readElems {
			vals := buf[:min(readElems, end-at)]
			v.Elems(&from.Fields[i], at, vals)
			if i := dst.setElems(f, at, vals); i >= 0 {
				return fmt.Errorf("element %d is %g, too large for bf16: the model had diverged, or compute in f32", at+int64(i),
					vals[i])
			}
		}
	}
	return nil
}

func finite(bf16 uint16) bool { return bf16&0x7f80 != 0x7f80 }

// clearUnread zeroes what no file has of a part: its padding, and fields that are in no tensor of checkpoints.
func (v Values) clearUnread(p *Part) {
	v.clearPadding(p.Layout)
	read := map[int]bool{}
	for _, src := range p.Tensors {
		read[src.Field] = true
	}
	for i, f := range p.Layout.Fields {
		if read[i] {
			continue
		}
		state, end := f.State, f.State+f.Elems
		if state < 0 {
			state, end = 0, 0
		}
		v.clear(f.First, f.First+f.Elems, state, end)
	}
}

// clearPadding zeroes what no tensor covers.
func (v Values) clearPadding(l *tensor.Layout) {
	var weight, state int64
	for _, f := range l.Fields {
		v.clear(weight, f.First, state, max(f.State, state))
		weight = f.First + f.Elems
		if f.State >= 0 {
			state = f.State + f.Elems
		}
	}
	v.clear(weight, l.WeightElems, state, l.StateElems)
}

func (v Values) clear(weight, weightEnd, state, stateEnd int64) {
	clearRange(v.F32, weight-v.First, weightEnd-v.First)
	clearRange(v.High, weight-v.First, weightEnd-v.First)
	clearRange(v.Low, state-v.First, stateEnd-v.First)
	clearRange(v.Low8, state-v.First, stateEnd-v.First)
}

// clearRange clears what there is of a range.
func clearRange[T float32 | uint16 | int16 | int8](x []T, from, end int64) {
	if from, end = max(from, 0), min(end, int64(len(x))); from < end {
		clear(x[from:end])
	}
}
