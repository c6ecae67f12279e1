package main

import (
	"fmt"
	"go/format"
	"math"
	"slices"
	"strings"
)

// width is the vectors that a loop is written for.
type width int

const (
	ymm width = 8  // AVX2: 8 floats, no masks; the Go side runs what is left
	zmm width = 16 // AVX-512: 16 floats, masked tail
)

func (w width) suffix() string {
	if w == ymm {
		return "AVX2"
	}
	return "AVX512"
}

// dtype names the elements of an array in memory.
type dtype string

const (
	f32  dtype = "F32"
	bf16 dtype = "BF16"
)

func (d dtype) bytes() int {
	if d == f32 {
		return 4
	}
	return 2
}

// reg is a vector register.
type reg int

// asm writes one function. Registers 0 and up are temporaries, which an iteration takes and frees; constants go from
// the highest register down and stay.
type asm struct {
	text    strings.Builder
	ahead   strings.Builder // loads of constants, ahead of the loop
	w       width
	masked  bool // writing the tail, where K1 selects the elements that exist
	used    [32]bool
	address map[string]string // argument -> general register
	offset  map[string]int    // argument -> offset in the frame
	consts  map[string]reg
	fields  int // in consts
	labels  int // that unique has given out

	moment   func(r reg, i int) // sees each new first (0) and second (1) moment; may be nil
	move     func(r reg)        // sees what is subtracted from weights, and may change it; may be nil
	shift    map[string]int     // bytes between the address of an array and the array
	scaledBy map[string]string  // general register that points to the scale of an array of moments, where they have one
	random   wordPlace          // where random words are; zero: in an array
}

func (a *asm) f(format string, args ...any) { fmt.Fprintf(&a.text, "\t"+format+"\n", args...) }

// constant writes a line ahead of the loop.
func (a *asm) constant(format string, args ...any) { fmt.Fprintf(&a.ahead, "\t"+format+"\n", args...) }

func (a *asm) label(name string) { fmt.Fprintf(&a.text, "%s:\n", name) }

// unique is a label that no other place of the function has.
func (a *asm) unique(name string) string {
	a.labels++
	return fmt.Sprintf("%s_%d", name, a.labels)
}

// v is the name of a register at full width.
func (a *asm) v(r reg) string {
	if a.w == ymm {
		return fmt.Sprintf("Y%d", r)
	}
	return fmt.Sprintf("Z%d", r)
}

func (a *asm) registers() int {
	if a.w == ymm {
		return 16
	}
	return 32
}

func (a *asm) take() reg {
	for r := range a.registers() {
		if !a.used[r] {
			a.used[r] = true
			return reg(r)
		}
	}
	panic("out of vector registers")
}

func (a *asm) free(rs ...reg) {
	for _, r := range rs {
		if !a.used[r] {
			panic("freed twice")
		}
		a.used[r] = false
	}
}

func (a *asm) keep() reg {
	for r := a.registers() - 1; r >= 0; r-- {
		if !a.used[r] {
			a.used[r] = true
			return reg(r)
		}
	}
	panic("out of vector registers")
}

// bits is a register that holds a 32-bit pattern in every element.
func (a *asm) bits(pattern uint32) reg {
	name := fmt.Sprintf("%#x", pattern)
	r, ok := a.consts[name]
	if ok {
		return r
	}
	r = a.keep()
	a.consts[name] = r
	a.constant("MOVL $%#x, R11", pattern)
	if a.w == zmm {
		a.constant("VPBROADCASTD R11, %s", a.v(r))
		return r
	}
	a.constant("VMOVD R11, X%d", r)
	a.constant("VPBROADCASTD X%d, %s", r, a.v(r))
	return r
}

func (a *asm) float(x float32) reg { return a.bits(math.Float32bits(x)) }

// scalar is a register that holds a float32 argument in every element.
func (a *asm) scalar(name string) reg {
	r, ok := a.consts[name]
	if !ok {
		r = a.keep()
		a.consts[name] = r
		a.constant("VBROADCASTSS %s+%d(FP), %s", name, a.offset[name], a.v(r))
	}
	return r
}

