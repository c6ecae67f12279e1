// Package probe measures the rates of a machine, keeps them, and finds them again.
//
//   - [Measure] measures the devices, the host's memory and a drive with the operations that training uses.
//   - [Rates] returns what was kept of this machine, or a guess that says so.
//
// Invariants: what a probe takes of memory and of a drive is given back when it ends, or by the next one.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// probeSeconds is the least time that each measurement takes.
const probeSeconds = 0.5

// Options say what is measured.
type Options struct {
	// Open opens devices, of which the first is measured, as well as copies to it from the second one, and that of the
	// host.
	Open     func(name string, accounts *hostmem.Accounts) (computes []device.Device, host device.Device, err error)
	Accounts *hostmem.Accounts
	Progress io.Writer // messages and progress for people; io.Discard for silence
	Terminal bool      // Progress is a terminal: bars instead of lines
	CacheDir string    // where the rates are kept; empty: nowhere
	Device   string    // auto, cpu, cuda or cuda:N
	// Paths are directories on the drives to measure, one on each, of which the probe takes some GiB for some seconds.
	// Each drive is measured alone, and then all at once; none: no drive is.
	Paths []string
	// Force has the rates of a busy machine take the place of those that were measured while it was less busy.
	Force bool

	load func() *float64 // for tests
}

// out takes the probe's messages.
func (o *Options) out() console.Out { return console.Out{Writer: o.Progress, Terminal: o.Terminal} }

// Measure measures the rates that plans are made from, with the operations that training uses and on random numbers: in
// some seconds, of a machine that should be idle. It keeps them in the cache directory, where Rates finds them; a
// directory that it must not write to is a warning, before it measures. Where they cannot be kept for another reason it
// returns them, and an error.
func Measure(ctx context.Context, o Options) (*plan.Machine, error) {
	sizes := func(dev device.Info) probeSizes {
		free, _, err := hostmem.Available()
		if err != nil {
			free = 0 // the least, on systems that do not tell
		}
		return probeSizesFor(dev, free)
	}
	return measureAndKeep(ctx, o, sizes, probeSeconds)
}

func measureAndKeep(ctx context.Context, o Options, sizes func(device.Info) probeSizes,
	seconds float64) (*plan.Machine, error) {
	if o.CacheDir != "" {
		if err := vfs.CheckDir(vfs.OS{}, o.CacheDir); err != nil {
			o.out().Say("warning: the rates will not be kept, and no plan will have them: the cache (MILLRACE_CACHE) %v", err)
			o.CacheDir = ""
		}
	}
	m, err := measure(ctx, o, sizes, seconds)
	if err != nil || o.CacheDir == "" {
		return m, err
	}
	path := filepath.Join(o.CacheDir, MachineFile)
	if old, ok := o.quieter(path, m); ok && !o.Force {
		o.out().Say("not kept: the rates in %s were measured %s; close other programs and measure again, or keep these with --force",
			path, atLoad(old.ProbeLoad))
		return m, nil
	}
	if err := plan.WriteMachine(path, *m); err != nil {
		return m, blame.BadRequest(fmt.Errorf("the rates are not kept in the cache (MILLRACE_CACHE): %w", err))
	}
	o.out().Say("kept in %s", path)
	return m, nil
}

// quieter returns the rates that are kept of the same device and drive, if they were measured while the machine was less busy than it
// is now.
func (o *Options) quieter(path string, m *plan.Machine) (old plan.Machine, ok bool) {
	old, err := plan.ReadMachine(path)
	isSame := err == nil && old.Name == m.Name && old.Kind == m.Kind && hasDrives(&old, m)
	return old, isSame && isBusy(m.ProbeLoad) && (old.ProbeLoad == nil || *old.ProbeLoad < *m.ProbeLoad)
}

// hasDrives reports whether a machine has the rates of all drives that another one has.
func hasDrives(m, other *plan.Machine) bool {
	pathsOf := func(m *plan.Machine) (paths []string) {
		for _, d := range m.Drives {
			paths = append(paths, d.Path)
		}
		if m.DiskPath != "" {
			paths = append(paths, m.DiskPath)
		}
		return paths
	}
	there := pathsOf(m)
	for _, path := range pathsOf(other) {
		if !slices.ContainsFunc(there, func(at string) bool { return vfs.SameDrive(at, path) }) {
			return false
		}
	}
	return len(other.Drives) == 0 || len(m.Drives) == len(other.Drives)
}

// isBusy says whether a load takes more than a quarter of the cores. A load that is not known does not.
func isBusy(load *float64) bool { return load != nil && *load > float64(runtime.NumCPU())/4 }

// atLoad says under which load rates were measured.
func atLoad(load *float64) string {
	if load == nil {
		return "at a load that is not known"
	}
	return fmt.Sprintf("at a load of %.1f on %s", *load, spelling.Count(runtime.NumCPU(), "core"))
}

// loadOf reads the load of the last minute from Linux's /proc/loadavg; nil: it has none.
func loadOf(loadavg string) *float64 {
	first, _, _ := strings.Cut(loadavg, " ")
	if load, err := strconv.ParseFloat(first, 64); err == nil && load >= 0 && load < 1e9 {
		return &load
	}
	return nil
}

