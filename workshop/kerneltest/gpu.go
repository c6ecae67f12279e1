package kerneltest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/tensor"
)

// The launches on a real driver, for tests that run with MILLRACE_GPU=1 alone: `make gpu-check` packs them for a
// machine with a GPU. Each kernel runs three times, on operands with guards around them. Its bits must repeat, the
// guards must stay, and the results are compared with the interpreter's for the same PTX unless that would take hours,
// in addition to the comparisons of each test.

// gpu runs kernels through the driver API.
type gpu struct {
	api     *driver.API
	context driver.Context
	stream  driver.Stream
	code    map[string][]byte // machine code by kernel; nil: the PTX is loaded
	shared  int32             // bytes that a block may have
	what    string            // "NVIDIA H200, sm_90a machine code"

	functions  map[string]driver.Function
	modules    []driver.Module
	arena      driver.DevicePtr
	arenaBytes int
	lost       error // what ended the context, and the kernel that did
	leftOut    []string
	// load is what is loaded for a kernel; tests put another kernel in its place.
	load func(k *kernels.Kernel) []byte
}

// guardBytes are on both sides of each operand; guard is what they are.
const (
	guardBytes = 4096
	guard      = 0xa5
)

// repeats is the number of times a launch is repeated: a race shows as other bits.
const repeats = 3

// openGPU opens the first GPU for the kernels of a target: its machine code where the GPU takes it, unless text is
// wanted.
func openGPU(api *driver.API, target string, text bool) (g *gpu, err error) {
	g = &gpu{api: api, functions: map[string]driver.Function{}}
	g.load = func(k *kernels.Kernel) []byte {
		if g.code != nil {
			return g.code[k.Name]
		}
		return append([]byte(k.PTX), 0)
	}
	var d driver.Device
	var name [256]byte
	var major, minor int32
	if err := errors.Join(api.Init(0).Err("cuInit"), api.DeviceGet(&d, 0).Err("cuDeviceGet"),
		api.DeviceGetName(&name[0], int32(len(name)), d).Err("cuDeviceGetName"),
		api.DeviceGetAttribute(&major, driver.ComputeCapabilityMajor, d).Err("cuDeviceGetAttribute"),
		api.DeviceGetAttribute(&minor, driver.ComputeCapabilityMinor, d).Err("cuDeviceGetAttribute"),
		api.DeviceGetAttribute(&g.shared, driver.MaxSharedMemoryPerBlockOptin, d).Err("cuDeviceGetAttribute"),
		api.DevicePrimaryCtxRetain(&g.context, d).Err("cuDevicePrimaryCtxRetain")); err != nil {
		return nil, err
	}
	g.what, _, _ = strings.Cut(string(name[:]), "\x00")
	own, err := kernels.Target(int(major), int(minor))
	if err != nil {
		return nil, err
	}
	if architecture := kernels.Architecture(int(major), int(minor)); architecture != "" && own == target && !text {
		if g.code, err = kernels.LoadCode(architecture); err != nil {
			return nil, err
		}
		g.what += ", " + architecture + " machine code"
	} else {
		g.what += ", " + target + " PTX"
	}
	return g, g.with(func() error {
		return api.StreamCreateWithPriority(&g.stream, driver.StreamNonBlocking, 0).Err("cuStreamCreateWithPriority")
	})
}

func (g *gpu) with(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.api.CtxSetCurrent(g.context).Err("cuCtxSetCurrent"); err != nil {
		return err
	}
	return f()
}

// close gives back what was loaded.
func (g *gpu) close() error {
	return g.with(func() error {
		var errs []error
		for _, m := range g.modules {
			errs = append(errs, g.api.ModuleUnload(m).Err("cuModuleUnload"))
		}
		if g.arena != 0 {
			errs = append(errs, g.api.MemFree(g.arena).Err("cuMemFree"))
		}
		errs = append(errs, g.api.StreamDestroy(g.stream).Err("cuStreamDestroy"))
		return errors.Join(errs...)
	})
}

