// Package drivers opens devices by their names in run files. It is the list of drivers, for the program and for the
// root package: nothing else of the product links one.
package drivers

import (
	"errors"
	"fmt"
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

// Open opens the device that a name in run.yaml stands for, and the host's device, which is always a CPU, and the same
// one where the CPU computes. With a GPU, the CPU's workers have cores of their own, where there are enough.
func (o Opener) Open(name string, accounts *hostmem.Accounts) (computes, host device.Device, err error) {
	computes, err = o.openGPU(name, accounts)
	if err != nil {
		return nil, nil, err
	}
	var own [][]int
	if computes != nil {
		division := cores.Divide()
		for _, c := range division.Workers {
			own = append(own, c.Processors)
		}
		accounts.Spread(division.Nodes)
	}
	host, err = cpu.New(cpu.Options{Accounts: accounts, Cores: own})
	switch {
	case err == nil && computes == nil:
		return host, host, nil
	case err != nil && computes != nil:
		return nil, nil, errors.Join(err, computes.Close())
	}
	return computes, host, err
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
