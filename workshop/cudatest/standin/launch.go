package standin

import (
	"errors"
	"math"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
)

// Limits of every GPU that this program runs on (CUDA C++ Programming Guide, "Compute Capabilities").
const (
	maxBlock  = 1024
	maxBlockZ = 64
	maxGridX  = math.MaxInt32
	maxGridYZ = 65535
)

func (d *Driver) launchKernel(h driver.Function, gx, gy, gz, bx, by, bz, sharedBytes uint32, on driver.Stream,
	params, extra *unsafe.Pointer) driver.Result {
	const call = "LaunchKernel"
	c, r := d.enter(call)
	if r != driver.Success {
		return r
	}
	f, r := c.useFunction(call, h)
	if r != driver.Success {
		return r
	}
	s, r := c.use(call, on)
	if r != driver.Success {
		return r
	}
	grid, block := [3]uint32{gx, gy, gz}, [3]uint32{bx, by, bz}
	if r := d.checkLaunch(f, grid, block, sharedBytes); r != driver.Success {
		return r
	}
	if extra != nil {
		return d.refuse(driver.InvalidValue, "%s: %s: the stand-in takes no extra", call, f.name)
	}
	values, r := d.readParams(f, params)
	if r != driver.Success {
		return r
	}
	unordered(func() { f.module.pending.Add(1) })
	s.run(call, func() (driver.Result, error) {
		err := f.kernel().Run(c.space(), grid, block, sharedBytes, values)
		return launchResult(err), err
	})
	s.queue.put(func() { unordered(func() { f.module.pending.Add(-1) }) }) // even if the launch is skipped
	return driver.Success
}

func (d *Driver) checkLaunch(f *function, grid, block [3]uint32, sharedBytes uint32) driver.Result {
	const call = "LaunchKernel"
	if grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > maxGridX || grid[1] > maxGridYZ || grid[2] > maxGridYZ {
		return d.refuse(driver.InvalidValue, "%s: %s: a grid of %v blocks", call, f.name, grid)
	}
	threads := uint64(block[0]) * uint64(block[1]) * uint64(block[2])
	if threads == 0 || threads > maxBlock || block[0] > maxBlock || block[1] > maxBlock || block[2] > maxBlockZ {
		return d.refuse(driver.InvalidValue, "%s: %s: a block of %v threads", call, f.name, block)
	}
	kernel := f.kernel()
	if most := uint64(kernel.MaxThreads); most > 0 && (threads > most || kernel.ExactThreads && threads != most) {
		return d.refuse(driver.InvalidValue, "%s: %s: a block of %d threads; the kernel is made for %d", call, f.name,
			threads, most)
	}
	own := int64(kernel.SharedBytes)
	limit := max(plainSharedBytes, own+int64(f.dynamicBytes.Load()))
	if own+int64(sharedBytes) > limit {
		return d.refuse(driver.InvalidValue, "%s: %s: %d bytes of shared memory; FuncSetAttribute allows %d",
			call, f.name, own+int64(sharedBytes), limit)
	}
	return driver.Success
}

// readParams copies the values of the parameters into a parameter block. C does not say how many pointers there are;
// with checkptr (as under -race) Go does, and stops the program if they are too few.
func (d *Driver) readParams(f *function, params *unsafe.Pointer) ([]byte, driver.Result) {
	kernel := f.kernel()
	if len(kernel.Params) == 0 {
		return nil, driver.Success
	}
	if params == nil {
		return nil, d.refuse(driver.InvalidValue, "LaunchKernel: %s: no parameters", f.name)
	}
	values := make([]byte, kernel.paramBytes())
	for i, p := range unsafe.Slice(params, len(kernel.Params)) {
		if p == nil {
			return nil, d.refuse(driver.InvalidValue, "LaunchKernel: %s: parameter %d is a nil pointer", f.name, i)
		}
		at := kernel.Params[i]
		copy(values[at.Offset:], unsafe.Slice((*byte)(p), at.Bytes))
	}
	return values, driver.Success
}

// launchResult returns a driver's status for the failure of a kernel.
func launchResult(err error) driver.Result {
	switch {
	case err == nil:
		return driver.Success
	case errors.Is(err, errAddress), errors.Is(err, ptx.ErrAddress):
		return driver.IllegalAddress
	case errors.Is(err, ptx.ErrMisaligned):
		return driver.MisalignedAddress
	case errors.Is(err, ptx.ErrBudget):
		return driver.LaunchTimeout
	}
	return driver.LaunchFailed
}