// inMemory is a register that holds a float32 in memory, which the loop does not change, in every element.
func (a *asm) inMemory(at string) reg {
	r, ok := a.consts[at]
	if !ok {
		r = a.keep()
		a.consts[at] = r
		a.constant("VBROADCASTSS %s, %s", at, a.v(r))
	}
	return r
}

// ymmFields bounds the fields that AVX2 keeps in registers; the temporaries need the others.
const ymmFields = 5

// field is the float32 at a byte offset of the struct that an argument points to. Where registers are short it is
// loaded again for each use; done gives such a register back.
func (a *asm) field(name string, offset int) (r reg, done func()) {
	key := fmt.Sprintf("%s.%d", name, offset)
	if r, ok := a.consts[key]; ok {
		return r, func() {}
	}
	if a.w == ymm && a.fields == ymmFields {
		r = a.take()
		a.f("VBROADCASTSS %d(%s), %s", offset, a.address[name], a.v(r))
		return r, func() { a.free(r) }
	}
	a.fields++
	r = a.keep()
	a.consts[key] = r
	a.constant("VBROADCASTSS %d(%s), %s", offset, a.address[name], a.v(r))
	return r, func() {}
}

// mem is the address of element R12 of an array whose elements have that many bytes.
func (a *asm) mem(name string, bytes int) string { return a.memAt(name, bytes, 0) }

// memAt is the address of element R12+i.
func (a *asm) memAt(name string, bytes, i int) string {
	at := ""
	if d := a.shift[name] + bytes*i; d != 0 {
		at = fmt.Sprint(d)
	}
	return fmt.Sprintf("%s(%s)(R12*%d)", at, a.address[name], bytes)
}

// array is one whose elements have that many bytes.
type array struct {
	name  string
	bytes int
}

// master is a form of weights between updates: its name in names of functions, and its arrays.
type master struct {
	name   string
	arrays []array
}

var (
	split16  = master{"Split", []array{{"hi", 2}, {"lo", 2}}}
	split24  = master{"Split24", []array{{"hi", 2}, {"lo", 1}}}
	unsplit  = master{"F32", []array{{"p", 4}}}
	inHalves = []master{split16, split24}
)

// updated are the arrays of an update but moments: weights and the gradient.
func (m master) updated(d dtype) []array {
	return append(slices.Clone(m.arrays), array{"grad", d.bytes()})
}

// namesOf are the names of arrays.
func namesOf(arrays []array) (names []string) {
	for _, x := range arrays {
		names = append(names, x.name)
	}
	return names
}

// fetchAhead leads the reads of a loop, in elements: half a page of fp32. The hardware's own fetching ends with a page.
const fetchAhead = 512

// fetch fetches arrays ahead.
func (a *asm) fetch(arrays ...array) {
	for _, x := range arrays {
		a.f("PREFETCHT0 %s", a.memAt(x.name, x.bytes, fetchAhead))
	}
}

// loadMoment reads moments, times their scale if they have one.
func (a *asm) loadMoment(name string) reg {
	r := a.load(f32, name)
	if scale, ok := a.scaledBy[name]; ok {
		t := a.take()
		a.f("VBROADCASTSS (%s), %s", scale, a.v(t))
		a.mul(r, t)
		a.free(t)
	}
	return r
}

// load reads elements as fp32; those that do not exist read as 0.
func (a *asm) load(d dtype, name string) reg {
	r := a.take()
	z, k := "", ""
	if a.masked {
		z, k = ".Z", "K1, "
	}
	if d == f32 {
		a.f("VMOVUPS%s %s, %s%s", z, a.mem(name, 4), k, a.v(r))
		return r
	}
	a.f("VPMOVZXWD%s %s, %s%s", z, a.mem(name, 2), k, a.v(r))
	a.f("VPSLLD $16, %s, %s", a.v(r), a.v(r))
	return r
}

