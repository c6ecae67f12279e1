package cuda

import (
	"fmt"
	"runtime"

	"github.com/millrace/millrace/device/cuda/driver"
)

// with calls f on a thread on which the device's context is current. Entering a thread that has been here before costs
// CUDA a comparison. The context stays current afterwards, which does no harm: all code that needs a context sets its
// own.
func (d *Device) with(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.check("cuCtxSetCurrent", d.api.CtxSetCurrent(d.context)); err != nil {
		return err
	}
	return f()
}

// check is r as an error. It remembers one after which the context is of no use.
func (d *Device) check(call string, r driver.Result) error {
	err := r.Err(call)
	if err != nil && losesContext(r) {
		lost := fmt.Errorf("%w; the operation that failed may be an earlier one (CUDA_LAUNCH_BLOCKING=1 finds it), "+
			"and only a new process can use the GPU again", err)
		d.lost.CompareAndSwap(nil, &lost)
		return lost
	}
	return err
}

// named puts the device's name in front of an error.
func (d *Device) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("device %s: %w", d.id, err)
}

// release calls f, which gives something back. After the context is lost, release reports no error: the driver has
// nothing left to give back, and the operation that failed has already reported the loss.
func (d *Device) release(f func() error) error {
	err := d.with(f)
	if d.lost.Load() != nil {
		return nil
	}
	return d.named(err)
}

// losesContext reports whether CUDA lets nothing happen in a context after such a result. From 714 on all are faults of
// the GPU (stack, instruction, address space, program counter, launch, and what newer drivers add), except one.
func losesContext(r driver.Result) bool {
	switch r {
	case driver.ECCUncorrectable, driver.IllegalAddress, driver.LaunchTimeout, driver.MisalignedAddress, driver.LaunchFailed,
		driver.ContextIsDestroyed, driver.Unknown:
		return true
	}
	// 46: the device is gone, as is said with [driver.Unknown] after it fell off the bus; 220: NVLink; 226: contained;
	// 710: assertion; 911: another device.
	switch r {
	case 46, 220, 226, 710, 911:
		return true
	case cooperativeLaunchTooLarge:
		return false
	}
	return r >= 714 && r < 800
}

// cooperativeLaunchTooLarge is of one launch alone.
const cooperativeLaunchTooLarge driver.Result = 720

// firstOf is the first error: it says why, and what could not be given back after it says nothing more.
func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// closers close what has been opened, in the opposite order.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() error {
	var err error
	for i := len(*c) - 1; i >= 0; i-- {
		err = firstOf(err, (*c)[i]())
	}
	*c = nil
	return err
}
