package cuda_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// block7B are the sizes of a block of 7B width, smallBlock those that an interpreter of kernels gets through.
var (
	block7B    = blockSizes{rows: 8192, hidden: 3584, inner: 18944, qkv: 4608}
	smallBlock = blockSizes{rows: 64, hidden: 48, inner: 80, qkv: 96}
)

type blockSizes struct{ rows, hidden, inner, qkv int }

// The products of a block of 7B width: what cuBLASLt thinks best, and what is fastest. A second device that takes
// over the choices computes the same bits.
func TestGPUTuning(t *testing.T) {
	needGPU(t)
	testTuning(t, gpuBlock, func(t *testing.T) *cuda.Device { return openGPU(t, library) })
}

// The same on a stand-in: both devices on one driver, as a process has them.
func TestTuning(t *testing.T) {
	gpu := standin.New(standin.Options{Load: loadOnce})
	testTuning(t, smallBlock, func(t *testing.T) *cuda.Device {
		d, err := cuda.Open(options(gpu, library, 0))
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
	if err := gpu.Check(); err != nil {
		t.Error(err)
	}
}

// TestGPUSustained asks whether the algorithm that is fastest on a card that has rested is the one that is fastest at
// its power limit: for the products of a block of 7B width, all that cuBLASLt offers, timed both ways.
func TestGPUSustained(t *testing.T) {
	needGPU(t)
	region, err := hostmem.New().Reserve("test", int64(2*gpuBlock.rows*gpuBlock.hidden))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, region)
	var all [][]cublaslt.Timed
	d := openGPU(t, library)
	d.TellTuned(func(timed []cublaslt.Timed) { all = append(all, timed) })
	tunedBlock(t, d, gpuBlock, region, nil)
	fmt.Printf(speedsHeader+"%-60s %10s %10s\n", "algorithms by product", "rested ms", "steady ms")
	var rested, steady float64 // seconds of what each way would choose, at the limit
	for i, timed := range all {
		shape, _, _ := strings.Cut(timed[0].Algorithm, ": ")
		fmt.Printf("%s\n", shape)
		cold, best := timed[0], timed[0]
		for k, a := range timed {
			_, name, _ := strings.Cut(a.Algorithm, ": ")
			mark := ""
			if a.Chosen {
				mark, best = "  chosen", a
			}
			if a.FirstSeconds < cold.FirstSeconds {
				cold = a
			}
			fmt.Printf("  %d.%d %-54.54s %10.4f %10.4f%s\n", i, k, name, a.FirstSeconds*1e3, a.SteadySeconds*1e3, mark)
		}
		rested, steady = rested+cold.SteadySeconds, steady+best.SteadySeconds
	}
	if len(all) == 0 || !(steady > 0) {
		t.Fatalf("%d products were tuned, in %g s", len(all), steady)
	}
	text, err := json.Marshal(map[string]any{"products": all})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("SUSTAINED %s\nSUMMARY %d products at the limit: %.3f ms by what is fastest on a rested card, %.3f by "+
		"what is fastest there (%.1f%% less)\n", text, len(all), rested*1e3, steady*1e3, 100*(1-steady/rested))
}

// testTuning tunes the products of a block on one device, and has a second one take over the choices.
func testTuning(t *testing.T, sizes blockSizes, open func(t *testing.T) *cuda.Device) {
	region, err := hostmem.New().Reserve("test", int64(2*sizes.rows*sizes.hidden))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, region)
	lines, first := tunedBlock(t, open(t), sizes, region, nil)
	again, second := tunedBlock(t, open(t), sizes, region, lines)
	if !slices.Equal(first, second) || !slices.Equal(lines, again) {
		t.Error("a device that takes over the choices computes other bits")
	}
}