// loadSigned reads 16-bit integers into 32 bits.
func (a *asm) loadSigned(name string) reg {
	r := a.take()
	z, k := "", ""
	if a.masked {
		z, k = ".Z", "K1, "
	}
	a.f("VPMOVSXWD%s %s, %s%s", z, a.mem(name, 2), k, a.v(r))
	return r
}

// store writes fp32 elements, rounding to bf16 as tensor.BF16FromF32 does, and frees r.
func (a *asm) store(d dtype, r reg, name string) {
	k := ""
	if a.masked {
		k = "K1, "
	}
	if d == f32 {
		a.f("VMOVUPS %s, %s%s", a.v(r), k, a.mem(name, 4))
		a.free(r)
		return
	}
	one, half, quiet := a.bits(1), a.bits(0x7fff), a.bits(0x400000)
	t := a.take()
	x, y := a.v(r), a.v(t)
	a.f("VPSRLD $16, %s, %s", x, y)
	if a.w == zmm {
		a.f("VPANDD %s, %s, %s", a.v(one), y, y)
	} else {
		a.f("VPAND %s, %s, %s", a.v(one), y, y)
	}
	a.f("VPADDD %s, %s, %s", x, y, y)
	a.f("VPADDD %s, %s, %s", a.v(half), y, y)
	if a.w == zmm {
		a.f("VCMPPS $3, %s, %s, K2", x, x) // unordered: a NaN
		a.f("VPORD %s, %s, K2, %s", a.v(quiet), x, y)
		a.f("VPSRLD $16, %s, %s", y, y)
		a.f("VPMOVDW %s, %s%s", y, k, a.mem(name, 2))
		a.free(r, t)
		return
	}
	m := a.take()
	a.f("VCMPPS $3, %s, %s, %s", x, x, a.v(m))
	a.f("VPOR %s, %s, %s", a.v(quiet), x, x)
	a.f("VBLENDVPS %s, %s, %s, %s", a.v(m), x, y, y)
	a.f("VPSRLD $16, %s, %s", y, y)
	a.f("VPACKUSDW %s, %s, %s", y, y, y)
	a.f("VPERMQ $8, %s, %s", y, y)
	a.f("VMOVDQU X%d, %s", t, a.mem(name, 2))
	a.free(r, t, m)
}

// countNotFinite adds 1 to each element of a counter whose element of r is infinite or a NaN.
func (a *asm) countNotFinite(r, counter reg) {
	if a.w == zmm {
		one := a.bits(1)
		a.f("VFPCLASSPSZ $0x99, %s, K2", a.v(r)) // quiet and signaling NaNs, and both infinities
		if a.masked {
			a.f("KANDW K1, K2, K2") // elements that do not exist may well be 0/0
		}
		a.f("VPADDD %s, %s, K2, %s", a.v(one), a.v(counter), a.v(counter))
		return
	}
	t := a.take()
	x, y := a.v(r), a.v(t)
	a.f("VSUBPS %s, %s, %s", x, x, y)                       // 0, or else a NaN
	a.f("VCMPPS $3, %s, %s, %s", y, y, y)                   // unordered
	a.f("VPSUBD %s, %s, %s", y, a.v(counter), a.v(counter)) // true is -1
	a.free(t)
}

// total writes the sum of a counter's elements to the result.
func (a *asm) total(counter reg) {
	fold := func(x, y string) { a.f("VPADDD %s, %s, %s", y, x, x) }
	if a.w == zmm {
		a.reduce(counter, fold)
	} else {
		a.reduceHalf(counter, fold)
	}
	a.f("VMOVD X%d, R13", counter)
	a.f("MOVQ R13, ret+%d(FP)", a.offset["ret"])
}

