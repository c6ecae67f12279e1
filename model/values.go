package model

import "github.com/millrace/millrace/tensor"

// Values are a part's weights in host memory, in one of two forms: F32, or High with Low, the halves of split master
// weights. F32 and High have Layout.WeightElems elements, indexed by Placed.First; Low has Layout.StateElems, indexed by
// Placed.State, so that a frozen tensor has bf16 weights only.
type Values struct {
	F32  []float32
	High []uint16
	Low  []int16
}

// Elems writes len(dst) elements of a field, from element first of it on, as fp32: the exact master weights.
func (v Values) Elems(f *tensor.Placed, first int64, dst []float32) {
	at, n := f.First+first, int64(len(dst))
	switch {
	case v.F32 != nil:
		copy(dst, v.F32[at:at+n])
	case f.State < 0:
		for i, h := range v.High[at : at+n] {
			dst[i] = tensor.F32FromBF16(h)
		}
	default:
		low := v.Low[f.State+first:][:n]
		for i, h := range v.High[at : at+n] {
			dst[i] = tensor.JoinF32(h, low[i])
		}
	}
}

// setElems stores src as elements of a field, from element first of it on, and returns the index in src of the first value
// that bf16 cannot hold, or -1.
func (v Values) setElems(f *tensor.Placed, first int64, src []float32) int {
	at, n := f.First+first, int64(len(src))
	switch {
	case v.F32 != nil:
		copy(v.F32[at:at+n], src)
	case f.State < 0:
		high := v.High[at : at+n]
		for i, x := range src {
			// The compute weight is that of a split master, so that a model evaluates alike frozen and in training.
			if high[i], _ = tensor.SplitF32(x); !finite(high[i]) {
				return i
			}
		}
	default:
		high, low := v.High[at:at+n], v.Low[f.State+first:][:n]
		for i, x := range src {
			if high[i], low[i] = tensor.SplitF32(x); !finite(high[i]) {
				return i
			}
		}
	}
	return -1
}

func finite(bf16 uint16) bool { return bf16&0x7f80 != 0x7f80 }

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
	if v.F32 != nil {
		clear(v.F32[weight:weightEnd])
		return
	}
	clear(v.High[weight:weightEnd])
	clear(v.Low[state:stateEnd])
}
