package ptx

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// kernel is a whole kernel around a body, which finds the addresses of two arrays in in and out, and its thread in tid.
func kernel(body string) []byte {
	return []byte(`.version 8.4
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 pout, .param .u64 pin)
{
.reg .pred p, q;
.reg .b32 tid, id, %r<20>;
.reg .b64 out, in, at, %rd<20>;
ld.param.u64 out, [pout];
ld.param.u64 in, [pin];
mov.u32 tid, %tid.x;
mad.wide.u32 at, tid, 4, out;
` + body + "\n}\n")
}

// launch runs a kernel of which each thread of one block may write one word.
func launchOne(t testing.TB, src []byte, threads int, in []uint32) ([]uint32, error) {
	t.Helper()
	k := parse(t, src)
	h := &heap{}
	out := put(h, make([]uint32, threads))
	args := paramBlock(t, k, out, put(h, in))
	err := k.Run(h, Config{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{uint32(threads), 1, 1}, SharedBytes: 4096,
		Params:           args,
		WarpInstructions: 100_000})
	return get[uint32](h, out), err
}

// TestDivergence: each lane gets what it would get alone, and lanes that have parted meet again.
func TestDivergence(t *testing.T) {
	for name, test := range map[string]struct {
		body string
		want func(tid uint32) uint32
	}{
		"if else": {`
			setp.lt.u32 p, tid, 10;
			@p bra LESS;
			add.u32 %r0, tid, 100;
			bra.uni JOIN;
		LESS:
			add.u32 %r0, tid, 200;
		JOIN:
			vote.sync.ballot.b32 %r1, p, -1;
			popc.b32 %r1, %r1;
			mad.lo.u32 %r0, %r1, 1000, %r0;
			st.global.u32 [at], %r0; ret;`,
			func(tid uint32) uint32 {
				if tid < 10 {
					return tid + 10_200
				}
				return tid + 10_100
			}},
		"a loop of each lane's own length": {`
			mov.u32 %r0, 0; mov.u32 %r1, 0;
		LOOP:
			add.u32 %r1, %r1, %r0;
			add.u32 %r0, %r0, 1;
			setp.le.u32 p, %r0, tid;
			@p bra LOOP;
			shfl.sync.idx.b32 %r2, %r1, 31, 31, -1;
			add.u32 %r1, %r1, %r2;
			st.global.u32 [at], %r1; ret;`,
			func(tid uint32) uint32 { return tid*(tid+1)/2 + 31*32/2 }},
		"loops in branches in loops": {`
			mov.u32 %r0, 0; mov.u32 %r1, 0;
		OUTER:
			and.b32 %r2, tid, 3;
			setp.eq.u32 p, %r2, 0;
			@p bra SKIP;
		INNER:
			add.u32 %r1, %r1, %r2;
			sub.u32 %r2, %r2, 1;
			setp.ne.u32 p, %r2, 0;
			@p bra INNER;
		SKIP:
			add.u32 %r0, %r0, 1;
			shr.u32 %r3, tid, 2;
			setp.lt.u32 p, %r0, %r3;
			@p bra OUTER;
			st.global.u32 [at], %r1;`, // falls off the end
			func(tid uint32) uint32 {
				n := tid & 3
				return n * (n + 1) / 2 * max(1, tid>>2)
			}},
		"an early return": {`
			st.global.u32 [at], tid;
			setp.ge.u32 p, tid, 5;
			@p ret;
			activemask.b32 %r0;
			st.global.u32 [at], %r0;
			ret;`,
			func(tid uint32) uint32 {
				if tid >= 5 {
					return tid
				}
				return 31
			}},
		"a guarded instruction": {`
			and.b32 %r0, tid, 1;
			setp.eq.u32 p, %r0, 1;
			mov.u32 %r1, 7;
			@p mov.u32 %r1, 8;
			@!p add.u32 %r1, %r1, 10;
			st.global.u32 [at], %r1;`,
			func(tid uint32) uint32 { return 17 - tid%2*9 }},
		"scopes": {`
			mov.u32 %r1, 1;
			{
				.reg .b32 %r<3>, t;
				mov.u32 %r1, 50;
				add.u32 t, %r1, tid;
				bra L;
				mov.u32 t, 0;
			L:	st.global.u32 [at], t;
			}
			{
				.reg .b32 t;
				ld.global.u32 t, [at];
				add.u32 t, t, %r1;
				bra L;
				mov.u32 t, 0;
			L:	st.global.u32 [at], t;
			}`,
			func(tid uint32) uint32 { return tid + 51 }},
	} {
		got, err := launchOne(t, kernel(test.body), 32, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for tid, x := range got {
			if want := test.want(uint32(tid)); x != want {
				t.Errorf("%s: thread %d has %d, want %d", name, tid, x, want)
			}
		}
	}
}

// TestBarrier passes words around the warps of a block.
func TestBarrier(t *testing.T) {
	const threads = 256
	got, err := launchOne(t, kernel(`
		mov.u32 %r0, smem;
		mad.lo.u32 %r1, tid, 4, %r0;
		mov.u32 %r2, tid;
		mov.u32 %r3, 0;
		add.u32 %r4, tid, 32;
		and.b32 %r4, %r4, 255;
		mad.lo.u32 %r4, %r4, 4, %r0;
	LOOP:
		st.shared.u32 [%r1], %r2;
		bar.sync 0;
		ld.shared.u32 %r2, [%r4];
		barrier.sync.aligned 0, 256;
		add.u32 %r3, %r3, 1;
		setp.lt.u32 p, %r3, 5;
		@p bra LOOP;
		st.global.u32 [at], %r2;`), threads, nil)
	if err != nil {
		t.Fatal(err)
	}
	for tid, x := range got {
		if want := uint32(tid+5*32) % threads; x != want {
			t.Errorf("thread %d has %d, want %d", tid, x, want)
		}
	}
}

// TestWarpsThatHaveEnded do not hold up a barrier.
func TestWarpsThatHaveEnded(t *testing.T) {
	_, err := launchOne(t, kernel(`
		setp.ge.u32 p, tid, 64;
		@p ret;
		bar.sync 0;
		st.global.u32 [at], tid;`), 128, nil)
	if err != nil {
		t.Error(err)
	}
}

// TestShuffle compares all modes, with segments, to the ISA's text: a lane beyond the segment gives its own value and
// false.
func TestShuffle(t *testing.T) {
	for _, test := range []struct {
		op   string
		by   int
		c    int
		from func(lane int) (int, bool)
	}{
		{"bfly", 16, 31, func(l int) (int, bool) { return l ^ 16, true }},
		{"bfly", 5, 31, func(l int) (int, bool) { return l ^ 5, true }},
		// segments of 8: the partner is in another, which is beyond for the lower
		{"bfly", 8, 24<<8 | 31, func(l int) (int, bool) {
			return l ^ 8, l^8 <= l|7
		}},
		{"up", 3, 0, func(l int) (int, bool) { return l - 3, l >= 3 }},
		{"up", 3, 24 << 8, func(l int) (int, bool) { return l - 3, l%8 >= 3 }},
		{"down", 3, 31, func(l int) (int, bool) { return l + 3, l+3 < 32 }},
		{"down", 3, 16<<8 | 31, func(l int) (int, bool) { return l + 3, l%16+3 < 16 }},
		{"idx", 7, 31, func(int) (int, bool) { return 7, true }},
		{"idx", 7, 24<<8 | 31, func(l int) (int, bool) { return l&^7 | 7, true }},
		{"idx", 7, 5, func(int) (int, bool) { return 7, false }},
	} {
		got, err := launchOne(t, kernel(fmt.Sprintf(`
			mad.lo.u32 %%r0, tid, 10, 1;
			shfl.sync.%s.b32 %%r1|p, %%r0, %d, %d, -1;
			@p add.u32 %%r1, %%r1, 1000;
			st.global.u32 [at], %%r1;`, test.op, test.by, test.c)), 32, nil)
		if err != nil {
			t.Errorf("%v: %v", test, err)
			continue
		}
		for l, x := range got {
			from, ok := test.from(l)
			want := 10*from + 1001
			if !ok {
				want = 10*l + 1
			}
			if int(x) != want {
				t.Errorf("%s %d, %#x: lane %d has %d, want %d", test.op, test.by, test.c, l, x, want)
			}
		}
	}
}

func TestAcrossLanes(t *testing.T) {
	for _, test := range []struct {
		body string
		want uint32
	}{
		{"redux.sync.add.s32 %r0, tid, -1;", 31 * 32 / 2},
		{"sub.u32 %r1, tid, 3; redux.sync.min.s32 %r0, %r1, -1;", 0xfffffffd},
		{"sub.u32 %r1, tid, 3; redux.sync.min.u32 %r0, %r1, -1;", 0},
		{"redux.sync.max.s32 %r0, tid, -1;", 31},
		{"redux.sync.xor.b32 %r0, tid, -1;", 0},
		{"redux.sync.or.b32 %r0, tid, 0xffffffff;", 31},
		{"setp.lt.u32 p, tid, 4; vote.sync.ballot.b32 %r0, p, -1;", 15},
		{"setp.lt.u32 p, tid, 4; vote.sync.any.pred q, p, -1; selp.u32 %r0, 1, 0, q;", 1},
		{"setp.lt.u32 p, tid, 4; vote.sync.all.pred q, !p, -1; selp.u32 %r0, 1, 0, q;", 0},
		{"setp.lt.u32 p, tid, 99; vote.sync.uni.pred q, p, -1; selp.u32 %r0, 1, 0, q;", 1},
		{"and.b32 %r1, tid, 1; match.any.sync.b32 %r0, %r1, -1; and.b32 %r0, %r0, 3; shr.u32 %r2, %r0, 1; xor.b32 %r0, %r1, %r2;", 0},
		{"mov.u32 %r0, %lanemask_lt; popc.b32 %r0, %r0; mov.u32 %r1, %laneid; sub.u32 %r0, %r0, %r1;", 0},
	} {
		got, err := launchOne(t, kernel(test.body+"st.global.u32 [at], %r0;"), 32, nil)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
		} else if slices.ContainsFunc(got, func(x uint32) bool { return x != test.want }) {
			t.Errorf("%s: %v, want %d", test.body, got, test.want)
		}
	}
}