// tunedBlock tunes the products of a block, but those that lines choose for, and returns all choices and what one of
// the products computes. It closes the device.
func tunedBlock(t *testing.T, d *cuda.Device, sizes blockSizes, region *hostmem.Region,
	lines []string) (chosen []string, bits []byte) {
	t.Helper()
	defer mustClose(t, d)
	if !d.Info().TunesProducts {
		t.Skip(d.Info().Warning)
	}
	rows, hidden, inner, qkv := sizes.rows, sizes.hidden, sizes.inner, sizes.qkv
	var x, y, wide, act, qkvs, wQKV, wWide, wDown, gWide device.Mat
	layout := func(a *device.Arena) {
		x, y = a.Mat(tensor.BF16, rows, hidden), a.Mat(tensor.BF16, rows, hidden)
		wide, act = a.Mat(tensor.BF16, rows, 2*inner), a.Mat(tensor.BF16, rows, inner)
		qkvs, wQKV = a.Mat(tensor.BF16, rows, qkv), a.Mat(tensor.BF16, qkv, hidden)
		wWide, wDown = a.Mat(tensor.BF16, 2*inner, hidden), a.Mat(tensor.BF16, hidden, inner)
		gWide = a.Mat(tensor.F32, 2*inner, hidden)
	}
	counts := device.NewArena(device.Mem{})
	layout(counts)
	buf, err := d.Alloc("arena", counts.Peak())
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, buf)
	arena := device.Whole(buf)
	layout(device.NewArena(arena))
	nt, tn := device.MatMulFlags{TransB: true}, device.MatMulFlags{TransA: true, Accumulate: true}
	onto := nt
	onto.Onto = x
	products := []device.Product{{C: qkvs, A: x, B: wQKV, MatMulFlags: nt}, {C: wide, A: x, B: wWide, MatMulFlags: nt},
		{C: y, A: act, B: wDown, MatMulFlags: onto}, {C: act, A: x, B: wDown}, {C: gWide, A: wide, B: x, MatMulFlags: tn}}

	host, err := d.Register(region)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, host)
	s, err := d.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	fill := func() { // a GPU multiplies zeros faster than numbers
		rng, numbers := rand.New(rand.NewPCG(1, 2)), hostmem.U16(region.Bytes())
		for i := range numbers {
			numbers[i] = tensor.BF16FromF32(float32(rng.NormFloat64()))
		}
		for done := int64(0); done < arena.Len; done += region.Len() {
			n := min(region.Len(), arena.Len-done)
			s.Copy(arena.Slice(done, n), device.Whole(host).Slice(0, n))
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	before := time.Duration(0)
	if lines == nil {
		before = productTime(t, d, products)
	} else if err := d.UseAlgorithms(lines); err != nil {
		t.Fatal(err)
	}
	if err := d.TuneProducts(products, arena); err != nil {
		t.Fatal(err)
	}
	chosen = d.Algorithms()
	fill()
	if lines == nil {
		fmt.Printf("SUMMARY %d products of a block of width %d: %v with cuBLASLt's first choices, %v with the fastest\n",
			len(products), hidden, before, productTime(t, d, products))
		for _, line := range chosen {
			t.Log(line)
		}
		fill()
	}
	s.MatMul(y, act, wDown, onto)
	s.Copy(device.Whole(host), y.Mem)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	return chosen, slices.Clone(region.Bytes())
}

// productTime measures the device's time for products, the fastest of three times.
func productTime(t *testing.T, d *cuda.Device, products []device.Product) time.Duration {
	t.Helper()
	s, err := d.NewStream("time")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	var events [2]device.Event
	for i := range events {
		if events[i], err = d.NewEvent(); err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, events[i])
	}
	best := time.Duration(0)
	for i := range 4 { // the first one loads kernels
		s.Record(events[0])
		for _, p := range products {
			s.MatMul(p.C, p.A, p.B, p.MatMulFlags)
		}
		s.Record(events[1])
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if took := events[1].Since(events[0]); i == 1 || i > 1 && took < best {
			best = took
		}
	}
	return best
}
