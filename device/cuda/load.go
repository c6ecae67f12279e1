package cuda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/internal/fault"
)

// slowLoad bounds the time of compiling of which the user is not told.
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
			return &kernelSet{set, hashOf(set.Names(), func(name string) []byte {
				k, _ := set.Find(name)
				return []byte(k.PTX)
			})}, nil
		})
	}
	return all
}()

// hashOf is a short hash of what is loaded for each name.
func hashOf(names []string, image func(name string) []byte) string {
	h := sha256.New()
	for _, name := range names {
		b := image(name)
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return fmt.Sprintf("%.6x", h.Sum(nil))
}

// loader hands kernels to the driver. It hands over machine code where the program carries code for the GPU's
// architecture; that takes a second. Otherwise, or where the driver refuses the code, it hands over PTX, which the
// driver compiles for a minute or finds in its cache (~/.nv/ComputeCache).
type loader struct {
	*Device
	set   *kernelSet
	code  map[string][]byte // by kernel; nil: no code for this architecture
	asPTX atomic.Int64      // kernels that were loaded as PTX

	driverVersion int32

	compiling sync.Once // begins with the first of them
	begin     time.Time
	patience  *time.Timer // tells the user that the driver compiles
}

// loadCode unpacks the machine code of an architecture. Nothing keeps it once it is loaded; tests that open many
// devices do.
var loadCode = kernels.LoadCode

// loadKernels loads all kernels now: an operation must not stop for a compiler. The context is current.
func (d *Device) loadKernels(gpu *gpu) error {
	target, err := kernels.Target(gpu.major, gpu.minor)
	if err != nil {
		return err
	}
	l := &loader{Device: d, driverVersion: gpu.driverVersion}
	if l.set, err = kernelSets[target](); err != nil {
		return err
	}
	architecture := kernels.Architecture(gpu.major, gpu.minor)
	if architecture != "" {
		if l.code, err = loadCode(architecture); err != nil {
			return err
		}
	}
	functions, err := l.all(gpu)
	if err != nil {
		if l.patience != nil {
			l.patience.Stop()
		}
		return err
	}
	d.kernels = tabulate(functions)
	names, inPTX := l.set.Names(), int(l.asPTX.Load())
	switch {
	case inPTX == len(functions):
		d.kernelsAre = fmt.Sprintf("%s kernels %s", target, l.set.hash)
	case inPTX == 0:
		d.kernelsAre = fmt.Sprintf("%s machine code %s", architecture, hashOf(names, func(name string) []byte { return l.code[name] }))
	default:
		d.kernelsAre = fmt.Sprintf("%s machine code %s, %d of %d kernels %s as %s PTX", architecture,
			hashOf(names, func(name string) []byte { return l.code[name] }), inPTX, len(functions), l.set.hash, target)
	}
	if l.patience != nil && !l.patience.Stop() {
		d.note(fmt.Sprintf("%d kernels were compiled in %.0f s", inPTX, time.Since(l.begin).Seconds()))
	}
	return nil
}

// all loads each kernel in a module of its own, several threads at once. The first error in the order of names is
// returned.
func (l *loader) all(gpu *gpu) ([]*function, error) {
	names := l.set.Names()
	functions, modules := make([]*function, len(names)), make([]driver.Module, len(names))
	l.opened.add(func() error { return l.with(func() error { return l.unload(modules) }) })
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
				k, _ := l.set.Find(names[i])
				if k.SharedBytes > gpu.sharedBytes {
					continue // a smaller variant does its work
				}
				errs[i] = l.with(func() (err error) {
					functions[i], err = l.function(k, &modules[i])
					return err
				})
				if errs[i] != nil {
					failed.Store(1)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(functions, func(f *function) bool { return f == nil }), nil
}

// function loads a kernel.
func (l *loader) function(k *kernels.Kernel, module *driver.Module) (*function, error) {
	if len(k.Args)+kernels.TrailingPointers > maxArgs {
		return nil, fmt.Errorf("kernel %s has %d arguments", k.Name, len(k.Args))
	}
	wrap := func(err error) error { return fmt.Errorf("kernel %s: %w", k.Name, err) }
	if err := l.module(k, module); err != nil {
		return nil, wrap(err)
	}
	f := &function{Kernel: k}
	entry := append([]byte(k.Entry), 0)
	if err := l.check("cuModuleGetFunction", l.api.ModuleGetFunction(&f.handle, *module, &entry[0])); err != nil {
		return nil, wrap(err)
	}
	if k.SharedBytes > plainSharedBytes {
		r := l.api.FuncSetAttribute(f.handle, driver.MaxDynamicSharedSizeBytes, int32(k.SharedBytes))
		if err := l.check("cuFuncSetAttribute", r); err != nil {
			return nil, wrap(err)
		}
	}
	return f, nil
}

// module loads a kernel's machine code, or else its PTX.
func (l *loader) module(k *kernels.Kernel, module *driver.Module) error {
	if code := l.code[k.Name]; code != nil {
		r := l.api.ModuleLoadData(module, &code[0])
		if !refusesCode(r) {
			return l.check("cuModuleLoadData", r)
		}
	}
	if l.driverVersion < driver.MinPTXVersion {
		return fmt.Errorf("there is no machine code that the driver takes for this GPU, and to compile kernels it must "+
			"support CUDA %s, not %s; %s",
			driver.FormatVersion(driver.MinPTXVersion), driver.FormatVersion(l.driverVersion), driver.Install)
	}
	l.asPTX.Add(1)
	l.compiling.Do(l.watch)
	text := append([]byte(k.PTX), 0)
	return l.check("cuModuleLoadData", l.api.ModuleLoadData(module, &text[0]))
}

// watch tells the user what takes long.
func (l *loader) watch() {
	l.begin = time.Now()
	l.patience = fault.AfterFunc(slowLoad, func() {
		keeps := "which it keeps for the next time"
		if os.Getenv("CUDA_CACHE_DISABLE") == "1" {
			keeps = "at each start, since CUDA_CACHE_DISABLE is 1"
		}
		l.note("the driver is compiling kernels for this GPU, " + keeps)
	})
}

// refusesCode reports whether a driver says that machine code is not for it or its GPU.
func refusesCode(r driver.Result) bool {
	switch r {
	case driver.InvalidImage, driver.NoBinaryForGPU, driver.UnsupportedPTXVersion:
		return true
	}
	return false
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
