// Package drivers opens devices by their names in run files. It is the list of drivers, for the program and for the
// root package: nothing else of the product links one.
package drivers

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/cores"
)

// Opener opens devices.
type Opener struct {
	// Load finds NVIDIA's driver; nil is [driver.Load]. Tests give a stand-in.
	Load func() (*driver.API, error)
	// OwnProducts has a GPU multiply with the program's own kernels, even where there is a library.
	OwnProducts bool
	// Note tells people something in addition to the result, in a line.
	Note func(line string)
	// OnCPU receives the reason why the CPU computes on a machine that has a GPU.
	OnCPU func(why error)
}

// Open opens the devices that a value of `device` in run.yaml stands for, alike, and the host's device, which is always
// a CPU, and the first of them where CPUs compute. The value is a name, or several with commas between them. Several
// CPU devices divide the cores. With a GPU, the CPU's workers have cores of their own, where there are enough.
func (o Opener) Open(value string, accounts *hostmem.Accounts) (computes []device.Device, host device.Device,
	err error) {
	names, err := namesOf(value)
	if err != nil {
		return nil, nil, err
	}
	if len(names) > 1 {
		computes, err = openCPUs(len(names), accounts)
		if err != nil {
			return nil, nil, err
		}
		return computes, computes[0], nil
	}
	gpu, err := o.openGPU(names[0], accounts)
	if err != nil {
		return nil, nil, err
	}
	var own [][]int
	if gpu != nil {
		division := cores.Divide()
		for _, c := range division.Workers {
			own = append(own, c.Processors)
		}
		accounts.Spread(division.Nodes)
	}
	host, err = cpu.New(cpu.Options{Accounts: accounts, Cores: own})
	switch {
	case err == nil && gpu == nil:
		return []device.Device{host}, host, nil
	case err != nil && gpu != nil:
		return nil, nil, errors.Join(err, gpu.Close())
	}
	return []device.Device{gpu}, host, err
}

// namesOf are the devices that a value names.
func namesOf(value string) ([]string, error) {
	names := strings.Split(value, ",")
	for i, name := range names {
		if names[i] = strings.TrimSpace(name); names[i] != "cpu" && len(names) > 1 {
			return nil, fmt.Errorf("device %q: %q cannot be one of several, only cpu can: name one device",
				value, names[i])
		}
	}
	if len(names) > device.MaxDevices {
		return nil, fmt.Errorf("device: %d devices are named, and there can be %d; name fewer", len(names),
			device.MaxDevices)
	}
	return names, nil
}

// openCPUs opens CPU devices that share the cores.
func openCPUs(n int, accounts *hostmem.Accounts) (all []device.Device, err error) {
	for range n {
		d, err := cpu.New(cpu.Options{Accounts: accounts, Workers: max(runtime.GOMAXPROCS(0)/n, 1)})
		if err != nil {
			for _, opened := range all {
				err = errors.Join(err, opened.Close())
			}
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// openGPU is nil where the CPU is to compute.
func (o Opener) openGPU(name string, accounts *hostmem.Accounts) (device.Device, error) {
	kind, number, isNumbered := strings.Cut(name, ":")
	ordinal := 0
	switch {
	case name == "cpu":
		return nil, nil
	case name == "auto", name == "cuda":
	case kind == "cuda" && isNumbered:
		var err error
		if ordinal, err = strconv.Atoi(number); err != nil || ordinal < 0 {
			return nil, fmt.Errorf("device %q: %q is not the number of a GPU; use cuda:0 for the first one", name, number)
		}
	default:
		return nil, fmt.Errorf("device %q is unknown: use auto, cpu, cuda or cuda:N", name)
	}
	var d *cuda.Device
	load := o.Load
	if load == nil {
		load = driver.Load
	}
	api, err := load()
	if err == nil {
		d, err = cuda.Open(cuda.Options{Ordinal: ordinal, API: api, Accounts: accounts,
			OwnProducts: o.OwnProducts, Note: o.Note})
	} else {
		err = fmt.Errorf("device %s: %w", name, err)
	}
	switch {
	case err == nil:
		return d, nil
	case name != "auto":
		return nil, err
	case !errors.Is(err, driver.ErrMissing): // there is a GPU, or was meant to be
		o.OnCPU(err)
	}
	return nil, nil
}