// TestFaults: what a GPU refuses, or leaves undefined, ends the launch, and the fault says where.
func TestFaults(t *testing.T) {
	for name, test := range map[string]struct {
		body string
		want error
		text string
	}{
		"beyond the end": {"st.global.u32 [at+4], tid;", ErrAddress,
			"line 14: st.global.u32: block [0 0 0], thread 31: illegal address"},
		"before the start": {"ld.global.u32 %r0, [out+-4];", ErrAddress, "thread 0"},
		"null":             {"mov.u64 at, 0; ld.global.u32 %r0, [at];", ErrAddress, "illegal address 0x0 of 4 bytes"},
		"misaligned": {"ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [out+8];", ErrMisaligned,
			"0x100000008 of 16 bytes"},
		"shared, beyond":        {"mov.u32 %r0, smem; st.shared.u32 [%r0+4096], tid;", ErrAddress, "shared memory"},
		"shared, null":          {"mov.u32 %r0, 0; ld.shared.u32 %r1, [%r0];", ErrAddress, "shared memory"},
		"shared, misaligned":    {"mov.u32 %r0, smem; ld.shared.v2.u32 {%r1, %r2}, [%r0+4];", ErrMisaligned, ""},
		"never written":         {"ld.global.u32 %r1, [%rd7];", ErrMisaligned, ""},
		"without end":           {"L: bra L;", ErrBudget, "bra"},
		"trap":                  {"setp.eq.u32 p, tid, 9; @p trap;", ErrTrap, "thread 9"},
		"a barrier for some":    {"setp.lt.u32 p, tid, 9; @p bra L; bar.sync 0; L: ret;", ErrDivergence, "bar.sync"},
		"a barrier, wrong size": {"bar.sync 0, 64;", ErrDivergence, "the barrier waits for warps"},
		"shuffle for some": {"setp.lt.u32 p, tid, 9; @p shfl.sync.bfly.b32 %r0, tid, 1, 31, -1;", ErrDivergence,
			"thread 9"},
		"shuffle from no lane": {"setp.lt.u32 p, tid, 4; @p shfl.sync.down.b32 %r0, tid, 2, 31, 15;", ErrDivergence,
			"thread 4"},
		"vote for some": {"setp.lt.u32 p, tid, 9; @p vote.sync.any.pred q, p, -1;", ErrDivergence, ""},
		"matrix for some": {"setp.lt.u32 p, tid, 9; mov.u32 %r0, smem; @p ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];",
			ErrDivergence, "it needs all 32"},
		"matrix, misaligned": {"mov.u32 %r0, smem; add.u32 %r0, %r0, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];",
			ErrMisaligned, ""},
		"cp.async, beyond":      {"mov.u32 %r0, smem; cp.async.ca.shared.global [%r0], [at+4], 4;", ErrAddress, "thread 31"},
		"cp.async, nowhere":     {"mov.u32 %r0, 4; cp.async.ca.shared.global [%r0], [at], 4;", ErrAddress, "shared memory"},
		"a write to a constant": {"mov.u64 at, 0xff00000002000000; st.global.u32 [at], tid;", ErrAddress, ""},
	} {
		_, err := launchOne(t, kernel(test.body), 32, nil)
		var fault *Fault
		if !errors.Is(err, test.want) || !errors.As(err, &fault) || fault.Kernel != "k" ||
			!strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, want %v with %q", name, err, test.want, test.text)
		}
	}
}

