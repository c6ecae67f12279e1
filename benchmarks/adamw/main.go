// Command adamw measures the update of parameters in host memory against copy(), in one interleaved run, and prints a
// markdown table. Both move the same bytes: a copy reads half of them and writes the other half.
//
// With -copies it measures updates as the program does them, alone and while threads copy as a GPU's engines would.
package main

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

func main() {
	params := flag.Int("params", 30_000_000,
		"parameters; a power of two makes the arrays collide in the L1 cache of some CPUs")
	rounds := flag.Int("rounds", 7, "rounds; each runs everything once")
	level := flag.String("level", "", "instructions to measure: plain, avx2 or avx512; all that this machine has if empty")
	flag.BoolVar(&cpuTime, "cpu", false, "measure the threads' CPU time, for a machine that is busy with other things")
	copies := flag.Int("copies", 0, "measure updates by the program's workers alone, and under this many threads that "+
		"copy: they stand for a GPU's engines, and every other one writes")
	link := flag.Float64("link", 25, "GB/s of each thread of -copies; 0: as fast as it can")
	workers := flag.Int("workers", 0, "workers of the update with -copies; 0: one for each processor that threads leave")
	window := flag.Duration("window", 300*time.Millisecond, "one measurement with -copies")
	smallPages := flag.Bool("small-pages", false, "use no pages of 2 MiB")
	asJSON := flag.Bool("json", false, "print all turns of -copies as JSON")
	flag.Parse()
	at := isa.Available()[:min(len(isa.Available()), int(isa.AVX512)+1)] // no update has code of its own for AVX512BF16
	if *level != "" {
		at = []isa.Level{harness.Level("-level", *level, at)}
	}
	if *smallPages {
		if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
			panic(err)
		}
	}
	n := *params - *params%(2*tensor.MomentBlock) // whole blocks for each of two threads
	if *copies > 0 {
		if *workers == 0 {
			*workers = max(1, runtime.GOMAXPROCS(0)-*copies)
		}
		c := &copying{threads: *copies, workers: *workers, link: *link, window: *window}
		c.run(n, *rounds, at, *asJSON)
		return
	}
	run(n, *rounds, at)
}

// contender is one row of the table.
type contender struct {
	name          string
	level         isa.Level
	bytesPerParam float64
	update        func(k *kernels.Table, lo, hi int)
	rates         harness.Series // GB/s
	ratios        harness.Series // to the copies of the same round
}

