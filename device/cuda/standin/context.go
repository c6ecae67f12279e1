package standin

import "github.com/millrace/millrace/device/cuda/driver"

func (d *Driver) primaryCtxSetFlags(dev driver.Device, flags uint32) driver.Result {
	if r := d.enterOn("DevicePrimaryCtxSetFlags", dev); r != driver.Success {
		return r
	}
	if flags != 0 && flags != driver.CtxSchedBlockingSync {
		return d.refuse(driver.InvalidValue, "DevicePrimaryCtxSetFlags: flags %#x", flags)
	}
	return driver.Success
}

func (d *Driver) primaryCtxRetain(c *driver.Context, dev driver.Device) driver.Result {
	if r := d.enterOn("DevicePrimaryCtxRetain", dev); r != driver.Success {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	if d.retained++; d.retained == 1 {
		d.context.Store(d.handle())
	}
	*c = driver.Context(d.context.Load())
	return driver.Success
}

// primaryCtxRelease destroys the context, and what is left in it, with the last reference. That the context is lost does not matter.
func (d *Driver) primaryCtxRelease(dev driver.Device) driver.Result {
	r := d.enterOn("DevicePrimaryCtxRelease", dev)
	if r == driver.NotInitialized || r == driver.InvalidDevice {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	if d.retained == 0 {
		return d.refuse(driver.InvalidContext, "DevicePrimaryCtxRelease: it was not retained")
	}
	if d.retained--; d.retained > 0 {
		return r
	}
	d.reportLeaks()
	for h, s := range d.streams.all() {
		d.end(h, s)
	}
	d.events.clear()
	d.modules.clear()
	d.funcs.clear()
	d.host.clear()
	d.memory.clear()
	d.context.Store(0)
	return r
}

func (d *Driver) ctxSetCurrent(c driver.Context) driver.Result {
	if r := d.enterDevice("CtxSetCurrent"); r != driver.Success {
		return r
	}
	if c != 0 && uintptr(c) != d.context.Load() {
		return d.refuse(driver.InvalidContext, "CtxSetCurrent: %#x is no context", c)
	}
	id := threadID()
	if now, _ := d.threads.get(id); now == c {
		return driver.Success // without a change nobody is ordered
	}
	d.making.Lock()
	defer d.making.Unlock()
	if c == 0 {
		d.threads.remove(id)
	} else {
		d.threads.set(id, c)
	}
	return driver.Success
}
