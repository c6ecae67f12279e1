package standin_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

func TestLaunch(t *testing.T) {
	r := open(t, standin.Options{})
	s, f := r.stream(), r.function("go", "add")
	a, host := r.device(96), r.pinned(96)
	r.ok(r.MemsetD8Async(a, 10, 96, s))
	r.ok(r.launch1(f, s, 2, a, 5))
	r.ok(r.MemcpyDtoHAsync(pointer(host), a, 96, s))
	r.ok(r.StreamSynchronize(s))
	for i, got := range host {
		want := byte(10)
		if i < 64 {
			want += 5
		}
		if got != want {
			t.Fatalf("byte %d is %d, want %d", i, got, want)
		}
	}
}

func TestBadLaunches(t *testing.T) {
	type shape struct {
		kernel      string
		grid, block [3]uint32
		shared      uint32
	}
	good := shape{"shared", [3]uint32{1, 1, 1}, [3]uint32{128, 1, 1}, 47 << 10}
	with := func(change func(s *shape)) shape { s := good; change(&s); return s }
	r := start(t, standin.Options{})
	s := r.stream()
	launch := func(c shape) driver.Result {
		at, word := driver.DevicePtr(0), uint32(0)
		params := []unsafe.Pointer{unsafe.Pointer(&at), unsafe.Pointer(&word)}
		return r.LaunchKernel(r.function("go", c.kernel), c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2],
			c.shared, s,
			&params[0], nil)
	}
	r.ok(launch(good))
	for name, c := range map[string]shape{
		"no blocks":       with(func(s *shape) { s.grid[1] = 0 }),
		"long grid":       with(func(s *shape) { s.grid[0] = 1 << 31 }),
		"wide grid":       with(func(s *shape) { s.grid[1] = 65536 }),
		"deep grid":       with(func(s *shape) { s.grid[2] = 65536 }),
		"no threads":      with(func(s *shape) { s.kernel, s.block[2] = "add", 0 }),
		"2048 threads":    with(func(s *shape) { s.kernel, s.block = "add", [3]uint32{1024, 2, 1} }),
		"65 deep":         with(func(s *shape) { s.kernel, s.block = "add", [3]uint32{1, 1, 65} }),
		"other threads":   with(func(s *shape) { s.block[0] = 64 }),
		"too many shared": with(func(s *shape) { s.shared++ }),
	} {
		if got := launch(c); got != driver.InvalidValue {
			t.Errorf("%s: %v", name, got)
		}
	}
	r.ok(r.StreamSynchronize(s))

	f := r.function("go", "shared")
	r.ok(r.FuncSetAttribute(f, driver.MaxDynamicSharedSizeBytes, 98<<10))
	r.want(driver.InvalidValue, r.FuncSetAttribute(f, driver.MaxDynamicSharedSizeBytes, 98<<10+1))
	r.want(driver.InvalidValue, r.FuncSetAttribute(f, 1, 1))
	at, word := driver.DevicePtr(0), uint32(0)
	params := []unsafe.Pointer{unsafe.Pointer(&at), unsafe.Pointer(&word)}
	r.ok(r.LaunchKernel(f, 1, 1, 1, 128, 1, 1, 98<<10, s, &params[0], nil))
	r.want(driver.InvalidValue, r.LaunchKernel(f, 1, 1, 1, 128, 1, 1, 98<<10+1, s, &params[0], nil))
	r.want(driver.InvalidValue, r.LaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, s, nil, nil))
	params[1] = nil
	r.want(driver.InvalidValue, r.LaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, s, &params[0], nil))
	params[1] = unsafe.Pointer(&word)
	r.want(driver.InvalidValue, r.LaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, s, &params[0], &params[0]))
	says(t, r.standin.Check().Error(), "a block of 64 threads; the kernel is made for 128",
		"49153 bytes of shared memory; FuncSetAttribute allows 49152",
		"parameter 1 is a nil pointer", "takes no extra")
}

