package kernels

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// golden reads testdata/dynamic8.json, which testdata/dynamic8.py wrote with bitsandbytes.
func golden(t *testing.T) map[string][]byte {
	text, err := os.ReadFile("testdata/dynamic8.json")
	if err != nil {
		t.Fatal(err)
	}
	var encoded map[string]string
	if err := json.Unmarshal(text, &encoded); err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for name, s := range encoded {
		if out[name], err = base64.StdEncoding.DecodeString(s); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func floatsOf(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = *(*float32)(unsafe.Pointer(&b[4*i]))
	}
	return out
}

// equalBits fails at the first element that differs.
func equalBits[T uint8 | float32](t *testing.T, what string, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range want {
		if g, w := float32(got[i]), float32(want[i]); math.Float32bits(g) != math.Float32bits(w) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, g, w)
		}
	}
}

func TestMapsAreBitsandbytes(t *testing.T) {
	g := golden(t)
	equalBits(t, "signed", signed8.value[:], floatsOf(g["signed"]))
	equalBits(t, "unsigned", unsigned8.value[:], floatsOf(g["unsigned"]))
}

// Codes of first moments are those of bitsandbytes, except for the sign of zeros. Codes of second moments are those or a
// neighbour, and never that of zero.
func TestQuantizeIsBitsandbytes(t *testing.T) {
	g := golden(t)
	for _, name := range []string{"signed", "unsigned"} {
		x := floatsOf(g["x"])
		codes, scales, back := make([]uint8, len(x)), make([]float32, len(x)/tensor.MomentBlock), make([]float32, len(x))
		if name == "signed" {
			QuantizeFirst8(codes, scales, x)
		} else {
			for i := range x {
				x[i] = float32(math.Abs(float64(x[i])))
			}
			QuantizeSecond8(codes, scales, x, device.Draw{})
		}
		equalBits(t, name+" scales", scales, floatsOf(g[name+"Scales"]))
		Dequantize8(back, codes, scales, name == "signed")
		others := 0
		for i, code := range g[name+"Codes"] {
			scale, want := scales[i/tensor.MomentBlock], floatsOf(g[name+"Back"])[i]
			isOther := codes[i] != code
			if isOther {
				others++
			}
			switch {
			case name == "unsigned":
				if scale > 0 && codes[i] == 0 || max(code, codes[i])-min(code, codes[i]) > 1 {
					t.Fatalf("the code of %v in a block of scale %v is %d, not next to %d", x[i], scale, codes[i], code)
				}
			case isOther && !(code == 126 && codes[i] == 127 && signed8.magnitude(x[i]*(1/scale)) == 0):
				t.Fatalf("the code of %v in a block of scale %v is %d, want %d", x[i], scale, codes[i], code)
			}
			if !isOther && back[i]+0 != want+0 {
				t.Fatalf("%s: element %d is %v, want %v", name, i, back[i], want)
			}
		}
		if others == 0 || others > len(x)/2 {
			t.Errorf("%s: %d of %d codes are not those of bitsandbytes on purpose", name, others, len(x))
		}
	}
}

// TestAdamW8IsBitsandbytes takes some steps from zero bytes and compares states and weights with bitsandbytes' quantizers
// around AdamW in this package's order: by bits what first moments decide, closely what second moments do, whose codes
// are rounded at random here, by at most one in a step. bitsandbytes' own optimizer for CPUs computes m = b1*m + (1-b1)*g, where ours is
// m += (g-m)*(1-b1), and v with a fused product; its codes are close.
func TestAdamW8IsBitsandbytes(t *testing.T) {
	g := golden(t)
	const lr = 1e-2
	for _, level := range isa.Available() {
		p, grads := floatsOf(g["p"]), floatsOf(g["grads"])
		n := len(p)
		m := newMoments8(n)
		steps := len(grads) / n
		for step := range steps {
			s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}.Scalars(step+1, lr, 0.75, true)
			For(level).AdamW8F32(p, m, grads[step*n:(step+1)*n], device.Draw{Key: [2]uint32{1, uint32(step)}}, &s)
		}
		for i, want := range floatsOf(g["pAfter"]) {
			// Below 1e-5 of a block's greatest second moment, codes are coarse, or zero in theirs.
			if g["codes"][n+i] > 14 && !(math.Abs(float64(p[i]-want)) <= 0.05*lr*float64(steps)) {
				t.Fatalf("%v: weight %d is %v, want %v", level, i, p[i], want)
			}
		}
		scales := append(append([]float32{}, m.MScale...), m.VScale...)
		equalBits(t, "scales of first moments", m.MScale, floatsOf(g["scales"])[:len(m.MScale)])
		for _, theirs := range []string{"scales", "theirScales"} {
			for i, want := range floatsOf(g[theirs]) {
				if math.Abs(float64(scales[i]-want)) > 0.01*float64(want) {
					t.Errorf("%s %d is %v, want %v", theirs, i, scales[i], want)
				}
			}
		}
		codes := append(append([]uint8{}, m.M...), m.V...)
		for i, want := range g["codes"] {
			signOfZero := min(codes[i], want) == 126 && max(codes[i], want) == 127
			if i < n && codes[i] != want && !signOfZero || int(max(codes[i], want)-min(codes[i], want)) > steps {
				t.Errorf("%v: code %d is %d, want %d", level, i, codes[i], want)
			}
		}
		far := 0
		for i, want := range g["theirCodes"] {
			if c := codes[i]; c != want {
				if far++; int(max(c, want)-min(c, want)) > steps || i < n && max(c, want)-min(c, want) > 1 {
					t.Errorf("%v: code %d is %d, bitsandbytes' optimizer has %d", level, i, c, want)
				}
			}
		}
		t.Logf("%v: %d of %d codes are not those of bitsandbytes' optimizer", level, far, 2*n)
	}
}