// splitMaster writes the two halves of fp32 weights as tensor.SplitF32 does, counts those that are not finite, and
// frees r.
func (a *asm) splitMaster(r, counter reg, hi, lo string) {
	half, nan := a.bits(0x8000), a.bits(0x7fc00000)
	a.countNotFinite(r, counter)
	x := a.v(r)
	if a.w == zmm {
		t, k := a.take(), ""
		y := a.v(t)
		if a.masked {
			k = "K1, "
		}
		a.f("VCMPPS $3, %s, %s, K2", x, x)
		a.f("VMOVAPS %s, K2, %s", a.v(nan), x)
		a.f("VPADDD %s, %s, %s", a.v(half), x, y)
		a.f("VPSRLD $16, %s, %s", y, y)
		a.f("VPMOVDW %s, %s%s", y, k, a.mem(hi, 2))
		a.f("VPMOVDW %s, %s%s", x, k, a.mem(lo, 2))
		a.free(r, t)
		return
	}
	t := a.take()
	y := a.v(t)
	a.f("VCMPPS $3, %s, %s, %s", x, x, y)
	a.f("VBLENDVPS %s, %s, %s, %s", y, a.v(nan), x, x)
	a.f("VPADDD %s, %s, %s", a.v(half), x, y)
	a.f("VPSRLD $16, %s, %s", y, y)
	a.f("VPSLLD $16, %s, %s", x, x)
	a.f("VPSRLD $16, %s, %s", x, x)
	a.f("VPACKUSDW %s, %s, %s", x, y, y) // hi 0-3, lo 0-3, hi 4-7, lo 4-7
	a.f("VPERMQ $0xd8, %s, %s", y, y)
	a.f("VMOVDQU X%d, %s", t, a.mem(hi, 2))
	a.f("VEXTRACTI128 $1, %s, X%d", y, t)
	a.f("VMOVDQU X%d, %s", t, a.mem(lo, 2))
	a.free(r, t)
}

// randomBits reads the random words of elements, without those bits that do not round weights.
func (a *asm) randomBits() reg {
	var r reg
	if a.random == (wordPlace{}) {
		r = a.load(f32, "words")
	} else {
		r = a.take()
		a.f("VMOVUPS %s, %s", a.wordsAt(0), a.v(r))
	}
	a.f("VPSLLD $24, %s, %s", a.v(r), a.v(r))
	a.f("VPSRLD $24, %s, %s", a.v(r), a.v(r))
	return r
}

// splitMaster24 writes the two halves of fp32 weights as tensor.SplitF24 does, counts those with a high half that is
// not finite, and frees r.
func (a *asm) splitMaster24(r, counter reg, hi, lo string) {
	half, nan, exponent := a.bits(0x8000), a.bits(0x7fc00000), a.bits(0x7f800000)
	x := a.v(r)
	if a.w == zmm {
		a.f("VCMPPS $3, %s, %s, K2", x, x)
		a.f("VMOVAPS %s, K2, %s", a.v(nan), x)
		random, k := a.randomBits(), ""
		if a.masked {
			k = "K1, "
		}
		y := a.v(random)
		a.f("VPADDD %s, %s, %s", y, x, x)
		a.f("VPADDD %s, %s, %s", a.v(half), x, y)
		t := a.take()
		a.f("VPANDD %s, %s, %s", a.v(exponent), y, a.v(t))
		a.f("VPCMPEQD %s, %s, %sK2", a.v(exponent), a.v(t), k) // elements that do not exist may well be 0/0
		a.f("VPADDD %s, %s, K2, %s", a.v(a.bits(1)), a.v(counter), a.v(counter))
		a.f("VPSRLD $16, %s, %s", y, y)
		a.f("VPMOVDW %s, %s%s", y, k, a.mem(hi, 2))
		a.f("VPSRLD $8, %s, %s", x, x)
		a.f("VPMOVDB %s, %s%s", x, k, a.mem(lo, 1))
		a.free(r, random, t)
		return
	}
	t := a.take()
	a.f("VCMPPS $3, %s, %s, %s", x, x, a.v(t))
	a.f("VBLENDVPS %s, %s, %s, %s", a.v(t), a.v(nan), x, x)
	a.free(t)
	random := a.randomBits()
	y := a.v(random)
	a.f("VPADDD %s, %s, %s", y, x, x)
	a.f("VPADDD %s, %s, %s", a.v(half), x, y)
	t = a.take()
	a.f("VPAND %s, %s, %s", a.v(exponent), y, a.v(t))
	a.f("VPCMPEQD %s, %s, %s", a.v(exponent), a.v(t), a.v(t))
	a.f("VPSUBD %s, %s, %s", a.v(t), a.v(counter), a.v(counter)) // true is -1
	a.f("VPSRLD $16, %s, %s", y, y)
	a.f("VPSLLD $16, %s, %s", x, x)
	a.f("VPSRLD $24, %s, %s", x, x)
	a.f("VPACKUSDW %s, %s, %s", x, y, y) // hi 0-3, lo 0-3, hi 4-7, lo 4-7
	a.f("VPERMQ $0xd8, %s, %s", y, y)
	a.f("VMOVDQU X%d, %s", random, a.mem(hi, 2))
	a.f("VEXTRACTI128 $1, %s, X%d", y, t)
	a.f("VPACKUSWB X%d, X%d, X%d", t, t, t)
	a.f("VMOVQ X%d, %s", t, a.mem(lo, 1))
	a.free(r, random, t)
}

