package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// Words of every level are those of the generator, for parts and counters of more than 32 bits too.
func TestWordsOfLevels(t *testing.T) {
	const seed, step, part = 42, 9, 1<<40 + 7
	source := rng.New(seed, "round states", step, part)
	want := make([]uint32, wordsPiece+64)
	for i := range want {
		want[i] = source.Uint32()
	}
	for _, level := range isa.Available() {
		for _, c := range []struct{ first, n int }{{0, wordsPiece}, {0, 1}, {8, 100}, {60, wordsPiece}} {
			var got [wordsPiece]uint32
			For(level).words(&got, c.n, device.Draw{Key: rng.KeyOf(seed, "round states", step), Part: part,
				First: uint64(c.first)})
			if !slices.Equal(got[:c.n], want[c.first:][:c.n]) {
				t.Errorf("%v: words from %d on differ", level, c.first)
			}
		}
		var got, plain [wordsPiece]uint32
		d := device.Draw{Key: [2]uint32{1, 2}, Part: 3, First: 1<<34 - 400} // counters carry into the second word
		For(level).words(&got, wordsPiece, d)
		words(plain[:], d)
		if got != plain {
			t.Errorf("%v: words of counters with 33 bits differ", level)
		}
	}
}

// split24 is parameters with a master of 24 bits.
type split24 struct {
	hi   []uint16
	lo   []int8
	m, v []float32
	Moments8
}

func newSplit24(n int, weight func(i int) float32) *split24 {
	s := &split24{make([]uint16, n), make([]int8, n), make([]float32, n), make([]float32, n), newMoments8(n)}
	for i := range n {
		s.hi[i], s.lo[i] = tensor.SplitF24(weight(i), tensor.NearestF24)
	}
	return s
}

func (s *split24) slice(a, b int) *split24 {
	return &split24{s.hi[a:b], s.lo[a:b], s.m[a:b], s.v[a:b], s.Moments8.Slice(a, b)}
}

// update updates with moments in fp32, or in 8 bits.
func (s *split24) update(k *Table, eight bool, grad []float32, d device.Draw, a *AdamWScalars) Tally {
	if eight {
		return k.AdamW8Split24(s.hi, s.lo, s.Moments8, F32(grad), d, a)
	}
	return k.AdamWSplit24(s.hi, s.lo, s.m, s.v, F32(grad), d, a)
}

func (s *split24) same(t *testing.T, what string, o *split24) {
	t.Helper()
	if !slices.Equal(s.hi, o.hi) || !slices.Equal(s.lo, o.lo) || !slices.Equal(s.m, o.m) || !slices.Equal(s.v, o.v) ||
		!slices.Equal(s.M, o.M) || !slices.Equal(s.V, o.V) || !slices.Equal(s.MScale, o.MScale) ||
		!slices.Equal(s.VScale, o.VScale) {
		t.Fatalf("%s: states differ", what)
	}
}

// A new weight is that of a master in fp32, rounded by the lowest bits of its word: with both forms of moments, and the
// words do not depend on the form. A number whose high half is infinite is bad.
func TestSplit24RoundsTheFP32Update(t *testing.T) {
	const n, first = 9 * tensor.MomentBlock, 5 * tensor.MomentBlock
	random := rand.New(rand.NewPCG(1, 2))
	huge := []uint32{0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f7f7fff, 0x7f7f7f01, 0x7f800000, 0xff800000}
	start := newSplit24(n, func(i int) float32 {
		if i < len(huge) {
			return math.Float32frombits(huge[i])
		}
		return float32(random.NormFloat64())
	})
	grad := make([]float32, n)
	for i := range grad {
		if grad[i] = float32(random.NormFloat64()); i%7 == 0 {
			grad[i] = 0
		}
	}
	grad[100] = float32(math.NaN())
	s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(1, 1e-5, 1, false)
	d := device.Draw{Key: [2]uint32{1, 2}, Part: 3, First: first}
	whole := make([]uint32, n)
	words(whole, d)
	for _, level := range isa.Available() {
		p := make([]float32, n)
		for i := range p {
			p[i] = tensor.JoinF24(start.hi[i], start.lo[i])
		}
		For(isa.Plain).AdamWF32(p, make([]float32, n), make([]float32, n), grad, &s)
		for _, eight := range []bool{false, true} {
			got, bad := start.slice(0, n), 0
			got.hi, got.lo, got.Moments8 = slices.Clone(start.hi), slices.Clone(start.lo), newMoments8(n)
			got.m, got.v = make([]float32, n), make([]float32, n)
			told := got.update(For(level), eight, grad, d, &s)
			for i, x := range p {
				hi, lo := tensor.SplitF24(x, uint8(whole[i]))
				if got.hi[i] != hi || got.lo[i] != lo {
					t.Fatalf("%v, 8 bits %v: weight %d is %#04x, %d, want %#04x, %d", level, eight, i, got.hi[i], got.lo[i], hi, lo)
				}
				if hi&0x7f80 == 0x7f80 {
					bad++
				}
			}
			if told.Bad != bad || bad < 5 {
				t.Errorf("%v, 8 bits %v: %d bad weights, want %d", level, eight, told.Bad, bad)
			}
		}
	}
}

