package cuda

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
)

const (
	// maxPinBytes is the most that one registration pins: drivers refuse those of hundreds of GiB, and several run at
	// once.
	maxPinBytes = 4 << 30
	// pinsAtOnce bounds the registrations that run at once.
	pinsAtOnce = 8
)

// pinnings are the regions of host memory that CUDA has registered. Registering belongs to the process: CUDA refuses
// memory that it has registered already, whichever context asks (error 712), and a registration that is portable is
// for all contexts. So the first device that wants a region has the driver register it, and the others share that.
type pinnings struct {
	mu    sync.Mutex
	of    map[*hostmem.Region]*pinning
	slots chan struct{} // one for each registration under way
}

var pinned = pinnings{of: map[*hostmem.Region]*pinning{}, slots: make(chan struct{}, pinsAtOnce)}

// pinning is a region of host memory that the driver knows, for all buffers that were made of it.
type pinning struct {
	region *hostmem.Region
	users  int // buffers, and callers that wait for mu; pinnings.mu guards it

	mu sync.Mutex // held while the driver is asked
	// by had the driver register the region, which it undoes in the same context; nil: it is not registered.
	by         *Device
	pieceBytes int64 // of one registration
}

// join is the pinning of a region, with a user more.
func (all *pinnings) join(r *hostmem.Region) *pinning {
	all.mu.Lock()
	defer all.mu.Unlock()
	p := all.of[r]
	if p == nil {
		p = &pinning{region: r}
		all.of[r] = p
	}
	p.users++
	return p
}

// Register implements device.Device. The pages of the region are pinned, no more and no less, once for all GPUs.
func (d *Device) Register(r *hostmem.Region) (device.Buffer, error) {
	if r.AddressOnly() {
		return nil, fmt.Errorf("device %s: register %s: the region is reserved without memory; rehearse on the null "+
			"device", d.id, r.Purpose())
	}
	p := pinned.join(r)
	p.mu.Lock()
	var err error
	if p.by == nil {
		err = d.pin(p)
	}
	p.mu.Unlock()
	if err != nil {
		_ = p.leave() // nothing is pinned, so nothing is given back
		return nil, fmt.Errorf("device %s: pin %s of host memory for %s: %w", d.id, gib(r.ReservedBytes()),
			r.Purpose(), err)
	}
	d.open.Add(1)
	b := &buffer{device: d, bytes: r.Len(), pin: p, host: p.at(0)}
	if d.info.ReachesHost && b.bytes > 0 {
		b.at = hostAddress(b, 0)
	}
	return b, nil
}

// leave is one user less. The last one has the driver forget the region.
func (p *pinning) leave() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := func() bool { return p.users == 0 }
	pinned.mu.Lock()
	p.users--
	forget := last() && p.by != nil
	pinned.mu.Unlock()
	if forget {
		err = p.unpin()
	}
	pinned.mu.Lock()
	defer pinned.mu.Unlock()
	if last() { // still
		delete(pinned.of, p.region)
	}
	return err
}

// at is the address of a byte.
func (p *pinning) at(off int64) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(p.region.Bytes())), off)
}

// pin registers a region, all of it or nothing, in pieces of which several are pinned at once. The error is that of the
// first piece that failed.
func (d *Device) pin(p *pinning) error {
	bytes, each := p.region.ReservedBytes(), d.pinBytes
	pieces := (bytes + each - 1) / each
	done, errs := make([]bool, pieces), make([]error, pieces)
	var failed atomic.Bool // the other pieces need not begin
	var group fault.Group
	for i := range pieces {
		pinned.slots <- struct{}{}
		group.Go(func() {
			defer func() { <-pinned.slots }()
			if off := i * each; !failed.Load() {
				errs[i] = d.with(func() error { return d.pinPiece(p.at(off), min(each, bytes-off)) })
				done[i] = errs[i] == nil
				if !done[i] {
					failed.Store(true)
				}
			}
		})
	}
	group.Wait()
	var first error
	for _, err := range errs {
		first = firstOf(first, err)
	}
	if first == nil {
		p.by, p.pieceBytes = d, each
		d.open.Add(1)
		return nil
	}
	for i, is := range done {
		if is { // the first error says why; what cannot be given back says nothing more
			_ = d.release(func() error { return d.unpinPiece(p.at(int64(i) * each)) })
		}
	}
	return first
}

// pinPiece is cuMemHostRegister with an error that helps. The context is current.
func (d *Device) pinPiece(host unsafe.Pointer, bytes int64) error {
	r := d.api.MemHostRegister(host, uint64(bytes), driver.MemHostRegisterPortable|driver.MemHostRegisterDeviceMap)
	err := d.check("cuMemHostRegister", r)
	if err == nil {
		return nil
	}
	var free, total uint64
	if r == driver.OutOfMemory && d.api.MemGetInfo(&free, &total) == driver.Success &&
		int64(free) < bytes>>20*device.GPUPinnedDeviceBytesPerMiB+pageTableSlackBytes {
		return fmt.Errorf("%w: the GPU has %s free of %s, and it must hold the page tables of pinned memory; "+
			"lower memory.device, or end other programs that use the GPU", err, gib(free), gib(total))
	}
	switch r {
	case driver.OutOfMemory:
		return fmt.Errorf("%w; lower memory.host", err)
	case driver.HostMemoryAlreadyRegistered:
		return fmt.Errorf("%w by other code of this process: have that give it back first", err)
	case driver.OperatingSystem, driver.NotPermitted:
		return fmt.Errorf("%w; let the process lock memory (ulimit -l unlimited; in a container --ulimit memlock=-1)",
			err)
	case driver.NotSupported:
		return fmt.Errorf("%w; this system cannot pin host memory for the GPU: set device to cpu", err)
	}
	return err
}

// pageTableSlackBytes covers the rounding of page tables, and other memory that the driver may take with them.
const pageTableSlackBytes = 32 << 20

// unpin is the opposite of pin, by the device that has pinned.
func (p *pinning) unpin() error {
	d := p.by
	p.by = nil
	d.open.Add(-1)
	return d.release(func() (err error) {
		for done := int64(0); done < p.region.ReservedBytes(); done += p.pieceBytes {
			err = firstOf(err, d.unpinPiece(p.at(done)))
		}
		return err
	})
}

func (d *Device) unpinPiece(host unsafe.Pointer) error {
	return d.check("cuMemHostUnregister", d.api.MemHostUnregister(host))
}
