package ptx

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// lanewords runs a body that reads 32-bit registers %r0 to %r11 and writes %r20 to %r23, on one warp with 1 KiB of
// shared memory, which has the bytes given. %r30 is its address.
func lanewords(t testing.TB, body string, in [lanes][12]uint32, shared []uint32) [lanes][4]uint32 {
	t.Helper()
	var src strings.Builder
	src.WriteString(`.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 pout, .param .u64 pin, .param .u64 pshared)
{
.reg .pred %p<9>;
.reg .b32 lane, %r<40>;
.reg .b64 at, %rd<4>;
mov.u32 lane, %tid.x;
mov.u32 %r30, smem;
ld.param.u64 %rd0, [pout];
ld.param.u64 %rd1, [pin];
ld.param.u64 %rd2, [pshared];
mad.wide.u32 %rd3, lane, 32, %rd2;
mad.lo.u32 %r31, lane, 32, %r30;
`)
	for i := range 8 {
		fmt.Fprintf(&src, "ld.global.b32 %%r32, [%%rd3+%d];\nst.shared.b32 [%%r31+%d], %%r32;\n", 4*i, 4*i)
	}
	src.WriteString("bar.sync 0;\nmad.wide.u32 at, lane, 48, %rd1;\n")
	for i := range 12 {
		fmt.Fprintf(&src, "ld.global.b32 %%r%d, [at+%d];\n", i, 4*i)
	}
	src.WriteString(body)
	src.WriteString("\nmad.wide.u32 at, lane, 16, %rd0;\n")
	src.WriteString("st.global.v4.b32 [at], {%r20, %r21, %r22, %r23};\nret;\n}\n")
	k := parse(t, []byte(src.String()))
	h := &heap{}
	out := put(h, make([]uint32, lanes*4))
	flat := make([]uint32, 0, lanes*12)
	for _, l := range in {
		flat = append(flat, l[:]...)
	}
	words := make([]uint32, 256)
	copy(words, shared)
	args := paramBlock(t, k, out, put(h, flat), put(h, words))
	if err := k.Launch(h, [3]uint32{1, 1, 1}, [3]uint32{lanes, 1, 1}, 1024, args); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	var got [lanes][4]uint32
	for i, x := range get[uint32](h, out) {
		got[i/4][i%4] = x
	}
	return got
}

// The fragments as the PTX ISA has them, "Matrix Fragments for mma.m16n8k16 with floating point type" and so on: for
// element i of a lane, in the notation of these pages. Elements of 16 bits are counted through the registers, low
// half first.
type isaFragment func(lane, i int) (row, col int)

var isaFragments = map[string]struct{ a, b isaFragment }{
	"m16n8k16": {
		a: func(lane, i int) (int, int) {
			row, col := lane>>2, lane%4*2+i&1
			if !(i < 2 || i >= 4 && i < 6) {
				row += 8
			}
			if i >= 4 {
				col += 8
			}
			return row, col
		},
		b: func(lane, i int) (int, int) {
			row := lane%4*2 + i&1
			if i >= 2 {
				row += 8
			}
			return row, lane >> 2
		},
	},
	"m16n8k8": {
		a: func(lane, i int) (int, int) {
			row := lane >> 2
			if i >= 2 {
				row += 8
			}
			return row, lane%4*2 + i&1
		},
		b: func(lane, i int) (int, int) { return lane%4*2 + i, lane >> 2 },
	},
	"m16n8k8.tf32": {
		a: func(lane, i int) (int, int) {
			row, col := lane>>2, lane%4
			if i == 1 || i == 3 {
				row += 8
			}
			if i >= 2 {
				col += 4
			}
			return row, col
		},
		b: func(lane, i int) (int, int) { return lane%4 + 4*i, lane >> 2 },
	},
	"m16n8k4.tf32": {
		a: func(lane, i int) (int, int) { return lane>>2 + 8*i, lane % 4 },
		b: func(lane, i int) (int, int) { return lane % 4, lane >> 2 },
	},
}

func isaResult(lane, i int) (row, col int) {
	row, col = lane>>2, lane%4*2+i&1
	if i >= 2 {
		row += 8
	}
	return row, col
}