func TestModules(t *testing.T) {
	r := start(t, standin.Options{})
	var m driver.Module
	r.want(driver.InvalidPTX, r.ModuleLoadData(&m, cString("nonsense")))
	r.want(driver.NoBinaryForGPU, r.ModuleLoadData(&m, cString("\x7fELF\x02")))
	r.ok(r.ModuleLoadData(&m, cString("go")))
	var f, again driver.Function
	r.want(driver.NotFound, r.ModuleGetFunction(&f, m, cString("none")))
	r.ok(r.ModuleGetFunction(&f, m, cString("add")))
	r.ok(r.ModuleGetFunction(&again, m, cString("add")))
	if f != again {
		t.Error("a function has two handles")
	}
	s, a, release := r.stream(), r.alloc(32), make(chan struct{})
	r.hold(s, release)
	r.ok(r.launch1(f, s, 1, a, 1))
	r.ok(r.ModuleUnload(m))
	close(release)
	r.want(driver.InvalidHandle, r.launch1(f, s, 1, a, 1))
	r.want(driver.InvalidHandle, r.ModuleUnload(m))
	r.ok(r.StreamSynchronize(s))
	r.ok(r.MemFree(a))
	r.ok(r.StreamDestroy(s))
	text := r.problems()
	says(t, text, "ModuleUnload: 1 launches of its kernels are pending",
		"is no function, or its module was unloaded", "is no module, or it was unloaded")
	if n := countLines(r.standin.Check()); n != 3 {
		t.Errorf("%d problems:\n%s", n, text)
	}
}

// A kernel that fails takes the context with it.
func TestFailedLaunches(t *testing.T) {
	for _, c := range []struct {
		kernel string
		at     driver.DevicePtr // from the allocation on
		want   driver.Result
		says   string
	}{
		{"fail", 0, driver.LaunchFailed, "LaunchKernel, as it ran: kernel failed"},
		{"add", 1, driver.IllegalAddress, "LaunchKernel, as it ran: 32 bytes at"},
	} {
		r := start(t, standin.Options{})
		s, a := r.stream(), r.alloc(32)
		r.ok(r.launch1(r.function("go", c.kernel), s, 1, a+c.at, 1))
		r.want(c.want, r.StreamSynchronize(s))
		r.want(c.want, r.launch1(r.function2(), s, 1, a, 1))
		r.want(c.want, r.MemFree(a))
		r.want(c.want, r.StreamDestroy(s))
		r.close()
		says(t, r.standin.Check().Error(), c.says)
	}
}

// function2 is any handle: the lost context comes first.
func (r *rig) function2() driver.Function { return 1 }

// A kernel in PTX: each thread adds n to its word. It is for one warp.
const addPTX = `
.version 8.4
.target sm_80
.address_size 64
.visible .entry add(.param .u64 add_p, .param .u32 add_n)
.maxntid 32, 1, 1
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [add_p];
	ld.param.u32 %r1, [add_n];
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, %ctaid.x;
	mad.lo.s32 %r4, %r3, 32, %r2;
	mul.wide.s32 %rd2, %r4, 4;
	add.s64 %rd3, %rd1, %rd2;
	ld.global.u32 %r5, [%rd3];
	add.s32 %r5, %r5, %r1;
	st.global.u32 [%rd3], %r5;
	ret;
}
`

func loadPTX(image []byte) (*standin.Image, error) { return standin.LoadPTX(image, 2) }

func lazyPTX(image []byte) (*standin.Image, error) { return standin.LazyPTX(image, 2) }