// function loads a kernel when it is first launched.
func (g *gpu) function(k *kernels.Kernel) (driver.Function, error) {
	if f, ok := g.functions[k.Name]; ok {
		return f, nil
	}
	image, entry := g.load(k), append([]byte(k.Entry), 0)
	var m driver.Module
	var f driver.Function
	if err := g.api.ModuleLoadData(&m, &image[0]).Err("cuModuleLoadData"); err != nil {
		return 0, err
	}
	g.modules = append(g.modules, m)
	if err := g.api.ModuleGetFunction(&f, m, &entry[0]).Err("cuModuleGetFunction"); err != nil {
		return 0, err
	}
	if k.SharedBytes > 48<<10 {
		if err := g.api.FuncSetAttribute(f, driver.MaxDynamicSharedSizeBytes, int32(k.SharedBytes)).Err("cuFuncSetAttribute"); err != nil {
			return 0, err
		}
	}
	g.functions[k.Name] = f
	return f, nil
}

// run launches a kernel and leaves its results in the matrices.
func (g *gpu) run(b *bench, l launch) {
	b.t.Helper()
	name := l.kernel.Name
	fail := func(format string, args ...any) {
		b.t.Helper()
		b.on.report.error(name, fmt.Sprintf(format, args...), math.Inf(1))
		b.t.Errorf("%s: %s", name, fmt.Sprintf(format, args...))
	}
	if g.lost != nil {
		b.t.Fatal(g.lost)
	}
	fields := b.used(l)
	before := make([][]byte, len(fields))
	for i, f := range fields {
		before[i] = bytes.Clone(f.bytes)
	}
	var want [][]byte
	if !b.large {
		if err := b.interpret(l); err != nil {
			b.t.Fatal(err)
		}
		for i, f := range fields {
			want = append(want, bytes.Clone(f.bytes))
			copy(f.bytes, before[i])
		}
	}
	if l.kernel.SharedBytes > int(g.shared) { // a smaller variant does its work there
		g.leftOut = append(g.leftOut, fmt.Sprintf("%s: %d bytes of shared memory, and a block of this GPU has %d", name, l.kernel.SharedBytes, g.shared))
		for i := range want {
			copy(fields[i].bytes, want[i])
		}
		return
	}
	var first [][]byte
	for range repeats {
		for i, f := range fields {
			copy(f.bytes, before[i])
		}
		err := g.with(func() error { return g.once(l, fields) })
		var own kernelFault
		if errors.As(err, &own) { // the other kernels can run
			fail("%v", own)
			if want == nil {
				b.t.Fatal("there are no results to continue with")
			}
			for i := range want {
				copy(fields[i].bytes, want[i])
			}
			return
		}
		if err != nil {
			g.lost = fmt.Errorf("%s: %w", name, err)
			b.on.report.error(name, err.Error(), math.Inf(1))
			b.t.Fatal(g.lost)
		}
		if first == nil {
			for _, f := range fields {
				first = append(first, bytes.Clone(f.bytes))
			}
		}
		for i, f := range fields {
			if !bytes.Equal(f.bytes, first[i]) {
				fail("operand %d has other bits the next time", i)
			}
		}
	}
	for i := range want {
		share, at := fields[i].differs(want[i], l.kernel)
		b.on.report.error(name, fmt.Sprint("the interpreter's operand ", i), share)
		if !(share <= 1) {
			b.t.Errorf("%s: operand %d, %s: %.3g times what is allowed between the GPU and the interpreter", name, i, at, share)
		}
	}
}

// kernelFault describes a fault of one kernel that leaves the context as it was.
type kernelFault string

func (f kernelFault) Error() string { return string(f) }

// used are the matrices that a launch has addresses of.
func (b *bench) used(l launch) []*field {
	var fields []*field
	for i, a := range l.kernel.Args {
		if f := b.holds(l.values[i]); a.Type == kernels.Ptr && f != nil && !slices.Contains(fields, f) {
			fields = append(fields, f)
		}
	}
	return fields
}

