package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
)

// CopiesFrom implements device.PeerCopier: of another GPU whose memory the driver lets this one reach, over NVLink or
// PCIe. The first answer stays. A driver may say that it does where bytes do not arrive (an IOMMU between the GPUs is
// the usual reason), so some are sent.
func (d *Device) CopiesFrom(other device.Device) bool {
	from, isGPU := other.(*Device)
	if !isGPU || d.noPeers || from.noPeers || from.handle == d.handle {
		return false
	}
	d.peersMu.Lock()
	defer d.peersMu.Unlock()
	reaches, known := d.peers[from]
	if !known {
		var err error
		if reaches, err = d.reach(from); err != nil {
			d.note(fmt.Sprintf("rows of %s pass through host memory: %v", from.id, err))
		}
		d.peers[from] = reaches
	}
	return reaches
}

// reaches reports whether a buffer is memory of a device of which CopiesFrom has said so.
func (d *Device) reaches(b *buffer) bool {
	d.peersMu.Lock()
	defer d.peersMu.Unlock()
	return b.pin == nil && d.peers[b.device]
}

// reach has the driver let the device reach memory of another one, if that is possible.
func (d *Device) reach(from *Device) (bool, error) {
	var can int32
	err := d.check("cuDeviceCanAccessPeer", d.api.DeviceCanAccessPeer(&can, d.handle, from.handle))
	if err != nil || can == 0 {
		return false, err
	}
	err = d.with(func() error {
		r := d.api.CtxEnablePeerAccess(from.context, 0)
		if r == driver.PeerAccessAlreadyEnabled { // by other code of this process
			return nil
		}
		return d.check("cuCtxEnablePeerAccess", r)
	})
	if err == nil {
		err = d.sendFrom(from)
	}
	return err == nil, err
}

// sentBytes are sent from one device to another to see whether they arrive.
const sentBytes = 256 << 10

// sendFrom copies bytes from another device, and compares what arrives.
func (d *Device) sendFrom(from *Device) (err error) {
	const purpose = "a test of copies between GPUs"
	var made closers
	defer func() { err = firstOf(err, made.close()) }()
	region, err := d.accounts.Reserve(purpose, 2*sentBytes)
	if err != nil {
		return err
	}
	made.add(region.Close)
	sent, arrived := region.Bytes()[:sentBytes], region.Bytes()[sentBytes:2*sentBytes]
	for i := range sent {
		sent[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16)
	}
	var host, mem [2]*buffer // there and here
	for i, at := range []*Device{from, d} {
		h, err := at.Register(region)
		if err != nil {
			return err
		}
		made.add(h.Close)
		m, err := at.Alloc(purpose, sentBytes)
		if err != nil {
			return err
		}
		made.add(m.Close)
		host[i], mem[i] = h.(*buffer), m.(*buffer)
	}
	err = from.with(func() error {
		return from.once(func(s driver.Stream) error {
			r := from.api.MemcpyHtoDAsync(mem[0].at, host[0].host, sentBytes, s)
			return from.check("cuMemcpyHtoDAsync", r)
		})
	})
	if err != nil {
		return err
	}
	err = d.with(func() error {
		return d.once(func(s driver.Stream) error {
			r := d.api.MemcpyPeerAsync(mem[1].at, d.context, mem[0].at, from.context, sentBytes, s)
			if err := d.check("cuMemcpyPeerAsync", r); err != nil {
				return err
			}
			r = d.api.MemcpyDtoHAsync(unsafe.Add(host[1].host, sentBytes), mem[1].at, sentBytes, s)
			return d.check("cuMemcpyDtoHAsync", r)
		})
	})
	if err == nil && !bytes.Equal(sent, arrived) {
		err = errors.New("bytes that one GPU copies from another arrive damaged; disable the IOMMU of this machine")
	}
	return err
}
