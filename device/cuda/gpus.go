package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/millrace/millrace/device/cuda/driver"
)

// gpu describes a GPU before it is opened.
type gpu struct {
	handle        driver.Device
	name          string
	memoryBytes   uint64
	major, minor  int
	processors    int
	kernelTimeout int // 1: kernels have a time limit
	sharedBytes   int // of one block, at most
	reachesHost   int // 1: kernels see registered host memory where the host does
	driverVersion int32
}

// Kind identifies GPUs that compute the same bits with one driver. The zero value identifies a GPU that this program
// cannot use.
type Kind struct {
	Name         string // "NVIDIA H100 80GB HBM3"
	Major, Minor int    // of the compute capability
}

func (k Kind) String() string {
	return fmt.Sprintf("%s, compute capability %d.%d", k.Name, k.Major, k.Minor)
}

// Kinds returns the kind of each GPU that the driver shows, by number. The error is one line.
func Kinds(api *driver.API) ([]Kind, error) {
	count, err := start(api)
	if err != nil {
		return nil, err
	}
	kinds := make([]Kind, count)
	for i := range kinds {
		if g, err := inspect(api, int32(i)); err == nil && g.major >= minMajor {
			kinds[i] = Kind{g.name, g.major, g.minor}
		}
	}
	return kinds, nil
}

// start initializes the driver and counts the GPUs, of which there is at least one.
func start(api *driver.API) (count int32, err error) {
	if r := api.Init(0); r == driver.NoDevice {
		return 0, noGPU()
	} else if r != driver.Success {
		return 0, r.Err("cuInit")
	}
	err = api.DeviceGetCount(&count).Err("cuDeviceGetCount")
	if err == nil && count == 0 {
		err = noGPU()
	}
	return count, err
}

// choose finds the GPU of a number, and makes sure that the kernels run on it.
func choose(api *driver.API, ordinal int) (*gpu, error) {
	count, err := start(api)
	switch {
	case err != nil:
		return nil, err
	case ordinal < 0 || ordinal >= int(count):
		return nil, fmt.Errorf("there is no such GPU; there %s", list(api, count))
	}
	g, err := inspect(api, int32(ordinal))
	switch {
	case err != nil:
		return nil, err
	case g.major < minMajor:
		return nil, fmt.Errorf("%s has compute capability %d.%d, and %d.0 or newer is needed (Ampere: RTX 30, A100, "+
			"or later); set device to cpu",
			g.name, g.major, g.minor, minMajor)
	}
	return g, nil
}

func noGPU() error {
	if visible, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		return fmt.Errorf("the driver shows no GPU, and CUDA_VISIBLE_DEVICES is %q: unset it, or set it to the GPUs "+
			"to use, such as 0", visible)
	}
	return errors.New("the driver shows no GPU: nvidia-smi lists those that there are; a container must be started " +
		"with access to them")
}

// list names the GPUs that there are.
func list(api *driver.API, count int32) string {
	var all []string
	for i := range count {
		g, err := inspect(api, i)
		if err != nil {
			all = append(all, fmt.Sprintf("cuda:%d (%v)", i, err))
			continue
		}
		all = append(all, fmt.Sprintf("cuda:%d (%s, %s)", i, g.name, gib(g.memoryBytes)))
	}
	verb := "are "
	if count == 1 {
		verb = "is only "
	}
	return verb + strings.Join(all, ", ")
}

func inspect(api *driver.API, ordinal int32) (*gpu, error) {
	g := &gpu{}
	if err := api.DeviceGet(&g.handle, ordinal).Err("cuDeviceGet"); err != nil {
		return nil, err
	}
	if err := api.DriverGetVersion(&g.driverVersion).Err("cuDriverGetVersion"); err != nil {
		return nil, err
	}
	var name [256]byte
	if err := api.DeviceGetName(&name[0], int32(len(name)), g.handle).Err("cuDeviceGetName"); err != nil {
		return nil, err
	}
	g.name, _, _ = strings.Cut(string(name[:]), "\x00")
	if err := api.DeviceTotalMem(&g.memoryBytes, g.handle).Err("cuDeviceTotalMem"); err != nil {
		return nil, err
	}
	for _, a := range []struct {
		to        *int
		attribute driver.Attribute
	}{
		{&g.kernelTimeout, driver.KernelExecTimeout}, {&g.major, driver.ComputeCapabilityMajor},
		{&g.minor, driver.ComputeCapabilityMinor},
		{&g.processors, driver.MultiprocessorCount}, {&g.sharedBytes, driver.MaxSharedMemoryPerBlockOptin},
		{&g.reachesHost, driver.HostPointerOfRegistered},
	} {
		var v int32
		if err := api.DeviceGetAttribute(&v, a.attribute, g.handle).Err("cuDeviceGetAttribute"); err != nil {
			return nil, err
		}
		*a.to = int(v)
	}
	return g, nil
}
