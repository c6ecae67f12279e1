package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// bits4 are the forms of moments with second ones of 4 bits, by the bits of first ones.
var bits4 = []int{8, 4}

// newMoments4 are moments of zero, with first ones of some bits.
func newMoments4(n, first int) Moments8 {
	b := n / tensor.MomentBlock4
	m := Moments8{make([]uint8, n/2), make([]uint8, n/2), make([]float32, b), make([]float32, b)}
	if first == 8 {
		m.M, m.MScale = make([]uint8, n), make([]float32, n/tensor.MomentBlock)
	}
	return m
}

// A second moment without gradients falls with Beta2, in the mean, next to one that is held at 1. Other ways to round
// do not: that shows that the test can fail.
func TestSecondMomentsFall4(t *testing.T) {
	const blocks, steps = 32, 2000
	const n = blocks * tensor.MomentBlock4
	want := 0.6 * math.Pow(0.999, steps/2.0)
	const at = 0.6 // between two codes
	start := func(v []float32) {
		for i := range v {
			if v[i] = at * at; i%tensor.MomentBlock4 == 0 {
				v[i] = 1
			}
		}
	}
	mean := func(v []float32) (sum float64) {
		for i, v := range v {
			if i%tensor.MomentBlock4 > 0 {
				sum += math.Sqrt(float64(v)) / (n - blocks)
			}
		}
		return sum
	}
	v := make([]float32, n)
	start(v)
	m, p, grad := newMoments4(n, 4), make([]float32, n), make([]float32, n)
	QuantizeSecond4(m.V, m.VScale, v, device.Draw{Key: rng.KeyOf(1, "round states", 0)})
	for i := 0; i < n; i += tensor.MomentBlock4 {
		grad[i] = 1
	}
	k := For(isa.Best())
	for step := 1; step <= steps; step++ {
		s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(step, 0, 1, false)
		k.AdamW8F32(p, m, grad, device.Draw{Key: rng.KeyOf(1, "round states", uint64(step))}, &s)
	}
	Dequantize4(v, m.V, m.VScale, false)
	got := mean(v)
	t.Logf("roots fell from %v to %.4f, want %.4f", at, got, want)
	if math.Abs(got/want-1) > 0.02 {
		t.Errorf("roots of second moments fell from %v to %.4f in the mean, want %.4f", at, got, want)
	}
	if testing.Short() {
		return
	}
	for name, share := range map[string]func(word uint32) float32{
		"to nearest":         func(uint32) float32 { return 0.5 },
		"by 8 random bits":   func(word uint32) float32 { return (float32(word>>24) + 0.5) / (1 << 8) },
		"to the next lowest": func(uint32) float32 { return 1 },
	} {
		start(v)
		for step := range uint64(steps) {
			for i := range v {
				if i%tensor.MomentBlock == 0 {
					words := wordsOf(device.Draw{Key: rng.KeyOf(1, "round states", step), First: uint64(i)})
					for j := i; j < min(i+tensor.MomentBlock, n); j++ {
						root := second4.value[second4.round(float32(math.Sqrt(float64(v[j]))), share(words[j-i]))]
						if v[j] = root * root; j%tensor.MomentBlock4 > 0 {
							v[j] *= 0.999
						}
					}
				}
			}
		}
		t.Logf("%s: %.4f", name, mean(v))
		if math.Abs(mean(v)/want-1) < 0.2 {
			t.Errorf("rounded %s, roots fall as they should, to %.4f: the test cannot tell", name, mean(v))
		}
	}
}

// trap steps parameters of which the first half of each block has a gradient at each step, of 1e-3, and the second half
// what cold says. It returns how far the second half moved in the mean, in learning rates, with fp32 moments and with
// codes, and the greatest update with codes.
func trap(k *Table, m4 Moments8, n, steps int, cold func(step int) float64) (way, way4, longest float64) {
	m, v := make([]float32, n), make([]float32, n)
	p4, p, grad := make([]float32, n), make([]float32, n), make([]float32, n)
	r := rand.New(rand.NewPCG(1, 2))
	isCold := func(i int) bool { return i%tensor.MomentBlock4 >= tensor.MomentBlock4/2 }
	for step := 1; step <= steps; step++ {
		size := cold(step)
		for i := range grad {
			if grad[i] = float32(1e-3 * r.NormFloat64()); isCold(i) {
				grad[i] = float32(size * math.Abs(float64(grad[i])*1e3))
			}
		}
		s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(step, 1, 1, false)
		told := k.AdamW8F32(p4, m4, grad, device.Draw{Key: rng.KeyOf(1, "round states", uint64(step))}, &s)
		longest = max(longest, float64(told.Longest*s.StepSize))
		k.AdamWF32(p, m, v, grad, &s)
	}
	for i := range p {
		if isCold(i) {
			way, way4 = way-float64(p[i])/float64(n/2), way4-float64(p4[i])/float64(n/2)
		}
	}
	return way, way4, longest
}

