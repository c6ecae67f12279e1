package standin

import (
	"runtime"
	"sync/atomic"

	"github.com/millrace/millrace/device/cuda/driver"
)

func (d *Driver) primaryCtxSetFlags(dev driver.Device, flags uint32) driver.Result {
	if _, r := d.enterOn("DevicePrimaryCtxSetFlags", dev); r != driver.Success {
		return r
	}
	if flags != 0 && flags != driver.CtxSchedBlockingSync {
		return d.refuse(driver.InvalidValue, "DevicePrimaryCtxSetFlags: flags %#x", flags)
	}
	return driver.Success
}

func (d *Driver) primaryCtxRetain(context *driver.Context, dev driver.Device) driver.Result {
	c, r := d.enterOn("DevicePrimaryCtxRetain", dev)
	if r != driver.Success {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	if c.retained++; c.retained == 1 {
		c.context.Store(d.handle())
	}
	*context = driver.Context(c.context.Load())
	return driver.Success
}

// primaryCtxRelease destroys the context, and what is left in it, with the last reference. That the context is lost
// does not matter.
func (d *Driver) primaryCtxRelease(dev driver.Device) driver.Result {
	c, r := d.enterOn("DevicePrimaryCtxRelease", dev)
	if c == nil || r == driver.NotInitialized {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	if c.retained == 0 {
		return d.refuse(driver.InvalidContext, "DevicePrimaryCtxRelease: it was not retained")
	}
	if c.retained--; c.retained > 0 {
		return r
	}
	for _, line := range d.leaks(c) {
		d.misused("%s", line)
	}
	for h, s := range d.streams.all() {
		if s.card == c {
			d.end(h, s)
		}
	}
	d.events.removeIf(func(e *event) bool { return e.card == c })
	d.funcs.removeIf(func(f *function) bool { return f.module.card == c })
	d.modules.removeIf(func(m *module) bool { return m.card == c })
	d.host.removeIf(func(r *registration) bool { return r.card == c })
	d.memory.clear(c)
	c.peers.removeIf(func(bool) bool { return true })
	c.context.Store(0)
	return r
}

func (d *Driver) ctxSetCurrent(c driver.Context) driver.Result {
	if r := d.enterDevice("CtxSetCurrent"); r != driver.Success {
		return r
	}
	if c != 0 && d.cardOf(uintptr(c)) == nil {
		return d.refuse(driver.InvalidContext, "CtxSetCurrent: %#x is no context", c)
	}
	id := threadID()
	t, ok := d.threads.get(id)
	if !ok {
		d.making.Lock()
		defer d.making.Unlock()
		t = new(thread)
		d.threads.set(id, t)
	}
	unordered(func() {
		t.context.Store(uintptr(c))
		t.setter.Store(goroutineID())
	})
	return driver.Success
}

func (d *Driver) ctxEnablePeerAccess(peer driver.Context, flags uint32) driver.Result {
	const call = "CtxEnablePeerAccess"
	c, r := d.enter(call)
	if r != driver.Success {
		return r
	}
	other := d.cardOf(uintptr(peer))
	switch {
	case flags != 0:
		return d.refuse(driver.InvalidValue, "%s: flags %#x", call, flags)
	case other == nil || other == c:
		return d.refuse(driver.InvalidContext, "%s: %#x is no context of another card", call, peer)
	case !d.arePeers(c, other):
		return d.refuse(driver.PeerAccessUnsupported, "%s: card %d does not reach card %d", call, c.number,
			other.number)
	}
	d.making.Lock()
	defer d.making.Unlock()
	if c.reaches(other) {
		return driver.PeerAccessAlreadyEnabled
	}
	c.peers.set(uintptr(peer), true)
	return driver.Success
}

// thread is an OS thread that has called CtxSetCurrent. Only calls on that thread use it, but from more than one
// goroutine.
type thread struct {
	context atomic.Uintptr
	setter  atomic.Uint64 // the goroutine that has called last
}

// current is the context that the caller may count on. One that another goroutine has left on this thread is there by
// luck.
func (d *Driver) current() uintptr {
	t, ok := d.threads.get(threadID())
	if !ok {
		return 0
	}
	var context uintptr
	unordered(func() {
		if !threadsHaveNames || t.setter.Load() == goroutineID() {
			context = t.context.Load()
		}
	})
	return context
}

// goroutineID is the number in the first line of the stack: "goroutine 7 [running]:".
func goroutineID() uint64 {
	var text [32]byte
	id := uint64(0)
	for _, c := range text[len("goroutine "):runtime.Stack(text[:], false)] {
		if c < '0' || c > '9' {
			break
		}
		id = 10*id + uint64(c-'0')
	}
	return id
}