// loadNow is the load that other programs put on the machine, before this one does; nil: it is not known.
func (o *Options) loadNow() *float64 {
	if o.load != nil {
		return o.load()
	}
	doc, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	return loadOf(string(doc))
}

// probeSizes holds the sizes of the operands.
type probeSizes struct {
	positions, hidden, intermediate int   // of the products: those of an MLP, the largest ones of a block
	lengths                         []int // of the sequences in attention, rising; the last one is of all its positions
	heads, kvHeads, headDim         int   // of attention
	bytes                           int64 // of copies and of element-wise operands: more than caches hold
	stateBytes                      int64 // that AdamW updates
	noiseElems                      int   // random numbers that are drawn; operands repeat them
	long                            int   // how many times as long as others the measurements of products and updates take
	ops                             operationSizes
	pieceElems, diskBytes           int64 // the disk writes and reads diskBytes in a pass, in pieces of pieceElems parameters
}

// probeSizesFor returns sizes that are large enough for the device to spend its time on work, not on starting it. On a
// GPU they are those of a block of Qwen2.5-7B, and attention in the shape of Llama-3-8B packed to 32,768 positions; on
// a CPU they are smaller, with heads of 64 as small models have them. hostFree is the free host memory in bytes: with a
// GPU, copies and AdamW take at most a quarter of it.
func probeSizesFor(dev device.Info, hostFree int64) probeSizes {
	s := probeSizes{positions: 1024, hidden: 1024, intermediate: 2048, lengths: []int{256, 1024, 2048}, heads: 16, kvHeads: 4, headDim: 64,
		bytes: 64 << 20, stateBytes: 256 << 20, noiseElems: 1 << 22, long: 1, pieceElems: plan.DefaultPieceElems,
		diskBytes: 1 << 30, ops: operationsFor(dev)}
	if dev.Unified {
		return s
	}
	s.positions, s.hidden, s.intermediate = 8192, 3584, 18944
	if dev.MemoryBytes < 12<<30 {
		s.positions = 2048 // the products then take 2.3 GB of the device at most, else 4.5
	}
	s.lengths, s.heads, s.kvHeads, s.headDim = []int{2048, 8192, 32768}, 32, 8, 128
	share := hostFree / 4
	s.bytes, s.stateBytes = min(1<<30, max(share/4, s.bytes)), min(2<<30, max(share/2, s.bytes))
	s.long = 2 // products heat a GPU, and updates share memory with copies
	return s
}

// prober measures one device and its host.
type prober struct {
	probeSizes
	Options
	ctx           context.Context
	device        device.Device // that computes
	hostDevice    device.Device
	seconds       float64
	compute, host device.Stream
	back          device.Stream // the device's second one, for copies to the host
	noise         map[device.Stream]device.Mem
	closers       []func() error
}

// checkPaths refuses what are not directories on drives of their own, as far as that can be told.
func checkPaths(paths []string) error {
	if len(paths) > plan.MaxDrives {
		return fmt.Errorf("--path: %d directories; name at most %d, each on a drive of its own", len(paths), plan.MaxDrives)
	}
	for i, path := range paths {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			return fmt.Errorf("--path: %s is not a directory; name one on the drive to measure, or none", path)
		}
		for _, other := range paths[:i] {
			if vfs.SameDrive(path, other) {
				return fmt.Errorf("--path: %s and %s are in one file system; name a directory on each drive", other, path)
			}
		}
	}
	return nil
}

func measure(ctx context.Context, o Options, sizes func(device.Info) probeSizes, seconds float64) (m *plan.Machine, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	if err := checkPaths(o.Paths); err != nil {
		return nil, err
	}
	if o.Device == "" || o.Device == "auto" {
		o.Device = "first"
	}
	all, host, err := o.Open(o.Device, o.Accounts)
	if err != nil {
		return nil, err
	}
	computes := all[0]
	defer func() {
		for _, other := range all[1:] {
			err = errors.Join(err, other.Close())
		}
	}()
	ask.IsOver = true
	p := &prober{probeSizes: sizes(computes.Info()), Options: o, ctx: ctx, device: computes, hostDevice: host, seconds: seconds}
	if host != computes {
		p.closers = append(p.closers, host.Close)
	}
	p.closers = append(p.closers, computes.Close)
	defer func() {
		for i := len(p.closers) - 1; i >= 0; i-- {
			err = errors.Join(err, p.closers[i]())
		}
	}()
	if p.compute, err = computes.NewStream("probe"); err != nil {
		return nil, err
	}
	p.closers = append(p.closers, p.compute.Close)
	if p.back, err = computes.NewStream("probe back"); err != nil {
		return nil, err
	}
	p.closers = append(p.closers, p.back.Close)
	if p.host, err = host.NewStream("probe host"); err != nil {
		return nil, err
	}
	p.closers = append(p.closers, p.host.Close)
	if err = p.makeNoise(); err != nil {
		return nil, err
	}
	m = &plan.Machine{Name: computes.Info().Name, Kind: computes.Info().Kind, ProbeLoad: o.loadNow()}
	if isBusy(m.ProbeLoad) {
		o.out().Say("other programs keep this machine busy (measured %s): what they take is missing in the result; close them, and measure again",
			atLoad(m.ProbeLoad))
	}
	bar := o.out().Bar("measuring")
	defer bar.End()
	steps := []func(*plan.Machine) error{p.products(tensor.F32), p.products(tensor.BF16), p.attention(tensor.F32),
		p.attention(tensor.BF16), p.starts, p.elements(tensor.F32), p.elements(tensor.BF16), p.operations(tensor.F32),
		p.operations(tensor.BF16), p.links,
		p.hostCopies, p.updates}
	if !computes.Info().Unified {
		m.DeviceMemoryBytes = cmp.Or(computes.Info().TotalBytes, computes.Info().MemoryBytes)
		m.HostMemoryBytes, _ = hostmem.Total() // 0 where it is not known
		steps = append(steps, p.deviceCopies, p.deviceUpdates8)
	}
	if len(all) > 1 && !computes.Info().Unified && device.Peers(all[:2]) {
		steps = append(steps, p.peerCopies(all[1]))
	}
	if len(p.Paths) > 0 {
		steps = append(steps, p.disk)
	}
	for i, step := range steps {
		bar.Set(int64(i), int64(len(steps)))
		if err := step(m); err != nil {
			return nil, err
		}
	}
	return m, m.Check()
}

