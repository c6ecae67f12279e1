package ptx

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// header begins a kernel of a test: out and in hold 64-bit words, slots of each lane next to each other.
const header = `.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 pout, .param .u64 pin)
{
.reg .pred p, q, %p<9>;
.reg .b16 %h<20>;
.reg .b32 lane, %r<40>;
.reg .b64 out, in, at, %rd<40>;
ld.param.u64 out, [pout];
ld.param.u64 in, [pin];
mov.u32 lane, %tid.x;
`

// slots is the number of 64-bit words of input, and of output, that each lane has.
const slots = 8

// lanewise runs a body on one warp. Operands are in registers of their sizes: slot 0 of the input is in %h0, %r0 and
// %rd0, and so on. Afterwards, slot 0 of the output is what %h10, %r10, %rd10 and %p1 hold, as the body chooses by
// the size in d.
func lanewise(t testing.TB, body string, d int, in [lanes][slots]uint64) [lanes]uint64 {
	t.Helper()
	var src strings.Builder
	src.WriteString(header)
	src.WriteString("mad.wide.u32 at, lane, 64, in;\n")
	for i := range slots {
		fmt.Fprintf(&src, "ld.global.b64 %%rd%d, [at+%d];\nld.global.b32 %%r%d, [at+%d];\nld.global.b16 %%h%d, [at+%d];\n",
			i, 8*i, i, 8*i, i, 8*i)
	}
	src.WriteString(body)
	src.WriteString("\nmad.wide.u32 at, lane, 8, out;\n")
	switch d {
	case 1:
		src.WriteString("selp.b64 %rd10, 1, 0, %p1;\nst.global.b64 [at], %rd10;\n")
	case 16:
		src.WriteString("st.global.b16 [at], %h10;\n")
	case 32:
		src.WriteString("st.global.b32 [at], %r10;\n")
	default:
		src.WriteString("st.global.b64 [at], %rd10;\n")
	}
	src.WriteString("ret;\n}\n")
	k := parse(t, []byte(src.String()))
	h := &heap{}
	out := put(h, make([]uint64, lanes))
	flat := make([]uint64, 0, lanes*slots)
	for _, l := range in {
		flat = append(flat, l[:]...)
	}
	args := paramBlock(t, k, out, put(h, flat))
	if err := k.Launch(h, [3]uint32{1, 1, 1}, [3]uint32{lanes, 1, 1}, 0, args); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	return [lanes]uint64(get[uint64](h, out))
}

func b32(x float32) uint64 { return uint64(math.Float32bits(x)) }
func b64(x float64) uint64 { return math.Float64bits(x) }

const (
	inf32    = 0x7f800000
	neg      = 0x80000000
	tiny     = 1          // the least float32
	least    = 0x00800000 // the least normal float32
	tooGreat = 0x7f7fffff // the greatest float32
)

