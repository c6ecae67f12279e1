package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// probeSeconds is how long each of the measurements goes on at least.
const probeSeconds = 0.5

// ProbeOptions say what is measured.
type ProbeOptions struct {
	Device string // auto (default), cpu, cuda or cuda:N
	// Path is a directory on the drive to measure, of which the probe takes some GiB for some seconds; empty: no drive is.
	Path string
}

// Probe measures the rates that plans are made from, with the operations that training uses and in shapes of a small model: in
// some seconds, of a machine that should be idle. It keeps them in the cache directory, where later plans find them.
func Probe(ctx context.Context, env *Env, o ProbeOptions) (*plan.Machine, error) {
	m, err := probe(ctx, env, o, probeSizesFor, probeSeconds)
	if err != nil {
		return nil, err
	}
	if env.CacheDir != "" {
		path := filepath.Join(env.CacheDir, machineFile)
		if err := plan.WriteMachine(path, *m); err != nil {
			return nil, Request(fmt.Errorf("machine file: %w", err))
		}
		env.say("kept in %s", path)
	}
	return m, nil
}

// otherWork reads the load of the last minute from Linux's /proc/loadavg, and says whether it takes more than a quarter of the cores.
func otherWork(loadavg string, cores int) (load float64, isBusy bool) {
	first, _, _ := strings.Cut(loadavg, " ")
	load, err := strconv.ParseFloat(first, 64)
	return load, err == nil && load > float64(cores)/4
}

// probeSizes are those of the operands: bytes is larger than caches, so that memory is measured; diskBytes is what the disk
// writes and reads in a pass, in pieces of so many parameters.
type probeSizes struct {
	positions, hidden     int
	bytes                 int64
	pieceElems, diskBytes int64
}

// probeSizesFor are large enough for the device to be at work, and not at starting to work.
func probeSizesFor(dev device.Info) probeSizes {
	s := probeSizes{positions: 1024, hidden: 1024, bytes: 64 << 20, pieceElems: plan.DefaultPieceElems, diskBytes: 1 << 30}
	if !dev.Unified {
		s.positions, s.hidden, s.bytes = 8192, 4096, 256<<20
	}
	return s
}

// prober measures one device and its host.
type prober struct {
	probeSizes
	ctx           context.Context
	env           *Env
	dev           *devices
	path          string // of the disk
	seconds       float64
	compute, host device.Stream
	back          device.Stream // the device's second one, for copies to the host
	closers       []func() error
}

func probe(ctx context.Context, env *Env, o ProbeOptions, sizes func(device.Info) probeSizes, seconds float64) (m *plan.Machine, err error) {
	if info, err := os.Stat(o.Path); o.Path != "" && (err != nil || !info.IsDir()) {
		return nil, Request(fmt.Errorf("--path: %s is not a directory; name one on the drive to measure, or none", o.Path))
	}
	dev, err := env.open(o.Device)
	if err != nil {
		return nil, Request(err)
	}
	p := &prober{probeSizes: sizes(dev.computes.Info()), ctx: ctx, env: env, dev: dev, path: o.Path, seconds: seconds, closers: []func() error{dev.Close}}
	defer func() {
		for i := len(p.closers) - 1; i >= 0; i-- {
			err = errors.Join(err, p.closers[i]())
		}
	}()
	if p.compute, err = dev.computes.NewStream("probe"); err != nil {
		return nil, err
	}
	p.closers = append(p.closers, p.compute.Close)
	if p.back, err = dev.computes.NewStream("probe back"); err != nil {
		return nil, err
	}
	p.closers = append(p.closers, p.back.Close)
	if p.host, err = dev.host.NewStream("probe host"); err != nil {
		return nil, err
	}
	p.closers = append(p.closers, p.host.Close)
	if doc, err := os.ReadFile("/proc/loadavg"); err == nil { // where there is one
		if load, isBusy := otherWork(string(doc), runtime.NumCPU()); isBusy {
			env.say("other programs keep this machine busy (a load of %.1f on %s): what they take is missing in the result; close them, and measure again",
				load, spelling.Count(runtime.NumCPU(), "core"))
		}
	}
	m = &plan.Machine{Name: dev.computes.Info().Name}
	bar := env.bar("measuring")
	defer bar.end()
	steps := []func(*plan.Machine) error{p.products(tensor.F32), p.products(tensor.BF16), p.attention, p.starts, p.elements, p.links, p.updates}
	if !dev.computes.Info().Unified {
		steps = append(steps, p.deviceCopies)
	}
	if p.path != "" {
		steps = append(steps, p.disk)
	}
	for i, step := range steps {
		bar.set(int64(i), int64(len(steps)))
		if err := step(m); err != nil {
			return nil, err
		}
	}
	return m, m.Check()
}