// holds returns the matrix that contains an address.
func (b *bench) holds(at uint64) *field {
	i := slices.IndexFunc(b.matrices, func(f *field) bool { return at >= f.at && at < f.at+apartBytes })
	if i < 0 {
		return nil
	}
	return b.matrices[i]
}

// once uploads the operands, launches, and downloads them. The context is current.
func (g *gpu) once(l launch, fields []*field) error {
	// Where the kernel does not ask for aligned operands, it gets such as are not.
	offsets, size := make([]int, len(fields)), 0
	for i, f := range fields {
		size = (size+guardBytes+255)/256*256 + guardBytes
		if len(l.kernel.Aligned) == 0 {
			size += int(f.dtype.Bytes())
		}
		offsets[i] = size
		size += len(f.bytes)
	}
	size += guardBytes
	if size > g.arenaBytes {
		if g.arena != 0 {
			if err := g.api.MemFree(g.arena).Err("cuMemFree"); err != nil {
				return err
			}
		}
		g.arena, g.arenaBytes = 0, 0
		if err := g.api.MemAlloc(&g.arena, uint64(size)).Err("cuMemAlloc"); err != nil {
			return err
		}
		g.arenaBytes = size
	}
	image := bytes.Repeat([]byte{guard}, size)
	for i, f := range fields {
		copy(image[offsets[i]:], f.bytes)
	}
	values := make([]uint64, len(l.values)+kernels.TrailingPointers)
	params := make([]unsafe.Pointer, len(values))
	for i := range values {
		params[i] = unsafe.Pointer(&values[i])
		if i >= len(l.values) {
			continue
		}
		values[i] = l.values[i]
		if l.kernel.Args[i].Type != kernels.Ptr || l.values[i] == 0 {
			continue
		}
		at := slices.IndexFunc(fields, func(f *field) bool { return l.values[i] >= f.at && l.values[i] < f.at+apartBytes })
		if at < 0 {
			return fmt.Errorf("argument %s is in no matrix", l.kernel.Args[i].Name)
		}
		values[i] = uint64(g.arena) + uint64(offsets[at]) + l.values[i] - fields[at].at
	}
	f, err := g.function(l.kernel)
	if err != nil {
		return kernelFault(err.Error())
	}
	var pinner runtime.Pinner // what C reads while Go may move stacks
	defer pinner.Unpin()
	pinner.Pin(&values[0])
	pinner.Pin(&params[0])
	if err := g.api.MemcpyHtoDAsync(g.arena, unsafe.Pointer(&image[0]), uint64(size), g.stream).Err("cuMemcpyHtoDAsync"); err != nil {
		return err
	}
	if l.grid[0] != 0 && l.grid[1] != 0 && l.grid[2] != 0 {
		r := g.api.LaunchKernel(f, l.grid[0], l.grid[1], l.grid[2], uint32(l.kernel.Threads), 1, 1, uint32(l.kernel.SharedBytes), g.stream,
			&params[0], nil)
		if err := r.Err("cuLaunchKernel"); err != nil {
			return err
		}
	}
	after := make([]byte, size)
	if err := g.api.MemcpyDtoHAsync(unsafe.Pointer(&after[0]), g.arena, uint64(size), g.stream).Err("cuMemcpyDtoHAsync"); err != nil {
		return err
	}
	if err := g.api.StreamSynchronize(g.stream).Err("cuStreamSynchronize"); err != nil {
		return err
	}
	for i, f := range fields {
		copy(f.bytes, after[offsets[i]:])
		copy(after[offsets[i]:], image[offsets[i]:][:len(f.bytes)])
	}
	if !bytes.Equal(after, image) {
		return kernelFault("it wrote outside of its operands")
	}
	return nil
}