func newMoments8(n int) Moments8 {
	b := n / tensor.MomentBlock
	return Moments8{make([]uint8, n), make([]uint8, n), make([]float32, b), make([]float32, b)}
}

// TestMagnitude compares the search with the definition: the nearest code, by distance to the fp32 means between codes.
func TestMagnitude(t *testing.T) {
	for _, c := range []*codebook{signed8, unsigned8} {
		top := 255 - c.zero
		for k := 1; k <= top; k++ {
			mean := (c.value[c.zero+k-1] + c.value[c.zero+k]) / 2
			even := k - (c.zero+k)%2
			for x, want := range map[float32]int{math.Nextafter32(mean, 0): k - 1, mean: even, math.Nextafter32(mean, 2): k, c.value[c.zero+k]: k} {
				if got := c.magnitude(x); got != want {
					t.Errorf("zero %d: magnitude of %v is %d, want %d", c.zero, x, got, want)
				}
				if got := c.magnitude(-x); got != want {
					t.Errorf("zero %d: magnitude of %v is %d, want %d", c.zero, -x, got, want)
				}
			}
		}
		for x, want := range map[float32]int{0: 0, float32(math.NaN()): 0, 2: top, float32(math.Inf(1)): top} {
			if got := c.magnitude(x); got != want {
				t.Errorf("zero %d: magnitude of %v is %d, want %d", c.zero, x, got, want)
			}
		}
	}
}

// TestZeroBytesAreZeroMoments starts from extents that were never written: they give the same step as fp32 moments of
// zero.
func TestZeroBytesAreZeroMoments(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	const n = 2 * tensor.MomentBlock
	p, grad := make([]float32, n), make([]float32, n)
	for i := range p {
		p[i] = float32(rng.NormFloat64())
		if i%3 != 0 && i < tensor.MomentBlock {
			grad[i] = float32(rng.NormFloat64())
		}
	}
	s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}.Scalars(1, 1e-3, 1, true)
	for _, level := range isa.Available() {
		p8, p32 := append([]float32{}, p...), append([]float32{}, p...)
		m := newMoments8(n)
		For(level).AdamW8F32(p8, m, grad, device.Draw{}, &s)
		For(level).AdamWF32(p32, make([]float32, n), make([]float32, n), grad, &s)
		equalBits(t, level.String(), p8, p32)
		for i := tensor.MomentBlock; i < n; i++ {
			if m.M[i] != 0 || m.V[i] != 0 {
				t.Fatalf("%v: a block of zeros has codes %d and %d", level, m.M[i], m.V[i])
			}
		}
	}
}

// TestAdamW8LevelsAgree compares every level with plain Go, by bits, over states that took some steps, with gradients
// that make moments odd: means of codes, denormals, infinities and NaNs.
func TestAdamW8LevelsAgree(t *testing.T) {
	for _, level := range isa.Available()[1:] {
		for trial := range 60 {
			rng := rand.New(rand.NewPCG(uint64(trial), 8))
			n := (1 + rng.IntN(5)) * tensor.MomentBlock
			if trial == 0 {
				n = 70 * tensor.MomentBlock
			}
			plain, fast := newState8(rng, n, trial%4 == 1), (*state8)(nil)
			fast = plain.clone()
			for step := range 4 {
				s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}.Scalars(1+step, 1e-3, rng.Float64(), true)
				grad := newMemory(rng, "FH"[trial%2], n, trial%8 == 3)
				d := device.Draw{Key: [2]uint32{rng.Uint32(), rng.Uint32()}, Part: rng.Uint64(), First: rng.Uint64() &^ 255}
				vec := Vec{unsafe.Pointer(&grad.bytes[grad.skip]), []tensor.DType{tensor.F32, tensor.BF16}[trial%2], n}
				var want, got Tally
				if trial%3 == 1 {
					want = For(isa.Plain).AdamW8Split24(plain.hi, plain.lo8, plain.Moments8, vec, d, &s)
					got = For(level).AdamW8Split24(fast.hi, fast.lo8, fast.Moments8, vec, d, &s)
				} else if trial%3 == 0 && vec.DType == tensor.F32 {
					g := unsafe.Slice((*float32)(vec.Data), n)
					want, got = For(isa.Plain).AdamW8F32(plain.p, plain.Moments8, g, d, &s), For(level).AdamW8F32(fast.p, fast.Moments8, g, d, &s)
				} else {
					want = For(isa.Plain).AdamW8Split(plain.hi, plain.lo, plain.Moments8, vec, d, &s)
					got = For(level).AdamW8Split(fast.hi, fast.lo, fast.Moments8, vec, d, &s)
				}
				if want != got {
					t.Fatalf("%v, trial %d: told %+v, want %+v", level, trial, got, want)
				}
				plain.compare(t, fast, level.String())
			}
		}
	}
}