// joinMaster24 reads the two halves as tensor.JoinF24 does.
func (a *asm) joinMaster24(hi, lo string) reg {
	r, l := a.load(bf16, hi), a.take()
	z, k := "", ""
	if a.masked {
		z, k = ".Z", "K1, "
	}
	a.f("VPMOVSXBD%s %s, %s%s", z, a.mem(lo, 1), k, a.v(l))
	a.f("VPSLLD $8, %s, %s", a.v(l), a.v(l))
	a.f("VPADDD %s, %s, %s", a.v(l), a.v(r), a.v(r))
	a.free(l)
	return r
}

// joinMaster reads the two halves as tensor.JoinF32 does.
func (a *asm) joinMaster(hi, lo string) reg {
	r, l := a.load(bf16, hi), a.loadSigned(lo)
	a.f("VPADDD %s, %s, %s", a.v(l), a.v(r), a.v(r))
	a.free(l)
	return r
}

// flush makes denormals +0, in place.
func (a *asm) flush(r reg) {
	exponent := a.bits(0x7f800000)
	x := a.v(r)
	if a.w == zmm {
		a.f("VPTESTMD %s, %s, K2", a.v(exponent), x)
		a.f("VMOVAPS.Z %s, K2, %s", x, x)
		return
	}
	t := a.take()
	zero := a.bits(0)
	a.f("VPAND %s, %s, %s", a.v(exponent), x, a.v(t))
	a.f("VPCMPEQD %s, %s, %s", a.v(zero), a.v(t), a.v(t))
	a.f("VPANDN %s, %s, %s", x, a.v(t), x)
	a.free(t)
}

// The arithmetic below writes to its first operand, as x = x op y.

func (a *asm) op(name string, x, y reg) { a.f("%s %s, %s, %s", name, a.v(y), a.v(x), a.v(x)) }
func (a *asm) mul(x, y reg)             { a.op("VMULPS", x, y) }
func (a *asm) add(x, y reg)             { a.op("VADDPS", x, y) }
func (a *asm) sub(x, y reg)             { a.op("VSUBPS", x, y) }
func (a *asm) div(x, y reg)             { a.op("VDIVPS", x, y) }

// reverse is x = y op x.
func (a *asm) reverse(name string, x, y reg) {
	a.f("%s %s, %s, %s", name, a.v(x), a.v(y), a.v(x))
}

func (a *asm) copy(x reg) reg {
	r := a.take()
	a.f("VMOVAPS %s, %s", a.v(x), a.v(r))
	return r
}

