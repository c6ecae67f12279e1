package cuda

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// Options say which GPU to open, and with what.
type Options struct {
	Ordinal  int               // which GPU, as CUDA counts them: CUDA_VISIBLE_DEVICES has a say
	Accounts *hostmem.Accounts // count the little host memory that opening takes; nil: accounts of its own
	API      *driver.API       // nil: the API of the installed driver
	// Note gets lines for the user: why opening takes long, what is missing, that a product is computed otherwise. Any
	// goroutine that uses the device may call it. May be nil.
	Note func(line string)

	// OpenBLAS opens the library that multiplies matrices, with the device's context current; the device closes it.
	// nil: cuBLASLt, or where that is missing this program's own kernels.
	OpenBLAS func() (cublaslt.BLAS, error)
	// OwnProducts has this program's own kernels multiply even where there is a library.
	OwnProducts bool
	// NoPeers has the device neither copy from another GPU nor let another one copy from it.
	NoPeers bool
}

// Device is a GPU. Its methods may be called from any goroutine.
type Device struct {
	id       string // "cuda:0"
	info     device.Info
	api      *driver.API
	handle   driver.Device
	context  driver.Context
	accounts *hostmem.Accounts
	note     func(line string)
	blas     cublaslt.BLAS             // nil: no library
	kernels  map[operation][]*function // of each operation, in the order to try them
	codes    [2]driver.DevicePtr       // values of 8-bit codes: of first moments, of second ones
	opened   closers
	// kernelsAre says which kernels they are: "sm90a kernels 0123456789ab".
	kernelsAre string
	tellTuned  func([]cublaslt.Timed) // for tests: what TuneProducts compared; nil: not asked for
	warning    string                 // device.Info.Warning

	lost atomic.Pointer[error] // what ended the context
	open atomic.Int64          // buffers and streams that are not closed, and regions that it has pinned

	workspace workspace

	noPeers bool
	peersMu sync.Mutex
	peers   map[*Device]bool // those that CopiesFrom was asked about

	// pinBytes and pieceBytes are the most that one registration and one copy take, roundChunks the chunks of one round
	// of a sum; smaller in tests.
	pinBytes, pieceBytes int64
	roundChunks          int
}

var (
	_ device.Device     = (*Device)(nil)
	_ device.PeerCopier = (*Device)(nil)
)

// minMajor is the oldest compute capability that the kernels are compiled for: Ampere, the first with bf16.
const minMajor = 8

// driverReserveBytes is left of the free memory for what the driver takes later: libraries' kernels, which it loads
// when they are first used, and what allocations are rounded up by.
const driverReserveBytes = 512 << 20

// screenReserveBytes is left in addition on a GPU that has a screen, or that Windows shares with its Linux subsystem:
// windows that open during a run take it. A guess. Memory that the screen has already is not free.
const screenReserveBytes = 1 << 30

// Open opens a GPU. The error is one line: what is missing, and what to do.
func Open(o Options) (d *Device, err error) {
	d = &Device{id: fmt.Sprintf("cuda:%d", o.Ordinal), api: o.API, accounts: o.Accounts, pinBytes: maxPinBytes,
		pieceBytes: maxPieceBytes, roundChunks: partialChunks, noPeers: o.NoPeers, peers: map[*Device]bool{}}
	defer func() {
		if err != nil {
			// The first error says why; what could not be given back after it says nothing more.
			_ = d.opened.close()
			d, err = nil, fmt.Errorf("device cuda:%d: %w", o.Ordinal, err)
		}
	}()
	if d.accounts == nil {
		d.accounts = hostmem.New()
	}
	d.note = func(line string) {
		if o.Note != nil {
			o.Note("device " + d.id + ": " + line)
		}
	}
	if d.api == nil {
		if d.api, err = driver.Load(); err != nil {
			return d, err
		}
	}
	gpu, err := choose(d.api, o.Ordinal)
	if err != nil {
		return d, err
	}
	d.handle = gpu.handle
	if err := d.retain(); err != nil {
		return d, err
	}
	return d, d.with(func() error { return d.equip(gpu, o) })
}

