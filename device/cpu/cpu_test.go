package cpu_test

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, o cpu.Options) *cpu.Device {
	t.Helper()
	d, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func fail(s device.Stream, err error) { s.(*cpu.Stream).Fail(err) }

// Every level passes the suite, and no number of workers changes a bit.
func TestConformance(t *testing.T) {
	for _, level := range isa.Available() {
		if cpu.RaceEnabled && level != isa.Best() {
			continue // the detector slows the reference down twenty times
		}
		t.Run(level.String(), func(t *testing.T) {
			var first map[string]uint64
			for _, workers := range []int{2, 1, 5} {
				if workers != 2 && (level != isa.Best() || testing.Short() || cpu.RaceEnabled) {
					break
				}
				digests := map[string]uint64{}
				t.Run(fmt.Sprint(workers), func(t *testing.T) {
					prefix := t.Name()
					openDevice := func() device.Device { return open(t, cpu.Options{Workers: workers, Level: &level}) }
					devicetest.Suite{
						Open: openDevice, OpenPeer: openDevice,
						Fail:  fail,
						Brief: cpu.RaceEnabled,
						Observe: func(test string, written []byte) {
							h := fnv.New64a()
							h.Write(written)
							digests[strings.TrimPrefix(test, prefix)] = h.Sum64()
						},
					}.Run(t)
				})
				if first == nil {
					first = digests
				}
				for test, d := range digests {
					if d != first[test] {
						t.Errorf("%s: the bits with %d workers are not those with 2", test, workers)
					}
				}
			}
		})
	}
}

// space is device memory that is carved up.
type space struct {
	arena *device.Arena
	mem   []byte
}

func newSpace(t testing.TB, d device.Device, n int64) *space {
	t.Helper()
	r, err := hostmem.New().Reserve("test", n)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Register(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		r.Close()
	})
	return &space{device.NewArena(device.Whole(b)), r.Bytes()}
}

func (s *space) bytes(m device.Mem) []byte { return s.mem[m.Off : m.Off+m.Len] }

// random fills m, which is dense, with numbers of the given size.
func (s *space) random(seed uint64, m device.Mat, scale float64) device.Mat {
	rng := rand.New(rand.NewPCG(seed, 0))
	b := s.bytes(m.Mem)
	if m.DType == tensor.BF16 {
		for i := range hostmem.U16(b) {
			hostmem.U16(b)[i] = tensor.BF16FromF32(float32(rng.NormFloat64() * scale))
		}
		return m
	}
	for i := range hostmem.F32(b) {
		hostmem.F32(b)[i] = float32(rng.NormFloat64() * scale)
	}
	return m
}

// Streams that use the workers at the same time get the bits that they get alone.
func TestStreamsTogether(t *testing.T) {
	d := open(t, cpu.Options{Workers: 3})
	t.Cleanup(func() { d.Close() })
	const n, rows, heads, headDim = 200_000, 300, 4, 32
	work := func(s device.Stream, sp *space, seed uint64) {
		a, b := sp.random(seed, sp.arena.Mat(tensor.F32, 150, 170), 1), sp.random(seed+1, sp.arena.Mat(tensor.F32, 170, 190), 1)
		qkv, dout := sp.random(seed+2, sp.arena.Mat(tensor.BF16, rows, 3*heads*headDim), 1), sp.random(seed+3, sp.arena.Mat(tensor.BF16, rows, heads*headDim), 1)
		grad := sp.random(seed+4, sp.arena.Mat(tensor.BF16, 1, n), 1)
		args := device.AdamWArgs{Weights: sp.arena.Mat(tensor.BF16, 1, n), Low: sp.arena.Mat(tensor.I16, 1, n), Grad: grad,
			M: sp.arena.Mat(tensor.F32, 1, n), V: sp.arena.Mat(tensor.F32, 1, n),
			AdamWScalars: device.AdamWScalars{ClipScale: 1, Decay: 0.99, OneMinusBeta1: 0.1, Beta2: 0.99, OneMinusBeta2: 0.01, StepSize: 0.01, SqrtBC2: 0.1, Eps: 1e-8}}
		c, tally, squares := sp.arena.Mat(tensor.F32, 150, 190), sp.arena.Take(device.TallyBytes), sp.arena.Take(8)
		out, lse, delta := sp.arena.Mat(tensor.BF16, rows, heads*headDim), sp.arena.Mat(tensor.F32, rows, heads), sp.arena.Mat(tensor.F32, rows, heads)
		dqkv, zeros := sp.arena.Mat(tensor.BF16, rows, 3*heads*headDim), sp.arena.Take(4*rows)
		third := func(m device.Mat, i int) device.Mat { return m.ColRange(i*heads*headDim, heads*headDim) }
		spec := device.AttentionSpec{Heads: heads, KVHeads: heads, HeadDim: headDim, Scale: 0.2, Docs: device.Docs{Positions: zeros, Start: zeros, End: zeros}}
		for range 3 {
			s.MatMul(c, a, b, device.MatMulFlags{Accumulate: true})
			s.AdamW(args, tally)
			s.Attention(out, lse, third(qkv, 0), third(qkv, 1), third(qkv, 2), spec)
			s.SumSquares(squares, args.M)
			s.AttentionGrad(third(dqkv, 0), third(dqkv, 1), third(dqkv, 2), dout, third(qkv, 0), third(qkv, 1), third(qkv, 2), out, lse, delta, spec)
		}
	}
	const streams = 3
	var alone, together [streams]*space
	for i := range streams {
		alone[i], together[i] = newSpace(t, d, 4<<20), newSpace(t, d, 4<<20)
		s, _ := d.NewStream("alone")
		work(s, alone[i], uint64(i))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var all [streams]device.Stream
	for i := range streams {
		all[i], _ = d.NewStream("together")
		work(all[i], together[i], uint64(i))
	}
	for i := range streams {
		if err := all[i].Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(alone[i].mem, together[i].mem) {
			t.Errorf("stream %d computes other bits when other streams run", i)
		}
	}
}

// panicEnv is set in a process that is there to panic.
const panicEnv = "MILLRACE_TEST_PANIC"

// A panic in an operation, here from a position that no table has, ends the program with status 1 and the stack:
// memory that other operations read may be half written.
func TestPanicEndsTheProgram(t *testing.T) {
	if os.Getenv(panicEnv) != "" {
		d := open(t, cpu.Options{Workers: 2})
		s, err := d.NewStream("compute")
		if err != nil {
			t.Fatal(err)
		}
		sp := newSpace(t, d, 1<<20)
		const rows = 500
		x, table, positions := sp.arena.Mat(tensor.F32, rows, 128), sp.arena.Mat(tensor.F32, 10, 64), sp.arena.Take(4*rows)
		hostmem.I32(sp.bytes(positions))[rows-1] = 10
		s.RoPE(x, x, device.Mat{}, 1, table, table, positions, false)
		t.Fatal(s.Sync())
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicEndsTheProgram$")
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), panicEnv+"=1"), &said
	cmd.Run()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("status %v: %s", cmd.ProcessState, said.String())
	}
	for _, part := range []string{"a fault of the program", "panic: runtime error: slice bounds out of range", "RoPE"} {
		if !strings.Contains(said.String(), part) {
			t.Errorf("no %q in %s", part, said.String())
		}
	}
}

