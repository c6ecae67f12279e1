package cuda

import (
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

const (
	// sumChunk is the elements of one partial sum, which device.OptimizerOps defines.
	sumChunk = 65536
	// partialChunks bounds the partial sums that a stream holds; longer vectors take several rounds.
	partialChunks = 8192
	partialsBytes = 8 * partialChunks

	// streamsPlanned is for how many streams Info().OverheadBytes has scratch: a lane each for an engine, and some for
	// others.
	streamsPlanned = 16

	codesBytes = 256 * 4
)

// reserve takes the memory that the device needs whatever it is asked to do, and fills it. It returns how much that
// is; scratch of streams comes to it when they are opened. The context is current.
func (d *Device) reserve() (bytes int64, err error) {
	bytes = int64(deltaBytes + 2*codesBytes)
	var own driver.DevicePtr
	if err := d.allocate(&own, "workspace", bytes); err != nil {
		return 0, err
	}
	d.opened.add(func() error {
		return d.with(func() error { return d.check("cuMemFree", d.api.MemFree(own)) })
	})
	d.workspace.at = own
	tables := own + deltaBytes
	d.codes = [2]driver.DevicePtr{tables, tables + codesBytes}
	if err := d.fillCodes(); err != nil {
		return 0, err
	}
	r := d.api.EventCreate(&d.workspace.moved, driver.EventDisableTiming)
	if err := d.check("cuEventCreate", r); err != nil {
		return 0, err
	}
	d.opened.add(func() error {
		return d.with(func() error { return d.check("cuEventDestroy", d.api.EventDestroy(d.workspace.moved)) })
	})
	return bytes, nil
}

// fillCodes copies what codes stand for to the device.
func (d *Device) fillCodes() (err error) {
	r, err := d.accounts.Reserve("codes of moments, while opening", 2*codesBytes)
	if err != nil {
		return err
	}
	defer func() { err = firstOf(err, r.Close()) }()
	host := hostmem.F32(r.Bytes())
	copy(host, codeValues(true))
	copy(host[256:], codeValues(false))
	b, err := d.Register(r)
	if err != nil {
		return err
	}
	defer func() { err = firstOf(err, b.Close()) }()
	return d.once(func(s driver.Stream) error {
		return d.check("cuMemcpyHtoDAsync", d.api.MemcpyHtoDAsync(d.codes[0], b.(*buffer).host, 2*codesBytes, s))
	})
}

// codeValues decode each 8-bit code: seven decades from 10^-7 up to 1, each of twice as many equal steps
// as the one below it, of which the means count; 0; 1; and, where codes have a sign, the negatives of all but 1.
// Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (2015), in the form of bitsandbytes'
// functional.create_dynamic_map, whose roundings this follows; device/cpu/kernels has the same map, and a test
// compares them.
func codeValues(signed bool) []float32 {
	boundary := func(i, steps int) float32 { // as torch.linspace(0.1, 1, steps+1) computes it: fused, from both ends
		step := (1 - float32(0.1)) / float32(steps)
		if i < (steps+1)/2 {
			return float32(math.FMA(float64(step), float64(i), float64(float32(0.1))))
		}
		return float32(math.FMA(-float64(step), float64(steps-i), 1))
	}
	all := []float32{0, 1}
	for decade := range 7 {
		steps := 2 << decade
		if signed {
			steps = 1 << decade
		}
		for i := range steps {
			x := float32(math.Pow10(decade-6)) * ((boundary(i, steps) + boundary(i+1, steps)) / 2)
			all = append(all, x)
			if signed {
				all = append(all, -x)
			}
		}
	}
	slices.Sort(all)
	return all
}

// AdamW implements device.OptimizerOps.
func (s *Stream) AdamW(args device.AdamWArgs, tally device.Mem) {
	s.operands.AdamW(args, tally)
	s.enqueue(func() error {
		n := args.Weights.Cols
		if n == 0 {
			return nil
		}
		all := append(s.args[:0], ptr(args.Weights.Mem), low(args.Weights, args.Low), ptr(args.M.Mem), ptr(args.V.Mem), ptr(args.Grad.Mem),
			ptr(tally), i64(n))
		if args.Low.DType == tensor.I8 {
			all = draw(all, args.Draw)
		}
		return s.launch(named("adamw", masterName(args.Weights, args.Low), typeName(args.Grad.DType)),
			scalars(all, args.AdamWScalars)...)
	})
}

// AdamW8 implements device.OptimizerOps.
func (s *Stream) AdamW8(args device.AdamW8Args, tally device.Mem) {
	s.operands.AdamW8(args, tally)
	s.enqueue(func() error {
		n := args.Weights.Cols
		if n == 0 {
			return nil
		}
		all := append(s.args[:0], ptr(args.Weights.Mem), low(args.Weights, args.Low), ptr(args.M.Mem), ptr(args.V.Mem), ptr(args.MScale.Mem),
			ptr(args.VScale.Mem), ptr(args.Grad.Mem), ptr(tally), at(s.device.codes[0]))
		name := "adamw8"
		switch {
		case args.First4():
			name = "adamw4"
		case args.Second4():
			name = "adamw84"
		default:
			all = append(all, at(s.device.codes[1]))
		}
		all = draw(append(all, i64(n)), args.Draw)
		o := named(name, masterName(args.Weights, args.Low), typeName(args.Grad.DType))
		return s.launch(o, scalars(all, args.AdamWScalars)...)
	})
}

// masterName spells the master weights in names of kernels.
func masterName(weights, low device.Mat) string {
	switch {
	case weights.DType == tensor.F32:
		return "f32"
	case low.DType == tensor.I8:
		return "split24"
	}
	return "split"
}

// draw are the arguments that name random words.
func draw(to []arg, d device.Draw) []arg {
	key := uint64(d.Key[1])<<32 | uint64(d.Key[0])
	return append(to, i64(int(key)), i64(int(d.Part)), i64(int(d.First/device.DrawTogether)))
}

// low is the address of the low halves; weights in F32 have none, and their kernels do not read it.
func low(weights, low device.Mat) arg {
	if low.IsZero() {
		return ptr(weights.Mem)
	}
	return ptr(low.Mem)
}

// scalars are the last arguments of AdamW.
func scalars(to []arg, a device.AdamWScalars) []arg {
	return append(to, f32(a.ClipScale), f32(a.Decay), f32(a.OneMinusBeta1), f32(a.Beta2), f32(a.OneMinusBeta2), f32(a.StepSize), f32(a.SqrtBC2),
		f32(a.Eps))
}

// SumSquares implements device.OptimizerOps.
func (s *Stream) SumSquares(dst device.Mem, x device.Mat) {
	s.operands.SumSquares(dst, x)
	s.enqueue(func() error { return s.sum(named("sumsq", typeName(x.DType)), dst, x) })
}

// Sum implements device.HeadOps.
func (s *Stream) Sum(dst device.Mem, x device.Mat) {
	s.operands.Sum(dst, x)
	s.enqueue(func() error { return s.sum(named("sum", "f32"), dst, x) })
}

// sum adds up chunks side by side and then their sums in order, as many at a time as there is room for.
func (s *Stream) sum(o operation, dst device.Mem, x device.Mat) error {
	if x.Cols == 0 {
		return s.zero(dst.Slice(0, tensor.F64.Bytes()))
	}
	round := s.device.roundChunks * sumChunk
	for first := 0; first < x.Cols; first += round {
		n := min(round, x.Cols-first)
		size := x.DType.Bytes()
		piece := x.Slice(int64(first)*size, int64(n)*size)
		if err := s.launch(o, at(s.partials), ptr(piece), i64(n)); err != nil {
			return err
		}
		chunks := (n + sumChunk - 1) / sumChunk
		if err := s.launch(named("sum_fold"), ptr(dst), at(s.partials), i32(chunks), flag(first > 0)); err != nil {
			return err
		}
	}
	return nil
}
