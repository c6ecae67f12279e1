package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// arrays says what the pointers of each loop point to: A the pair's type, F float32, H high half, L low half, P a
// float32 that is not negative, B the low half of a master of 24 bits, W a random word.
var arrays = map[string]string{
	"adamwSplit": "HLFPA", "adamwSplit24": "HBFPAW", "adamwF32": "FFPF", "sumSquares": "A", "sum": "F",
	"toBF16": "HF", "toF32": "FH", "split": "HLF", "join": "FHL",
	"add": "AAA", "addTo": "FA", "scale": "AA", "addScaled": "FA",
	"normSquares": "A", "normApply": "AAF", "normDot": "AFA", "normGrad": "AAFA", "normGradAdd": "AAAFA",
	"normWeight": "FAA", "rotate": "AAAAFF", "swiglu": "AAA", "swigluGrad": "AAAAAA", "geglu": "AAA",
	"gegluGrad": "AAAAAA", "limited": "AAA", "limitedGrad": "AAAAAA", "gate": "AAA", "gateGrad": "AAAAA",
	"max": "F", "sumExp": "F", "expMul": "AF", "expSum": "AF", "dot": "AA", "scoreGrad": "AAFF",
}

// odd are the bits of fp32 numbers that a careless kernel gets wrong.
var odd = []uint32{0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
	0x7f800001, 0xffffffff, 0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f7f8000, 0x00008000, 0x42b17218, 0xc2cff1b4, 0x4b800000}

// memory is one array with guards around it; it starts at any element.
type memory struct {
	kind  byte
	bytes []byte
	skip  int // bytes in front of the array
	n     int
}

const guard = 8 // elements

func newMemory(rng *rand.Rand, kind byte, n int, specials bool) memory {
	size := map[byte]int{'F': 4, 'P': 4, 'W': 4, 'H': 2, 'L': 2, 'B': 1}[kind]
	m := memory{kind: kind, skip: size * (guard + rng.IntN(16)), n: n}
	total := m.skip/size + n + guard
	m.bytes = make([]byte, total*size)
	for i := range total {
		x := math.Float32bits(float32(rng.NormFloat64()) * float32(math.Exp2(rng.NormFloat64()*3)))
		if specials && rng.IntN(3) == 0 {
			x = odd[rng.IntN(len(odd))]
		}
		switch p := unsafe.Pointer(&m.bytes[i*size]); kind {
		case 'F':
			*(*uint32)(p) = x
		case 'P':
			*(*uint32)(p) = x & 0x7fffffff
		case 'H':
			*(*uint16)(p) = uint16(x >> 16)
		case 'L':
			*(*uint16)(p) = uint16(rng.Uint32())
		case 'B':
			*(*uint8)(p) = uint8(rng.Uint32())
		case 'W':
			*(*uint32)(p) = rng.Uint32()
		}
	}
	return m
}

func (m memory) clone() memory {
	m.bytes = append([]byte(nil), m.bytes...)
	return m
}

// differ returns the first element that differs, or -1 if all are equal. All NaNs are equal.
func (m memory) differ(o memory) int {
	for i := range len(m.bytes) / 4 * 4 {
		if m.bytes[i] == o.bytes[i] {
			continue
		}
		switch m.kind {
		case 'F', 'P':
			at := i / 4 * 4
			x, y := *(*float32)(unsafe.Pointer(&m.bytes[at])), *(*float32)(unsafe.Pointer(&o.bytes[at]))
			if x == x || y == y {
				return (at - m.skip) / 4
			}
		case 'H':
			at := i / 2 * 2
			x, y := *(*uint16)(unsafe.Pointer(&m.bytes[at])), *(*uint16)(unsafe.Pointer(&o.bytes[at]))
			if x&0x7fff <= 0x7f80 || y&0x7fff <= 0x7f80 {
				return (at - m.skip) / 2
			}
		default:
			return (i - m.skip) / 2
		}
	}
	return -1
}

// TestLevelsAgree runs every loop of every level of this machine. It compares results, outputs, inputs and the memory
// around them with plain Go, bit by bit.
func TestLevelsAgree(t *testing.T) {
	for _, level := range isa.Available()[1:] {
		plain, fast := fields(&plainLoops), fields(&For(level).loops)
		for i := range plain.NumField() {
			name := plain.Type().Field(i).Name
			kinds, ok := arrays[name]
			if !ok {
				t.Fatalf("the test knows nothing of loop %s", name)
			}
			if f := plain.Field(i); f.Kind() == reflect.Array {
				compare(t, fmt.Sprintf("%v/%s/f32", level, name), f.Index(0), fast.Field(i).Index(0), replace(kinds, 'F'))
				compare(t, fmt.Sprintf("%v/%s/bf16", level, name), f.Index(1), fast.Field(i).Index(1), replace(kinds, 'H'))
			} else {
				compare(t, fmt.Sprintf("%v/%s", level, name), f, fast.Field(i), kinds)
			}
		}
	}
}

func replace(kinds string, a byte) string {
	out := []byte(kinds)
	for i := range out {
		if out[i] == 'A' {
			out[i] = a
		}
	}
	return string(out)
}

// fields lets reflect call the unexported fields of a struct.
func fields(l *loops) reflect.Value { return reflect.ValueOf(l).Elem() }

func callable(f reflect.Value) reflect.Value {
	return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
}