// A stream that is closed takes no work.
func TestClosedStream(t *testing.T) {
	d := open(t, cpu.Options{Workers: 1})
	t.Cleanup(func() { d.Close() })
	s, err := d.NewStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Alloc("test", 64)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("it does")
		}
	}()
	s.Zero(device.Whole(b))
}

// All memory that the device takes is counted, and no operation takes more.
func TestOverhead(t *testing.T) {
	accounts := hostmem.New()
	const rows, heads, headDim = 300, 2, 512
	d := open(t, cpu.Options{Workers: 2, Accounts: accounts})
	t.Cleanup(func() { d.Close() })
	overhead := d.Info().OverheadBytes
	grads := (d.Info().AttentionElemBytes*rows*heads*headDim + hostmem.PageBytes - 1) / hostmem.PageBytes * hostmem.PageBytes
	if err := d.PrepareAttention(rows, heads, headDim, tensor.F32); err != nil {
		t.Fatal(err)
	}
	held, _ := accounts.Total()
	if overhead+grads < held || held < grads {
		t.Errorf("an overhead of %d bytes, of which %d are in the accounts", overhead, held)
	}
	sp := newSpace(t, d, 32<<20)
	s, _ := d.NewStream("s")
	mat := func(n int) device.Mat { return sp.arena.Mat(tensor.F32, rows, n) }
	docs := sp.arena.Take(4 * rows)
	spec := device.AttentionSpec{Heads: heads, KVHeads: heads, HeadDim: headDim, Scale: 1, Docs: device.Docs{Positions: docs, Start: docs, End: docs}}
	q, out, lse := mat(heads*headDim), mat(heads*headDim), mat(heads)
	s.Attention(out, lse, q, q, q, spec)
	s.AttentionGrad(mat(heads*headDim), mat(heads*headDim), mat(heads*headDim), out, q, q, q, out, lse, mat(heads), spec)
	widest := d.Info().MaxDeltaDim
	delta := device.DeltaSpec{KeyHeads: 1, Heads: 1, KeyDim: widest, ValueDim: widest, Docs: spec.Docs}
	chunks, cols := delta.States(rows)
	states := func() device.Mat { return sp.arena.Mat(tensor.F32, chunks, cols) }
	kept, qkv, gates := states(), mat(3*widest), mat(1)
	s.GatedDelta(mat(widest), kept, qkv, gates, gates, delta)
	s.GatedDeltaGrad(mat(3*widest), mat(1), mat(1), states(), mat(widest), qkv, gates, gates, kept, delta)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := d.Info().OverheadBytes; after != overhead {
		t.Errorf("the overhead grew from %d to %d bytes", overhead, after)
	}
	if cpu.RaceEnabled {
		return // streams have scratch of their own
	}
	if err := d.Close(); err == nil {
		t.Error("a device with an open buffer closes")
	}
	if _, peak := accounts.Total(); peak > overhead+grads {
		t.Errorf("a peak of %d bytes, planned %d", peak, overhead+grads)
	}
}

func TestOptions(t *testing.T) {
	if _, err := cpu.New(cpu.Options{Workers: -1}); err == nil {
		t.Error("-1 workers")
	}
	level := isa.Highest() + 1
	if _, err := cpu.New(cpu.Options{Level: &level}); err == nil {
		t.Error("a level that no machine has")
	}
	d := open(t, cpu.Options{})
	defer d.Close()
	if r, err := hostmem.New().Reserve("state", 1<<20, hostmem.AddressOnly); err == nil {
		if _, err := d.Register(r); err == nil {
			t.Error("a region without memory can be registered")
		}
		r.Close()
	}
	if i := d.Info(); i.Workers < 1 || !i.Unified || !strings.Contains(i.Name, isa.Best().String()) {
		t.Errorf("%+v", i)
	}
}
