package cpu

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/cores"
	"github.com/millrace/millrace/tensor"
)

// Options say how a Device computes. The zero value is a good choice.
type Options struct {
	Workers int // threads that share one operation; 0: one for each of Cores, else GOMAXPROCS
	// processors of the cores that workers are bound to, one each, and streams to the first; none: the system places them
	Cores    [][]int
	Level    *isa.Level        // instructions to use; nil: the fastest here (isa.Best)
	Accounts *hostmem.Accounts // where memory is counted; nil: accounts of its own
}

// Device computes on this machine's CPU. Its methods may be called from any goroutine.
type Device struct {
	name     string
	level    isa.Level
	workers  int
	cores    [][]int
	accounts *hostmem.Accounts
	crew     *crew        // what its streams share; see newCrew for the exception
	prepared atomic.Int64 // bytes of attention gradients that a crew begins with
	open     atomic.Int64 // buffers and streams that are not closed
}

var (
	_ device.Device     = (*Device)(nil)
	_ device.PeerCopier = (*Device)(nil)
)

// New makes a device. It fails when the level is more than this machine has, or when there is no memory for its
// scratch.
func New(o Options) (*Device, error) {
	d := &Device{workers: o.Workers, cores: o.Cores, accounts: o.Accounts}
	var note string
	if o.Level != nil {
		d.level = *o.Level
	} else {
		d.level, note = chosen(isa.Best(), gemm.TilesAgree)
	}
	if d.level > isa.Highest() {
		return nil, fmt.Errorf("cpu device: this machine has no %v; its highest level is %v", d.level, isa.Highest())
	}
	if o.Workers < 0 {
		return nil, fmt.Errorf("cpu device: %d workers; give 0 for all processors", o.Workers)
	}
	if d.workers == 0 {
		d.workers = len(d.cores)
	}
	if d.workers == 0 {
		d.workers = runtime.GOMAXPROCS(0)
	}
	if d.accounts == nil {
		d.accounts = hostmem.New()
	}
	d.name = fmt.Sprintf("CPU (%s, %v%s, %d workers)", processor(), d.level, note, d.workers)
	var err error
	d.crew, err = newCrew(d)
	return d, err
}

// chosen is the level of a device that is told none: the best one, and one without tiles where products by tiles have
// other bits than they should. The note for the device's name says so.
func chosen(best isa.Level, tilesAgree func() bool) (level isa.Level, note string) {
	if best == isa.AMX && !tilesAgree() {
		return isa.BestWithoutTiles(), " as AMX computes wrong bits"
	}
	return best, ""
}

// beginner runs first on each worker but the caller of an operation, which is a stream; it may be nil.
func (d *Device) beginner() func(worker int) {
	if len(d.cores) == 0 {
		return nil
	}
	return d.bind
}

// bind keeps the calling goroutine on the core of a worker until it ends, and its thread ends with it. A core that is
// refused is one that the system places the worker on: slower, and not wrong.
func (d *Device) bind(worker int) {
	if len(d.cores) > 0 {
		runtime.LockOSThread()
		_ = cores.Pin(cores.Core{Processors: d.cores[worker%len(d.cores)]})
	}
}

// Info implements device.Device.
func (d *Device) Info() device.Info {
	return device.Info{Name: d.name, Unified: true, ReachesHost: true, CutsRows: true,
		OverheadBytes:      d.crew.overheadBytes(),
		AttentionElemBytes: attentionElemBytes, MaxHeadDim: device.HeadDims{BF16: headDim, Other: headDim},
		MaxDeltaDim: deltaDim, Workers: d.workers, Numerics: fmt.Sprintf("CPU, %v", d.level)}
}

// Alloc implements device.Device. The memory is made resident at once, so that a shortage is an error here.
func (d *Device) Alloc(purpose string, bytes int64) (device.Buffer, error) {
	r, err := d.accounts.Reserve(purpose, bytes)
	if err != nil {
		return nil, fmt.Errorf("cpu device: %w", err)
	}
	if err := r.Populate(); err != nil {
		return nil, errors.Join(fmt.Errorf("cpu device: %w", err), r.Close())
	}
	d.open.Add(1)
	return &buffer{device: d, region: r, owned: true}, nil
}

// Register implements device.Device. It refuses a region that has no memory, since computing on it would kill the
// process.
func (d *Device) Register(r *hostmem.Region) (device.Buffer, error) {
	if r.AddressOnly() {
		return nil, fmt.Errorf("cpu device: register %s: the region is reserved without memory; rehearse on the null device", r.Purpose())
	}
	d.open.Add(1)
	return &buffer{device: d, region: r}, nil
}

// PrepareAttention implements device.Device. The memory is made resident at once.
func (d *Device) PrepareAttention(positions, heads, headDim int, _ tensor.DType) error {
	d.crew.attention.Lock()
	defer d.crew.attention.Unlock()
	d.prepared.Store(max(d.prepared.Load(), attentionGradBytes(positions, heads, headDim)))
	err := d.crew.equip(attentionBlock(headDim), d.prepared.Load())
	if err == nil {
		err = d.crew.headGrads.Populate()
	}
	if err != nil {
		return fmt.Errorf("cpu device: %w", err)
	}
	return nil
}

// CopiesFrom implements device.PeerCopier: memory of any CPU device is the host's.
func (d *Device) CopiesFrom(other device.Device) bool {
	_, isCPU := other.(*Device)
	return isCPU
}

// NewEvent implements device.Device.
func (d *Device) NewEvent() (device.Event, error) { return &event{}, nil }

// Close implements device.Device. It fails when buffers or streams are open.
func (d *Device) Close() error {
	if n := d.open.Load(); n != 0 {
		return fmt.Errorf("cpu device: close: %d buffers and streams are still open", n)
	}
	return d.crew.close()
}

// processor is the name of the CPU for people.
func processor() string {
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if key, name, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(name)
			}
		}
	}
	return runtime.GOARCH
}
