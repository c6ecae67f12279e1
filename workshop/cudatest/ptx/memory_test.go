package ptx

import (
	"fmt"
	"slices"
	"testing"
)

// TestAsync: a copy is there once its group has been waited for, and not before.
func TestAsync(t *testing.T) {
	for _, test := range []struct {
		name, wait string
		want       [3]bool // which of three groups have arrived
	}{
		{"all", "cp.async.wait_all;", [3]bool{true, true, true}},
		{"none left", "cp.async.wait_group 0;", [3]bool{true, true, true}},
		{"all but one", "cp.async.wait_group 1;", [3]bool{true, true, false}},
		{"all but two", "cp.async.wait_group 2;", [3]bool{true, false, false}},
		{"no wait", "", [3]bool{false, false, false}},
	} {
		for group := range 3 {
			got, err := launchOne(t, kernel(fmt.Sprintf(`
				mov.u32 %%r0, smem;
				mad.lo.u32 %%r0, tid, 48, %%r0;
				mad.wide.u32 at, tid, 48, in;
				cp.async.cg.shared.global [%%r0], [at], 16;
				cp.async.commit_group;
				cp.async.ca.shared.global.L2::128B [%%r0+16], [at+16], 8;
				cp.async.ca.shared.global [%%r0+24], [at+24], 4;
				cp.async.commit_group;
				cp.async.ca.shared.global [%%r0+32], [at+32], 4;
				cp.async.commit_group;
				%s
				ld.shared.u32 %%r1, [%%r0+%d];
				mad.wide.u32 at, tid, 4, out;
				st.global.u32 [at], %%r1;`, test.wait, []int{4, 24, 32}[group])), 32, counted(12*32))
			if err != nil {
				t.Fatal(err)
			}
			for tid, x := range got {
				want := uint32(poison32)
				if test.want[group] {
					want = uint32(12*tid + []int{1, 6, 8}[group])
				}
				if x != want {
					t.Fatalf("%s: thread %d has %#x of group %d, want %#x", test.name, tid, x, group, want)
				}
			}
		}
	}
}

// counted is 0, 1, 2, ...
func counted(n int) []uint32 {
	x := make([]uint32, n)
	for i := range x {
		x[i] = uint32(i)
	}
	return x
}

// TestAsyncFills: where the source is shorter than the copy, zeros follow; where it is empty, its address does not
// matter.
func TestAsyncFills(t *testing.T) {
	got, err := launchOne(t, kernel(`
		mov.u32 %r0, smem;
		mad.lo.u32 %r0, tid, 16, %r0;
		mad.wide.u32 %rd0, tid, 16, in;
		setp.eq.u32 p, tid, 31;
		@p mov.u64 %rd0, 0;
		and.b32 %r1, tid, 3;
		shl.b32 %r1, %r1, 2;
		@p mov.u32 %r1, 0;
		cp.async.cg.shared.global [%r0+0], [%rd0+0], 0x10, %r1;
		cp.async.wait_all;
		ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r0];
		add.u32 %r2, %r2, %r3;
		add.u32 %r2, %r2, %r4;
		add.u32 %r2, %r2, %r5;
		st.global.u32 [at], %r2;`), 32, counted(4*32))
	if err != nil {
		t.Fatal(err)
	}
	for tid, x := range got {
		want := 0
		for i := range tid & 3 {
			if tid != 31 {
				want += 4*tid + i
			}
		}
		if int(x) != want {
			t.Errorf("thread %d has %d, want %d", tid, x, want)
		}
	}
}

// TestAccesses: sizes, signs, vectors and spaces of loads and stores.
func TestAccesses(t *testing.T) {
	for _, test := range []struct {
		body string
		want uint32
	}{
		{"ld.global.s8 %r0, [in+3];", 0xffffff84},
		{"ld.global.u8 %r0, [in+3];", 0x84},
		{"ld.global.s16 %r0, [in+2];", 0xffff8403},
		{".reg .b16 h; ld.global.s8 h, [in+3]; cvt.u32.u16 %r0, h;", 0xff84},
		{"ld.global.s32 %rd0, [in]; shr.u64 %rd0, %rd0, 32; cvt.u32.u64 %r0, %rd0;", 0xffffffff},
		{"ld.global.nc.L1::no_allocate.L2::128B.v2.b32 {_, %r0}, [in];", 8},
		{"ld.global.v2.u64 {%rd0, %rd1}, [in]; cvt.u32.u64 %r0, %rd1;", 9},
		{".reg .b16 %h<4>; ld.global.v4.b16 {%h0, %h1, %h2, %h3}, [in]; mov.b32 %r0, {%h1, %h2};", 0x00088403},
		{"ld.volatile.global.u32 %r0, [in+4];", 8},
		{"ld.relaxed.gpu.global.u32 %r0, [in+4];", 8},
		{"ld.acquire.sys.global.u32 %r0, [in+4];", 8},
		{"ld.u32 %r0, [in+4];", 8}, // generic
		{".local .align 8 .b8 stack[16]; st.local.u32 [stack+4], 5; ld.local.u32 %r0, [stack+4];", 5},
		{".local .align 8 .b8 stack[16]; mov.u64 %rd0, stack; cvta.local.u64 %rd1, %rd0; st.u32 [%rd1+8], 6; ld.local.u32 %r0, [%rd0+8];", 6},
		{".shared .align 4 .b8 own[8]; st.shared.u32 [own+4], 7; mov.u32 %r1, own; ld.shared.u32 %r0, [%r1+4];", 7},
		{"mov.u64 %rd0, smem; cvta.shared.u64 %rd1, %rd0; st.shared.u32 [%rd0], 9; ld.u32 %r0, [%rd1];", 9},
		{"createpolicy.fractional.L2::evict_first.b64 %rd0, 1.0; ld.global.L1::evict_first.L2::cache_hint.b32 {%r0}, [in+4], %rd0;", 8},
		{"st.global.cs.u16 [at], 0x1234; ld.global.u8 %r0, [at+1];", 0x12},
		{"membar.gl; fence.acq_rel.gpu; prefetch.global.L2 [in]; nanosleep.u32 20; mov.u32 %r0, 3;", 3},
	} {
		body := test.body + "st.global.u32 [at], %r0;"
		if test.body[0] == '.' {
			body = "{" + body + "}"
		}
		got, err := launchOne(t, kernel(body), 1, []uint32{0x84030201, 8, 9, 0})
		if err != nil || got[0] != test.want {
			t.Errorf("%s: %#x, want %#x; %v", test.body, got, test.want, err)
		}
	}
}

