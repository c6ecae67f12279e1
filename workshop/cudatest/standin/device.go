package standin

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
)

// multiprocessors is the number of multiprocessors of a mid-range card.
const multiprocessors = 28

// plainSharedBytes is the shared memory that a launch may ask for without FuncSetAttribute.
const plainSharedBytes = 48 << 10

func (d *Driver) init(flags uint32) driver.Result {
	if r := d.injected("Init"); r != driver.Success {
		return r
	}
	if flags != 0 {
		return d.refuse(driver.InvalidValue, "Init: flags %#x", flags)
	}
	d.initialized.Store(true)
	return driver.Success
}

func (d *Driver) driverGetVersion(version *int32) driver.Result {
	if r := d.injected("DriverGetVersion"); r != driver.Success {
		return r
	}
	*version = d.options.DriverVersion
	return driver.Success
}

func (d *Driver) deviceGetCount(n *int32) driver.Result {
	if r := d.enterDevice("DeviceGetCount"); r != driver.Success {
		return r
	}
	*n = int32(len(d.cards))
	return driver.Success
}

func (d *Driver) deviceGet(dev *driver.Device, ordinal int32) driver.Result {
	if r := d.enterDevice("DeviceGet"); r != driver.Success {
		return r
	}
	if ordinal < 0 || int(ordinal) >= len(d.cards) {
		return driver.InvalidDevice
	}
	*dev = driver.Device(ordinal)
	return driver.Success
}

func (d *Driver) deviceGetName(name *byte, length int32, dev driver.Device) driver.Result {
	c, r := d.enterOn("DeviceGetName", dev)
	if r != driver.Success {
		return r
	}
	if length < 1 {
		return d.refuse(driver.InvalidValue, "DeviceGetName: a name of %d bytes", length)
	}
	out := unsafe.Slice(name, length)
	n := copy(out[:length-1], fmt.Sprintf("Stand-in sm_%d%d", c.capability()[0], c.capability()[1]))
	out[n] = 0
	return driver.Success
}

func (d *Driver) deviceTotalMem(bytes *uint64, dev driver.Device) driver.Result {
	if _, r := d.enterOn("DeviceTotalMem", dev); r != driver.Success {
		return r
	}
	*bytes = d.options.MemoryBytes
	return driver.Success
}

func (d *Driver) deviceGetAttribute(value *int32, a driver.Attribute, dev driver.Device) driver.Result {
	c, r := d.enterOn("DeviceGetAttribute", dev)
	if r != driver.Success {
		return r
	}
	switch a {
	case driver.MaxSharedMemoryPerBlockOptin:
		*value = d.options.SharedOptinBytes
	case driver.MultiprocessorCount:
		*value = multiprocessors
	case driver.KernelExecTimeout:
		if *value = 0; d.options.Screen {
			*value = 1
		}
	case driver.HostPointerOfRegistered:
		if *value = 1; d.options.HostApart {
			*value = 0
		}
	case driver.ComputeCapabilityMajor:
		*value = c.capability()[0]
	case driver.ComputeCapabilityMinor:
		*value = c.capability()[1]
	default:
		return d.refuse(driver.InvalidValue, "DeviceGetAttribute: the stand-in does not know attribute %d", a)
	}
	return driver.Success
}

func (d *Driver) deviceCanAccessPeer(can *int32, dev, peer driver.Device) driver.Result {
	c, r := d.enterOn("DeviceCanAccessPeer", dev)
	other, also := d.enterOn("DeviceCanAccessPeer", peer)
	if r = first(r, also); r != driver.Success {
		return r
	}
	if *can = 0; d.arePeers(c, other) {
		*can = 1
	}
	return driver.Success
}

// arePeers reports whether a card can reach memory of another one.
func (d *Driver) arePeers(c, other *card) bool { return c != other && d.options.Peers }

// enterOn begins a call that names a device.
func (d *Driver) enterOn(call string, dev driver.Device) (*card, driver.Result) {
	r := d.enterDevice(call)
	if dev < 0 || int(dev) >= len(d.cards) {
		return nil, first(r, driver.InvalidDevice)
	}
	return d.cards[dev], r
}