// Steps far below a 24-bit step move weights as far as they do in fp32, in the mean. To nearest they would stand still.
func TestSplit24KeepsSmallSteps(t *testing.T) {
	const n, steps = 4096, 10000
	s := newSplit24(n, func(int) float32 { return 1 })
	grad := make([]float32, n)
	// Moments stay as they are, so that each step adds the learning rate.
	a := AdamWScalars{ClipScale: 1, Decay: 1, Beta2: 1, StepSize: 1e-6, SqrtBC2: 1}
	for i := range n {
		s.m[i], s.v[i] = -1, 1
	}
	k := For(isa.Best())
	alone := float32(1)
	for step := range steps {
		s.update(k, false, grad, device.Draw{Key: rng.KeyOf(1, "round states", uint64(step))}, &a)
		alone += 1e-6
	}
	way := 0.0
	for i := range n {
		way += (float64(tensor.JoinF24(s.hi[i], s.lo[i])) - 1) / n
	}
	const right = 1e-6 * steps
	t.Logf("weights moved %.4f of the way, in fp32 %.4f", way/right, (float64(alone)-1)/right)
	if math.Abs(way/right-0.951) > 0.005 {
		t.Errorf("weights moved %.4f of the way, want 0.951", way/right)
	}
}

// Without gradients and decay nothing changes, whatever the words: weights of 24 bits stay as they are, also next to
// some that learn.
func TestSplit24StandsStill(t *testing.T) {
	const n = 2 * tensor.MomentBlock
	random := rand.New(rand.NewPCG(1, 2))
	for _, level := range isa.Available() {
		for _, eight := range []bool{false, true} {
			s := newSplit24(n, func(int) float32 { return float32(random.NormFloat64()) })
			hi, lo := slices.Clone(s.hi), slices.Clone(s.lo)
			grad := make([]float32, n)
			moved := false
			for step := range 100 {
				for i := 0; i < tensor.MomentBlock; i += 2 {
					grad[i] = float32(random.NormFloat64())
				}
				a := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(1+step, 1e-3, 1, false)
				s.update(For(level), eight, grad, device.Draw{Key: [2]uint32{1, uint32(step)}}, &a)
			}
			for i := range n {
				same := s.hi[i] == hi[i] && s.lo[i] == lo[i]
				if grad[i] == 0 && !same {
					t.Fatalf("%v, 8 bits %v: weight %d has no gradient and moved", level, eight, i)
				}
				moved = moved || !same
			}
			if !moved {
				t.Errorf("%v, 8 bits %v: nothing moved", level, eight)
			}
		}
	}
}

// Parts of a run may be updated in any order: random words are numbered, no stream of them is used up.
func TestSplit24InAnyOrder(t *testing.T) {
	const block, n = tensor.MomentBlock, 12 * tensor.MomentBlock
	random := rand.New(rand.NewPCG(1, 2))
	grad := make([]float32, n)
	for i := range grad {
		grad[i] = float32(random.NormFloat64())
	}
	for _, level := range isa.Available() {
		for _, eight := range []bool{false, true} {
			whole := newSplit24(n, func(i int) float32 { return float32(i) / 100 })
			back := newSplit24(n, func(i int) float32 { return float32(i) / 100 })
			for step := range 3 {
				a := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(1+step, 1e-3, 1, true)
				d := device.Draw{Key: [2]uint32{1, uint32(step)}, Part: 7}
				whole.update(For(level), eight, grad, d, &a)
				for _, from := range []int{10, 4, 6, 0, 8, 2} {
					a0, b0 := from*block, (from+2)*block
					back.slice(a0, b0).update(For(level), eight, grad[a0:b0], d.At(a0), &a)
				}
			}
			whole.same(t, fmt.Sprint(level, eight), back)
		}
	}
}