// nearly bounds the difference between a number that a kernel wrote and the interpreter's, as a share of the largest
// one. Attention in bf16 rounds weights and gradients of scores to bf16 before it multiplies by them, and sums the
// products in fp32. A GPU's ex2 is approximate, so some of these are rounded the other way: one term of a sum, off by
// 1/256 of itself. An H100 was off by 1.6e-4 at most, in the gradients of keys, where kernels in fp32 have 1e-4.
func nearly(d tensor.DType, kernel *kernels.Kernel) float64 {
	if d == tensor.F32 && strings.Contains(kernel.Name, ".bf16.") {
		return 4e-4
	}
	return map[tensor.DType]float64{tensor.F32: 1e-4, tensor.BF16: 1e-2, tensor.F64: 1e-12}[d]
}

// differs measures the largest difference of the matrix from other bytes, as a share of what a kernel is allowed, and
// where. Nothing is allowed between rows, and for kernels whose bits are defined; NaNs are equal.
func (f *field) differs(want []byte, kernel *kernels.Kernel) (share float64, at string) {
	if bytes.Equal(f.bytes, want) {
		return 0, ""
	}
	other := *f
	other.bytes = want
	limit := nearly(f.dtype, kernel)
	most := 1.0
	for r := range f.rows {
		for c := range f.cols {
			if w := math.Abs(other.number(r, c)); !math.IsInf(w, 0) && w > most {
				most = w
			}
		}
	}
	for r := range f.rows {
		for c := range f.cols {
			got, w := f.number(r, c), other.number(r, c)
			if got == w || got != got && w != w {
				continue
			}
			s := math.Abs(got-w) / (limit * most)
			if kernel.Exact || limit == 0 || s != s {
				s = math.Inf(1)
			}
			if s > share {
				share, at = s, fmt.Sprintf("[%d, %d] = %v, want %v", r, c, got, w)
			}
		}
	}
	size := int(f.dtype.Bytes())
	for i, x := range f.bytes {
		if i/size%f.stored >= f.cols && x != want[i] {
			return math.Inf(1), fmt.Sprintf("byte %d between the rows", i)
		}
	}
	return share, at
}

// number is an element of any type.
func (f *field) number(r, c int) float64 {
	size := int(f.dtype.Bytes())
	at := f.bytes[(r*f.stored+c)*size:]
	switch f.dtype {
	case tensor.F32, tensor.BF16, tensor.F64:
		return f.get(r, c)
	}
	x := 0.0
	for i := range size {
		x += float64(at[i]) * math.Exp2(float64(8*i)) // exact, except the last bits of 64
	}
	return x
}

// gpuRun is the environment variable that names what GPUOnce runs: "code MatMul".
const gpuRun = "MILLRACE_GPU_RUN"

// WrapVariable is the environment variable with a command line, split at spaces, to which each process of [GPU] is
// given as further arguments: that of a sanitizer. Sanitizers follow a program's children through libc, which Go does
// not use to start processes.
const WrapVariable = "MILLRACE_GPU_WRAP"

// process is the command of one run.
func process(once, form, run string) *exec.Cmd {
	args := append(strings.Fields(os.Getenv(WrapVariable)), os.Args[0], "-test.run=^"+once+"$", "-test.v",
		"-test.count=1")
	c := exec.Command(args[0], args[1:]...)
	c.Env = append(os.Environ(), gpuRun+"="+form+" "+run)
	return c
}