func TestMultiplyMatrix(t *testing.T) {
	for _, test := range []struct {
		shape, element string
		k              int
	}{
		{"m16n8k16", "bf16", 16}, {"m16n8k16", "f16", 16}, {"m16n8k8", "bf16", 8}, {"m16n8k8", "f16", 8},
		{"m16n8k8", "tf32", 8}, {"m16n8k4", "tf32", 4},
	} {
		a := func(i, j int) float64 { return float64((i*7+j*3)%11 - 5) }
		b := func(i, j int) float64 { return float64((i*5+j*9)%13 - 6) }
		c := func(i, j int) float64 { return float64(i - 3*j) }
		bits := func(x float64) uint32 {
			switch test.element {
			case "bf16":
				return uint32(toBF16(float32(x)))
			case "f16":
				return formatF16.round(x, 'n')
			}
			return uint32(b32(float32(x))) | 0x1fff // bits that do not count
		}
		name, packed := test.shape, 2
		if test.element == "tf32" {
			name, packed = name+".tf32", 1
		}
		layout := isaFragments[name]
		na, nb := 16*test.k/32/packed, 8*test.k/32/packed
		var in [lanes][12]uint32
		for l := range in {
			for i := range na * packed {
				in[l][i/packed] |= bits(a(layout.a(l, i))) << (16 * (i % packed))
			}
			for i := range nb * packed {
				in[l][4+i/packed] |= bits(b(layout.b(l, i))) << (16 * (i % packed))
			}
			for i := range 4 {
				in[l][8+i] = uint32(b32(float32(c(isaResult(l, i)))))
			}
		}
		list := func(first, n int) string {
			var names []string
			for i := range n {
				names = append(names, fmt.Sprintf("%%r%d", first+i))
			}
			return "{" + strings.Join(names, ", ") + "}"
		}
		got := lanewords(t, fmt.Sprintf("mma.sync.aligned.%s.row.col.f32.%s.%s.f32 %s, %s, %s, %s;",
			test.shape, test.element, test.element, list(20, 4), list(0, na), list(4, nb), list(8, 4)), in, nil)
		for l := range got {
			for i := range 4 {
				row, col := isaResult(l, i)
				want := c(row, col)
				for j := range test.k {
					want += a(row, j) * b(j, col)
				}
				if f32(got[l][i]) != float32(want) {
					t.Fatalf("%v: element %d, %d is %g, want %g", test, row, col, f32(got[l][i]), want)
				}
			}
		}
	}
}

// TestMultiplyMatrixRounds: each product is added by itself, from the accumulator on.
func TestMultiplyMatrixRounds(t *testing.T) {
	var in [lanes][12]uint32
	for l := range in {
		for i := range 6 {
			in[l][i] = 0x3f803f80 // ones
		}
		in[l][8] = uint32(b32(1 << 24)) // to which 1 may be added as often as one likes
	}
	got := lanewords(t, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r20,%r21,%r22,%r23}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, "+
		"{%r8,%r9,%r10,%r11};", in, nil)
	if f32(got[0][0]) != 1<<24 || f32(got[0][1]) != 16 {
		t.Errorf("%g, %g", f32(got[0][0]), f32(got[0][1]))
	}
}

// TestStoreMatrix: what stmatrix stores, ldmatrix loads.
func TestStoreMatrix(t *testing.T) {
	var in [lanes][12]uint32
	for l := range in {
		in[l][0] = uint32(l * 7 % 32 * 32)
		for j := range 4 {
			in[l][4+j] = uint32(l*1000+j) | uint32(l*1000+500+j)<<16
		}
	}
	for _, trans := range []string{"", ".trans"} {
		got := lanewords(t, fmt.Sprintf("add.u32 %%r0, %%r0, %%r30;\n"+
			"stmatrix.sync.aligned.m8n8.x4%s.shared.b16 [%%r0], {%%r4, %%r5, %%r6, %%r7};\n"+
			"ldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {%%r20, %%r21, %%r22, %%r23}, [%%r0];", trans, trans), in, nil)
		for l := range got {
			if got[l] != [4]uint32(in[l][4:8]) {
				t.Fatalf("%s: lane %d has %#x, want %#x", trans, l, got[l], in[l][4:8])
			}
		}
	}
}