// rate runs work on a stream again and again and returns how much of it is done in a second: a first run warms up, and the
// number of repetitions grows until they take long enough.
func (p *prober) rate(s device.Stream, amount int64, work func()) (float64, error) {
	work()
	if err := s.Sync(); err != nil {
		return 0, err
	}
	for n := 1; ; n *= 2 {
		if err := p.ctx.Err(); err != nil {
			return 0, err
		}
		begin := time.Now()
		for range n {
			work()
		}
		if err := s.Sync(); err != nil {
			return 0, err
		}
		if sec := time.Since(begin).Seconds(); sec >= p.seconds/2 {
			return float64(amount) * float64(n) / sec, nil
		}
	}
}

// task is work that a stream does again and again.
type task struct {
	stream device.Stream
	amount int64
	work   func()
}

// together is rate for several streams at once.
func (p *prober) together(tasks ...task) ([]float64, error) {
	for _, t := range tasks {
		t.work()
		if err := t.stream.Sync(); err != nil {
			return nil, err
		}
	}
	rates, errs := make([]float64, len(tasks)), make([]error, len(tasks))
	var wg fault.Group
	begin := time.Now()
	for i, t := range tasks {
		wg.Go(func() {
			for n := 1; ; n++ {
				t.work()
				if errs[i] = errors.Join(t.stream.Sync(), p.ctx.Err()); errs[i] != nil {
					return
				}
				if sec := time.Since(begin).Seconds(); sec >= p.seconds {
					rates[i] = float64(t.amount) * float64(n) / sec
					return
				}
			}
		})
	}
	wg.Wait()
	return rates, errors.Join(errs...)
}

// memory takes an arena on the device.
func (p *prober) memory(bytes int64) (*device.Arena, func(), error) {
	b, err := p.dev.computes.Alloc("probe", bytes)
	if err != nil {
		return nil, nil, Request(err)
	}
	return device.NewArena(device.Whole(b)), func() { b.Close() }, nil
}

// region takes host memory that a device knows.
func (p *prober) region(on device.Device, bytes int64) (device.Mem, func(), error) {
	r, err := p.env.Accounts.Reserve("probe", bytes)
	if err != nil {
		return device.Mem{}, nil, Request(err)
	}
	release := func() { r.Close() }
	if err := r.Populate(); err != nil {
		release()
		return device.Mem{}, nil, Request(err)
	}
	b, err := on.Register(r)
	if err != nil {
		release()
		return device.Mem{}, nil, err
	}
	return device.Whole(b), func() { b.Close(); r.Close() }, nil
}

// products measures forward, input gradient and weight gradient of one linear layer: their times add up as in a step.
func (p *prober) products(dtype tensor.DType) func(*plan.Machine) error {
	return func(m *plan.Machine) error {
		t, in, out := p.positions, p.hidden, 3*p.hidden
		a, release, err := p.memory(int64(4*(2*t*in+2*t*out+2*in*out)) + 6*device.ArenaAlign)
		if err != nil {
			return err
		}
		defer release()
		x, w, y := a.Mat(dtype, t, in), a.Mat(dtype, out, in), a.Mat(dtype, t, out)
		dx, dw := a.Mat(dtype, t, in), a.Mat(tensor.F32, out, in)
		r, err := p.rate(p.compute, 3*2*int64(t)*int64(in)*int64(out), func() {
			p.compute.MatMul(y, x, w, device.MatMulFlags{TransB: true})
			p.compute.MatMul(dx, y, w, device.MatMulFlags{})
			p.compute.MatMul(dw, y, x, device.MatMulFlags{TransA: true, Accumulate: true})
		})
		if dtype == tensor.F32 {
			m.F32FLOPsPerSec = r
		} else {
			m.BF16FLOPsPerSec = r
		}
		return err
	}
}

