package kernels

import (
	"math"
	"unsafe"

	"github.com/millrace/millrace/device"
)

// AdamWScalars has the scalars of the device's contract. Package optim computes them for training.
type AdamWScalars = device.AdamWScalars

// Tally tells of updates: how many new weights are infinite or NaN, and the longest move in units of StepSize, as
// device.OptimizerOps has it.
type Tally struct {
	Bad     int
	Longest float32
}

// Add counts other updates, too.
func (t *Tally) Add(o Tally) { t.Bad, t.Longest = t.Bad+o.Bad, max(t.Longest, o.Longest) }

// tally has what loops tell of updates with the same scalars: longest is the bits of the greatest magnitude that was
// subtracted from a weight, which are above those of infinity where one was a NaN.
type tally struct {
	bad     int
	longest uint32
}

func (t *tally) add(bad int, longest uint32) {
	t.bad, t.longest = t.bad+bad, max(t.longest, longest)
}

const infinity = 0x7f800000 // its bits

func (t *tally) of(s *AdamWScalars) Tally {
	told := Tally{Bad: t.bad}
	if s.StepSize != 0 {
		told.Longest = math.Float32frombits(min(t.longest, infinity)) / s.StepSize
	}
	return told
}

// AdamWSplit updates parameters whose fp32 master is split into hi and lo (tensor.SplitF32), with first and second
// moments m and v, from grad; all have the same length. It returns what it tells of the update.
//
// Each line is rounded to fp32 operation by operation, as Go's precedence reads, with no contraction:
//
//	g  = ClipScale * g
//	p *= Decay
//	m += (g - m) * OneMinusBeta1                    denormal m becomes +0
//	v  = Beta2*v + OneMinusBeta2*g*g                denormal v becomes +0
//	p -= StepSize*m / (sqrt(v)/SqrtBC2 + Eps)
//
// which is PyTorch's AdamW (torch.optim.adamw._single_tensor_adamw) with its bias corrections.
func (t *Table) AdamWSplit(hi []uint16, lo []int16, m, v []float32, grad Vec, s *AdamWScalars) Tally {
	n := len(hi)
	check(len(lo) == n && len(m) == n && len(v) == n && grad.Len == n, "AdamWSplit: lengths differ")
	f := t.adamwSplit[kind(grad.DType)]
	var told tally
	for i := 0; i < n; i += piece {
		k := min(piece, n-i)
		told.add(f(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), unsafe.Pointer(&m[i]), unsafe.Pointer(&v[i]),
			unsafe.Add(grad.Data, i*size(grad.DType)), k, s))
	}
	return told.of(s)
}

// AdamWSplit24 is AdamWSplit for a master of 24 bits (tensor.SplitF24). The new weights, rounded to fp32 as
// AdamWSplit's, are rounded to 24 bits by the random words of d.
func (t *Table) AdamWSplit24(hi []uint16, lo []int8, m, v []float32, grad Vec, d device.Draw, s *AdamWScalars) Tally {
	n := len(hi)
	check(len(lo) == n && len(m) == n && len(v) == n && grad.Len == n, "AdamWSplit24: lengths differ")
	check(d.First%device.DrawTogether == 0, "AdamWSplit24: random words begin inside of a group")
	f := t.adamwSplit24[kind(grad.DType)]
	words := wordBuffers.Get().(*[wordsPiece]uint32)
	defer wordBuffers.Put(words)
	var told tally
	for i := 0; i < n; i += wordsPiece {
		k := min(wordsPiece, n-i)
		t.words(words, k, d.At(i))
		told.add(f(unsafe.Pointer(&hi[i]), unsafe.Pointer(&lo[i]), unsafe.Pointer(&m[i]), unsafe.Pointer(&v[i]),
			unsafe.Add(grad.Data, i*size(grad.DType)), unsafe.Pointer(words), k, s))
	}
	return told.of(s)
}

// AdamWF32 is AdamWSplit for weights that are kept in fp32.
func (t *Table) AdamWF32(p, m, v, grad []float32, s *AdamWScalars) Tally {
	n := len(p)
	check(len(m) == n && len(v) == n && len(grad) == n, "AdamWF32: lengths differ")
	var told tally
	for i := 0; i < n; i += piece {
		k := min(piece, n-i)
		told.add(t.adamwF32(unsafe.Pointer(&p[i]), unsafe.Pointer(&m[i]), unsafe.Pointer(&v[i]), unsafe.Pointer(&grad[i]), k, s))
	}
	return told.of(s)
}