func compare(t *testing.T, name string, plain, fast reflect.Value, kinds string) {
	t.Run(name, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(7, uint64(len(name))))
		for trial := range 300 {
			n := rng.IntN(100)
			if trial == 0 {
				n = 2000
			}
			var want, got []memory
			var a, b []reflect.Value
			for _, kind := range []byte(kinds) {
				m := newMemory(rng, kind, n, trial%3 == 0)
				want, got = append(want, m), append(got, m.clone())
			}
			for j := range want {
				a = append(a, reflect.ValueOf(unsafe.Pointer(&want[j].bytes[want[j].skip])))
				b = append(b, reflect.ValueOf(unsafe.Pointer(&got[j].bytes[got[j].skip])))
			}
			rest := []reflect.Value{reflect.ValueOf(n)}
			for j := len(kinds) + 1; j < plain.Type().NumIn(); j++ {
				if plain.Type().In(j).Kind() == reflect.Float32 {
					rest = append(rest, reflect.ValueOf(float32(math.Abs(rng.NormFloat64()))))
					continue
				}
				s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}.Scalars(1+rng.IntN(100), 1e-3, rng.Float64(), true)
				rest = append(rest, reflect.ValueOf(&s))
			}
			x, y := invoke(plain, append(a, rest...)), invoke(fast, append(b, rest...))
			if !slices.EqualFunc(x, y, func(x, y float64) bool { return x == y || x != x && y != y }) {
				t.Fatalf("n %d: results %v, plain %v", n, y, x)
			}
			for j := range want {
				if at := want[j].differ(got[j]); at != -1 {
					t.Fatalf("n %d: argument %d differs from plain at element %d", n, j, at)
				}
			}
		}
	})
}

func invoke(f reflect.Value, args []reflect.Value) (results []float64) {
	for _, out := range callable(f).Call(args) {
		switch out.Kind() {
		case reflect.Int:
			results = append(results, float64(out.Int()))
		case reflect.Uint32: // a longest move: all above infinity are NaNs
			results = append(results, float64(min(out.Uint(), infinity)))
		default:
			results = append(results, out.Float())
		}
	}
	return results
}

// TestExp measures the error of Exp over its whole range.
func TestExp(t *testing.T) {
	worst := 0.0
	for x := float32(-104); x < 89; x += 1.0 / 1024 {
		for _, x := range []float32{x, x + float32(math.Sin(float64(x)))/3000} {
			want := math.Exp(float64(x))
			ulp := math.Ldexp(1, max(math.Ilogb(want)-23, -149))
			if want < math.MaxFloat32 {
				worst = max(worst, math.Abs(float64(Exp(x))-want)/ulp)
			}
		}
	}
	t.Logf("greatest error %.3f ulp", worst)
	if worst > 1 {
		t.Errorf("greatest error %.3f ulp", worst)
	}
	inf := float32(math.Inf(1))
	if Exp(inf) != inf || Exp(-inf) != 0 || Exp(0) != 1 || Exp(89) != inf || Exp(-105) != 0 || Exp(inf-inf) == Exp(inf-inf) {
		t.Error("a limit of Exp is wrong")
	}
}

// TestFMA compares with exact arithmetic on numbers that are near ties.
func TestFMA(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200000 {
		a, b := float32(rng.IntN(1<<12)+1<<12), float32(rng.IntN(1<<12)+1<<12)
		c := float32(math.Ldexp(float64(rng.IntN(64)-32), rng.IntN(60)-60))
		if rng.IntN(2) == 0 {
			c = float32(math.Ldexp(float64(rng.IntN(1<<24)), rng.IntN(60)-20))
		}
		// In units of 2^-60 the sum needs more than 64 bits only where the small parts cannot matter; big.Float settles it.
		if got, want := fma(a, b, c), bigFMA(a, b, c); got != want {
			t.Fatalf("fma(%g, %g, %g) = %g, exact %g", a, b, c, got, want)
		}
	}
}

// TestConvertIsDefinition compares the casts with package tensor over every pattern of the upper 17 bits.
func TestConvertIsDefinition(t *testing.T) {
	for _, level := range isa.Available() {
		k := For(level)
		src := make([]float32, 1<<17)
		for i := range src {
			src[i] = math.Float32frombits(uint32(i) << 15)
		}
		half, back := make([]uint16, len(src)), make([]float32, len(src))
		k.Convert(BF16(half), F32(src))
		k.Convert(F32(back), BF16(half))
		for i, x := range src {
			if want := tensor.BF16FromF32(x); half[i] != want || math.Float32bits(back[i]) != uint32(want)<<16 {
				t.Fatalf("%v: %#x becomes %#x, want %#x", level, math.Float32bits(x), half[i], want)
			}
		}
	}
}

// TestExpOfLevels compares the exponential of every level with Exp, by bits, for numbers of all magnitudes: results
// that are infinite, denormal and 0 among them.
func TestExpOfLevels(t *testing.T) {
	const count = 1 << 16
	x, got := make([]float32, count), make([]float32, count)
	for _, level := range isa.Available() {
		for first := range uint64(32) {
			for i := range x {
				x[i] = math.Float32frombits(uint32((first*count + uint64(i)) * 2053)) // strides through all of them
				if i%4 == 0 {
					x[i] = float32(first*count+uint64(i))/(1<<12) - 200 // -200 to 312
				}
			}
			copy(got, x)
			For(level).Exp(got)
			for i, x := range x {
				if want := Exp(x); !sameBits(got[i], want) {
					t.Fatalf("%v: Exp(%v) is %v, want %v", level, x, got[i], want)
				}
			}
		}
	}
}