// Each row is what the ISA says that one instruction makes of some operands. D is the result, and A, B and C are
// slots 0 to 2 in registers of its size, or of 32 bits where there is no D.
func TestInstructions(t *testing.T) {
	for _, test := range []struct {
		body string
		bits int
		want uint64
		in   []uint64
	}{
		// Integers
		{"add.s32 D, A, B;", 32, 0x80000000, []uint64{0x7fffffff, 1}},
		{"add.sat.s32 D, A, B;", 32, 0x7fffffff, []uint64{0x7fffffff, 1}},
		{"sub.sat.s32 D, A, B;", 32, 0x80000000, []uint64{0x80000000, 1}},
		{"add.u16 D, A, B;", 16, 1, []uint64{0xffff, 2}},
		{"sub.s64 D, A, B;", 64, ^uint64(0), []uint64{1, 2}},
		{"mul.lo.s32 D, A, B;", 32, 0xfffffffa, []uint64{0xfffffffe, 3}},
		{"mul.hi.s32 D, A, B;", 32, 0xffffffff, []uint64{0xfffffffe, 3}},
		{"mul.hi.u32 D, A, B;", 32, 2, []uint64{0xfffffffe, 3}},
		{"mul.hi.s64 D, A, B;", 64, ^uint64(0), []uint64{^uint64(1), 3}},
		{"mul.hi.u64 D, A, B;", 64, 2, []uint64{^uint64(1), 3}},
		{"mul.wide.s32 %rd10, A, B;", 64, ^uint64(5), []uint64{0xfffffffe, 3}},
		{"mul.wide.u32 %rd10, A, B;", 64, 0x2fffffffa, []uint64{0xfffffffe, 3}},
		{"mul.wide.s16 %r10, %h0, %h1;", 32, 0xfffffffa, []uint64{0xfffe, 3}},
		{"mul.wide.u16 %r10, %h0, %h1;", 32, 0x2fffa, []uint64{0xfffe, 3}},
		{"mad.lo.s32 D, A, B, C;", 32, 1, []uint64{0xfffffffe, 3, 7}},
		{"mad.hi.s32 D, A, B, C;", 32, 6, []uint64{0xfffffffe, 3, 7}},
		{"mad.wide.s32 %rd10, A, B, %rd2;", 64, 1, []uint64{0xfffffffe, 3, 7}},
		{"mad.wide.u32 %rd10, A, B, %rd2;", 64, 0x300000001, []uint64{0xfffffffe, 3, 7}},
		{"mad.lo.cc.u32 %r11, A, B, C; madc.hi.u32 D, A, B, 0;", 32, 1, []uint64{0xffffffff, 1, 1}},
		{"add.cc.u32 %r11, A, B; addc.u32 D, C, C;", 32, 11, []uint64{0xffffffff, 1, 5}},
		{"add.cc.u64 %rd11, A, B; addc.u64 D, C, C;", 64, 11, []uint64{^uint64(0), 1, 5}},
		{"sub.cc.u32 %r11, A, B; subc.u32 D, C, C;", 32, 0xffffffff, []uint64{0, 1, 5}},
		{"div.s32 D, A, B;", 32, 0xfffffffd, []uint64{0xfffffff9, 2}},
		{"div.u32 D, A, B;", 32, 0x7ffffffc, []uint64{0xfffffff9, 2}},
		{"div.s32 D, A, B;", 32, 0x80000000, []uint64{0x80000000, 0xffffffff}},
		{"div.u64 D, A, B;", 64, ^uint64(0), []uint64{7, 0}},
		{"div.s16 D, A, B;", 16, 0xfffd, []uint64{0xfff9, 2}},
		{"rem.s32 D, A, B;", 32, 0xffffffff, []uint64{0xfffffff9, 2}},
		{"rem.u32 D, A, B;", 32, 1, []uint64{0xfffffff9, 2}},
		{"rem.s64 D, A, B;", 64, 7, []uint64{7, 0}},
		{"min.s32 D, A, B;", 32, 0xffffffff, []uint64{0xffffffff, 1}},
		{"min.u32 D, A, B;", 32, 1, []uint64{0xffffffff, 1}},
		{"max.s64 D, A, B;", 64, 1, []uint64{^uint64(0), 1}},
		{"max.u16 D, A, B;", 16, 0xffff, []uint64{0xffff, 1}},
		{"max.s16 D, A, B;", 16, 1, []uint64{0xffff, 1}},
		{"max.relu.s32 D, A, B;", 32, 0, []uint64{0xfffffffe, 0xffffffff}},
		{"max.relu.s32 D, A, B;", 32, 7, []uint64{0xfffffffe, 7}},
		{"min.relu.s32 D, A, B;", 32, 0, []uint64{0xfffffffe, 7}},
		{"min.relu.s32 D, A, B;", 32, 3, []uint64{3, 7}},
		{"neg.s32 D, A;", 32, 0xffffffff, []uint64{1}},
		{"neg.s16 D, A;", 16, 0xffff, []uint64{1}},
		{"abs.s32 D, A;", 32, 5, []uint64{0xfffffffb}},
		{"abs.s64 D, A;", 64, 5, []uint64{^uint64(4)}},
		{"abs.s16 D, A;", 16, 5, []uint64{0xfffb}},
		{"sad.s32 D, A, B, C;", 32, 13, []uint64{0xfffffffd, 7, 3}},
		{"sad.u32 D, A, B, C;", 32, 0xfffffff9, []uint64{0xfffffffd, 7, 3}},

		// Bits
		{"and.b32 D, A, B;", 32, 0x0c, []uint64{0x1c, 0x0f}},
		{"or.b64 D, A, B;", 64, 0x1f, []uint64{0x1c, 0x0f}},
		{"xor.b16 D, A, B;", 16, 0x13, []uint64{0x1c, 0x0f}},
		{"not.b16 D, A;", 16, 0xfffe, []uint64{1}},
		{"not.b64 D, A;", 64, ^uint64(1), []uint64{1}},
		{"cnot.b32 D, A;", 32, 1, []uint64{0}},
		{"lop3.b32 D, A, B, C, 0xf8;", 32, 0xf0 | 0xcc&0xaa, []uint64{0xf0, 0xcc, 0xaa}}, // a | b & c
		{"lop3.b32 D, A, B, C, 0x96;", 32, 0xf0 ^ 0xcc ^ 0xaa, []uint64{0xf0, 0xcc, 0xaa}},
		{"shl.b32 D, A, %r1;", 32, 0, []uint64{0xff, 32}},
		{"shl.b32 D, A, %r1;", 32, 0xff0, []uint64{0xff, 4}},
		{"shl.b16 D, A, %r1;", 16, 0xf000, []uint64{0xff, 12}},
		{"shl.b64 D, A, %r1;", 64, 0xff << 36, []uint64{0xff, 36}},
		{"shr.s32 D, A, %r1;", 32, 0xffffffff, []uint64{0x80000000, 99}},
		{"shr.u32 D, A, %r1;", 32, 0x08000000, []uint64{0x80000000, 4}},
		{"shr.b32 D, A, %r1;", 32, 0x08000000, []uint64{0x80000000, 4}},
		{"shr.s16 D, A, %r1;", 16, 0xf800, []uint64{0x8000, 4}},
		{"shr.u16 D, A, %r1;", 16, 0x0800, []uint64{0x8000, 4}},
		{"shr.s64 D, A, %r1;", 64, 0xf800000000000000, []uint64{1 << 63, 4}},
		{"shf.l.wrap.b32 D, A, B, C;", 32, 0x23456789, []uint64{0x9abcdef0, 0x12345678, 36}},
		{"shf.r.wrap.b32 D, A, B, C;", 32, 0x89abcdef, []uint64{0x9abcdef0, 0x12345678, 36}},
		{"shf.l.clamp.b32 D, A, B, C;", 32, 0x9abcdef0, []uint64{0x9abcdef0, 0x12345678, 36}},
		{"shf.r.clamp.b32 D, A, B, C;", 32, 0x12345678, []uint64{0x9abcdef0, 0x12345678, 36}},
		{"prmt.b32 D, A, B, C;", 32, 0x77334400, []uint64{0x33221100, 0x77665544, 0x7340}},
		{"prmt.b32 D, A, B, C;", 32, 0xff0080ff, []uint64{0x00008080, 0xff, 0xc214}},
		{"prmt.b32.rc16 D, A, B, C;", 32, 0x33223322, []uint64{0x33221100, 0x77665544, 1}},
		{"prmt.b32.f4e D, A, B, C;", 32, 0x55443322, []uint64{0x33221100, 0x77665544, 2}},
		{"prmt.b32.b4e D, A, B, C;", 32, 0x66770011, []uint64{0x33221100, 0x77665544, 1}},
		{"prmt.b32.rc8 D, A, B, C;", 32, 0x22222222, []uint64{0x33221100, 0x77665544, 2}},
		{"prmt.b32.ecl D, A, B, C;", 32, 0x33222222, []uint64{0x33221100, 0x77665544, 2}},
		{"prmt.b32.ecr D, A, B, C;", 32, 0x22221100, []uint64{0x33221100, 0x77665544, 2}},
		{"popc.b32 %r10, A;", 32, 3, []uint64{0x80000011}},
		{"popc.b64 %r10, %rd0;", 32, 4, []uint64{0x8000000080000011}},
		{"clz.b32 %r10, A;", 32, 27, []uint64{0x11}},
		{"clz.b64 %r10, %rd0;", 32, 64, []uint64{0}},
		{"brev.b32 D, A;", 32, 0x80000000, []uint64{1}},
		{"brev.b64 D, A;", 64, 1 << 63, []uint64{1}},
		{"bfind.u32 %r10, A;", 32, 4, []uint64{0x11}},
		{"bfind.u32 %r10, A;", 32, 0xffffffff, []uint64{0}},
		{"bfind.s32 %r10, A;", 32, 1, []uint64{0xfffffffd}},
		{"bfind.shiftamt.u32 %r10, A;", 32, 27, []uint64{0x11}},
		{"bfind.s64 %r10, %rd0;", 32, 0xffffffff, []uint64{^uint64(0)}},
		{"bfe.u32 D, A, %r1, %r2;", 32, 0x5, []uint64{0x50, 4, 4}},
		{"bfe.s32 D, A, %r1, %r2;", 32, 0xfffffff8, []uint64{0x80, 4, 4}},
		{"bfe.s32 D, A, %r1, %r2;", 32, 0xffffffff, []uint64{0x80000000, 40, 4}},
		{"bfe.s32 D, A, %r1, %r2;", 32, 0xfffffff8, []uint64{0x80000000, 28, 10}},
		{"bfe.u32 D, A, %r1, %r2;", 32, 0, []uint64{0xffffffff, 4, 0}},
		{"bfe.s64 D, A, %r1, %r2;", 64, ^uint64(0x7), []uint64{0x80, 4, 4}},
		{"bfi.b32 D, A, B, %r2, %r3;", 32, 0xffff5aff, []uint64{0x345a, 0xffffffff, 8, 8}},
		{"bfi.b64 D, A, B, %r2, %r3;", 64, 0x5a << 56, []uint64{0x345a, 0, 56, 99}},

		// Moves
		{"mov.b32 {%h1, %h10}, A;", 16, 0x1234, []uint64{0x12345678}},
		{"mov.b32 D, {%h0, %h1};", 32, 0x56781234, []uint64{0x1234, 0x5678}},
		{"mov.b64 {%r10, _}, %rd0;", 32, 0x9abcdef0, []uint64{0x123456789abcdef0}},
		{"mov.b64 {_, %r10}, %rd0;", 32, 0x12345678, []uint64{0x123456789abcdef0}},
		{"mov.b64 D, {%h0, %h1, %h2, %h3};", 64, 0x4444333322221111, []uint64{0x1111, 0x2222, 0x3333, 0x4444}},
		{"mov.b32 D, 0f3F800000;", 32, 0x3f800000, nil},
		{"mov.b16 D, -1;", 16, 0xffff, nil},
		{"selp.b32 D, A, B, p;", 32, 7, []uint64{7, 9}},
		{"selp.b32 D, A, B, !p;", 32, 9, []uint64{7, 9}},

		// Comparisons
		{"setp.lt.s32 %p1, A, B;", 1, 1, []uint64{0xffffffff, 0}},
		{"setp.lt.u32 %p1, A, B;", 1, 0, []uint64{0xffffffff, 0}},
		{"setp.hi.u32 %p1, A, B;", 1, 1, []uint64{0xffffffff, 0}},
		{"setp.ge.s16 %p1, %h0, %h1;", 1, 0, []uint64{0xffff, 0}},
		{"setp.ge.u16 %p1, %h0, %h1;", 1, 1, []uint64{0xffff, 0}},
		{"setp.ne.b64 %p1, %rd0, %rd1;", 1, 1, []uint64{1 << 40, 0}},
		{"setp.eq.and.s32 %p1, A, B, !p;", 1, 0, []uint64{4, 4}},
		{"setp.eq.xor.s32 %p1|%p2, A, B, p;", 1, 0, []uint64{4, 4}},
		{"setp.eq.and.s32 %p2|%p1, A, B, p;", 1, 1, []uint64{4, 5}},
		{"setp.eq.s32 %p2|%p1, A, B;", 1, 1, []uint64{4, 5}},
		{"setp.lt.f32 %p1, A, B;", 1, 0, []uint64{nan32, 0}},
		{"setp.ltu.f32 %p1, A, B;", 1, 1, []uint64{nan32, 0}},
		{"setp.ne.f32 %p1, A, B;", 1, 0, []uint64{nan32, nan32}},
		{"setp.neu.f32 %p1, A, B;", 1, 1, []uint64{nan32, nan32}},
		{"setp.eq.f32 %p1, A, B;", 1, 1, []uint64{neg, 0}},
		{"setp.eq.f32 %p1, A, B;", 1, 0, []uint64{tiny, 0}},
		{"setp.eq.ftz.f32 %p1, A, B;", 1, 1, []uint64{tiny, 0}},
		{"setp.num.f32 %p1, A, B;", 1, 1, []uint64{inf32, 0}},
		{"setp.nan.f32 %p1, A, B;", 1, 1, []uint64{0, nan32}},
		{"setp.gt.f64 %p1, %rd0, %rd1;", 1, 1, []uint64{b64(2), b64(-3)}},
		{"setp.lt.bf16 %p1, %h0, %h1;", 1, 1, []uint64{0xbf80, 0x3f80}},
		{"set.lt.u32.f32 D, A, B;", 32, 0xffffffff, []uint64{b32(1), b32(2)}},
		{"set.lt.f32.s32 D, A, B;", 32, b32(1), []uint64{1, 2}},
		{"testp.subnormal.f32 %p1, A;", 1, 1, []uint64{tiny}},
		{"testp.normal.f32 %p1, A;", 1, 1, []uint64{least}},
		{"testp.infinite.f64 %p1, %rd0;", 1, 1, []uint64{b64(math.Inf(-1))}},
		{"and.pred %p1, p, q;", 1, 0, nil},
		{"or.pred %p1, !p, q;", 1, 0, nil},
		{"xor.pred %p1, p, q;", 1, 1, nil},
		{"not.pred %p1, q;", 1, 1, nil},
		{"mov.pred %p1, -1; mov.pred %p1, p;", 1, 1, nil},

		// Floats
		{"add.f32 D, A, B;", 32, nan32, []uint64{inf32, inf32 | neg}},
		{"add.f32 D, A, B;", 32, nan32, []uint64{0x7f800001, 0}},
		{"add.f32 D, A, B;", 32, tiny, []uint64{tiny, 0}},
		{"add.ftz.f32 D, A, B;", 32, 0, []uint64{tiny, 0}},
		{"add.ftz.f32 D, A, B;", 32, 0, []uint64{least | neg, least + 1}},
		{"add.f32 D, A, B;", 32, tiny, []uint64{least | neg, least + 1}},
		{"sub.f32 D, A, B;", 32, 0, []uint64{b32(3), b32(3)}},
		{"sub.rm.f32 D, A, B;", 32, neg, []uint64{b32(3), b32(3)}},
		{"add.rp.f32 D, A, B;", 32, b32(1) + 1, []uint64{b32(1), tiny}},
		{"add.rz.f32 D, A, B;", 32, b32(1), []uint64{b32(1), tiny}},
		{"add.rm.f32 D, A, B;", 32, b32(1) - 1, []uint64{b32(1), tiny | neg}},
		{"add.rn.f32 D, A, B;", 32, inf32, []uint64{tooGreat, tooGreat}},
		{"add.rz.f32 D, A, B;", 32, tooGreat, []uint64{tooGreat, tooGreat}},
		{"add.sat.f32 D, A, B;", 32, b32(1), []uint64{b32(1), b32(3)}},
		{"add.sat.f32 D, A, B;", 32, 0, []uint64{nan32, b32(3)}},
		{"mul.f32 D, A, B;", 32, 0x00400000, []uint64{least, b32(0.5)}},
		{"mul.ftz.f32 D, A, B;", 32, neg, []uint64{least | neg, b32(0.5)}},
		{"mul.f64 D, A, B;", 64, b64(6), []uint64{b64(2), b64(3)}},
		// 1 + 2^-23 squared is 1 + 2^-22 + 2^-46: a fused operation keeps the last term, a product does not.
		{"fma.rn.f32 D, A, B, C;", 32, b32(0x1p-46), []uint64{b32(1) + 1, b32(1) + 1, b32(-1 - 0x1p-22)}},
		// 2^24 + 3 - 2^-46 is below a tie of float32; in float64 it would be rounded to the tie, and then up.
		{"fma.rn.f32 D, A, B, C;", 32, b32(1<<24 + 2), []uint64{b32(1) + 1, b32(1) - 2, b32(1<<24 + 2)}},
		{"fma.rz.f32 D, A, B, C;", 32, b32(1), []uint64{b32(1), b32(1), tiny}},
		{"fma.rp.f32 D, A, B, C;", 32, b32(1) + 1, []uint64{b32(1), b32(1), tiny}},
		{"fma.rm.f32 D, A, B, C;", 32, neg, []uint64{b32(1), b32(1), b32(-1)}},
		{"fma.rn.ftz.f32 D, A, B, C;", 32, 0, []uint64{tiny, b32(1), 0}},
		{"fma.rn.sat.f32 D, A, B, C;", 32, b32(1), []uint64{b32(2), b32(1), 0}},
		{"fma.rn.f64 D, A, B, C;", 64, b64(0x1p-104), []uint64{b64(1 + 0x1p-52), b64(1 + 0x1p-52), b64(-1 - 0x1p-51)}},
		{"mad.rn.f32 D, A, B, C;", 32, b32(7), []uint64{b32(2), b32(3), b32(1)}},
		{"div.rn.f32 D, A, B;", 32, 0x3eaaaaab, []uint64{b32(1), b32(3)}},
		{"div.full.f32 D, A, B;", 32, 0x3eaaaaab, []uint64{b32(1), b32(3)}},
		{"div.approx.f32 D, A, B;", 32, 0, []uint64{b32(1), b32(0x1.8p126)}},
		{"div.rn.ftz.f32 D, A, B;", 32, inf32, []uint64{b32(1), tiny}},
		{"div.rn.f64 D, A, B;", 64, b64(1.0 / 3), []uint64{b64(1), b64(3)}},
		{"rcp.rn.f32 D, A;", 32, 0x3eaaaaab, []uint64{b32(3)}},
		{"rcp.approx.ftz.f32 D, A;", 32, inf32 | neg, []uint64{tiny | neg}},
		{"sqrt.rn.f32 D, A;", 32, 0x3fb504f3, []uint64{b32(2)}},
		{"sqrt.rn.f32 D, A;", 32, neg, []uint64{neg}},
		{"sqrt.approx.ftz.f32 D, A;", 32, nan32, []uint64{b32(-1)}},
		{"sqrt.rn.f64 D, A;", 64, b64(math.Sqrt2), []uint64{b64(2)}},
		{"rsqrt.approx.f32 D, A;", 32, b32(0.5), []uint64{b32(4)}},
		{"rsqrt.approx.ftz.f32 D, A;", 32, inf32, []uint64{tiny}},
		{"ex2.approx.f32 D, A;", 32, b32(0x1p-130), []uint64{b32(-130)}},
		{"ex2.approx.ftz.f32 D, A;", 32, 0, []uint64{b32(-130)}},
		{"ex2.approx.ftz.f32 D, A;", 32, 0, []uint64{inf32 | neg}},
		{"ex2.approx.ftz.f32 D, A;", 32, inf32, []uint64{b32(128)}},
		{"lg2.approx.ftz.f32 D, A;", 32, inf32 | neg, []uint64{tiny}},
		{"lg2.approx.f32 D, A;", 32, b32(-149), []uint64{tiny}},
		{"lg2.approx.f32 D, A;", 32, nan32, []uint64{b32(-1)}},
		{"sin.approx.f32 D, A;", 32, b32(0), []uint64{0}},
		{"cos.approx.f32 D, A;", 32, b32(1), []uint64{0}},
		{"tanh.approx.f32 D, A;", 32, b32(1), []uint64{inf32}},
		{"min.f32 D, A, B;", 32, b32(2), []uint64{nan32, b32(2)}},
		{"min.f32 D, A, B;", 32, nan32, []uint64{0x7f800001, nan32}},
		{"min.NaN.f32 D, A, B;", 32, nan32, []uint64{0xffc00000, b32(2)}},
		{"min.f32 D, A, B;", 32, neg, []uint64{0, neg}},
		{"max.f32 D, A, B;", 32, 0, []uint64{0, neg}},
		{"max.f32 D, A, B;", 32, b32(2), []uint64{b32(2), b32(-3)}},
		{"max.NaN.f32 D, A, B;", 32, nan32, []uint64{b32(2), nan32}},
		{"max.ftz.f32 D, A, B;", 32, 0, []uint64{tiny, neg}},
		{"max.f64 D, A, B;", 64, b64(2), []uint64{b64(2), nan64}},
		{"max.bf16x2 D, A, B;", 32, 0x40003f80, []uint64{0x40003f80, 0x3f80bf80}},
		{"min.NaN.bf16 D, A, B;", 16, nan16, []uint64{0x7fc0, 0x3f80}},
		{"neg.f32 D, A;", 32, neg, []uint64{0}},
		{"abs.ftz.f32 D, A;", 32, 0, []uint64{tiny | neg}},
		{"neg.bf16x2 D, A;", 32, 0x3f80bf80, []uint64{0xbf803f80}},
		{"abs.f64 D, A;", 64, b64(2), []uint64{b64(-2)}},
		{"copysign.f32 D, A, B;", 32, b32(-3), []uint64{b32(-1), b32(3)}},

		// 16-bit floats
		{"fma.rn.bf16 D, A, B, C;", 16, 0x40e0, []uint64{0x4000, 0x4040, 0x3f80}}, // 2 * 3 + 1
		{"fma.rn.bf16x2 D, A, B, C;", 32, 0x40e03f80, []uint64{0x40003f80, 0x40403f80, 0x3f808000}},
		{"fma.rn.relu.bf16 D, A, B, C;", 16, 0, []uint64{0x4000, 0xc040, 0x3f80}},
		{"fma.rn.bf16 D, A, B, C;", 16, nan16, []uint64{0x7f80, 0, 0}},
		{"add.f16 D, A, B;", 16, 0x4200, []uint64{0x3c00, 0x4000}}, // 1 + 2
		{"add.f16 D, A, B;", 16, 0x7c00, []uint64{0x7bff, 0x7bff}},
		{"mul.f16x2 D, A, B;", 32, 0x46003c00, []uint64{0x40003c00, 0x42003c00}},
		{"mul.ftz.f16 D, A, B;", 16, 0, []uint64{0x0400, 0x3800}},
		{"mul.f16 D, A, B;", 16, 0x0200, []uint64{0x0400, 0x3800}},
		{"sub.sat.f16 D, A, B;", 16, 0, []uint64{0x3c00, 0x4000}},

		// Conversions
		{"cvt.u64.u32 %rd10, %r0;", 64, 0xffffffff, []uint64{0xffffffff}},
		{"cvt.s64.s32 %rd10, %r0;", 64, ^uint64(0), []uint64{0xffffffff}},
		{"cvt.u32.u64 %r10, %rd0;", 32, 0xdeadbeef, []uint64{0x12deadbeef}},
		{"cvt.s32.s8 %r10, %r0;", 32, 0xffffff80, []uint64{0x1280}},
		{"cvt.u32.u8 %r10, %r0;", 32, 0x80, []uint64{0x1280}},
		{"cvt.s8.s32 %r10, %r0;", 32, 0xffffff80, []uint64{0x1280}},
		{"cvt.u16.u32 %h10, %r0;", 16, 0x1280, []uint64{0x91280}},
		{"cvt.s32.s16 %r10, %h0;", 32, 0xffff8000, []uint64{0x8000}},
		{"cvt.sat.u8.s32 %r10, %r0;", 32, 0, []uint64{0xffffffff}},
		{"cvt.sat.s8.s32 %r10, %r0;", 32, 127, []uint64{1000}},
		{"cvt.sat.s32.u32 %r10, %r0;", 32, 0x7fffffff, []uint64{0xffffffff}},
		{"cvt.rn.f32.s32 %r10, %r0;", 32, b32(-1), []uint64{0xffffffff}},
		{"cvt.rn.f32.u32 %r10, %r0;", 32, b32(1 << 32), []uint64{0xffffffff}},
		{"cvt.rz.f32.u32 %r10, %r0;", 32, b32(1<<32 - 256), []uint64{0xffffffff}},
		{"cvt.rn.f32.u64 %r10, %rd0;", 32, b32(1<<63 + 1<<40), []uint64{1<<63 + 1<<39 + 1}},
		{"cvt.rn.f32.s64 %r10, %rd0;", 32, b32(-1 << 63), []uint64{1 << 63}},
		{"cvt.rn.f64.s64 %rd10, %rd0;", 64, b64(-1 << 62), []uint64{3 << 62}},
		{"cvt.rn.f16.s32 %h10, %r0;", 16, 0x7c00, []uint64{70000}},
		{"cvt.rzi.s32.f32 %r10, %r0;", 32, 0xfffffffe, []uint64{b32(-2.9)}},
		{"cvt.rni.s32.f32 %r10, %r0;", 32, 2, []uint64{b32(2.5)}},
		{"cvt.rmi.s32.f32 %r10, %r0;", 32, 0xfffffffd, []uint64{b32(-2.1)}},
		{"cvt.rpi.s32.f32 %r10, %r0;", 32, 3, []uint64{b32(2.1)}},
		{"cvt.rzi.u32.f32 %r10, %r0;", 32, 0, []uint64{b32(-2.9)}},
		{"cvt.rzi.u32.f32 %r10, %r0;", 32, 0xffffffff, []uint64{b32(1e20)}},
		{"cvt.rzi.s32.f32 %r10, %r0;", 32, 0x80000000, []uint64{inf32 | neg}},
		{"cvt.rzi.s32.f32 %r10, %r0;", 32, 0, []uint64{nan32}},
		{"cvt.rzi.s64.f32 %rd10, %r0;", 64, 1 << 63, []uint64{nan32}},
		{"cvt.rzi.u64.f64 %rd10, %rd0;", 64, 0xfffffffffffff800, []uint64{b64(0xfffffffffffff800)}},
		{"cvt.rzi.u64.f64 %rd10, %rd0;", 64, ^uint64(0), []uint64{b64(1 << 70)}},
		{"cvt.rzi.s8.f32 %r10, %r0;", 32, 0xffffff80, []uint64{b32(-1000)}},
		{"cvt.rni.f32.f32 %r10, %r0;", 32, b32(-4), []uint64{b32(-3.5)}},
		{"cvt.rzi.f32.f32 %r10, %r0;", 32, neg, []uint64{b32(-0.5)}},
		{"cvt.rmi.ftz.f32.f32 %r10, %r0;", 32, neg, []uint64{tiny | neg}},
		{"cvt.sat.f32.f32 %r10, %r0;", 32, b32(1), []uint64{b32(3)}},
		{"cvt.rn.f32.f64 %r10, %rd0;", 32, b32(1), []uint64{b64(1 + 0x1p-24)}},
		{"cvt.rp.f32.f64 %r10, %rd0;", 32, b32(1) + 1, []uint64{b64(1 + 0x1p-52)}},
		{"cvt.rz.f32.f64 %r10, %rd0;", 32, tooGreat, []uint64{b64(1e300)}},
		{"cvt.rn.ftz.f32.f64 %r10, %rd0;", 32, 0, []uint64{b64(0x1p-130)}},
		{"cvt.f64.f32 %rd10, %r0;", 64, b64(0x1p-149), []uint64{tiny}},
		{"cvt.f32.bf16 %r10, %h0;", 32, b32(1.5), []uint64{0x3fc0}},
		{"cvt.f32.f16 %r10, %h0;", 32, b32(0x1p-24), []uint64{1}},
		{"cvt.f32.f16 %r10, %h0;", 32, inf32 | neg, []uint64{0xfc00}},
		{"cvt.rn.f16.f32 %h10, %r0;", 16, 0x7bff, []uint64{b32(65519)}},
		{"cvt.rn.f16.f32 %h10, %r0;", 16, 0x7c00, []uint64{b32(65520)}},
		{"cvt.rz.f16.f32 %h10, %r0;", 16, 0x7bff, []uint64{b32(1e9)}},
		{"cvt.rn.f16.f32 %h10, %r0;", 16, nan16, []uint64{0xffc00000}},
		{"cvt.rn.f16.f32 %h10, %r0;", 16, 0, []uint64{b32(0x1p-25)}},
		{"cvt.rn.f16.f32 %h10, %r0;", 16, 1, []uint64{b32(0x1p-25) + 1}},
		{"cvt.rn.bf16.f32 %h10, %r0;", 16, 0x3f80, []uint64{0x3f808000}},
		{"cvt.rn.bf16.f32 %h10, %r0;", 16, 0x3f82, []uint64{0x3f818000}},
		{"cvt.rn.bf16.f32 %h10, %r0;", 16, 0x3f81, []uint64{0x3f808001}},
		{"cvt.rz.bf16.f32 %h10, %r0;", 16, 0x3f80, []uint64{0x3f80ffff}},
		{"cvt.rn.bf16.f32 %h10, %r0;", 16, nan16, []uint64{0xff800001}},
		{"cvt.rn.bf16.f32 %h10, %r0;", 16, 0x7f80, []uint64{tooGreat}},
		{"cvt.rn.bf16.f32 %h10, %r0;", 16, 0x0001, []uint64{0x00010000}},
		{"cvt.rn.relu.bf16.f32 %h10, %r0;", 16, 0, []uint64{b32(-1)}},
		{"cvt.rn.bf16x2.f32 %r10, %r0, %r1;", 32, 0x3f804000, []uint64{b32(1), b32(2)}},
		{"cvt.rn.f16x2.f32 %r10, %r0, %r1;", 32, 0x3c004000, []uint64{b32(1), b32(2)}},
		{"cvt.rna.tf32.f32 %r10, %r0;", 32, 0x3f802000, []uint64{0x3f801000}},
		{"cvt.rna.tf32.f32 %r10, %r0;", 32, 0x3f800000, []uint64{0x3f800fff}},

		// Addresses, hints
		{"cvta.to.global.u64 %rd10, %rd0;", 64, 77, []uint64{77}},
		{"createpolicy.fractional.L2::evict_last.b64 %rd10, 1.0;", 64, 0, nil},
	} {
		size := map[int]string{16: "%%h%d", 32: "%%r%d", 64: "%%rd%d"}[test.bits]
		if !strings.Contains(test.body, "D,") {
			size = "%%r%d"
		}
		named := func(i int) string { return fmt.Sprintf(size, i) }
		body := "mov.pred p, 1; mov.pred q, 0;\n" + strings.NewReplacer("D,", named(10)+",", " A", " "+named(0), " B",
			" "+named(1),
			" C", " "+named(2)).Replace(test.body)
		var in [lanes][slots]uint64
		for l := range in {
			copy(in[l][:], test.in)
		}
		got := lanewise(t, body, test.bits, in)
		if test.bits < 64 {
			for l := range got {
				got[l] &= 1<<test.bits - 1
			}
		}
		for l := range got {
			if got[l] != test.want {
				t.Errorf("%s of %#x: lane %d is %#x, want %#x", test.body, test.in, l, got[l], test.want)
				break
			}
		}
	}
}
