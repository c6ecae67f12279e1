package main

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

// openDevice is the list of drivers: it opens the device that a name in run.yaml stands for, and the host's device,
// which is always a CPU, and the same one where the CPU computes. With a GPU, the CPU's workers have cores of their
// own, where there are enough.
func (p *program) openDevice(name string, accounts *hostmem.Accounts) (computes, host device.Device, err error) {
	computes, err = p.openGPU(name, accounts)
	if err != nil {
		return nil, nil, err
	}
	var own []cores.Core
	if computes != nil {
		division := cores.Divide()
		own = division.Workers
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
func (p *program) openGPU(name string, accounts *hostmem.Accounts) (device.Device, error) {
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
	api, err := loadDriver()
	if err == nil {
		d, err = cuda.Open(cuda.Options{Ordinal: ordinal, API: api, Accounts: accounts, Note: p.note})
	} else {
		err = fmt.Errorf("device %s: %w", name, err)
	}
	switch {
	case err == nil:
		return d, nil
	case name != "auto":
		return nil, err
	case !errors.Is(err, driver.ErrMissing): // there is a GPU, or was meant to be
		p.note("computing on the CPU: " + oneLine(err))
	}
	return nil, nil
}

// note tells people something in addition to the result.
func (p *program) note(line string) { p.stderr.line("millrace: %s", line) }
