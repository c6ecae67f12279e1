package standin

import (
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
)

// registration is host memory that is pinned: for all cards, or for the one whose context was current alone.
type registration struct {
	card     *card
	portable bool
	base     uintptr
	bytes    []byte
	site     string
}

func (r *registration) isFor(c *card) bool { return r.portable || r.card == c }

// findHost is the registration that has all of n bytes, nil if none.
func findHost(all map[uintptr]*registration, address uintptr, n uint64) *registration {
	for base, r := range all {
		if at := uint64(address - base); address >= base && at <= uint64(len(r.bytes)) && n <= uint64(len(r.bytes))-at {
			return r
		}
	}
	return nil
}

func (d *Driver) memHostRegister(p unsafe.Pointer, bytes uint64, flags uint32) driver.Result {
	c, r := d.enter("MemHostRegister")
	if r != driver.Success {
		return r
	}
	if p == nil || bytes == 0 || flags&^(driver.MemHostRegisterPortable|driver.MemHostRegisterDeviceMap) != 0 {
		return d.refuse(driver.InvalidValue, "MemHostRegister: %d bytes at %p with flags %#x", bytes, p, flags)
	}
	d.making.Lock()
	defer d.making.Unlock()
	base := uintptr(p)
	for other, r := range d.host.all() {
		if base < other+uintptr(len(r.bytes)) && other < base+uintptr(bytes) {
			return d.refuse(driver.HostMemoryAlreadyRegistered, "MemHostRegister: %d bytes at %p overlap with what was registered at %s",
				bytes, p, r.site)
		}
	}
	portable := flags&driver.MemHostRegisterPortable != 0
	d.host.set(base, &registration{c, portable, base, unsafe.Slice((*byte)(p), bytes), callSite()})
	return driver.Success
}

func (d *Driver) memHostUnregister(p unsafe.Pointer) driver.Result {
	c, r, proceed := d.enterRelease("MemHostUnregister")
	if !proceed {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	known, ok := d.host.get(uintptr(p))
	if !ok {
		return first(r, d.refuse(driver.HostMemoryNotRegistered, "MemHostUnregister: nothing is registered at %p", p))
	}
	if owned := c.owns("MemHostUnregister", "registration", known.card, known.site); owned != driver.Success {
		return first(r, owned)
	}
	d.host.remove(uintptr(p))
	return r
}

func (d *Driver) memHostGetDevicePointer(p *driver.DevicePtr, host unsafe.Pointer, flags uint32) driver.Result {
	c, r := d.enter("MemHostGetDevicePointer")
	if r != driver.Success {
		return r
	}
	if known := findHost(d.host.all(), uintptr(host), 1); flags != 0 || known == nil || !known.isFor(c) {
		return d.refuse(driver.InvalidValue, "MemHostGetDevicePointer: %p is not registered, or for another card "+
			"alone, or flags %#x are not 0", host, flags)
	}
	*p = driver.DevicePtr(uintptr(host))
	return driver.Success
}