// accumulate adds x to an accumulator, only the elements that exist.
func (a *asm) accumulate(acc, x reg) {
	k := ""
	if a.masked {
		k = "K1, "
	}
	a.f("VADDPS %s, %s, %s%s", a.v(x), a.v(acc), k, a.v(acc))
}

// exponential is kernels.Exp, in place. AVX-512 only.
func (a *asm) exponential(x reg) {
	a.clamp(x)
	a.clampedExponential(x)
}

// clamp limits x as Exp does first.
func (a *asm) clamp(x reg) {
	low, high := a.float(-200), a.float(200)
	// A comparison with a NaN gives the second source.
	a.reverse("VMAXPS", x, low)
	a.reverse("VMINPS", x, high)
}

// clampedExponential is the rest of it.
func (a *asm) clampedExponential(x reg) {
	log2e := a.float(1.442695)
	ln2High, ln2Low := a.float(-0.69140625), a.float(-0.0017409306)
	c := []reg{a.float(0.0013814538), a.float(0.008368745), a.float(0.04166839), a.float(0.16666521),
		a.float(0.49999994), a.float(1), a.float(1)}
	n := a.take()
	a.f("VMULPS %s, %s, %s", a.v(log2e), a.v(x), a.v(n))
	a.f("VRNDSCALEPS $8, %s, %s", a.v(n), a.v(n))
	a.f("VFMADD231PS %s, %s, %s", a.v(ln2High), a.v(n), a.v(x))
	a.f("VFMADD231PS %s, %s, %s", a.v(ln2Low), a.v(n), a.v(x))
	p := a.copy(c[0])
	for _, next := range c[1:] {
		a.f("VFMADD213PS %s, %s, %s", a.v(next), a.v(x), a.v(p))
	}
	a.f("VSCALEFPS %s, %s, %s", a.v(n), a.v(p), a.v(x))
	a.free(n, p)
}

// exponentialAVX2 is exponential with AVX2, which has no instruction that multiplies by a power of two: it multiplies
// by two of them. The first leaves a normal number, which is exact, so that only the second rounds: to a denormal
// number, 0 or infinity too.
func (a *asm) exponentialAVX2(x reg) {
	a.clampAVX2(x)
	a.clampedExponentialAVX2(x)
}

func (a *asm) clampAVX2(x reg) {
	n := a.take()
	a.f("VMOVUPS %s, %s", a.table(-200), a.v(n))
	a.reverse("VMAXPS", x, n) // a comparison with a NaN gives the second source
	a.f("VMOVUPS %s, %s", a.table(200), a.v(n))
	a.reverse("VMINPS", x, n)
	a.free(n)
}

func (a *asm) clampedExponentialAVX2(x reg) {
	n, p, power := a.take(), a.take(), a.take()
	a.f("VMULPS %s, %s, %s", a.table(1.442695), a.v(x), a.v(n))
	a.f("VROUNDPS $8, %s, %s", a.v(n), a.v(n))
	a.f("VFMADD231PS %s, %s, %s", a.table(-0.69140625), a.v(n), a.v(x))
	a.f("VFMADD231PS %s, %s, %s", a.table(-0.0017409306), a.v(n), a.v(x))
	a.f("VMOVUPS %s, %s", a.table(0.0013814538), a.v(p))
	for _, c := range []float32{0.008368745, 0.04166839, 0.16666521, 0.49999994, 1, 1} {
		a.f("VFMADD213PS %s, %s, %s", a.table(c), a.v(x), a.v(p))
	}
	a.f("VCVTPS2DQ %s, %s", a.v(n), a.v(n))
	a.f("VPMAXSD %s, %s, %s", a.words(^uint32(100)+1), a.v(n), a.v(power)) // -100
	a.f("VPMINSD %s, %s, %s", a.words(127), a.v(power), a.v(power))
	a.f("VPSUBD %s, %s, %s", a.v(power), a.v(n), a.v(n))
	a.f("VPMAXSD %s, %s, %s", a.words(^uint32(127)+1), a.v(n), a.v(n)) // at -127 the power is 0, as the product is
	a.f("VPMINSD %s, %s, %s", a.words(127), a.v(n), a.v(n))
	for _, r := range []reg{power, n} {
		a.f("VPADDD %s, %s, %s", a.words(127), a.v(r), a.v(r))
		a.f("VPSLLD $23, %s, %s", a.v(r), a.v(r))
	}
	a.mul(p, power)
	a.f("VMULPS %s, %s, %s", a.v(n), a.v(p), a.v(x))
	a.free(n, p, power)
}

