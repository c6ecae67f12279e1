// Command adamw measures the update of parameters in host memory against copy(), in one interleaved run, and prints a
// markdown table. Both move the same bytes: a copy reads half of them and writes the other half.
package main

import (
	"flag"
	"fmt"
	"log"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

func main() {
	params := flag.Int("params", 30_000_000, "parameters; a power of two makes the arrays collide in the L1 cache of some CPUs")
	rounds := flag.Int("rounds", 7, "rounds; each runs everything once")
	level := flag.String("level", "", "instructions to measure: plain, avx2 or avx512; all that this machine has if empty")
	flag.BoolVar(&cpuTime, "cpu", false, "measure the threads' CPU time, for a machine that is busy with other things")
	flag.Parse()
	if err := run(*params, *rounds, *level); err != nil {
		log.Fatal(err)
	}
}

// contender is one row of the table.
type contender struct {
	name          string
	level         isa.Level
	bytesPerParam float64
	update        func(k *kernels.Table, lo, hi int)
	rates         []float64 // GB/s, one for each round
	ratios        []float64 // to the copy of the same round
}

// levels are the values of -level. The update has no code of its own for AVX512BF16.
func levels(name string) ([]isa.Level, error) {
	here := isa.Available()[:min(len(isa.Available()), int(isa.AVX512)+1)]
	if name == "" {
		return here, nil
	}
	for _, level := range here {
		if name == strings.ToLower(strings.NewReplacer("-", "", " Go", "").Replace(level.String())) {
			return []isa.Level{level}, nil
		}
	}
	return nil, fmt.Errorf("-level %s: this machine has no such instructions; it has %v", name, here)
}

func run(n, rounds int, level string) error {
	at, err := levels(level)
	if err != nil {
		return err
	}
	n -= n % (2 * tensor.MomentBlock) // whole blocks for each of two threads
	hi, err := mapped[uint16](n)
	if err != nil {
		return err
	}
	lo, _ := mapped[int16](n)
	p, _ := mapped[float32](n)
	m, _ := mapped[float32](n)
	v, _ := mapped[float32](n)
	g, _ := mapped[float32](n)
	half, err := mapped[uint16](n)
	if err != nil {
		return err
	}
	for i := range n {
		x := float32(int32(uint32(i)*2654435761)) / (1 << 31)
		p[i], m[i], v[i], g[i], half[i] = x, x*1e-3, x*x*1e-4, x*0.01, tensor.BF16FromF32(x*0.01)
		hi[i], lo[i] = tensor.SplitF32(x)
	}
	m8 := kernels.Moments8{}
	for _, p := range []*[]uint8{&m8.M, &m8.V} {
		if *p, err = mapped[uint8](n); err != nil {
			return err
		}
	}
	for _, p := range []*[]float32{&m8.MScale, &m8.VScale} {
		if *p, err = mapped[float32](n / tensor.MomentBlock); err != nil {
			return err
		}
	}
	kernels.Quantize8(m8.M, m8.MScale, m, true)
	kernels.Quantize8(m8.V, m8.VScale, v, false)
	s := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}.Scalars(10, 1e-5, 0.5, true)
	var all []*contender
	for _, level := range slices.Backward(at) {
		all = append(all,
			&contender{name: "split master, bf16 gradient", level: level, bytesPerParam: 26, update: func(k *kernels.Table, a, b int) {
				k.AdamWSplit(hi[a:b], lo[a:b], m[a:b], v[a:b], kernels.BF16(half[a:b]), &s)
			}},
			&contender{name: "split master, fp32 gradient", level: level, bytesPerParam: 28, update: func(k *kernels.Table, a, b int) {
				k.AdamWSplit(hi[a:b], lo[a:b], m[a:b], v[a:b], kernels.F32(g[a:b]), &s)
			}},
			&contender{name: "fp32", level: level, bytesPerParam: 28, update: func(k *kernels.Table, a, b int) {
				k.AdamWF32(p[a:b], m[a:b], v[a:b], g[a:b], &s)
			}},
			&contender{name: "split master, bf16 gradient, 8-bit moments", level: level, bytesPerParam: 14 + 16.0/tensor.MomentBlock,
				update: func(k *kernels.Table, a, b int) {
					k.AdamW8Split(hi[a:b], lo[a:b], m8.Slice(a, b), kernels.BF16(half[a:b]), &s)
				}},
			&contender{name: "split master, fp32 gradient, 8-bit moments", level: level, bytesPerParam: 16 + 16.0/tensor.MomentBlock,
				update: func(k *kernels.Table, a, b int) {
					k.AdamW8Split(hi[a:b], lo[a:b], m8.Slice(a, b), kernels.F32(g[a:b]), &s)
				}})
	}
	for _, threads := range []int{2, 1} {
		var copies []float64
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
		fmt.Printf("\n%d threads, %d M parameters, copy() %.1f GB/s\n\n| form | instructions | bytes/parameter | GB/s | M parameters/s | ratio to copy() |\n|---|---|---|---|---|---|\n",
			threads, n/1_000_000, median(copies))
		for _, c := range all {
			fmt.Printf("| %s | %v | %.4g | %.1f | %.1f | %.2f |\n", c.name, c.level, c.bytesPerParam, median(c.rates), 1000*median(c.rates)/c.bytesPerParam, median(c.ratios))
		}
	}
	return nil
}

// mapped is n elements off the heap, in huge pages where the system has them.
func mapped[T any](n int) ([]T, error) {
	var t T
	b, err := unix.Mmap(-1, 0, n*int(unsafe.Sizeof(t)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d elements: %w", n, err)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a wish
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), nil
}

var cpuTime bool // -cpu

// rate is GB/s of f over n elements, cut into one range for each thread. With -cpu the time is the mean of the
// threads' CPU times.
func rate(bytes float64, n, threads int, f func(a, b int)) float64 {
	start := time.Now()
	var used atomic.Int64
	var wg sync.WaitGroup
	for t := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := threadTime()
			f(t*n/threads, (t+1)*n/threads)
			used.Add(int64(threadTime() - before))
		})
	}
	wg.Wait()
	if cpuTime {
		return bytes / (time.Duration(used.Load()).Seconds() / float64(threads)) / 1e9
	}
	return bytes / time.Since(start).Seconds() / 1e9
}

// threadTime is the CPU time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