// attention measures one document that fills its row, forward and backward: seven products over half of the pairs.
func (p *prober) attention(m *plan.Machine) error {
	const headDim = 64
	t, heads := p.positions, max(p.hidden/headDim, 2)
	kv := heads / 2
	a, release, err := p.memory(int64(t)*int64(2*(4*heads+4*kv)*headDim+8*heads+12) + 16*device.ArenaAlign)
	if err != nil {
		return err
	}
	defer release()
	mat := func(heads int) device.Mat { return a.Mat(tensor.BF16, t, heads*headDim) }
	q, k, v, out := mat(heads), mat(kv), mat(kv), mat(heads)
	dq, dk, dv, dout := mat(heads), mat(kv), mat(kv), mat(heads)
	lse, delta := a.Mat(tensor.F32, t, heads), a.Mat(tensor.F32, t, heads)
	n := int64(t) * 4
	docs := device.Docs{Positions: a.Take(n), Start: a.Take(n), End: a.Take(n)}
	host, releaseHost, err := p.region(p.dev.computes, n)
	if err != nil {
		return err
	}
	defer releaseHost()
	if err := p.oneDocument(docs, host, t); err != nil {
		return err
	}
	spec := device.AttentionSpec{Heads: heads, KVHeads: kv, HeadDim: headDim, Scale: 0.125, Docs: docs}
	pairs := int64(t) * int64(t+1) / 2
	m.AttentionFLOPsPerSec, err = p.rate(p.compute, 7*2*pairs*int64(heads*headDim), func() {
		p.compute.Attention(out, lse, q, k, v, spec)
		p.compute.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
	})
	return err
}

// oneDocument writes the arrays of a row that is one document. Starts are zero already, as all new memory is.
func (p *prober) oneDocument(docs device.Docs, host device.Mem, t int) error {
	r, err := p.env.Accounts.Reserve("probe", 2*host.Len)
	if err != nil {
		return err
	}
	defer r.Close()
	ints := hostmem.I32(r.Bytes())
	for i := range t {
		ints[i], ints[t+i] = int32(i), int32(t)
	}
	b, err := p.dev.computes.Register(r)
	if err != nil {
		return err
	}
	defer b.Close()
	all := device.Whole(b)
	p.compute.Copy(docs.Positions, all.Slice(0, host.Len))
	p.compute.Copy(docs.End, all.Slice(host.Len, host.Len))
	return p.compute.Sync()
}

// starts measures how many operations a stream gets through that have next to no work.
func (p *prober) starts(m *plan.Machine) error {
	const elems = 32
	a, release, err := p.memory(2 * device.ArenaAlign)
	if err != nil {
		return err
	}
	defer release()
	x, y := a.Mat(tensor.F32, 1, elems), a.Mat(tensor.F32, 1, elems)
	m.DeviceOpsPerSec, err = p.rate(p.compute, 1, func() { p.compute.Add(y, y, x) })
	return err
}

// elements measures what is limited by the device's memory: a norm, a residual addition and the gated activation, forward.
func (p *prober) elements(m *plan.Machine) error {
	cols := p.hidden
	rows := max(int(p.bytes/int64(2*cols))/4, 1)
	a, release, err := p.memory(int64(rows)*int64(2*6*cols+4) + int64(4*cols) + 16*device.ArenaAlign)
	if err != nil {
		return err
	}
	defer release()
	x, y, w, rstd := a.Mat(tensor.BF16, rows, cols), a.Mat(tensor.BF16, rows, cols), a.Mat(tensor.BF16, 1, cols), a.Mat(tensor.F32, rows, 1)
	gateUp := a.Mat(tensor.BF16, rows, 2*cols)
	one := int64(rows) * int64(cols) * 2
	m.DeviceBytesPerSec, err = p.rate(p.compute, (2+3+3)*one, func() {
		p.compute.RMSNorm(y, rstd, x, w, 1, 1e-6)
		p.compute.Add(y, y, x)
		p.compute.SwiGLU(y, gateUp)
	})
	return err
}