// table is a vector of a number in the constants of the file, and words one of a word.
func (a *asm) table(x float32) string { return a.words(math.Float32bits(x)) }

func (a *asm) words(word uint32) string {
	i := slices.Index(tableWords, word)
	if i < 0 {
		i = len(tableWords)
		tableWords = append(tableWords, word)
	}
	return fmt.Sprintf("table<>+%d(SB)", 32*i)
}

// tableWords are the constants that words has given out.
var tableWords []uint32

// tables writes them.
func tables() string {
	var s strings.Builder
	for i, word := range tableWords {
		for j := range 4 {
			fmt.Fprintf(&s, "DATA table<>+%d(SB)/8, $%#08x%08x\n", 32*i+8*j, word, word)
		}
	}
	fmt.Fprintf(&s, "GLOBL table<>(SB), RODATA|NOPTR, $%d\n", 32*len(tableWords))
	return s.String()
}

// reduce folds 16 lanes to lane 0: 8, 4, 2, 1. fold is x = x op y for the register names that it gets.
func (a *asm) reduce(r reg, fold func(x, y string)) {
	t := a.take()
	a.f("VEXTRACTF32X8 $1, Z%d, Y%d", r, t)
	fold(fmt.Sprintf("Y%d", r), fmt.Sprintf("Y%d", t))
	a.free(t)
	a.reduceHalf(r, fold)
}

// reduceHalf folds 8 lanes to lane 0: 4, 2, 1.
func (a *asm) reduceHalf(r reg, fold func(x, y string)) {
	t := a.take()
	extract := "VEXTRACTF32X4" // reaches registers above 15
	if a.w == ymm {
		extract = "VEXTRACTF128"
	}
	a.f("%s $1, Y%d, X%d", extract, r, t)
	fold(fmt.Sprintf("X%d", r), fmt.Sprintf("X%d", t))
	for _, shuffle := range []string{"0xee", "0x55"} {
		a.f("VPSHUFD $%s, X%d, X%d", shuffle, r, t)
		fold(fmt.Sprintf("X%d", r), fmt.Sprintf("X%d", t))
	}
	a.free(t)
}

func (a *asm) zero(r reg) {
	if a.w == zmm {
		a.f("VPXORD %s, %s, %s", a.v(r), a.v(r), a.v(r))
	} else {
		a.f("VPXOR %s, %s, %s", a.v(r), a.v(r), a.v(r))
	}
}

// loop describes one function.
type loop struct {
	name    string   // without the suffix of the width
	arrays  []string // pointers
	scalars []string // float32 arguments
	params  string   // name of the pointer to a struct of scalars, and its type: "s *AdamWScalars"
	result  string   // "", "int", "float32", "float64", or those of tally and sums
	step    int      // elements of an iteration; 0: one vector
	frame   int      // bytes on the stack
	body    func(a *asm)
	start   func(a *asm) // takes accumulators
	finish  func(a *asm) // writes the result
}

var general = []string{"AX", "BX", "CX", "DX", "DI", "SI", "R8", "R9"}