// task is work that a stream does again and again, and the amount of what it is counted in.
type task struct {
	stream device.Stream
	amount int64
	work   func()
}

// rate returns the work of a task in a second, measured for at least that many seconds after a first run. On the
// host's cores it is that of the best of some windows: other programs only take away. A GPU is alone with its work and
// slows down as it gets warm, so that there it is that of all windows.
func (p *prober) rate(t task, seconds float64) (float64, error) {
	run := func(n int) (sec float64, err error) {
		if err := p.ctx.Err(); err != nil {
			return 0, err
		}
		begin := time.Now()
		for range n {
			t.work()
		}
		err = t.stream.Sync()
		return time.Since(begin).Seconds(), err
	}
	if _, err := run(1); err != nil {
		return 0, err
	}
	best, all, err := windows(seconds, run)
	if t.stream == p.host || p.device.Info().Unified {
		all = best
	}
	return float64(t.amount) * all, err
}

const (
	windowCount = 5 // windows that a rate is measured in
	mostSeconds = 4 // times as long as it should take, with other programs or with long runs
)

// windows runs something n times in each of windowCount windows that take that many seconds in all, and returns how
// often it ran in a second: in the best window, and in all. n grows until a window is long enough. Where a run takes
// longer than all windows should, there are fewer.
func windows(seconds float64, run func(n int) (sec float64, err error)) (best, all float64, err error) {
	n, runs, spent := 1, 0, 0.0
	for count := 0; count < windowCount && (count == 0 || spent*float64(count+1) < mostSeconds*seconds*float64(count)); {
		sec, err := run(n)
		if err != nil {
			return 0, 0, err
		}
		if count == 0 && sec < seconds/windowCount {
			n = int(float64(n)*min(1.2*seconds/windowCount/sec, 16)) + 1
			continue
		}
		count++
		runs += n
		spent += sec
		best = max(best, float64(n)/sec)
	}
	return best, float64(runs) / spent, nil
}

// together is rate for several streams at once.
func (p *prober) together(seconds float64, tasks ...task) ([]float64, error) {
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
				if sec := time.Since(begin).Seconds(); sec >= seconds {
					rates[i] = float64(t.amount) * float64(n) / sec
					return
				}
			}
		})
	}
	wg.Wait()
	return rates, errors.Join(errs...)
}

// place reserves memory on the device for the buffers that layout takes from an arena. It calls layout twice: to count,
// and with the memory.
func (p *prober) place(layout func(*device.Arena)) (release func(), err error) {
	count := device.NewArena(device.Mem{})
	layout(count)
	b, err := p.device.Alloc("probe", count.Peak())
	if err != nil {
		return nil, blame.BadRequest(err)
	}
	layout(device.NewArena(device.Whole(b)))
	return func() { b.Close() }, nil
}

// reserve takes host memory.
func (p *prober) reserve(n int64) (*hostmem.Region, error) {
	r, err := p.Accounts.Reserve("probe", n)
	if err != nil {
		return nil, blame.BadRequest(err)
	}
	if err := r.Populate(); err != nil {
		return nil, blame.BadRequest(errors.Join(err, r.Close()))
	}
	return r, nil
}

// region takes host memory that a device knows; bytes are the same memory.
func (p *prober) region(on device.Device, n int64) (mem device.Mem, bytes []byte, release func(), err error) {
	r, err := p.reserve(n)
	if err != nil {
		return mem, nil, nil, err
	}
	b, err := on.Register(r)
	if err != nil {
		r.Close()
		return mem, nil, nil, err
	}
	return device.Whole(b), r.Bytes(), func() { b.Close(); r.Close() }, nil
}