// GPU runs every kernel on the GPU: "code" as the program loads it there, "ptx" as the driver compiles the PTX that all
// GPUs take. Each run is a process of this test binary, in which the test named once calls [GPUOnce]: a kernel that
// ends the context costs only that run's launches.
func GPU(t *testing.T, once string) {
	for _, form := range []string{"code", "ptx"} {
		t.Run(form, func(t *testing.T) {
			var mu sync.Mutex
			all, ran := map[string]outcome{}, 0
			t.Run("runs", func(t *testing.T) {
				for _, r := range runs {
					t.Run(r.name, func(t *testing.T) {
						t.Parallel()
						out, err := process(once, form, r.name).CombinedOutput()
						mu.Lock()
						defer mu.Unlock()
						ran++
						found, rest := parseOutcomes(string(out))
						for name, o := range found {
							before := all[name]
							o.launches, o.failed = o.launches+before.launches, o.failed || before.failed
							if before.worst > o.worst {
								o.worst, o.where = before.worst, before.where
							}
							all[name] = o
						}
						if err != nil {
							t.Errorf("%v\n%s", err, rest)
						}
					})
				}
			})
			names := make([]string, 0, len(all))
			failed := 0
			for name, o := range all {
				names = append(names, name)
				if o.failed {
					failed++
				}
			}
			slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(all[b].worst, all[a].worst), cmp.Compare(a, b)) })
			for _, name := range names {
				fmt.Printf("%-34s %4d launches, worst error %8.2g of what is allowed (%s)\n", name, all[name].launches, all[name].worst, all[name].where)
			}
			set, err := sets["sm80"]()
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range set.Names() {
				if _, ok := all[name]; !ok && ran == len(runs) { // else -run has chosen some
					t.Errorf("%s did not run", name)
				}
			}
			worst := outcome{}
			if len(names) > 0 {
				worst = all[names[0]]
				worst.where = names[0] + ", " + worst.where
			}
			fmt.Printf("SUMMARY %d of %d kernels ran, %d failed; the worst error is %.2g of what is allowed: %s\n", len(all), len(set.Names()),
				failed, worst.worst, worst.where)
		})
	}
}

// outcomeLine is the format in which a process tells of a kernel.
const outcomeLine = "KERNEL\t%s\t%d\t%t\t%g\t%s\n"

func parseOutcomes(out string) (map[string]outcome, string) {
	found := map[string]outcome{}
	var rest strings.Builder
	for line := range strings.Lines(out) {
		part := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 6)
		var o outcome
		if len(part) != 6 || part[0] != "KERNEL" {
			rest.WriteString(line)
			continue
		}
		fmt.Sscan(part[2], &o.launches)
		fmt.Sscan(part[3], &o.failed)
		fmt.Sscan(part[4], &o.worst)
		o.where = part[5]
		found[part[1]] = o
	}
	return found, rest.String()
}

// GPUOnce does the run for which [GPU] started this process, on the driver that load loads. In other processes it does
// nothing.
func GPUOnce(t *testing.T, load func() (*driver.API, error)) {
	form, name, ok := strings.Cut(os.Getenv(gpuRun), " ")
	if !ok {
		t.Skip("a process of the test of all kernels on a GPU")
	}
	api, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int32
	var d driver.Device
	if err := errors.Join(api.Init(0).Err("cuInit"), api.DeviceGet(&d, 0).Err("cuDeviceGet"),
		api.DeviceGetAttribute(&major, driver.ComputeCapabilityMajor, d).Err("cuDeviceGetAttribute"),
		api.DeviceGetAttribute(&minor, driver.ComputeCapabilityMinor, d).Err("cuDeviceGetAttribute")); err != nil {
		t.Fatal(err)
	}
	target := "sm80"
	if form == "code" {
		if target, err = kernels.Target(int(major), int(minor)); err != nil {
			t.Fatal(err)
		}
	}
	g, err := openGPU(api, target, form == "ptx")
	if err != nil {
		t.Fatal(err)
	}
	on := &backend{target: target, gpu: g}
	t.Log(g.what)
	t.Run(name, func(t *testing.T) {
		runs[slices.IndexFunc(runs, func(r kernelRun) bool { return r.name == name })].run(t, on)
	})
	for name, o := range on.report.kernels {
		fmt.Printf(outcomeLine, name, o.launches, o.failed, o.worst, strings.ReplaceAll(o.where, "\n", " "))
	}
	for _, line := range g.leftOut {
		t.Log("left out: ", line)
	}
	if g.lost == nil {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	}
}