// write writes the function for a width, and its declaration.
func (l loop) write(w width) (source, declaration string) {
	a := &asm{w: w, address: map[string]string{}, offset: map[string]int{}, consts: map[string]reg{}}
	var sig []string
	off := 0
	pointer := func(name string) {
		a.address[name] = general[len(a.address)]
		a.f("MOVQ %s+%d(FP), %s", name, off, a.address[name])
		off += 8
	}
	for _, name := range l.arrays {
		pointer(name)
	}
	sig = append(sig, strings.Join(l.arrays, ", ")+" unsafe.Pointer", "n int")
	a.f("MOVQ n+%d(FP), R10", off)
	off += 8
	if l.params != "" {
		name, _, _ := strings.Cut(l.params, " ")
		pointer(name)
		sig = append(sig, l.params)
	}
	for _, name := range l.scalars {
		a.offset[name] = off
		off += 4
	}
	if l.scalars != nil {
		sig = append(sig, strings.Join(l.scalars, ", ")+" float32")
	}
	if l.result != "" {
		off = (off + 7) &^ 7
		a.offset["ret"] = off
	}
	results := map[string]int{"": 0, "int": 8, "float32": 4, "float64": 8, tally: tallyBytes, sums: sumsBytes}[l.result]

	// The body asks for its constants as it goes: a dry run finds them, then they are loaded ahead of the loop.
	if l.start != nil {
		l.start(a)
	}
	before := a.text.String()
	l.body(a)
	a.text.Reset()
	a.text.WriteString(before + a.ahead.String())

	step := l.step
	if step == 0 {
		step = int(w)
	}
	a.f("XORQ R12, R12")
	a.f("SUBQ $%d, R10", step)
	a.f("JLT tail")
	fmt.Fprintf(&a.text, "\tPCALIGN $32\n")
	a.label("body")
	l.body(a)
	a.f("ADDQ $%d, R12", step)
	a.f("SUBQ $%d, R10", step)
	a.f("JGE body")
	a.label("tail")
	if w == zmm {
		a.f("ADDQ $%d, R10", step)
		a.f("JEQ done")
		a.f("MOVQ $-1, R11")
		a.f("BZHIQ R10, R11, R11")
		a.f("KMOVW R11, K1")
		a.masked = true
		l.body(a)
		a.masked = false
		a.label("done")
	}
	if l.finish != nil {
		l.finish(a)
	}
	a.f("VZEROUPPER")
	a.f("RET")

	name := l.name + w.suffix()
	head := fmt.Sprintf("func %s(%s)", name, strings.Join(sig, ", "))
	if l.result != "" {
		head += " " + l.result
	}
	source = fmt.Sprintf("// %s\nTEXT ·%s(SB), NOSPLIT, $%d-%d\n%s\n", head, name, l.frame, off+results,
		a.text.String())
	return source, "//go:noescape\n" + head + "\n\n"
}

// generate is the assembly and its Go declarations.
func generate() (source, declarations []byte) {
	const head = "// Code generated by workshop/assembly/kernels; DO NOT EDIT.\n\n"
	s, d := &strings.Builder{}, &strings.Builder{}
	s.WriteString(head + "#include \"textflag.h\"\n\n")
	tableWords = nil
	d.WriteString(head + "package kernels\n\nimport \"unsafe\"\n\n")
	for _, w := range []width{ymm, zmm} {
		for _, l := range loops(w) {
			source, declaration := l.write(w)
			s.WriteString(source)
			d.WriteString(declaration)
		}
	}
	for _, w := range []width{ymm, zmm} {
		source, declaration := wordsLoop(w)
		s.WriteString(source)
		d.WriteString(declaration)
	}
	for _, l := range adamwsAVX2() {
		for _, write := range []func() (string, string){l.write, l.write8} {
			source, declaration := write()
			s.WriteString(source)
			d.WriteString(declaration)
		}
	}
	for _, write := range []func() (sources, heads []string){blockLoops, codeLoops} {
		sources, heads := write()
		s.WriteString(strings.Join(sources, ""))
		d.WriteString(strings.Join(heads, ""))
	}
	s.WriteString(tables())
	out, err := format.Source([]byte(d.String()))
	if err != nil {
		panic(err)
	}
	return []byte(strings.TrimRight(s.String(), "\n") + "\n"), out
}