// TestModuleVariables: constants of a module, which a kernel reads.
func TestModuleVariables(t *testing.T) {
	src := `.version 8.4
.target sm_80
.address_size 64
.global .align 4 .b8 table[12] = {1, 2, 3, 4, 0xff, 254};
.const .align 8 .u64 wide = 77;
.visible .entry k(.param .u64 pout, .param .u64 pin)
{
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
ld.param.u64 %rd0, [pout];
mov.b64 %rd1, table;
ld.global.nc.b32 %r0, [%rd1+4];
ld.global.b32 %r1, [table];
ld.const.u64 %rd2, [wide];
cvt.u32.u64 %r2, %rd2;
add.u32 %r0, %r0, %r1;
add.u32 %r0, %r0, %r2;
st.global.u32 [%rd0], %r0;
}`
	got, err := launchOne(t, []byte(src), 1, nil)
	if err != nil || got[0] != 0x04030201+0x0000feff+77 {
		t.Errorf("%#x %v", got, err)
	}
}

// TestAtomics: from all lanes of all blocks, on several workers.
func TestAtomics(t *testing.T) {
	const blocks, threads = 20, 64
	for _, test := range []struct {
		op    string
		start uint32
		want  uint32
	}{
		{"atom.global.add.u32 %r1, [out], tid;", 5, 5 + blocks*threads*(threads-1)/2},
		{"atom.global.gpu.acq_rel.add.u32 %r1, [ out + 0 ], tid;", 0, blocks * threads * (threads - 1) / 2},
		{"atom.relaxed.gpu.global.max.s32 %r1, [out], tid;", 0xffffffff, threads - 1},
		{"atom.global.min.u32 %r1, [out], tid;", 0xffffffff, 0},
		{"red.global.add.s32 [out], 1;", 1, 1 + blocks*threads},
		{"red.relaxed.gpu.global.or.b32 [out], tid;", 0, threads - 1},
		{"atom.global.inc.u32 %r1, [out], 99;", 0, blocks * threads % 100},
		{"atom.global.add.f32 %r1, [out], 0f3F800000;", 0, uint32(b32(blocks * threads))},
		{"L: ld.global.u32 %r1, [out]; add.u32 %r2, %r1, 1; atom.global.cas.b32 %r3, [out], %r1, %r2; setp.ne.u32 p, %r3, %r1; @p bra L;",
			0, blocks * threads},
		{"mov.u64 %rd1, 1; atom.global.add.u64 _, [out+8], %rd1;", 3, 3},
		// Loads that say that others may write are no data race.
		{"ld.volatile.global.u32 %r1, [out]; setp.gt.u32 p, tid, %r1; @p atom.global.max.u32 %r2, [out], tid;", 0,
			threads - 1},
		{"ld.relaxed.gpu.global.u32 %r1, [out]; atom.global.add.u32 %r2, [out], 1;", 1, 1 + blocks*threads},
	} {
		k := parse(t, kernel(test.op))
		h := &heap{}
		out := put(h, []uint32{test.start, 0, 0xffffffff, 0})
		workers := 3
		if test.op[0] == 'L' {
			workers = 1 // its plain load would be a data race, here as on a GPU
		}
		err := k.Run(h, Config{Grid: [3]uint32{5, 4, 1}, Block: [3]uint32{threads, 1, 1}, Params: paramBlock(t, k, out),
			Workers: workers})
		got := get[uint32](h, out)
		if err != nil || got[0] != test.want {
			t.Errorf("%s: %v, want %d; %v", test.op, got, test.want, err)
		}
		if test.op[0] == 'm' && (got[2] != blocks*threads-1 || got[3] != 1) {
			t.Errorf("a sum of 64 bits: %v", got)
		}
	}
}

// TestWorkers: blocks on several goroutines write what blocks in order do, each in its place.
func TestWorkers(t *testing.T) {
	k := parse(t, kernel(`
		mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %ctaid.z;
		mov.u32 %r3, %nctaid.x; mov.u32 %r4, %nctaid.y; mov.u32 %r5, %ntid.x;
		mad.lo.u32 %r6, %r2, %r4, %r1;
		mad.lo.u32 %r6, %r6, %r3, %r0;
		mad.lo.u32 %r6, %r6, %r5, tid;
		mad.wide.u32 at, %r6, 4, out;
		st.global.u32 [at], %r6;`))
	for _, workers := range []int{0, 1, 4, 99} {
		h := &heap{}
		out := put(h, make([]uint32, 3*4*5*40))
		err := k.Run(h, Config{Grid: [3]uint32{3, 4, 5}, Block: [3]uint32{40, 1, 1}, Params: paramBlock(t, k, out),
			Workers: workers})
		if got := get[uint32](h, out); err != nil || !slices.Equal(got, counted(len(got))) {
			t.Errorf("%d workers: %v", workers, err)
		}
	}
}
