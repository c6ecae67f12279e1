package standin_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

func TestEvents(t *testing.T) {
	r := open(t, standin.Options{})
	s1, s2, e := r.stream(), r.stream(), r.event()
	a, host := r.device(1), r.pinned(1)

	// An event that was never recorded is complete, and waiting for it returns at once.
	r.ok(r.EventSynchronize(e))
	r.ok(r.StreamWaitEvent(s2, e, 0))
	r.ok(r.StreamSynchronize(s2))

	// A wait refers to the latest record before it: s2 continues after the first, although the second is pending.
	first, second := make(chan struct{}), make(chan struct{})
	var ms float32
	r.hold(s1, first)
	r.ok(r.MemsetD8Async(a, 1, 1, s1))
	r.ok(r.EventRecord(e, s1))
	r.want(driver.NotReady, r.EventElapsedTime(&ms, e, e))
	r.ok(r.StreamWaitEvent(s2, e, 0))
	r.ok(r.MemcpyDtoHAsync(pointer(host), a, 1, s2))
	r.hold(s1, second)
	r.ok(r.EventRecord(e, s1))
	close(first)
	r.ok(r.StreamSynchronize(s2))
	if host[0] != 1 {
		t.Errorf("the copy did not wait: %d", host[0])
	}
	r.want(driver.NotReady, r.EventElapsedTime(&ms, e, e))
	close(second)
	r.ok(r.EventSynchronize(e))
	r.ok(r.EventElapsedTime(&ms, e, e))
}

func TestElapsedTime(t *testing.T) {
	clock := time.Unix(1e9, 0)
	r := start(t, standin.Options{Now: func() time.Time { clock = clock.Add(1500 * time.Microsecond); return clock }})
	s, start, end := r.stream(), r.event(), r.event()
	r.ok(r.EventRecord(start, s))
	var ms float32
	r.want(driver.InvalidHandle, r.EventElapsedTime(&ms, start, end)) // end was not recorded
	release := make(chan struct{})
	r.hold(s, release)
	r.ok(r.EventRecord(end, s))
	r.want(driver.NotReady, r.EventElapsedTime(&ms, start, end))
	close(release)
	r.ok(r.EventSynchronize(end))
	r.ok(r.EventElapsedTime(&ms, start, end))
	if ms != 1.5 {
		t.Errorf("%g ms", ms)
	}
	var untimed driver.Event
	r.ok(r.EventCreate(&untimed, driver.EventDisableTiming))
	r.ok(r.EventRecord(untimed, s))
	r.ok(r.EventSynchronize(untimed))
	r.want(driver.InvalidHandle, r.EventElapsedTime(&ms, start, untimed))
	for _, e := range []driver.Event{start, end, untimed} {
		r.ok(r.EventDestroy(e))
	}
	r.want(driver.InvalidHandle, r.EventRecord(end, s))
	r.ok(r.StreamDestroy(s))
	says(t, r.problems(), "was not recorded", "was created without timing", "is no event, or it was destroyed")
}

// The work of streams and events that are destroyed early is still done.
func TestDestroyedEarly(t *testing.T) {
	r := open(t, standin.Options{})
	var s1 driver.Stream
	r.ok(r.StreamCreateWithPriority(&s1, driver.StreamNonBlocking, 0))
	s2, a, host := r.stream(), r.device(1), r.pinned(1)
	var e driver.Event
	r.ok(r.EventCreate(&e, 0))
	release := make(chan struct{})
	r.hold(s1, release)
	r.ok(r.MemsetD8Async(a, 7, 1, s1))
	r.ok(r.EventRecord(e, s1))
	r.ok(r.StreamWaitEvent(s2, e, 0))
	r.ok(r.EventDestroy(e))
	r.ok(r.StreamDestroy(s1))
	r.ok(r.MemcpyDtoHAsync(pointer(host), a, 1, s2))
	close(release)
	r.ok(r.StreamSynchronize(s2))
	if host[0] != 7 {
		t.Errorf("got %d", host[0])
	}
}