// retain opens the primary context.
func (d *Device) retain() error {
	// A waiting thread sleeps: the host's cores have an optimizer to run. A context that is active already keeps its
	// flags.
	r := d.api.DevicePrimaryCtxSetFlags(d.handle, driver.CtxSchedBlockingSync)
	if r != primaryContextActive {
		if err := r.Err("cuDevicePrimaryCtxSetFlags"); err != nil {
			return err
		}
	}
	if err := d.api.DevicePrimaryCtxRetain(&d.context, d.handle).Err("cuDevicePrimaryCtxRetain"); err != nil {
		return err
	}
	d.opened.add(func() error {
		return d.check("cuDevicePrimaryCtxRelease", d.api.DevicePrimaryCtxRelease(d.handle))
	})
	return nil
}

const primaryContextActive driver.Result = 708

// equip loads the kernels and reserves what the device needs of its own. The context is current.
func (d *Device) equip(gpu *gpu, o Options) error {
	if err := d.loadKernels(gpu); err != nil {
		return err
	}
	if err := d.openBLAS(gpu, o); err != nil {
		return err
	}
	own, err := d.reserve()
	if err != nil {
		return err
	}
	var free, total uint64
	if err := d.check("cuMemGetInfo", d.api.MemGetInfo(&free, &total)); err != nil {
		return err
	}
	reserve := int64(driverReserveBytes)
	if gpu.kernelTimeout != 0 {
		reserve += screenReserveBytes
		d.note(fmt.Sprintf("kernels have a time limit there, as where a GPU has a screen, so %s are left free for that; "+
			"memory.device may name more", gib(reserve)))
	}
	products := "own matrix products"
	if d.blas != nil {
		products = d.blas.Name()
	}
	d.info = device.GPU()
	d.info.ReachesHost = gpu.reachesHost != 0
	is := fmt.Sprintf("compute capability %d.%d, %s", gpu.major, gpu.minor, products)
	d.info.Name = fmt.Sprintf("%s (%s, %s)", gpu.name, d.id, is)
	d.info.Kind = fmt.Sprintf("%s (%s)", gpu.name, is)
	d.info.MemoryBytes = max(int64(free)-reserve, 0) + own
	d.info.TotalBytes = int64(total)
	d.info.OverheadBytes = own + streamsPlanned*partialsBytes
	d.info.Workers = gpu.processors
	// The driver compiles the kernels, and the library chooses by the GPU: both are a part of what computes.
	d.info.Numerics = fmt.Sprintf("CUDA, %s, compute capability %d.%d, driver of CUDA %d.%d, %s, %s", gpu.name, gpu.major,
		gpu.minor, gpu.driverVersion/1000, gpu.driverVersion%1000/10, d.kernelsAre, products)
	d.info.TunesProducts = d.blas != nil
	d.info.Warning = d.warning
	return nil
}

// openBLAS takes the library for matrix products that there is. The context is current.
func (d *Device) openBLAS(gpu *gpu, o Options) (err error) {
	switch {
	case o.OwnProducts:
		return nil
	case o.OpenBLAS != nil:
		if d.blas, err = o.OpenBLAS(); err != nil {
			return err
		}
	default:
		library, err := cublaslt.Load(gpu.driverVersion)
		if err == nil {
			d.blas, err = library.Open(d.note)
		}
		if err != nil {
			d.warning = fmt.Sprintf("matrix products run on this program's own kernels, which are slower: %v", err)
			d.note(d.warning)
			return nil
		}
	}
	d.opened.add(func() error { return d.with(d.blas.Close) })
	return nil
}

// Info implements device.Device.
func (d *Device) Info() device.Info { return d.info }

// PrepareAttention implements device.Device: there is nothing to reserve, but heads may be larger than the kernels
// take.
func (d *Device) PrepareAttention(positions, heads, headDim int, t tensor.DType) error {
	if most := device.GPUMaxHeadDim.Of(t, false); headDim > most {
		return fmt.Errorf("device %s: heads of %d columns: the attention kernels take at most %d in %s; "+
			"set device to cpu", d.id, headDim, most, t)
	}
	return nil
}

// Close implements device.Device. It fails when buffers or streams are open, or another device has a buffer of a region
// that this one has pinned.
func (d *Device) Close() error {
	if n := d.open.Load(); n != 0 {
		return fmt.Errorf("device %s: close: %d buffers, streams and pinned regions are still open", d.id, n)
	}
	err := d.opened.close()
	if d.lost.Load() != nil {
		return nil // see release
	}
	return d.named(err)
}

func gib[T int64 | uint64](bytes T) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30))
}