func run(n, rounds int, at []isa.Level) {
	hi, lo, lo8, half := mapped[uint16](n), mapped[int16](n), mapped[int8](n), mapped[uint16](n)
	p, m, v, g := mapped[float32](n), mapped[float32](n), mapped[float32](n), mapped[float32](n)
	for i := range n {
		x := sample(i)
		p[i], m[i], v[i], g[i], half[i] = x, x*1e-3, x*x*1e-4, x*0.01, tensor.BF16FromF32(x*0.01)
		hi[i], lo[i] = tensor.SplitF32(x)
		lo8[i] = int8(lo[i] >> 8)
	}
	m8 := kernels.Moments8{M: mapped[uint8](n), V: mapped[uint8](n),
		MScale: mapped[float32](n / tensor.MomentBlock), VScale: mapped[float32](n / tensor.MomentBlock)}
	kernels.QuantizeFirst8(m8.M, m8.MScale, m)
	kernels.QuantizeSecond8(m8.V, m8.VScale, v, device.Draw{})
	coded := map[string]kernels.Moments8{"8+4": {M: m8.M, MScale: m8.MScale}, "4-bit": {M: mapped[uint8](n / 2),
		MScale: mapped[float32](n / tensor.MomentBlock4)}}
	for name, c := range coded {
		c.V, c.VScale = mapped[uint8](n/2), mapped[float32](n/tensor.MomentBlock4)
		if name == "4-bit" {
			kernels.QuantizeFirst4(c.M, c.MScale, m, device.Draw{})
		}
		kernels.QuantizeSecond4(c.V, c.VScale, v, device.Draw{})
		coded[name] = c
	}
	s := scalars()
	var all []*contender
	for _, level := range slices.Backward(at) {
		add := func(name string, bytesPerParam float64, update func(k *kernels.Table, a, b int)) {
			all = append(all, &contender{name: name, level: level, bytesPerParam: bytesPerParam, update: update})
		}
		add("split master, bf16 gradient", 26, func(k *kernels.Table, a, b int) {
			k.AdamWSplit(hi[a:b], lo[a:b], m[a:b], v[a:b], kernels.BF16(half[a:b]), &s)
		})
		add("split master, fp32 gradient", 28, func(k *kernels.Table, a, b int) {
			k.AdamWSplit(hi[a:b], lo[a:b], m[a:b], v[a:b], kernels.F32(g[a:b]), &s)
		})
		add("24 bits, bf16 gradient", 24, func(k *kernels.Table, a, b int) {
			k.AdamWSplit24(hi[a:b], lo8[a:b], m[a:b], v[a:b], kernels.BF16(half[a:b]), device.Draw{First: uint64(a)}, &s)
		})
		add("fp32", 28, func(k *kernels.Table, a, b int) { k.AdamWF32(p[a:b], m[a:b], v[a:b], g[a:b], &s) })
		add("split master, bf16 gradient, 8-bit moments", 14+16.0/tensor.MomentBlock, func(k *kernels.Table, a, b int) {
			k.AdamW8Split(hi[a:b], lo[a:b], m8.Slice(a, b), kernels.BF16(half[a:b]), device.Draw{First: uint64(a)}, &s)
		})
		add("24 bits, bf16 gradient, 8-bit moments", 12+16.0/tensor.MomentBlock, func(k *kernels.Table, a, b int) {
			k.AdamW8Split24(hi[a:b], lo8[a:b], m8.Slice(a, b), kernels.BF16(half[a:b]), device.Draw{First: uint64(a)}, &s)
		})
		for _, name := range []string{"8+4", "4-bit"} {
			c := coded[name]
			perParam := 10 + 2*float64(len(c.M)+len(c.V)+4*len(c.MScale)+4*len(c.VScale))/float64(n)
			add("split master, bf16 gradient, "+name+" moments", perParam, func(k *kernels.Table, a, b int) {
				k.AdamW8Split(hi[a:b], lo[a:b], c.Slice(a, b), kernels.BF16(half[a:b]), device.Draw{First: uint64(a)}, &s)
			})
			add("24 bits, bf16 gradient, "+name+" moments", perParam-2, func(k *kernels.Table, a, b int) {
				k.AdamW8Split24(hi[a:b], lo8[a:b], c.Slice(a, b), kernels.BF16(half[a:b]), device.Draw{First: uint64(a)}, &s)
			})
		}
		add("split master, fp32 gradient, 8-bit moments", 16+16.0/tensor.MomentBlock, func(k *kernels.Table, a, b int) {
			k.AdamW8Split(hi[a:b], lo[a:b], m8.Slice(a, b), kernels.F32(g[a:b]), device.Draw{First: uint64(a)}, &s)
		})
	}
	for _, threads := range []int{2, 1} {
		var copies harness.Series
		for _, c := range all {
			c.rates, c.ratios = nil, nil
		}
		for range rounds {
			for _, c := range all {
				if c.level == isa.Plain && len(c.rates) == 1 {
					continue // it is slow, and steady
				}
				// copy() runs before and after, so that a machine which slows down does so for both.
				before := rate(8*float64(n), n, threads, func(a, b int) { copy(p[a:b], g[a:b]) })
				got := rate(c.bytesPerParam*float64(n), n, threads, func(a, b int) { c.update(kernels.For(c.level), a, b) })
				after := rate(8*float64(n), n, threads, func(a, b int) { copy(p[a:b], g[a:b]) })
				copies = append(copies, before, after)
				c.rates = append(c.rates, got)
				c.ratios = append(c.ratios, got/((before+after)/2))
			}
		}
		fmt.Printf("\n%d threads, %d M parameters, copy() %.1f GB/s\n\n", threads, n/1_000_000, copies.Median())
		harness.Head("| form | instructions | bytes/parameter | GB/s | M parameters/s | ratio to copy() |")
		for _, c := range all {
			median := c.rates.Median()
			fmt.Printf("| %s | %v | %.4g | %.1f | %.1f | %.2f |\n", c.name, c.level, c.bytesPerParam, median,
				1000*median/c.bytesPerParam, c.ratios.Median())
		}
	}
}

// sample is a number in [-1, 1), and as random as the update needs.
func sample(i int) float32 { return float32(int32(uint32(i)*2654435761)) / (1 << 31) }

func scalars() device.AdamWScalars {
	return optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}.Scalars(10, 1e-5, 0.5, true)
}

// mapped returns n elements off the heap, in the pages that the program's memory has.
func mapped[T any](n int) []T {
	var t T
	r := harness.Must(hostmem.New().Reserve("benchmark", int64(n)*int64(unsafe.Sizeof(t))))
	return unsafe.Slice((*T)(unsafe.Pointer(&r.Bytes()[0])), n)
}

var cpuTime bool // -cpu

// rate returns the GB/s of f over n elements, cut into one range for each thread. With -cpu the time is the mean of the
// threads' CPU times.
func rate(bytes float64, n, threads int, f func(a, b int)) float64 {
	start := time.Now()
	var used atomic.Int64
	var wg sync.WaitGroup
	for t := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := harness.ThreadTime()
			f(t*n/threads, (t+1)*n/threads)
			used.Add(int64(harness.ThreadTime() - before))
		})
	}
	wg.Wait()
	if cpuTime {
		return bytes / (time.Duration(used.Load()).Seconds() / float64(threads)) / 1e9
	}
	return bytes / time.Since(start).Seconds() / 1e9
}