// A kernel has the same bits whether its text is parsed when it is loaded or when it is launched. There is no kernel by
// a name that the text only mentions.
func TestPTX(t *testing.T) {
	for name, load := range map[string]func([]byte) (*standin.Image, error){"parsed": loadPTX, "lazy": lazyPTX} {
		t.Run(name, func(t *testing.T) {
			r := open(t, standin.Options{Load: load})
			s, a, host := r.stream(), r.device(4*96), r.pinned(4*96)
			for i := range 96 {
				binary.LittleEndian.PutUint32(host[4*i:], uint32(i))
			}
			r.ok(r.MemcpyHtoDAsync(a, pointer(host), 4*96, s))
			r.ok(r.launch1(r.function(addPTX, "add"), s, 3, a, 1000))
			r.ok(r.MemcpyDtoHAsync(pointer(host), a, 4*96, s))
			r.ok(r.StreamSynchronize(s))
			for i := range 96 {
				if got := binary.LittleEndian.Uint32(host[4*i:]); got != uint32(1000+i) {
					t.Fatalf("word %d is %d", i, got)
				}
			}
			for _, none := range []string{"ad", "add_p", "mul"} {
				var f driver.Function
				r.want(driver.NotFound, r.ModuleGetFunction(&f, r.modules[0], cString(none)))
			}
		})
	}
}

// What cannot be parsed panics when it is launched, and is loaded until then.
func TestLazyPTXThatIsWrong(t *testing.T) {
	image, err := standin.LazyPTX([]byte(strings.Replace(addPTX, "mad.lo.s32", "mad.of.s32", 1)), 1)
	if err != nil || !image.Has("add") {
		t.Fatalf("%v", err)
	}
	defer func() {
		if p := recover(); !strings.Contains(fmt.Sprint(p), "line 14") {
			t.Errorf("%v", p)
		}
	}()
	image.Kernel("add")
}

func TestPTXFault(t *testing.T) {
	r := start(t, standin.Options{Load: loadPTX})
	s, a := r.stream(), r.alloc(4*40)
	r.ok(r.launch1(r.function(addPTX, "add"), s, 2, a, 1))
	r.want(driver.IllegalAddress, r.StreamSynchronize(s))
	r.want(driver.IllegalAddress, r.StreamDestroy(s))
	r.want(driver.IllegalAddress, r.MemFree(a))
	says(t, r.standin.Check().Error(), "line 17", "block [1 0 0], thread 8",
		"byte 160 and on of 160 bytes that were allocated at rig_test.go")
	r.close()
}

// A driver reads PTX that is not newer than itself, for a GPU that is not newer than its own.
func TestPTXVersions(t *testing.T) {
	for _, c := range []struct {
		version, target string
		driver          int32
		capability      [2]int32
		want            driver.Result
	}{
		{"8.4", "sm_80", 12040, [2]int32{8, 0}, driver.Success},
		{"8.4", "sm_80", 12040, [2]int32{12, 0}, driver.Success},
		{"8.4", "sm_90a", 12040, [2]int32{9, 0}, driver.Success},
		{"8.4", "sm_90a", 12040, [2]int32{10, 0}, driver.InvalidPTX},
		{"8.4", "sm_90", 12040, [2]int32{8, 9}, driver.InvalidPTX},
		{"8.5", "sm_80", 12040, [2]int32{8, 0}, driver.UnsupportedPTXVersion},
		{"8.7", "sm_80", 12080, [2]int32{8, 0}, driver.Success},
		{"8.10", "sm_80", 12080, [2]int32{8, 0}, driver.UnsupportedPTXVersion},
	} {
		var why string
		r := start(t, standin.Options{DriverVersion: c.driver, Capability: c.capability,
			Log: func(format string, args ...any) { why = fmt.Sprintf(format, args...) },
			Load: func([]byte) (*standin.Image, error) {
				return &standin.Image{Version: c.version, Target: c.target, Kernel: func(string) *standin.Kernel { return nil }},
					nil
			}})
		var m driver.Module
		if got := r.ModuleLoadData(&m, cString("x")); got != c.want {
			t.Errorf("PTX %s for %s, with driver %d and sm_%v: %v, want %v", c.version, c.target, c.driver, c.capability, got,
				c.want)
		} else if got == driver.Success {
			r.ok(r.ModuleUnload(m))
		}
		if (why != "") != (c.want != driver.Success) {
			t.Errorf("the log says %q", why)
		}
		if text := r.problems(); text != "" {
			t.Error(text)
		}
	}
}
