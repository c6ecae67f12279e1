package cuda

import (
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/internal/fault"
)

// function is a kernel that the driver has compiled for the GPU.
type function struct {
	*kernels.Kernel
	handle driver.Function
}

// maxArgs is the most arguments that a kernel has, Triton's trailing pointers included.
const maxArgs = 32

// plainSharedBytes is the dynamic shared memory that every function may have; for more it must ask.
const plainSharedBytes = 48 << 10

// slowLoad is how long loading takes before somebody may ask what is going on.
const slowLoad = 2 * time.Second

// kernelSet is the kernels of a target, and a hash of all of their PTX.
type kernelSet struct {
	*kernels.Set
	hash string
}

// kernelSets unpacks the kernels of each target once in a process.
var kernelSets = func() map[string]func() (*kernelSet, error) {
	all := map[string]func() (*kernelSet, error){}
	for _, target := range kernels.Targets {
		all[target] = sync.OnceValues(func() (*kernelSet, error) {
			set, err := kernels.Load(target)
			if err != nil {
				return nil, err
			}
			h := sha256.New()
			for _, name := range set.Names() {
				k, _ := set.Find(name)
				fmt.Fprintf(h, "%s %d\n%s", name, len(k.PTX), k.PTX)
			}
			return &kernelSet{set, fmt.Sprintf("%.6x", h.Sum(nil))}, nil
		})
	}
	return all
}()

// loadKernels hands all kernels to the driver, which compiles them, or finds them in its cache (~/.nv/ComputeCache). All now: an
// operation must not stop for a compiler. The context is current.
func (d *Device) loadKernels(gpu *gpu) error {
	target, err := kernels.Target(gpu.major, gpu.minor)
	if err != nil {
		return err
	}
	set, err := kernelSets[target]()
	if err != nil {
		return err
	}
	d.kernelsAre = fmt.Sprintf("%s kernels %s", target, set.hash)
	begin := time.Now()
	patience := fault.AfterFunc(slowLoad, func() {
		keeps := "which it keeps for the next time"
		if os.Getenv("CUDA_CACHE_DISABLE") == "1" {
			keeps = "each time anew, since CUDA_CACHE_DISABLE is 1"
		}
		d.note("the driver is compiling kernels for this GPU, " + keeps)
	})
	names := set.Names()
	functions, modules := make([]*function, len(names)), make([]driver.Module, len(names))
	d.opened.add(func() error { return d.with(func() error { return d.unload(modules) }) })
	// Each in its own module, so that several threads can compile. The first error in the order of names is returned.
	var next, failed atomic.Int64
	var wg fault.Group
	errs := make([]error, len(names))
	for range min(runtime.GOMAXPROCS(0), len(names)) {
		wg.Go(func() {
			for failed.Load() == 0 {
				i := int(next.Add(1) - 1)
				if i >= len(names) {
					return
				}
				k, _ := set.Find(names[i])
				if k.SharedBytes > gpu.sharedBytes {
					continue // a smaller variant does its work
				}
				errs[i] = d.with(func() (err error) {
					functions[i], err = d.loadKernel(k, &modules[i])
					return err
				})
				if errs[i] != nil {
					failed.Store(1)
				}
			}
		})
	}
	wg.Wait()
	defer patience.Stop()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	functions = slices.DeleteFunc(functions, func(f *function) bool { return f == nil })
	d.kernels = tabulate(functions)
	if !patience.Stop() {
		d.note(fmt.Sprintf("%d kernels were compiled in %.0f s", len(functions), time.Since(begin).Seconds()))
	}
	return nil
}