// The order of a stream holds for all that several threads put into it, each in its own order.
func TestStreamsOfSeveralThreads(t *testing.T) {
	var order [4][]int // by lane, which is a launch's address
	r := open(t, standin.Options{MaxDelay: 20 * time.Microsecond, Load: func([]byte) (*standin.Image, error) {
		run := func(_ ptx.Memory, _, _ [3]uint32, _ uint32, params []byte) error {
			order[params[0]] = append(order[params[0]], int(params[8]))
			return nil
		}
		return &standin.Image{Kernel: func(string) *standin.Kernel {
			return &standin.Kernel{Params: []standin.Param{{Offset: 0, Bytes: 8}, {Offset: 8, Bytes: 4}}, Run: run}
		}}, nil
	}})
	s, f := r.stream(), r.function("append", "append")
	var wg sync.WaitGroup
	for lane := range order {
		wg.Go(func() {
			runtime.LockOSThread()
			if got := r.CtxSetCurrent(r.context); got != driver.Success {
				t.Error(got)
			}
			for i := range 50 {
				if got := r.launch1(f, s, 1, driver.DevicePtr(lane), uint32(i)); got != driver.Success {
					t.Error(got)
				}
			}
		})
	}
	wg.Wait()
	r.ok(r.StreamSynchronize(s))
	for lane, got := range order {
		for i, n := range got {
			if i != n || len(got) != 50 {
				t.Fatalf("lane %d: %v", lane, got)
			}
		}
	}
}

func TestThreads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("threads have no names here")
	}
	r := start(t, standin.Options{})
	var got driver.Result
	other := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			f()
		}()
		<-done
	}
	var p driver.DevicePtr
	other(func() { got = r.MemAlloc(&p, 1) })
	r.want(driver.InvalidContext, got)
	other(func() {
		if got = r.CtxSetCurrent(r.context); got == driver.Success {
			got = r.MemAlloc(&p, 1)
		}
	})
	r.ok(got)
	r.ok(r.MemFree(p))
	// Nor does it help if another goroutine was on the thread before.
	runtime.UnlockOSThread()
	for try := range 200 {
		other := make(chan driver.Result)
		go func() { other <- r.MemFree(0) }()
		if got := <-other; got != driver.InvalidContext {
			t.Fatalf("try %d: %v", try, got)
		}
	}
	runtime.LockOSThread()
	r.ok(r.CtxSetCurrent(r.context))
	r.ok(r.CtxSetCurrent(0))
	r.want(driver.InvalidContext, r.MemAlloc(&p, 1))
	r.want(driver.InvalidContext, r.CtxSetCurrent(r.context+1))
	r.ok(r.CtxSetCurrent(r.context))
	r.ok(r.DevicePrimaryCtxRelease(0))
	r.want(driver.ContextIsDestroyed, r.MemAlloc(&p, 1))
	says(t, r.problems(), "MemAlloc: this goroutine has made no context current on its thread", "is no context",
		"the context of this thread is destroyed",
		"DevicePrimaryCtxRelease: it was not retained")
}

func TestBeforeInit(t *testing.T) {
	d := standin.New(standin.Options{})
	api := d.API()
	var n int32
	if r := api.DriverGetVersion(&n); r != driver.Success || n != driver.MinPTXVersion {
		t.Errorf("%v, %d", r, n)
	}
	if r := api.DeviceGetCount(&n); r != driver.NotInitialized {
		t.Errorf("%v", r)
	}
	says(t, d.Check().Error(), "DeviceGetCount: before Init")
}

func TestDevice(t *testing.T) {
	r := open(t, standin.Options{Capability: [2]int32{8, 6}, MemoryBytes: 12345})
	var n int32
	r.ok(r.DeviceGetCount(&n))
	if n != 1 {
		t.Errorf("%d devices", n)
	}
	var d driver.Device
	r.ok(r.DeviceGet(&d, 0))
	r.want(driver.InvalidDevice, r.DeviceGet(&d, 1))
	name := make([]byte, 8)
	r.ok(r.DeviceGetName(&name[0], 8, 0))
	if string(name) != "Stand-i\x00" {
		t.Errorf("%q", name)
	}
	var bytes uint64
	r.ok(r.DeviceTotalMem(&bytes, 0))
	if bytes != 12345 {
		t.Errorf("%d bytes", bytes)
	}
	for a, want := range map[driver.Attribute]int32{driver.ComputeCapabilityMajor: 8, driver.ComputeCapabilityMinor: 6,
		driver.HostPointerOfRegistered: 1, driver.MaxSharedMemoryPerBlockOptin: 99 << 10} {
		var got int32 = -1
		if r.ok(r.DeviceGetAttribute(&got, a, 0)); got != want {
			t.Errorf("attribute %d is %d, want %d", a, got, want)
		}
	}
	r.want(driver.InvalidDevice, r.DeviceGetAttribute(&n, driver.MultiprocessorCount, 1))
}

