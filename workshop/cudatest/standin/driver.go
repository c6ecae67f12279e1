package standin

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/device/cuda/driver"
)

// Driver plays a CUDA driver and its GPUs.
type Driver struct {
	options Options

	calls       atomic.Int64
	initialized atomic.Bool
	cards       []*card // by number

	// making guards what makes and destroys things. Everything else reads the tables without it.
	making  sync.Mutex
	handles uintptr             // the last one given
	threads table[int, *thread] // by OS thread
	memory  memory
	host    table[uintptr, *registration] // by first byte
	streams table[driver.Stream, *stream]
	events  table[driver.Event, *event]
	modules table[driver.Module, *module]
	funcs   table[driver.Function, *function]
	ended   []*stream // destroyed, and perhaps still at work

	problems problems
}

// New makes a driver that is not initialized yet.
func New(o Options) *Driver {
	d := &Driver{options: o.withDefaults()}
	for number := range d.options.Cards {
		d.cards = append(d.cards, &card{driver: d, number: number})
	}
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
		DeviceCanAccessPeer:      d.deviceCanAccessPeer,
		DevicePrimaryCtxRetain:   d.primaryCtxRetain,
		DevicePrimaryCtxRelease:  d.primaryCtxRelease,
		DevicePrimaryCtxSetFlags: d.primaryCtxSetFlags,
		CtxSetCurrent:            d.ctxSetCurrent,
		CtxEnablePeerAccess:      d.ctxEnablePeerAccess,
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
		MemcpyPeerAsync:          d.memcpyPeerAsync,
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

// Kill makes the context of a card fail for good, as an error of the hardware would: every later call there returns r.
func (d *Driver) Kill(number int, r driver.Result) { d.cards[number].kill(r) }

// enter begins a call that needs a context: that of the card that is returned, nil without one.
func (d *Driver) enter(call string) (*card, driver.Result) {
	if r := d.enterDevice(call); r != driver.Success {
		return d.cardOf(d.current()), r
	}
	current := d.current()
	if current == 0 {
		d.misused("%s: this goroutine has made no context current on its thread", call)
		return nil, driver.InvalidContext
	}
	c := d.cardOf(current)
	if c == nil {
		d.misused("%s: the context of this thread is destroyed", call)
		return nil, driver.ContextIsDestroyed
	}
	return c, c.result()
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
func (d *Driver) enterRelease(call string) (c *card, r driver.Result, proceed bool) {
	c, r = d.enter(call)
	return c, r, c != nil
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