func (d *Device) loadKernel(k *kernels.Kernel, module *driver.Module) (*function, error) {
	if len(k.Args)+kernels.TrailingPointers > maxArgs {
		return nil, fmt.Errorf("kernel %s has %d arguments", k.Name, len(k.Args))
	}
	wrap := func(err error) error { return fmt.Errorf("kernel %s: %w", k.Name, err) }
	text, entry := append([]byte(k.PTX), 0), append([]byte(k.Entry), 0)
	if err := d.check("cuModuleLoadData", d.api.ModuleLoadData(module, &text[0])); err != nil {
		return nil, wrap(err)
	}
	f := &function{Kernel: k}
	if err := d.check("cuModuleGetFunction", d.api.ModuleGetFunction(&f.handle, *module, &entry[0])); err != nil {
		return nil, wrap(err)
	}
	if k.SharedBytes > plainSharedBytes {
		r := d.api.FuncSetAttribute(f.handle, driver.MaxDynamicSharedSizeBytes, int32(k.SharedBytes))
		if err := d.check("cuFuncSetAttribute", r); err != nil {
			return nil, wrap(err)
		}
	}
	return f, nil
}

func (d *Device) unload(modules []driver.Module) error {
	var first error
	for _, m := range modules {
		if m == 0 {
			continue
		}
		if err := d.check("cuModuleUnload", d.api.ModuleUnload(m)); first == nil {
			first = err
		}
	}
	return first
}

// arg is an argument of a launch: its type is compared with the manifest's.
type arg struct {
	kind  kernels.Type
	value uint64 // as kernels.Kernel.Takes wants it
}

// ptr is the address of a matrix or vector, 0 for none.
func ptr(m device.Mem) arg {
	if m.Buf == nil {
		return arg{kind: kernels.Ptr}
	}
	return at(address(m))
}

func at(p driver.DevicePtr) arg { return arg{kernels.Ptr, uint64(p)} }

// i32 is a number of things, which kernels count in 32 bits.
func i32(n int) arg {
	if n > math.MaxInt32 || n < math.MinInt32 {
		panic(fmt.Sprintf("cuda device: %d does not fit in 32 bits", n))
	}
	return arg{kernels.I32, uint64(int64(n))}
}

func i64(n int) arg { return arg{kernels.I64, uint64(int64(n))} }

func f32(x float32) arg { return arg{kernels.F32, uint64(math.Float32bits(x))} }

func flag(b bool) arg {
	if b {
		return i32(1)
	}
	return i32(0)
}

// stride is from row to row of m. A single row has no next one: its stride is made one that every kernel likes.
func stride(m device.Mat) arg {
	if m.Rows <= 1 {
		return i32((m.Stride + 15) / 16 * 16)
	}
	return i32(m.Stride)
}

// launch enqueues a kernel of an operation: the first variant that takes the operands. It allocates nothing, given arguments that
// were appended to s.args. The context is current.
func (s *Stream) launch(o operation, args ...arg) error {
	done, err := s.launchIf(o, args...)
	if err == nil && !done {
		err = fmt.Errorf("no kernel of %v takes these operands", o)
	}
	return err
}

// launchIf is launch where there may be no kernel for the operands: then it reports false.
func (s *Stream) launchIf(o operation, args ...arg) (bool, error) {
	for _, f := range s.device.kernels[o] {
		if done, err := s.launchKernel(f, args); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// launchKernel enqueues a kernel if the arguments are as it wants them.
func (s *Stream) launchKernel(f *function, args []arg) (bool, error) {
	if len(args) != len(f.Args) {
		panic(fmt.Sprintf("cuda device: kernel %s takes %d arguments, not %d", f.Name, len(f.Args), len(args)))
	}
	values := s.values[:len(args)]
	for i, a := range args {
		if a.kind != f.Args[i].Type {
			panic(fmt.Sprintf("cuda device: kernel %s: argument %s is %v, not %v", f.Name, f.Args[i].Name, f.Args[i].Type, a.kind))
		}
		values[i] = a.value
	}
	if !f.Takes(values) {
		return false, nil
	}
	grid, err := f.Programs(values)
	if err != nil || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return err == nil, err
	}
	clear(s.values[len(args) : len(args)+kernels.TrailingPointers])
	r := s.device.api.LaunchKernel(f.handle, grid[0], grid[1], grid[2], uint32(f.Threads), 1, 1, uint32(f.SharedBytes),
		s.handle, &s.params[0], nil)
	return true, s.device.check("cuLaunchKernel", r)
}
