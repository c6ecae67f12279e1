package standin_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a driver that was initialized, with the test's goroutine on a thread of its own that has the context.
type rig struct {
	*testing.T
	*driver.API
	standin *standin.Driver
	context driver.Context
	host    map[*byte][]byte
	modules []driver.Module
	works   sync.Map // of func(ptx.Memory) error, by image
	count   atomic.Int64
}

// open makes a rig; Check must agree at the end of the test.
func open(t *testing.T, o standin.Options) *rig {
	r := start(t, o)
	t.Cleanup(func() {
		r.close()
		if err := r.standin.Check(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// start is open without a check at the end.
func start(t *testing.T, o standin.Options) *rig {
	r := &rig{T: t, host: map[*byte][]byte{}}
	load := o.Load
	if load == nil {
		load = goKernels
	}
	o.Load = func(image []byte) (*standin.Image, error) {
		if work, ok := r.works.Load(string(image)); ok {
			return &standin.Image{Kernel: func(string) *standin.Kernel {
				return &standin.Kernel{Run: func(mem ptx.Memory, _, _ [3]uint32, _ uint32, _ []byte) error {
					return work.(func(ptx.Memory) error)(mem)
				}}
			}}, nil
		}
		return load(image)
	}
	r.standin = standin.New(o)
	r.API = r.standin.API()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	r.ok(r.Init(0))
	r.ok(r.DevicePrimaryCtxRetain(&r.context, 0))
	r.ok(r.CtxSetCurrent(r.context))
	return r
}

func (r *rig) close() {
	for p := range r.host {
		r.MemHostUnregister(unsafe.Pointer(p))
	}
	for _, m := range r.modules {
		r.ModuleUnload(m)
	}
	r.CtxSetCurrent(0)
	r.DevicePrimaryCtxRelease(0)
}

func (r *rig) ok(got driver.Result) { r.Helper(); r.want(driver.Success, got) }

func (r *rig) want(want, got driver.Result) {
	r.Helper()
	if got != want {
		r.Fatalf("%v, want %v", got, want)
	}
}

func (r *rig) alloc(bytes uint64) driver.DevicePtr {
	r.Helper()
	var p driver.DevicePtr
	r.ok(r.MemAlloc(&p, bytes))
	return p
}

// device allocates until the end of the test.
func (r *rig) device(bytes uint64) driver.DevicePtr {
	r.Helper()
	p := r.alloc(bytes)
	r.Cleanup(func() { r.MemFree(p) })
	return p
}

func (r *rig) stream() driver.Stream {
	r.Helper()
	var s driver.Stream
	r.ok(r.StreamCreateWithPriority(&s, driver.StreamNonBlocking, 0))
	r.Cleanup(func() { r.StreamDestroy(s) })
	return s
}

func (r *rig) event() driver.Event {
	r.Helper()
	var e driver.Event
	r.ok(r.EventCreate(&e, driver.EventBlockingSync))
	r.Cleanup(func() { r.EventDestroy(e) })
	return e
}

// pinned is registered host memory, until the end of the test.
func (r *rig) pinned(bytes int) []byte {
	r.Helper()
	mem := make([]byte, bytes)
	r.ok(r.MemHostRegister(unsafe.Pointer(&mem[0]), uint64(bytes), driver.MemHostRegisterDeviceMap))
	r.host[&mem[0]] = mem
	return mem
}

// function loads a module, until the rig is closed, and gets one of its functions.
func (r *rig) function(image, name string) driver.Function {
	r.Helper()
	var m driver.Module
	r.ok(r.ModuleLoadData(&m, cString(image)))
	r.modules = append(r.modules, m)
	var f driver.Function
	r.ok(r.ModuleGetFunction(&f, m, cString(name)))
	return f
}

// work is a kernel that does something in Go.
func (r *rig) work(do func(mem ptx.Memory) error) driver.Function {
	r.Helper()
	image := fmt.Sprintf("work %d", r.count.Add(1))
	r.works.Store(image, do)
	return r.function(image, "work")
}

// launch0 launches one thread without parameters.
func (r *rig) launch0(f driver.Function, s driver.Stream) driver.Result {
	return r.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, nil, nil)
}

// hold makes a stream wait until release is closed.
func (r *rig) hold(s driver.Stream, release chan struct{}) {
	r.Helper()
	r.ok(r.launch0(r.work(func(ptx.Memory) error { <-release; return nil }), s))
}

// launch1 launches blocks of 32 threads with a pointer and a word.
func (r *rig) launch1(f driver.Function, s driver.Stream, blocks uint32, at driver.DevicePtr,
	word uint32) driver.Result {
	params := []unsafe.Pointer{unsafe.Pointer(&at), unsafe.Pointer(&word)}
	return r.LaunchKernel(f, blocks, 1, 1, 32, 1, 1, 0, s, &params[0], nil)
}

// problems returns the misuse alone that Check reports, once the rig is closed.
func (r *rig) problems() string {
	r.close()
	if err := r.standin.Check(); err != nil {
		return err.Error()
	}
	return ""
}

// says fails the test unless text has all of the parts.
func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in:\n%s", p, text)
		}
	}
}

func cString(s string) *byte { return &append([]byte(s), 0)[0] }

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

// goKernels are modules in Go. Their one parameter block is a pointer and a word.
func goKernels(image []byte) (*standin.Image, error) {
	if string(image) != "go" {
		return nil, fmt.Errorf("not a module")
	}
	return &standin.Image{Kernel: func(name string) *standin.Kernel {
		k := &standin.Kernel{Params: []standin.Param{{Offset: 0, Bytes: 8}, {Offset: 8, Bytes: 4}}}
		switch name {
		case "add": // adds the word to as many bytes as there are threads
			k.Run = func(mem ptx.Memory, grid, block [3]uint32, _ uint32, params []byte) error {
				b, err := mem.At(binary.LittleEndian.Uint64(params), int(grid[0]*block[0]))
				for i := range b {
					b[i] += params[8]
				}
				return err
			}
		case "shared":
			k.SharedBytes, k.MaxThreads, k.ExactThreads = 1024, 128, true
			k.Run = func(ptx.Memory, [3]uint32, [3]uint32, uint32, []byte) error { return nil }
		case "fail":
			k.Run = func(ptx.Memory, [3]uint32, [3]uint32, uint32, []byte) error { return fmt.Errorf("kernel failed") }
		default:
			return nil
		}
		return k
	}}, nil
}