func TestConfig(t *testing.T) {
	k := parse(t, []byte(`.version 8.4
.target sm_80
.address_size 64
.visible .entry k(.param .u32 n, .param .u64 p)
.reqntid 64
{ ret; }`))
	if got := k.Params(); len(got) != 2 || got[1] != (Param{Name: "p", Type: "u64", Offset: 8, Bytes: 8}) ||
		k.ParamBytes() != 16 {
		t.Errorf("parameters %v, %d bytes", got, k.ParamBytes())
	}
	one, block := [3]uint32{1, 1, 1}, [3]uint32{64, 1, 1}
	if err := k.Launch(&heap{}, one, block, 0, make([]byte, 16)); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"no blocks":         k.Launch(&heap{}, [3]uint32{1, 0, 1}, block, 0, make([]byte, 16)),
		"a deep grid":       k.Launch(&heap{}, [3]uint32{1, 1, 1 << 16}, block, 0, make([]byte, 16)),
		"another block":     k.Launch(&heap{}, one, [3]uint32{32, 1, 1}, 0, make([]byte, 16)),
		"too many threads":  k.Launch(&heap{}, one, [3]uint32{1024, 1024, 64}, 0, make([]byte, 16)),
		"too much shared":   k.Launch(&heap{}, one, block, 1<<31, make([]byte, 16)),
		"too few arguments": k.Launch(&heap{}, one, block, 0, make([]byte, 12)),
	} {
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSkip: the last blocks of a grid run with their own numbers, and the others do not.
func TestSkip(t *testing.T) {
	k := parse(t, []byte(`.version 8.4
.target sm_80
.address_size 64
.visible .entry k(.param .u64 pout)
{
.reg .b32 %r<3>;
.reg .b64 out;
ld.param.u64 out, [pout];
mov.u32 %r0, %ctaid.x;
mov.u32 %r1, %ctaid.y;
mad.lo.u32 %r0, %r1, 100, %r0;
atom.global.add.u32 %r2, [out], %r0;
ret;
}`))
	for skip, want := range map[uint64]uint32{0: 0 + 1 + 2 + 100 + 101 + 102, 4: 101 + 102, 5: 102, 6: 0, 1 << 40: 0} {
		h := &heap{}
		out := put(h, make([]uint32, 1))
		err := k.Run(h, Config{Grid: [3]uint32{3, 2, 1}, Block: [3]uint32{1, 1, 1}, Params: paramBlock(t, k, out), Workers: 2,
			Skip: skip})
		if got := get[uint32](h, out)[0]; err != nil || got != want {
			t.Errorf("without %d blocks: %d (%v), want %d", skip, got, err, want)
		}
	}
}

// TestReuse: a launch that takes over the registers of another, with more or fewer threads, is as good as the first.
func TestReuse(t *testing.T) {
	k := parse(t, kernel(`
		mov.u32 %r0, %ntid.x;
		add.u32 %r0, %r0, tid;
		setp.lt.u32 p, tid, 1;
		@p add.u32 %r0, %r0, 1000;
		st.global.u32 [at], %r0;`))
	for _, threads := range []int{64, 200, 33, 200} {
		h := &heap{}
		out := put(h, make([]uint32, threads))
		if err := k.Launch(h, [3]uint32{2, 1, 1}, [3]uint32{uint32(threads), 1, 1}, 0, paramBlock(t, k, out)); err != nil {
			t.Fatal(err)
		}
		for i, x := range get[uint32](h, out) {
			want := threads + i
			if i == 0 {
				want += 1000
			}
			if int(x) != want {
				t.Errorf("%d threads: thread %d has %d", threads, i, x)
			}
		}
	}
}