// TestDescriptor has places in the canonical layouts of the ISA's figures: element k of row i, 16 bytes that begin
// with it.
func TestDescriptor(t *testing.T) {
	bits := func(leading, stride, swizzle uint64) uint64 {
		return 4096>>4 | leading>>4<<16 | stride>>4<<32 | swizzle<<62
	}
	for _, test := range []struct {
		name       string
		bits       uint64
		i, k       uint64
		transposed bool
		want       uint64
	}{
		{"no swizzle: rows of a core matrix", bits(128, 256, 0), 3, 0, false, 3 * 16},
		{"no swizzle: the next core matrix along K", bits(128, 256, 0), 3, 8, false, 128 + 3*16},
		{"no swizzle: the next along M", bits(128, 256, 0), 11, 8, false, 256 + 128 + 3*16},
		{"no swizzle, transposed", bits(128, 256, 0), 8, 9, true, 256 + 128 + 16},
		{"32 bytes", bits(0, 256, 3), 3, 8, false, 3*32 + 16},
		{"32 bytes: exchanged from the fifth row on", bits(0, 256, 3), 4, 8, false, 4 * 32},
		{"64 bytes", bits(0, 512, 2), 2, 0, false, 2*64 + 16},
		{"64 bytes", bits(0, 512, 2), 6, 8, false, 6*64 + (1^3)*16},
		{"128 bytes", bits(0, 1024, 1), 5, 8, false, 5*128 + (5^1)*16},
		{"128 bytes: the next rows", bits(0, 1024, 1), 13, 8, false, 1024 + 5*128 + (5^1)*16},
		{"128 bytes, transposed", bits(8192, 1024, 1), 16, 3, true, 3*128 + (3^2)*16},
		{"128 bytes, transposed: beyond 64", bits(8192, 1024, 1), 80, 11, true, 8192 + 1024 + 3*128 + (3^2)*16},
		{"32 bytes, transposed", bits(2048, 256, 3), 8, 4, true, 4 * 32},
	} {
		d, err := describe(test.bits)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.address(test.i, test.k, test.transposed) - 4096; got != test.want {
			t.Errorf("%s: row %d, element %d is at %d, want %d", test.name, test.i, test.k, got, test.want)
		}
	}
	if _, err := describe(1 << 49); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a base offset: %v", err)
	}
}

// TestLoadMatrix: thread 8j+i gives the address of row i of matrix j; thread l gets elements 2(l%4) and 2(l%4)+1 of
// row l/4, or of column l/4 (PTX ISA, "ldmatrix").
func TestLoadMatrix(t *testing.T) {
	var in [lanes][12]uint32
	place := func(j, i int) int { return 13 * (8*j + i) % 32 } // which 16 bytes hold a row
	shared := make([]uint32, 256)
	element := func(j, i, k int) uint32 { return uint32(1000*j + 100*i + k + 1) }
	for j := range 4 {
		for i := range 8 {
			in[8*j+i][0] = uint32(place(j, i) * 32) // rows 32 bytes apart
			for k := range 8 {
				shared[place(j, i)*8+k/2] |= element(j, i, k) << (16 * (k % 2))
			}
		}
	}
	for _, test := range []struct {
		count int
		trans string
	}{{1, ""}, {2, ""}, {4, ""}, {1, ".trans"}, {2, ".trans"}, {4, ".trans"}} {
		regs := strings.Join([]string{"%r20", "%r21", "%r22", "%r23"}[:test.count], ", ")
		got := lanewords(t, fmt.Sprintf("mov.b32 %%r21, 0; mov.b32 %%r22, 0; mov.b32 %%r23, 0; add.u32 %%r0, %%r0, %%r30;\n"+
			"ldmatrix.sync.aligned.m8n8.x%d%s.shared.b16 {%s}, [%%r0];", test.count, test.trans, regs), in, shared)
		for l := range got {
			for j := range test.count {
				want := element(j, l/4, l%4*2) | element(j, l/4, l%4*2+1)<<16
				if test.trans != "" {
					want = element(j, l%4*2, l/4) | element(j, l%4*2+1, l/4)<<16
				}
				if got[l][j] != want {
					t.Fatalf("x%d%s: lane %d, matrix %d: %#x, want %#x", test.count, test.trans, l, j, got[l][j], want)
				}
			}
		}
	}
}
