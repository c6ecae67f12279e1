package standin_test

import (
	"bytes"
	"testing"
	"time"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

func TestAllocations(t *testing.T) {
	r := open(t, standin.Options{MemoryBytes: 10000})
	a, b := r.alloc(5000), r.alloc(256)
	for _, p := range []driver.DevicePtr{a, b} {
		if p%256 != 0 || p%512 == 0 {
			t.Errorf("%#x is not aligned to 256 bytes, or is to more", p)
		}
	}
	var free, total uint64
	r.ok(r.MemGetInfo(&free, &total))
	if free != 10000-5120-256 || total != 10000 {
		t.Errorf("%d of %d bytes are free", free, total)
	}
	var p driver.DevicePtr
	r.want(driver.OutOfMemory, r.MemAlloc(&p, free))
	r.want(driver.OutOfMemory, r.MemAlloc(&p, 1<<63))
	r.ok(r.MemFree(a))
	c := r.alloc(5000)
	if c == a {
		t.Error("an address is used again")
	}
	r.ok(r.MemFree(b))
	r.ok(r.MemFree(c))
}

func TestCopies(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond} {
		r := open(t, standin.Options{MaxDelay: delay, Seed: 3})
		s := r.stream()
		in, out := r.pinned(1000), r.pinned(1000)
		for i := range in {
			in[i] = byte(i * 7)
		}
		a, b := r.device(1000), r.device(2000)
		r.ok(r.MemcpyHtoDAsync(a, pointer(in), 1000, s))
		r.ok(r.MemcpyDtoDAsync(b+500, a+1, 999, s))
		r.ok(r.MemsetD8Async(b+510, 9, 3, s))
		r.ok(r.MemcpyDtoHAsync(pointer(out), b+499, 1000, s))
		r.ok(r.StreamSynchronize(s))
		want := append([]byte{0xff}, in[1:]...)
		copy(want[11:], []byte{9, 9, 9})
		if !bytes.Equal(out, want) {
			t.Errorf("got  %v\nwant %v", out[:20], want[:20])
		}
		// Unified addressing: host to host, and kernels' view of host memory.
		var hostIn, hostOut driver.DevicePtr
		r.ok(r.MemHostGetDevicePointer(&hostIn, pointer(in), 0))
		r.ok(r.MemHostGetDevicePointer(&hostOut, pointer(out), 0))
		r.ok(r.MemcpyAsync(hostOut+10, hostIn+20, 30, s))
		r.ok(r.launch1(r.function("go", "add"), s, 1, hostOut, 1))
		r.ok(r.StreamSynchronize(s))
		for i := range 32 {
			expect := want[i]
			if i >= 10 {
				expect = in[i+10]
			}
			if out[i] != expect+1 {
				t.Fatalf("byte %d is %d, want %d", i, out[i], expect+1)
			}
		}
		r.ok(r.MemcpyHtoDAsync(0, nil, 0, s)) // of nothing
	}
}

