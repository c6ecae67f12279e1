package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// copying is the benchmark with threads that stand for a GPU's copy engines. Updates are those of the program:
// operations on a stream of the CPU device, shared by its workers, on regions of hostmem.
type copying struct {
	threads int           // that copy: reading (uploads) and writing (gradients that come down) in turn
	workers int           // of the update
	link    float64       // GB/s of each thread; 0: as fast as it can
	window  time.Duration // of one measurement

	accounts *hostmem.Accounts
	regions  []*hostmem.Region // that threads copy from and to
}

// rates holds the rates of one measurement in GB/s; 0: it did not measure this one.
type rates struct {
	Update float64 `json:"update"`
	Read   float64 `json:"read"`  // of host memory, by all threads that read
	Write  float64 `json:"write"` // to host memory
}

// turn has the three measurements of a round.
type turn struct {
	Alone    rates `json:"update_alone"`
	Copies   rates `json:"copies_alone"`
	Together rates `json:"together"`
}

// updated is a form of the update, and its turns.
type updated struct {
	Form  string  `json:"form"`
	Level string  `json:"level"`
	Bytes float64 `json:"bytes"` // of a pass, read and written
	Turns []turn  `json:"turns"`

	run func() // one pass over all parameters
}

// results holds the fields that -json prints.
type results struct {
	Device        string     `json:"device"`
	Workers       int        `json:"workers"`
	Threads       int        `json:"copying_threads"`
	LinkGB        float64    `json:"link_gb_per_sec"`
	Params        int        `json:"parameters"`
	HugePageBytes int64      `json:"huge_page_bytes"`
	AskedBytes    int64      `json:"huge_page_asked_bytes"`
	Updates       []*updated `json:"updates"`
}

// Sizes of what a thread copies at once. It reads into a buffer that stays in its first cache. Go's copy stores
// a MiB past the caches, as an engine writes to memory without reading it.
const (
	readPiece  = 16 << 10
	writePiece = 1 << 20
	copiedEach = 128 << 20 // more than the caches
)

func (c *copying) run(n, rounds int, at []isa.Level, asJSON bool) {
	c.accounts = hostmem.New()
	for range c.threads {
		c.regions = append(c.regions, c.reserve(copiedEach))
	}
	out := results{Workers: c.workers, Threads: c.threads, LinkGB: c.link, Params: n}
	state := c.newState(n)
	for _, level := range slices.Backward(at) {
		d := harness.Must(cpu.New(cpu.Options{Workers: c.workers, Level: &level, Accounts: c.accounts}))
		out.Device = d.Info().Name
		out.Updates = append(out.Updates, state.updates(d, level)...)
	}
	for _, u := range out.Updates {
		u.run() // pages, caches and clocks
	}
	for range rounds {
		for _, u := range out.Updates {
			u.Turns = append(u.Turns, turn{c.measure(u, 0), c.measure(nil, c.threads), c.measure(u, c.threads)})
		}
	}
	out.HugePageBytes, out.AskedBytes, _ = hostmem.HugePages() // 0 where the system does not say
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(out); err != nil {
			panic(err)
		}
		return
	}
	out.print()
}

func (r *results) print() {
	fmt.Printf("\n%s, %d copying threads of %g GB/s, %d M parameters, %.0f%% of the memory in 2 MiB pages\n\n", r.Device,
		r.Threads, r.LinkGB, r.Params/1_000_000, 100*float64(r.HugePageBytes)/float64(max(r.AskedBytes, 1)))
	harness.Head("| form | instructions | update alone | under copies | ratio | reads alone | under the update | ratio |" +
		" writes alone | under the update | ratio |")
	for _, u := range r.Updates {
		fmt.Printf("| %s | %s |", u.Form, u.Level)
		for _, of := range []func(r rates) float64{
			func(r rates) float64 { return r.Update },
			func(r rates) float64 { return r.Read },
			func(r rates) float64 { return r.Write },
		} {
			var alone, together harness.Series
			for _, t := range u.Turns {
				alone, together = append(alone, of(t.Alone)+of(t.Copies)), append(together, of(t.Together))
			}
			if alone.Median() == 0 { // no thread writes
				fmt.Print(" | | |")
				continue
			}
			ratio := together.Over(alone)
			low, high := ratio.Quartiles()
			fmt.Printf(" %.1f | %.1f | %.2f (%.2f to %.2f) |", alone.Median(), together.Median(), ratio.Median(), low, high)
		}
		fmt.Println()
	}
}

