package standin

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/device/cuda/driver"
)

// Driver plays a CUDA driver and its GPU.
type Driver struct {
	options Options

	calls       atomic.Int64
	initialized atomic.Bool
	lost        atomic.Int32 // the sticky result; 0 while the context is sound

	// making guards what makes and destroys things. Everything else reads the tables without it.
	making   sync.Mutex
	handles  uintptr // the last one given
	retained int     // of the primary context
	context  atomic.Uintptr
	threads  table[int, *thread] // by OS thread
	memory   memory
	host     table[uintptr, *registration] // by first byte
	streams  table[driver.Stream, *stream]
	events   table[driver.Event, *event]
	modules  table[driver.Module, *module]
	funcs    table[driver.Function, *function]
	ended    []*stream // destroyed, and perhaps still at work

	problems problems
}

// New makes a driver that is not initialized yet.
func New(o Options) *Driver {
	d := &Driver{options: o.withDefaults()}
	d.memory.next = firstAddress
	return d
}

// API is the driver as the CUDA device sees it.
func (d *Driver) API() *driver.API {
	return &driver.API{
		Init:                     d.init,
		DriverGetVersion:         d.driverGetVersion,
		DeviceGetCount:           d.deviceGetCount,
		DeviceGet:                d.deviceGet,
		DeviceGetName:            d.deviceGetName,
		DeviceTotalMem:           d.deviceTotalMem,
		DeviceGetAttribute:       d.deviceGetAttribute,
		DevicePrimaryCtxRetain:   d.primaryCtxRetain,
		DevicePrimaryCtxRelease:  d.primaryCtxRelease,
		DevicePrimaryCtxSetFlags: d.primaryCtxSetFlags,
		CtxSetCurrent:            d.ctxSetCurrent,
		MemGetInfo:               d.memGetInfo,
		MemAlloc:                 d.memAlloc,
		MemFree:                  d.memFree,
		MemHostRegister:          d.memHostRegister,
		MemHostUnregister:        d.memHostUnregister,
		MemHostGetDevicePointer:  d.memHostGetDevicePointer,
		MemcpyHtoDAsync:          d.memcpyHtoDAsync,
		MemcpyDtoHAsync:          d.memcpyDtoHAsync,
		MemcpyDtoDAsync:          d.memcpyDtoDAsync,
		MemcpyAsync:              d.memcpyAsync,
		MemsetD8Async:            d.memsetD8Async,
		StreamCreateWithPriority: d.streamCreate,
		StreamDestroy:            d.streamDestroy,
		StreamSynchronize:        d.streamSynchronize,
		StreamWaitEvent:          d.streamWaitEvent,
		EventCreate:              d.eventCreate,
		EventDestroy:             d.eventDestroy,
		EventSynchronize:         d.eventSynchronize,
		EventRecord:              d.eventRecord,
		EventElapsedTime:         d.eventElapsedTime,
		ModuleLoadData:           d.moduleLoadData,
		ModuleUnload:             d.moduleUnload,
		ModuleGetFunction:        d.moduleGetFunction,
		FuncSetAttribute:         d.funcSetAttribute,
		LaunchKernel:             d.launchKernel,
	}
}

// Kill makes the context fail for good, as an error of the hardware would: every later call returns r.
func (d *Driver) Kill(r driver.Result) { d.lost.CompareAndSwap(0, int32(r)) }

// enter begins a call that needs a context.
func (d *Driver) enter(call string) driver.Result {
	if r := d.enterDevice(call); r != driver.Success {
		return r
	}
	switch current := d.current(); {
	case current == 0:
		d.misused("%s: this goroutine has made no context current on its thread", call)
		return driver.InvalidContext
	case current != d.context.Load():
		d.misused("%s: the context of this thread is destroyed", call)
		return driver.ContextIsDestroyed
	}
	return driver.Result(d.lost.Load())
}

// enterDevice begins a call that needs no context.
func (d *Driver) enterDevice(call string) driver.Result {
	if r := d.injected(call); r != driver.Success {
		return r
	}
	if !d.initialized.Load() {
		d.misused("%s: before Init", call)
		return driver.NotInitialized
	}
	return driver.Success
}

// enterRelease begins a call that releases something or waits. It is to do so if proceed is true, even if the result
// is not Success.
func (d *Driver) enterRelease(call string) (r driver.Result, proceed bool) {
	switch r = d.enter(call); r {
	case driver.NotInitialized, driver.InvalidContext, driver.ContextIsDestroyed:
		return r, false
	}
	return r, true
}

// first is the first result that is not Success.
func first(results ...driver.Result) driver.Result {
	for _, r := range results {
		if r != driver.Success {
			return r
		}
	}
	return driver.Success
}

func (d *Driver) injected(call string) driver.Result {
	if d.options.Fail == nil {
		return driver.Success
	}
	var n int64
	unordered(func() { n = d.calls.Add(1) })
	return d.options.Fail(call, int(n))
}

// refuse is the result of a call that is wrong in itself.
func (d *Driver) refuse(r driver.Result, format string, args ...any) driver.Result {
	d.misused(format, args...)
	return r
}

// handle is a number that was no handle before. The caller holds making.
func (d *Driver) handle() uintptr {
	d.handles++
	return 0x51000000 + d.handles<<4
}