// Parameters next to others whose gradients are large: without a gradient they do not move, with one or rare ones about
// as far as with fp32 moments, with small ones less far. No update is many learning rates long.
func TestTraps4(t *testing.T) {
	const n, steps = 4 * tensor.MomentBlock, 2000
	every := func(steps int, size float64) func(int) float64 {
		return func(step int) float64 {
			if step%steps == 0 {
				return size
			}
			return 0
		}
	}
	once := func(step int) float64 {
		if step == 20 {
			return 1e-3
		}
		return 0
	}
	for _, first := range bits4 {
		for _, c := range []struct {
			name        string
			cold        func(step int) float64
			least, most float64 // of the way with fp32 moments
		}{
			{"never", every(steps+1, 0), 0, 0},
			{"once", once, 0.85, 1.15},
			{"each 50th step", every(50, 1e-3), 0.85, 1.15},
			{"each step, a hundredth", every(1, 1e-5), 0.2, 1},
			{"each step, a ten-thousandth", every(1, 1e-7), 0, 1},
		} {
			way, way4, longest := trap(For(isa.Best()), newMoments4(n, first), n, steps, c.cold)
			t.Logf("first moments of %d bits, gradients %s: moved %.1f learning rates, with fp32 moments %.1f; "+
				"at most %.1f at once",
				first, c.name, way4, way, longest)
			if way4 < c.least*way || way4 > c.most*way {
				t.Errorf("first moments of %d bits, gradients %s: moved %.1f learning rates, with fp32 moments %.1f", first,
					c.name, way4, way)
			}
			if longest >= 25 {
				t.Errorf("first moments of %d bits, gradients %s: an update is %.1f times the learning rate", first, c.name,
					longest)
			}
		}
	}
}

// Codes rounded to nearest fail TestTraps4: first moments never fall, and a parameter with one gradient moves forever.
func TestNearestCodesMoveForEver(t *testing.T) {
	way, p := 0.0, 0.0
	m, v, exactM, exactV := float32(0), float32(0), float32(0), float32(0)
	for step := 1; step <= 2000; step++ {
		g := float32(0)
		if step == 20 {
			g = 1e-3
		}
		s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.Scalars(step, 1, 1, false)
		var told tally
		var to float32
		to, exactM, exactV = adamw(0, exactM, exactV, g, &s, &told)
		way -= float64(to)
		to, m, v = adamw(0, m, v, g, &s, &told)
		p -= float64(to)
		// In a block whose greatest moments are those of gradients of 1e-3.
		m = first4.value[first4.round(m/1e-3, 0.5)] * 1e-3
		root := second4.value[second4.round(float32(math.Sqrt(float64(v)))/1e-3, 0.5)] * 1e-3
		v = root * root
	}
	t.Logf("one gradient: moved %.0f learning rates, with fp32 moments %.1f", p, way)
	if p < 10*way {
		t.Errorf("one gradient: moved %.0f learning rates, with fp32 moments %.1f: nearest codes pass for the right ones", p,
			way)
	}
}

// Without gradients and decay nothing changes a bit, also in blocks where others learn.
func TestNoStepNoChange4(t *testing.T) {
	const n = 2 * tensor.MomentBlock
	for _, first := range bits4 {
		for _, level := range isa.Available() {
			m, p, grad := newMoments4(n, first), make([]float32, n), make([]float32, n)
			for i := range p {
				p[i] = 1 + float32(i)
			}
			for step := 1; step <= 100; step++ {
				for i := 0; i < tensor.MomentBlock; i += 2 {
					grad[i] = float32(step%7 + i%5)
				}
				s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}.Scalars(step, 1e-3, 1, false)
				For(level).AdamW8F32(p, m, grad, device.Draw{Key: [2]uint32{1, uint32(step)}}, &s)
			}
			x := make([]float32, n)
			if first == 4 {
				Dequantize4(x, m.M, m.MScale, true)
			} else {
				Dequantize8(x, m.M, m.MScale, true)
			}
			for i := range p {
				still := i >= tensor.MomentBlock || i%2 == 1
				if still && (p[i] != 1+float32(i) || x[i] != 0) || !still && p[i] == 1+float32(i) && i%5 > 0 {
					t.Fatalf("%v, first moments of %d bits: weight %d is %v, its first moment %v", level, first, i, p[i], x[i])
				}
			}
			for i := tensor.MomentBlock / 2; i < n/2; i++ {
				if m.V[i] != 0 || m.VScale[i/64] != 0 {
					t.Fatalf("%v: a block of zeros has codes", level)
				}
			}
		}
	}
}