// measure runs an update, unless it is nil, and copying threads, at once for a window or longer. With -cpu, time is
// that of the CPU: for the update a worker's, on average.
func (c *copying) measure(u *updated, threads int) (r rates) {
	var stop atomic.Bool
	var copies sync.WaitGroup
	moved := make([]copied, threads)
	start, used := time.Now(), harness.ProcessTime()
	for t := range threads {
		copies.Go(func() { moved[t] = c.copy(c.regions[t].Bytes(), t%2 == 0, &stop) })
	}
	passes, elapsed := 0, time.Duration(0)
	if u == nil {
		time.Sleep(c.window)
	}
	for u != nil && elapsed < c.window {
		u.run()
		passes++
		elapsed = time.Since(start)
	}
	stop.Store(true)
	copies.Wait()
	used = harness.ProcessTime() - used
	for t, m := range moved {
		used -= m.used
		if t%2 == 0 {
			r.Read += m.rate()
		} else {
			r.Write += m.rate()
		}
	}
	if u != nil {
		if cpuTime {
			elapsed = used / time.Duration(c.workers)
		}
		r.Update = float64(passes) * u.Bytes / elapsed.Seconds() / 1e9
	}
	return r
}

// copied counts the bytes and the time of a thread's copies.
type copied struct {
	bytes         int
	elapsed, used time.Duration // used: of the CPU
}

// rate is in GB/s.
func (c copied) rate() float64 {
	if cpuTime {
		return float64(c.bytes) / c.used.Seconds() / 1e9
	}
	return float64(c.bytes) / c.elapsed.Seconds() / 1e9
}

// copy reads or writes memory, over and over, until it is told to stop. It sleeps where it is ahead of the link.
func (c *copying) copy(memory []byte, reads bool, stop *atomic.Bool) (did copied) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	piece := writePiece
	if reads {
		piece = readPiece
	}
	buffer := make([]byte, piece)
	start, used := time.Now(), harness.ThreadTime()
	for !stop.Load() {
		at := did.bytes % len(memory)
		if reads {
			copy(buffer, memory[at:at+piece])
		} else {
			copy(memory[at:at+piece], buffer)
		}
		did.bytes += piece
		if c.link == 0 {
			continue
		}
		due := time.Duration(float64(did.bytes) / c.link) // GB/s are bytes per ns
		if ahead := due - time.Since(start); ahead > time.Millisecond {
			time.Sleep(ahead)
		}
	}
	did.elapsed, did.used = time.Since(start), harness.ThreadTime()-used
	return did
}

// reserve takes host memory, as the program does.
func (c *copying) reserve(bytes int64) *hostmem.Region {
	r := harness.Must(c.accounts.Reserve("benchmark", bytes))
	if err := r.Populate(); err != nil {
		panic(err)
	}
	return r
}

// state has a part's parameters, in extents as a store keeps them.
type state struct {
	n                                           int
	scalars                                     device.AdamWScalars
	hi, lo, half, m, v, m8, v8, m8s, v8s, tally *hostmem.Region
}

func (c *copying) newState(n int) *state {
	of := func(bytes int) *hostmem.Region { return c.reserve(int64(bytes)) }
	blocks := n / tensor.MomentBlock
	s := &state{n: n, scalars: scalars(), hi: of(2 * n), lo: of(2 * n), half: of(2 * n), m: of(4 * n), v: of(4 * n),
		m8: of(n), v8: of(n), m8s: of(4 * blocks), v8s: of(4 * blocks), tally: of(device.TallyBytes)}
	hi, lo, half := hostmem.U16(s.hi.Bytes()), hostmem.I16(s.lo.Bytes()), hostmem.U16(s.half.Bytes())
	m, v := hostmem.F32(s.m.Bytes()), hostmem.F32(s.v.Bytes())
	for i := range n {
		x := sample(i)
		hi[i], lo[i] = tensor.SplitF32(x)
		m[i], v[i], half[i] = x*1e-3, x*x*1e-4, tensor.BF16FromF32(x*0.01)
	}
	return s
}

// updates lists the forms of update to measure on a device. They have gradients in bf16, as streamed blocks do.
func (s *state) updates(d *cpu.Device, level isa.Level) []*updated {
	stream := harness.Must(d.NewStream("update"))
	vec := func(r *hostmem.Region, t tensor.DType) device.Mat {
		b := harness.Must(d.Register(r))
		return device.NewVec(device.Whole(b), t, int(r.Len()/t.Bytes()))
	}
	tally := vec(s.tally, tensor.I64).Mem
	sync := func() {
		if err := stream.Sync(); err != nil {
			panic(err)
		}
	}
	args := device.AdamWArgs{Weights: vec(s.hi, tensor.BF16), Low: vec(s.lo, tensor.I16), Grad: vec(s.half, tensor.BF16),
		M: vec(s.m, tensor.F32), V: vec(s.v, tensor.F32), AdamWScalars: s.scalars}
	args8 := device.AdamW8Args{Weights: args.Weights, Low: args.Low, Grad: args.Grad, M: vec(s.m8, tensor.U8),
		V: vec(s.v8, tensor.U8), MScale: vec(s.m8s, tensor.F32), VScale: vec(s.v8s, tensor.F32), AdamWScalars: s.scalars}
	return []*updated{
		{Form: "fp32 moments", Level: level.String(), Bytes: 26 * float64(s.n),
			run: func() { stream.AdamW(args, tally); sync() }},
		{Form: "8-bit moments", Level: level.String(), Bytes: (14 + 16.0/tensor.MomentBlock) * float64(s.n),
			run: func() { stream.AdamW8(args8, tally); sync() }},
	}
}
