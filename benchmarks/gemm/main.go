//go:build onednn

// Command gemm compares package gemm with oneDNN, product by product, in one run: the two take turns, so that other
// work of the machine slows both. It prints a Markdown table.
//
//	apt-get install libdnnl2
//	go run -tags onednn ./benchmarks/gemm
package main

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"time"
	"unsafe"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/pool"
	"github.com/millrace/millrace/tensor"
)

// product is one line of the table.
type product struct {
	name           string
	m, n, k        int
	transA, transB bool
	add            bool
	ab, c          tensor.DType
}

// linear lists the three products of Y[T,out] = X[T,in] W[out,in]^T: forward, dX = dY W and dW += dY^T X. Activations
// have the operands' dtype, gradients of weights are fp32.
func linear(model string, tokens, in, out int, d tensor.DType) []product {
	name := func(s string) string { return fmt.Sprintf("%s %s", model, s) }
	return []product{
		{name: name("Y"), m: tokens, n: out, k: in, transB: true, ab: d, c: d},
		{name: name("dX"), m: tokens, n: in, k: out, ab: d, c: d},
		{name: name("dW"), m: out, n: in, k: tokens, transA: true, add: true, ab: d, c: tensor.F32},
	}
}

func products() []product {
	var all []product
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		for _, t := range []struct {
			name string
			a, b bool
		}{{"NN", false, false}, {"NT", false, true}, {"TN", true, false}, {"TT", true, true}} {
			all = append(all, product{name: "square " + t.name, m: 2048, n: 2048, k: 2048, transA: t.a, transB: t.b,
				ab: d, c: tensor.F32})
		}
		for _, tokens := range []int{512, 2048} {
			all = append(all, linear("SmolLM2 QKV", tokens, 576, 960, d)...)
			all = append(all, linear("SmolLM2 gate+up", tokens, 576, 3072, d)...)
			all = append(all, linear("SmolLM2 down", tokens, 1536, 576, d)...)
			all = append(all, linear("SmolLM2 head", tokens, 576, 6144, d)...)
		}
		for _, tokens := range []int{512, 2048} {
			all = append(all, linear("7B O", tokens, 4096, 4096, d)...)
			if tokens == 512 { // the larger ones take seconds each, and have the same blocks
				all = append(all, linear("7B gate", tokens, 4096, 14336, d)...)
				all = append(all, linear("7B down", tokens, 11008, 4096, d)...)
			}
		}
	}
	return all
}

func main() {
	threads := flag.Int("threads", 2, "workers of both")
	repeats := flag.Int("repeats", 9, "turns of each that are to count")
	cpuTime := flag.Bool("cpu", false, "with one thread: measure CPU time, for a machine that is busy with other things")
	only := flag.String("only", "", "regular expression on the line's text")
	flag.Parse()
	if *cpuTime {
		if *threads != 1 {
			fmt.Fprintln(os.Stderr, "-cpu is for -threads 1: with more, waiting would be counted as work")
			os.Exit(2)
		}
		now = harness.ThreadTime
	}
	filter := regexp.MustCompile(*only)
	lib, err := openOneDNN(*threads)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	runtime.LockOSThread() // OpenMP keeps a pool of threads for every thread that calls it
	p := pool.New(*threads, nil)
	defer p.Close()
	engine := gemm.New(isa.Best(), p)

	harness.Head("| product | operands -> C | M | N | K | ours GFLOP/s | oneDNN GFLOP/s | ratio | turns |")
	logs, lines := map[string]float64{}, map[string]int{}
	for _, x := range products() {
		line := fmt.Sprintf("%s | %v -> %v | %d | %d | %d", x.name, x.ab, x.c, x.m, x.n, x.k)
		if !filter.MatchString(line) {
			continue
		}
		ours, theirs, ratio, turns := compare(engine, lib, x, *threads, *repeats)
		if turns == 0 {
			fmt.Printf("| %s | - | - | - | 0 |\n", line)
			continue
		}
		fmt.Printf("| %s | %.0f | %.0f | %.2f | %d |\n", line, ours, theirs, ratio, turns)
		logs[x.ab.String()] += math.Log(ratio)
		lines[x.ab.String()]++
	}
	fmt.Println()
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		if n := lines[d.String()]; n > 0 {
			fmt.Printf("Geometric mean of the ratios, %v: %.3f\n", d, math.Exp(logs[d.String()]/float64(n)))
		}
	}
}