// The first step is that of fp32 moments, to the bit: an update uses moments before they are encoded.
func TestFirstStepIsExact4(t *testing.T) {
	const n = 3 * tensor.MomentBlock
	r := rand.New(rand.NewPCG(3, 3))
	p, grad := make([]float32, n), make([]float32, n)
	for i := range p {
		p[i], grad[i] = float32(r.NormFloat64()), float32(r.NormFloat64()*math.Exp(3*r.NormFloat64()))
	}
	s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}.Scalars(1, 1e-3, 1, true)
	for _, level := range isa.Available() {
		for _, first := range bits4 {
			p4, p32 := append([]float32{}, p...), append([]float32{}, p...)
			For(level).AdamW8F32(p4, newMoments4(n, first), grad, device.Draw{}, &s)
			For(level).AdamWF32(p32, make([]float32, n), make([]float32, n), grad, &s)
			equalBits(t, fmt.Sprint(level, first), p4, p32)
		}
	}
}

// Each level agrees with plain Go, by bits, over states that took some steps, with gradients that make moments odd, and
// whichever way work is cut: the last block first, or several at once.
func TestAdamW4LevelsAgree(t *testing.T) {
	for _, level := range isa.Available() {
		for trial := range 60 {
			rng := rand.New(rand.NewPCG(uint64(trial), 8))
			n := (1 + rng.IntN(5)) * tensor.MomentBlock
			if trial == 0 {
				n = 70 * tensor.MomentBlock
			}
			plain := newState4(rng, n, bits4[trial%2], trial%4 == 1)
			fast := plain.clone()
			for step := range 4 {
				s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}.Scalars(1+step, 1e-3, rng.Float64(), true)
				grad := newMemory(rng, "FH"[trial/2%2], n, trial%8 == 3)
				d := device.Draw{Key: [2]uint32{rng.Uint32(), rng.Uint32()}, Part: rng.Uint64(), First: rng.Uint64() &^ 255}
				vec := Vec{unsafe.Pointer(&grad.bytes[grad.skip]), []tensor.DType{tensor.F32, tensor.BF16}[trial/2%2], n}
				master := trial % 3
				if vec.DType == tensor.BF16 {
					master = max(master, 1)
				}
				want := plain.step(For(isa.Plain), master, 0, n, vec, d, &s)
				var got Tally
				if step%2 == 0 {
					got = fast.step(For(level), master, 0, n, vec, d, &s)
				} else {
					for lo := n - tensor.MomentBlock; lo >= 0; lo -= tensor.MomentBlock {
						got.Add(fast.step(For(level), master, lo, lo+tensor.MomentBlock, vec, d, &s))
					}
				}
				if want != got {
					t.Fatalf("%v, trial %d: told %+v, want %+v", level, trial, got, want)
				}
				plain.same(t, fast, fmt.Sprint(level, " trial ", trial))
			}
		}
	}
}

func newState4(rng *rand.Rand, n, first int, odd bool) *state8 {
	s := &state8{make([]float32, n), make([]uint16, n), make([]int16, n), make([]int8, n), newMoments4(n, first)}
	for i := range n {
		s.p[i] = float32(rng.NormFloat64())
		s.hi[i], s.lo[i] = tensor.SplitF32(s.p[i])
		s.lo8[i] = int8(s.lo[i] >> 8)
	}
	for _, of := range []struct {
		codes  []uint8
		scales []float32
	}{{s.M, s.MScale}, {s.V, s.VScale}} {
		for i := range of.codes {
			if odd {
				of.codes[i] = uint8(rng.IntN(256))
			}
		}
		for b := range of.scales {
			if odd {
				of.scales[b] = []float32{float32(math.Exp2(float64(rng.IntN(40) - 30))), 0x1p-126, 0x1p-63, 1}[rng.IntN(4)]
			}
		}
	}
	return s
}

// step updates the parameters [lo, hi), of a master: 0 fp32, 1 split, 2 of 24 bits.
func (s *state8) step(k *Table, master, lo, hi int, grad Vec, d device.Draw, scalars *AdamWScalars) Tally {
	m := s.Moments8.Slice(lo, hi)
	switch master {
	case 2:
		return k.AdamW8Split24(s.hi[lo:hi], s.lo8[lo:hi], m, grad.Slice(lo, hi), d.At(lo), scalars)
	case 0:
		return k.AdamW8F32(s.p[lo:hi], m, unsafe.Slice((*float32)(grad.Data), grad.Len)[lo:hi], d.At(lo), scalars)
	}
	return k.AdamW8Split(s.hi[lo:hi], s.lo[lo:hi], m, grad.Slice(lo, hi), d.At(lo), scalars)
}

// same fails where two states differ in a bit, all NaNs taken for one.
func (s *state8) same(t *testing.T, o *state8, what string) {
	t.Helper()
	for i := range s.p {
		if s.p[i] != o.p[i] && (s.p[i] == s.p[i] || o.p[i] == o.p[i]) || s.hi[i] != o.hi[i] || s.lo[i] != o.lo[i] ||
			s.lo8[i] != o.lo8[i] {
			t.Fatalf("%s: weight %d differs", what, i)
		}
	}
	equalBits(t, what+": scales of first moments", o.MScale, s.MScale)
	equalBits(t, what+": scales of second moments", o.VScale, s.VScale)
	equalBits(t, what+": first moments", o.M, s.M)
	equalBits(t, what+": second moments", o.V, s.V)
}