// state8 is parameters with 8-bit moments, guarded at both ends.
type state8 struct {
	p   []float32
	hi  []uint16
	lo  []int16
	lo8 []int8 // of a master of 24 bits, whose high halves are hi
	Moments8
}

func newState8(rng *rand.Rand, n int, odd bool) *state8 {
	s := &state8{make([]float32, n), make([]uint16, n), make([]int16, n), make([]int8, n), newMoments8(n)}
	for i := range n {
		s.p[i] = float32(rng.NormFloat64())
		s.hi[i], s.lo[i] = tensor.SplitF32(s.p[i])
		s.lo8[i] = int8(s.lo[i] >> 8)
		if odd {
			s.M[i], s.V[i] = uint8(rng.IntN(256)), uint8(rng.IntN(256))
		}
	}
	for b := range s.MScale {
		if odd {
			s.MScale[b] = float32(math.Exp2(float64(rng.IntN(40) - 30)))
			s.VScale[b] = s.MScale[b] * s.MScale[b]
		}
	}
	return s
}

func (s *state8) clone() *state8 {
	m := Moments8{append([]uint8{}, s.M...), append([]uint8{}, s.V...), append([]float32{}, s.MScale...), append([]float32{}, s.VScale...)}
	return &state8{slices.Clone(s.p), slices.Clone(s.hi), slices.Clone(s.lo), slices.Clone(s.lo8), m}
}

func (s *state8) compare(t *testing.T, o *state8, what string) {
	t.Helper()
	for i := range s.p {
		switch b := i / tensor.MomentBlock; {
		case s.p[i] != o.p[i] && (s.p[i] == s.p[i] || o.p[i] == o.p[i]), s.hi[i] != o.hi[i], s.lo[i] != o.lo[i],
			s.lo8[i] != o.lo8[i]:
			t.Fatalf("%s: weight %d differs", what, i)
		case math.Float32bits(s.MScale[b]) != math.Float32bits(o.MScale[b]), math.Float32bits(s.VScale[b]) != math.Float32bits(o.VScale[b]):
			t.Fatalf("%s: scales of block %d are %v %v, want %v %v", what, b, o.MScale[b], o.VScale[b], s.MScale[b], s.VScale[b])
		case s.M[i] != o.M[i], s.V[i] != o.V[i]:
			t.Fatalf("%s: codes of %d are %d %d, want %d %d", what, i, o.M[i], o.V[i], s.M[i], s.V[i])
		}
	}
}

// TestAdamW8AtMeans compares every level with plain Go where codes part: gradients become moments as they are, or as
// their squares, in blocks whose scale is 1.
func TestAdamW8AtMeans(t *testing.T) {
	var grad []float32
	add := func(x float32) {
		if len(grad)%tensor.MomentBlock == 0 {
			grad = append(grad, 1)
		}
		grad = append(grad, x)
	}
	for k := 1; k < 256; k++ {
		for ulp := -24; ulp <= 24; ulp++ {
			at := func(x float32) float32 { return math.Float32frombits(uint32(int(math.Float32bits(x)) + ulp)) }
			add(at(float32(math.Sqrt(float64(unsigned8.above[k])))))
			if k <= 128 {
				add(at(signed8.above[k]))
				add(-at(signed8.above[k]))
			}
		}
	}
	for e := -40; e < 0; e++ { // powers of two and ten, and between
		add(float32(math.Ldexp(1.25, e)))
		add(float32(math.Pow10(e / 4)))
		add(-float32(math.Ldexp(1, e)))
	}
	for len(grad)%tensor.MomentBlock != 0 {
		add(0)
	}
	s := AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 1, OneMinusBeta2: 1, StepSize: 1, SqrtBC2: 1, Eps: 1e-8}
	n := len(grad)
	want := &state8{make([]float32, n), make([]uint16, n), make([]int16, n), make([]int8, n), newMoments8(n)}
	start := want.clone()
	For(isa.Plain).AdamW8Split(want.hi, want.lo, want.Moments8, F32(grad), device.Draw{}, &s)
	seen := map[uint8]bool{}
	for _, c := range want.V {
		seen[c] = true
	}
	if len(seen) != 255 || seen[0] {
		t.Errorf("%d codes of second moments occur, want all but that of zero", len(seen))
	}
	for _, level := range isa.Available()[1:] {
		got := start.clone()
		For(level).AdamW8Split(got.hi, got.lo, got.Moments8, F32(grad), device.Draw{}, &s)
		want.compare(t, got, level.String())
	}
}