// compare returns the median rates and the median of the turns' ratios ours / oneDNN. With more than one thread, turns
// during which other programs ran do not count: oneDNN gives each thread a fixed share and we do not, so with a
// busy core the ratio would measure this difference. turns is the number of turns that counted.
func compare(e *gemm.Engine, lib *oneDNN, x product, threads, repeats int) (ours, theirs, ratio float64, turns int) {
	rows := func(r, c int, t bool) (int, int) {
		if t {
			return c, r
		}
		return r, c
	}
	op := gemm.Op{TransA: x.transA, TransB: x.transB, Accumulate: x.add}
	ar, ac := rows(x.m, x.k, x.transA)
	br, bc := rows(x.k, x.n, x.transB)
	op.A, op.B, op.C = newMat(x.ab, ar, ac), newMat(x.ab, br, bc), newMat(x.c, x.m, x.n)
	other := op
	other.C = newMat(x.c, x.m, x.n)
	for i := range x.m {
		for j := range x.n {
			other.C.Set(i, j, op.C.At(i, j))
		}
	}
	run, done := lib.prepare(other)
	defer done()

	e.Mul(op)
	run()
	check(op, other)
	flops := 2 * float64(x.m) * float64(x.n) * float64(x.k)
	calls := 1 + int(6e9/flops) // about 30 ms of fp32 on two cores
	var a, b, r harness.Series
	for try := 0; len(r) < repeats && try < 8*repeats; try++ {
		before, start := foreignTime(), time.Now()
		s := timed(calls, func() { e.Mul(op) })
		t := timed(calls, run)
		if threads > 1 && foreignTime()-before > time.Since(start)/20 {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		a, b, r = append(a, flops/s/1e9), append(b, flops/t/1e9), append(r, t/s)
	}
	if len(r) == 0 {
		return 0, 0, 0, 0
	}
	return a.Median(), b.Median(), r.Median(), len(r)
}

// foreignTime returns the CPU time that other programs have used on all cores so far, in steps of 10 ms (Linux).
func foreignTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	var user, nice, system, idle, iowait, irq, softirq, steal int64
	fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal)
	all := time.Duration(user+nice+system+irq+softirq+steal) * 10 * time.Millisecond
	return all - harness.ProcessTime()
}

// timed returns the mean time of a call. OpenMP's threads spin for some milliseconds after it; the pause keeps them,
// and ours, out of the other's turn, and the calls that are not counted let the threads settle on cores.
func timed(calls int, f func()) float64 {
	time.Sleep(20 * time.Millisecond)
	if calls > 1 {
		for settled := time.Now().Add(8 * time.Millisecond); time.Now().Before(settled); {
			f()
		}
	}
	start := now()
	for range calls {
		f()
	}
	return (now() - start).Seconds() / float64(calls)
}

// now reads the clock, which has an arbitrary zero.
var now = func() time.Duration { return time.Since(epoch) }

var epoch = time.Now()

func newMat(d tensor.DType, rows, cols int) gemm.Mat {
	words := make([]uint32, rows*cols*int(d.Bytes())/4+1)
	m := gemm.Mat{Data: unsafe.Pointer(&words[0]), DType: d, Rows: rows, Cols: cols, Stride: cols}
	for i := range rows {
		for j := range cols {
			m.Set(i, j, rand.Float32()-0.5)
		}
	}
	return m
}

// check stops a comparison of two different things.
func check(x, y gemm.Op) {
	_, _, k := x.Shape()
	for range 1000 {
		i, j := rand.IntN(x.C.Rows), rand.IntN(x.C.Cols)
		a, b := x.C.At(i, j), y.C.At(i, j)
		if tol := 0.01*math.Sqrt(float64(k)) + 0.01*math.Abs(float64(b)); math.Abs(float64(a-b)) > tol {
			fmt.Fprintf(os.Stderr, "C[%d,%d] is %v here and %v in oneDNN: %v\n", i, j, a, b, x)
			os.Exit(1)
		}
	}
}