// copies are the two tasks of copying to the device and back, each in memory of its own.
func (p *prober) copies() (up, down task, release func(), err error) {
	var releases []func()
	release = func() {
		for _, r := range releases {
			r()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	take := func() (there, here device.Mem) {
		if err != nil {
			return there, here
		}
		a, free, e := p.memory(p.bytes + device.ArenaAlign)
		if err = e; err != nil {
			return there, here
		}
		releases = append(releases, free)
		if here, free, err = p.region(p.dev.computes, p.bytes); err != nil {
			return there, here
		}
		releases = append(releases, free)
		return a.Take(p.bytes), here
	}
	there, here := take()
	from, to := take()
	up = task{p.compute, p.bytes, func() { p.compute.Copy(there, here) }}
	down = task{p.back, p.bytes, func() { p.back.Copy(to, from) }}
	return up, down, release, err
}

// links measures copies between host and device, one way and both ways at once, and on the host.
func (p *prober) links(m *plan.Machine) error {
	up, down, release, err := p.copies()
	if err != nil {
		return err
	}
	defer release()
	if m.UploadBytesPerSec, err = p.rate(up.stream, up.amount, up.work); err != nil {
		return err
	}
	if m.DownloadBytesPerSec, err = p.rate(down.stream, down.amount, down.work); err != nil {
		return err
	}
	if !p.dev.computes.Info().Unified { // where there is a link
		rates, err := p.together(up, down)
		if err != nil {
			return err
		}
		m.DuplexUploadBytesPerSec, m.DuplexDownloadBytesPerSec = rates[0], rates[1]
	}
	from, releaseFrom, err := p.region(p.dev.host, p.bytes)
	if err != nil {
		return err
	}
	defer releaseFrom()
	to, releaseTo, err := p.region(p.dev.host, p.bytes)
	if err != nil {
		return err
	}
	defer releaseTo()
	m.HostBytesPerSec, err = p.rate(p.host, 2*p.bytes, func() { p.host.Copy(to, from) })
	return err
}

// deviceCopies measures a copy on the device, which reads and writes.
func (p *prober) deviceCopies(m *plan.Machine) error {
	a, release, err := p.memory(2*p.bytes + 2*device.ArenaAlign)
	if err != nil {
		return err
	}
	defer release()
	from, to := a.Take(p.bytes), a.Take(p.bytes)
	m.DeviceCopyBytesPerSec, err = p.rate(p.compute, 2*p.bytes, func() { p.compute.Copy(to, from) })
	return err
}

// updates measures AdamW on split masters in host memory: alone, and while a device copies from host memory and to it.
func (p *prober) updates(m *plan.Machine) error {
	const perElem, touched = 2 + 2 + 2 + 4 + 4, 2*(2+2+4+4) + 2 // kept; read and written, the gradient read only
	n := int(p.bytes / perElem / tensor.Align * tensor.Align)
	mem, release, err := p.region(p.dev.host, int64(n)*perElem+hostmem.PageBytes)
	if err != nil {
		return err
	}
	defer release()
	at := int64(0)
	vec := func(t tensor.DType) device.Mat {
		v := device.NewVec(mem.Slice(at, int64(n)*t.Bytes()), t, n)
		at += v.Len
		return v
	}
	args := device.AdamWArgs{M: vec(tensor.F32), V: vec(tensor.F32), Weights: vec(tensor.BF16), Low: vec(tensor.I16), Grad: vec(tensor.BF16),
		AdamWScalars: device.AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 0.1, Beta2: 0.999, OneMinusBeta2: 0.001, StepSize: 1e-5, SqrtBC2: 1, Eps: 1e-8}}
	bad := mem.Slice(at, 8)
	update := task{p.host, touched * int64(n), func() { p.host.AdamW(args, bad) }}
	if m.AdamWBytesPerSec, err = p.rate(update.stream, update.amount, update.work); err != nil || p.dev.computes.Info().Unified {
		return err
	}
	up, down, releaseCopies, err := p.copies()
	if err != nil {
		return err
	}
	defer releaseCopies()
	rates, err := p.together(update, up, down)
	if err == nil {
		m.AdamWUnderCopiesBytesPerSec = rates[0]
	}
	return err
}