func TestLeaks(t *testing.T) {
	r := start(t, standin.Options{})
	r.alloc(10)
	r.function("go", "add")
	host := make([]byte, 5)
	r.ok(r.MemHostRegister(pointer(host), 5, 0))
	var s driver.Stream
	r.ok(r.StreamCreateWithPriority(&s, driver.StreamNonBlocking, 0))
	r.event()
	err := r.standin.Check()
	want := []string{"leak: the primary context of card 0 is retained 1 times",
		"leak: 10 bytes of device memory, allocated at rig_test.go:",
		"leak: 5 bytes of host memory are registered, at stream_test.go:", "leak: a stream, created at stream_test.go:",
		"leak: an event, created at ", "leak: a module, loaded at "}
	says(t, fmt.Sprint(err), want...)
	if n := countLines(err); n != len(want) {
		t.Errorf("%d problems", n)
	}
	r.close() // ends the stream
	_ = r.standin.Check()
}

// Any call can be made to fail. What releases things has then done so.
func TestFail(t *testing.T) {
	var calls []string
	r := start(t, standin.Options{Fail: func(call string, n int) driver.Result {
		if calls = append(calls, call); len(calls) != n {
			t.Errorf("call %d is the %dth", len(calls), n)
		}
		switch call {
		case "MemAlloc":
			return driver.OutOfMemory
		case "StreamDestroy", "StreamSynchronize", "EventSynchronize":
			return driver.Unknown
		}
		return driver.Success
	}})
	var p driver.DevicePtr
	r.want(driver.OutOfMemory, r.MemAlloc(&p, 1))
	var s driver.Stream
	r.ok(r.StreamCreateWithPriority(&s, driver.StreamNonBlocking, 0))
	var e driver.Event
	r.ok(r.EventCreate(&e, 0))
	ran := 0
	f := r.work(func(ptx.Memory) error { ran++; return nil })
	r.ok(r.launch0(f, s))
	r.want(driver.Unknown, r.StreamSynchronize(s))
	r.ok(r.launch0(f, s))
	r.ok(r.EventRecord(e, s))
	r.want(driver.Unknown, r.EventSynchronize(e))
	if ran != 2 {
		t.Errorf("the host waited for %d of 2", ran)
	}
	r.ok(r.EventDestroy(e))
	r.want(driver.Unknown, r.StreamDestroy(s))
	if text := r.problems(); text != "" {
		t.Error(text)
	}
	want := "[Init DevicePrimaryCtxRetain CtxSetCurrent MemAlloc StreamCreateWithPriority EventCreate ModuleLoadData ModuleGetFunction " +
		"LaunchKernel StreamSynchronize LaunchKernel EventRecord EventSynchronize EventDestroy StreamDestroy ModuleUnload CtxSetCurrent DevicePrimaryCtxRelease]"
	if got := fmt.Sprint(calls); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestKill(t *testing.T) {
	r := start(t, standin.Options{})
	s, e, a := r.stream(), r.event(), r.alloc(1)
	release := make(chan struct{})
	ran := false
	r.hold(s, release)
	r.ok(r.launch0(r.work(func(ptx.Memory) error { ran = true; return nil }), s))
	r.ok(r.EventRecord(e, s))
	r.standin.Kill(0, driver.ECCUncorrectable)
	r.standin.Kill(0, driver.LaunchFailed) // the first counts
	close(release)
	r.want(driver.ECCUncorrectable, r.EventSynchronize(e))
	r.want(driver.ECCUncorrectable, r.StreamSynchronize(s))
	r.want(driver.ECCUncorrectable, r.MemsetD8Async(a, 0, 1, s))
	if ran {
		t.Error("work ran in a context that was lost")
	}
	r.want(driver.ECCUncorrectable, r.MemFree(a))
	r.want(driver.ECCUncorrectable, r.EventDestroy(e))
	r.want(driver.ECCUncorrectable, r.StreamDestroy(s))
	if text := r.problems(); text != "" {
		t.Error(text)
	}
}