// What CUDA refuses at the call, and what the stand-in finds out about it.
func TestBadMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result
		want driver.Result
		says string
	}{
		{"over the end", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemcpyHtoDAsync(a+1, pointer(host), 100, s)
		}, driver.InvalidValue, "MemcpyHtoDAsync: 100 bytes at"},
		{"before the start", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemcpyDtoHAsync(pointer(host), a-1, 10, s)
		}, driver.InvalidValue, "are 1 bytes before the 100 bytes that were allocated at rig_test.go:"},
		{"nowhere", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemsetD8Async(a+1<<30, 0, 10, s)
		}, driver.InvalidValue, "where nothing is"},
		{"freed", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			p := r.alloc(10)
			r.ok(r.MemFree(p))
			return r.MemsetD8Async(p, 0, 10, s)
		}, driver.InvalidValue, "are in 10 bytes that were freed at memory_test.go:"},
		{"not registered", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemcpyHtoDAsync(a, pointer(make([]byte, 10)), 10, s)
		}, driver.Success, "10 bytes of host memory are not registered, so the copy is not asynchronous"},
		{"beyond the registration", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			mem := make([]byte, 20)
			r.ok(r.MemHostRegister(pointer(mem), 10, 0))
			defer func() { r.ok(r.MemHostUnregister(pointer(mem))) }()
			return r.MemcpyDtoHAsync(pointer(mem), a, 11, s)
		}, driver.Success, "11 bytes of host memory are not registered"},
		{"overlap", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemcpyDtoDAsync(a, a+5, 10, s)
		}, driver.Success, "10 bytes are copied to where they partly are"},
		{"freed twice", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			p := r.alloc(10)
			r.ok(r.MemFree(p))
			return r.MemFree(p)
		}, driver.InvalidValue, "MemFree: 1 bytes at"},
		{"half freed", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemFree(a + 1)
		}, driver.InvalidValue, "MemFree: 1 bytes at"},
		{"nothing", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			var p driver.DevicePtr
			return r.MemAlloc(&p, 0)
		}, driver.InvalidValue, "MemAlloc: 0 bytes"},
		{"registered twice", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemHostRegister(pointer(host[10:]), 5, 0)
		}, driver.HostMemoryAlreadyRegistered, "overlap with what was registered at rig_test.go:"},
		{"unregistered twice", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemHostUnregister(pointer(host[10:]))
		}, driver.HostMemoryNotRegistered, "nothing is registered at"},
		{"device pointer of pageable memory", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			var p driver.DevicePtr
			return r.MemHostGetDevicePointer(&p, pointer(make([]byte, 1)), 0)
		}, driver.InvalidValue, "is not registered"},
		{"default stream", func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemcpyHtoDAsync(a, pointer(host), 10, 0)
		}, driver.InvalidHandle, "MemcpyHtoDAsync: the default stream"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, standin.Options{})
			a, s := r.alloc(100), r.stream()
			r.want(c.want, c.do(r, s, a, r.pinned(100)))
			r.ok(r.StreamSynchronize(s)) // no error of the context
			r.ok(r.MemFree(a))
			r.ok(r.StreamDestroy(s))
			says(t, r.problems(), c.says)
			if n := countLines(r.standin.Check()); n != 1 {
				t.Errorf("%d problems instead of one", n)
			}
		})
	}
}

func countLines(err error) int {
	if err == nil {
		return 0
	}
	return bytes.Count([]byte(err.Error()), []byte("\n")) + 1
}

// Memory that goes while work is queued: the error comes later, from whatever is called, and stays.
func TestMemoryThatGoesTooEarly(t *testing.T) {
	for _, c := range []struct {
		name string
		gone func(r *rig, a driver.DevicePtr, host []byte)
		says string
	}{
		{"freed", func(r *rig, a driver.DevicePtr, _ []byte) { r.ok(r.MemFree(a)) },
			"MemcpyHtoDAsync, as it ran: 100 bytes at"},
		{"unregistered", func(r *rig, _ driver.DevicePtr, host []byte) {
			r.ok(r.MemHostUnregister(pointer(host)))
			delete(r.host, &host[0])
		}, "MemcpyHtoDAsync, as it ran: 100 bytes of host memory were unregistered before"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, standin.Options{})
			a, s, host := r.alloc(100), r.stream(), r.pinned(100)
			release := make(chan struct{})
			r.hold(s, release)
			r.ok(r.MemcpyHtoDAsync(a, pointer(host), 100, s))
			c.gone(r, a, host)
			close(release)
			r.want(driver.IllegalAddress, r.StreamSynchronize(s))
			var free, total uint64
			r.want(driver.IllegalAddress, r.MemGetInfo(&free, &total))
			if c.name != "freed" {
				r.want(driver.IllegalAddress, r.MemFree(a)) // and yet freed
			}
			r.want(driver.IllegalAddress, r.StreamDestroy(s))
			says(t, r.problems(), c.says)
			if n := countLines(r.standin.Check()); n != 1 {
				t.Errorf("%d problems instead of one", n)
			}
		})
	}
}

func TestNobodyCanTouchDeviceMemory(t *testing.T) {
	r := open(t, standin.Options{})
	p := r.device(16)
	if uint64(p)>>56 == 0 || uint64(p)>>63 != 0 {
		t.Errorf("%#x could be an address of this process", p)
	}
	if unsafe.Sizeof(p) != 8 {
		t.Error("an address is not 64 bits")
	}
}
