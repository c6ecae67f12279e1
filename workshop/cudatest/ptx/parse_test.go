package ptx

import (
	"strings"
	"testing"
)

// TestUnsupported: what is not implemented is refused, by name and line.
func TestUnsupported(t *testing.T) {
	for body, want := range map[string]string{
		"tcgen05.fence;":                                              "line 14: instruction tcgen05.fence is not supported",
		"add.f32.foo %r0, %r1, %r2;":                                  "add.f32.foo: modifier .foo is not supported",
		"add.foo.s32 %r0, %r1, %r2;":                                  "modifier .foo is not supported",
		"add.s32.foo %r0, %r1, %r2;":                                  "not supported",
		"ld.global.v8.b32 {%r0, %r1}, [in];":                          "modifier .v8 is not supported",
		"ld.global.u128 %r0, [in];":                                   "modifier .u128 is not supported",
		"mul.rz.f64 %rd0, %rd1, %rd2;":                                "this combination of modifiers is not supported",
		"add.s32 %r0, %r1;":                                           "2 operands where 3 are expected",
		"add.s32 %r0, %r1, %r99;":                                     "%r99 is not declared",
		"add.s32 %r0, %r1, %rd1;":                                     "%rd1 has 64 bits, not the 32 of .s32",
		"add.s32 %rd0, %r1, %r1;":                                     "%rd0 has 64 bits, not the 32 of .s32",
		"add.s32 5, %r1, %r1;":                                        "an operand is not the register that it has to be",
		"add.f32 %r0, %r1, 1;":                                        "a number that is no .f32",
		"add.s32 %r0, %r1, 0x123456789;":                              "a number that is no .s32",
		"add.s32 %r0, {%r1, %r2}, %r1;":                               "an operand is of a form that is not supported",
		"mov.u32 %r0, %clock;":                                        "%clock is not declared, or not a special register that is supported",
		"mov.u32 %r0, pin;":                                           "pin has no address",
		"mov.b32 {%r0, %r1}, %r2;":                                    "%r0 has 32 bits, not the 16 of .b16",
		"mov.b32 {%r0, %r1, %r2}, %r3;":                               "3 elements of .b32 are not supported",
		"ld.global.b32 %r0, in;":                                      "an operand is not the [address] that it has to be",
		"ld.global.b32 %r0, [%r1];":                                   "%r1 has 32 bits, which are no address here",
		"ld.shared.b32 %r0, [pin];":                                   "pin is in another space",
		"ld.global.v2.b32 {%r0}, [in];":                               "1 elements where 2 are expected",
		"ld.global.v2.b32 {%r0, %rd0}, [in];":                         "elements of different sizes",
		"st.global.b32 [in], _;":                                      "_ is not declared",
		"setp.lo.s32 p, %r0, %r1;":                                    "a comparison .lo of .s32 is not supported",
		"setp.lt.b32 p, %r0, %r1;":                                    "a comparison .lt of .b32 is not supported",
		"setp.lt.s32 %r0, %r0, %r1;":                                  "%r0 has 32 bits, not the 1 of .pred",
		"selp.b32 %r0, %r1, %r2, %r3;":                                "%r3 is no predicate",
		"@%r1 ret;":                                                   "@%r1 is no predicate",
		"bra NOWHERE;":                                                "there is no label NOWHERE",
		"{ L: ret; } bra L;":                                          "there is no label L",
		"L: L: ret;":                                                  "label L is set twice",
		"call foo, (a);":                                              "\"(\" where a word is expected",
		"cvt.f32.f64 %r0, %rd0;":                                      "this combination of modifiers is not supported",
		"cvt.rn.s32.f32 %r0, %r1;":                                    "this combination of modifiers is not supported",
		"cvt.rn.satfinite.e4m3x2.f32 %r0, %r1, %r2;":                  "modifier .satfinite is not supported",
		"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 %r0;":        "modifier .m16n8k32 is not supported",
		"mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 %r0;":    "shape .m16n8k16 of .tf32 is not supported",
		"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1}, [%r2];": "2 elements where 4 are expected",
		"cp.async.cg.shared.global [%r0], [in], 8;":                   "a copy of 8 bytes",
		"cp.async.bulk.shared.global [%r0], [in], 8;":                 "modifier .bulk is not supported",
		"bar.sync 16;":                                                "operand 1 has to be a number up to 15",
		"bar.sync 0, 33;":                                             "a barrier of 33 threads",
		"bar.red.popc.u32 %r0, 0, p;":                                 "modifier .red is not supported",
		"atom.global.add.u16 %r0, [in], %r1;":                         "modifier .u16 is not supported",
		"red.global.exch.b32 [in], %r1;":                              "modifier .exch is not supported",
		"shfl.bfly.b32 %r0, %r1, 1, 31;":                              "modifier .bfly is not supported; one of [sync] is",
		"rcp.approx.ftz.f64 %rd0, %rd1;":                              "modifier .f64 is not supported",
		"lop3.b32 %r0, %r1, %r2, %r3, 0x100;":                         "operand 5 has to be a number up to 255",
		".reg .b32 %r<9>; .reg .b32 %r<9>;":                           "%r<> is declared twice",
		".reg .foo x;":                                                "registers of type .foo are not supported",
		".shared .align 3 .b8 x[4];":                                  "an alignment of 3",
		".shared .b8 x[999999];":                                      "more than 232448 bytes of shared memory",
		".local .b8 x[999999];":                                       "more than 524288 bytes of local memory",
		"add.s32 %r0, %r1, 08;":                                       "\"08\" is no number that is supported",
		"mov.f64 %rd0, 0f3F800000;":                                   "a number that is no .f64",
		"add.s32 %r0, %r1, %r2":                                       "\"}\" where \";\" is expected",
		strings.Repeat("{", maxNesting+2):                             "nested scopes",
	} {
		_, err := Parse(kernel(body))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") ||
			!strings.HasPrefix(err.Error(), "ptx: line ") {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

func TestModules(t *testing.T) {
	for src, want := range map[string]string{
		"":                                  "does not begin with .version",
		".version 8.4":                      "",
		".version 8.4;":                     "",
		".version 8.4\n.address_size 32":    "only 64 are supported",
		".version 8.4 .target sm_80, debug": "",
		".version 8.4 /* a\ncomment */ // and\n.foo":                "line 3: \".foo\" is not supported here",
		".version 8.4 /* a":                                         "line 1: a comment does not end",
		".version 8.4 \"a\n":                                        "a string does not end",
		".version 8.4 \x01":                                         "character 0x1",
		".version 8.4 .func f() { ret; }":                           "\".func\" is not supported here",
		".version 8.4 .entry f() { ret;":                            "kernel f does not end",
		".version 8.4 .entry f() { ret; } .entry f() { ret; }":      "entry f is declared twice",
		".version 8.4 .entry f(.param .b8 a[64]) { ret; }":          "array parameters are not supported",
		".version 8.4 .entry f(.param .u32 a .param .u32 b) { }":    "in a list of parameters",
		".version 8.4 .entry f(.param .u32 a, .param .u32 a) { }":   "a is declared twice",
		".version 8.4 .entry f() .reqntid 2000 { }":                 "is no number of 0 to 1024",
		".version 8.4 .entry f() .reqnctapercluster 2 { }":          "directive \".reqnctapercluster\" of a kernel is not supported",
		".version 8.4 .global .b8 x[99999];":                        "variables of more than 65536 bytes",
		".version 8.4 .global .b8 x[2] = {1, 2, 3};":                "more initial values than elements",
		".version 8.4 .global .u64 x = y;":                          "\"y\" is no initial value that is supported",
		".version 8.4 .section .debug_info { .b8 1 }":               "",
		".version 8.4 .section .debug_info { .b8 1":                 "a .section does not end",
		".version 8.4\n.file 1 \"/a b\"\n.loc 1 2 3, x y\n\x00\x00": "",
	} {
		_, err := Parse([]byte(src))
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", src, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", src, err, want)
		}
	}
}

// TestMayFuse: products without .rn that are summands.
func TestMayFuse(t *testing.T) {
	for body, want := range map[string]int{
		"mul.f32 %r0, %r1, %r2; add.f32 %r3, %r4, %r0;":       1,
		"mul.f32 %r0, %r1, %r2; sub.f32 %r3, %r0, %r4;":       1,
		"mul.f64 %rd0, %rd1, %rd2; add.f64 %rd3, %rd0, %rd4;": 1,
		"mul.rn.f32 %r0, %r1, %r2; add.f32 %r3, %r4, %r0;":    0,
		"mul.f32 %r0, %r1, %r2; add.rn.f32 %r3, %r4, %r0;":    0,
		"mul.f32 %r0, %r1, %r2; add.f32 %r3, %r4, %r5;":       0,
		"mul.lo.s32 %r0, %r1, %r2; add.s32 %r3, %r4, %r0;":    0,
	} {
		if got := parse(t, kernel(body)).MayFuse(); len(got) != want {
			t.Errorf("%s: %v, want %d", body, got, want)
		}
	}
}

// TestRows: registers that live one after the other share rows, and a declaration costs nothing.
func TestRows(t *testing.T) {
	var body strings.Builder
	body.WriteString(".reg .f32 %many<2000000000>; mov.u32 %r0, 0;")
	for range 300 {
		body.WriteString("{ .reg .b32 a, b; add.u32 a, %r0, 1; add.u32 b, a, a; sub.u32 %r0, b, a; }")
	}
	body.WriteString("st.global.u32 [at], %r0;")
	src := kernel(body.String())
	if k := parse(t, src); k.rows[narrow] > 20 {
		t.Errorf("%d rows", k.rows[narrow])
	}
	got, err := launchOne(t, src, 32, nil)
	if err != nil || got[31] != 300 {
		t.Errorf("%v %v", got, err)
	}
}
