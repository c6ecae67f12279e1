// Package drivers opens devices by their names in run files. It is the list of drivers, for the program and for the
// root package: nothing else of the product links one.
package drivers

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
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
	// NoPeers has rows pass between GPUs through host memory, even where these copy from each other.
	NoPeers bool
	// Parts is the number of processes that share this machine's GPUs, and Part is this one of them: of the GPUs that
	// auto stands for it opens its own share, and the first of them for cuda. 0: all are its own.
	Part, Parts int
	// Note tells people something in addition to the result, in a line.
	Note func(line string)
	// OnCPU receives the reason why the CPU computes on a machine that has a GPU.
	OnCPU func(why error)
}

// Open opens the devices that a value of `device` in run.yaml stands for, alike, and the host's device, which is always
// a CPU, and the first of them where CPUs compute. The value is a name, or several with commas between them: auto, cpu,
// cuda or cuda:N, and of verbs that compute on one device first: a GPU if there is one, else the CPU. Several CPU
// devices divide the cores. With GPUs, the CPU's workers have cores of their own, where there are enough.
func (o Opener) Open(value string, accounts *hostmem.Accounts) (computes []device.Device, host device.Device,
	err error) {
	want, err := parse(value)
	if err != nil {
		return nil, nil, err
	}
	if want.cpus == 0 {
		computes, err = o.openGPUs(want, accounts)
		if err != nil {
			return nil, nil, err
		}
	}
	if len(computes) == 0 {
		if computes, err = openCPUs(max(want.cpus, 1), accounts); err != nil {
			return nil, nil, err
		}
		return computes, computes[0], nil
	}
	var own [][]int
	division := cores.Divide(len(computes))
	for _, c := range division.Workers {
		own = append(own, c.Processors)
	}
	accounts.Spread(division.Nodes)
	host, err = cpu.New(cpu.Options{Accounts: accounts, Cores: own})
	if err != nil {
		return nil, nil, errors.Join(err, closeAll(computes))
	}
	return computes, host, nil
}

// wanted holds the devices that a value of `device` asks for.
type wanted struct {
	value    string // as people wrote it
	cpus     int    // CPU devices
	ordinals []int  // GPUs by number
	first    bool   // of the GPUs that are this process's, the first one
	most     int    // without numbers: the most GPUs of one kind to take, or else the CPU
}

// parse reads a value of `device`.
func parse(value string) (wanted, error) {
	w := wanted{value: value}
	names := strings.Split(value, ",")
	if len(names) > device.MaxDevices {
		return w, fmt.Errorf("device: %d devices are named, and there can be %d; name fewer", len(names),
			device.MaxDevices)
	}
	for _, name := range names {
		name = strings.TrimSpace(name)
		kind, number, isNumbered := strings.Cut(name, ":")
		switch {
		case name == "cpu":
			w.cpus++
		case kind == "cuda" && isNumbered:
			ordinal, err := strconv.Atoi(number)
			if err != nil || ordinal < 0 {
				return w, fmt.Errorf("device %q: %q is not the number of a GPU; use cuda:0 for the first one", name,
					number)
			}
			if slices.Contains(w.ordinals, ordinal) {
				return w, fmt.Errorf("device %q: cuda:%d is named twice; name each GPU once", value, ordinal)
			}
			w.ordinals = append(w.ordinals, ordinal)
		case len(names) > 1:
			return w, fmt.Errorf("device %q: %q cannot be one of several; name GPUs by number, such as cuda:0, or cpu",
				value, name)
		case name == "cuda":
			w.first = true
		case name == "auto":
			w.most = device.MaxDevices
		case name == "first": // verbs that compute on one device make it of auto, which people wrote
			w.value, w.most = "auto", 1
		default:
			return w, fmt.Errorf("device %q is unknown: use auto, cpu, cuda or cuda:N", name)
		}
	}
	if w.cpus > 0 && w.ordinals != nil {
		return w, fmt.Errorf("device %q: a step is shared by GPUs or by CPU devices, and not by both; name devices of "+
			"one kind", value)
	}
	return w, nil
}

// openCPUs opens CPU devices that share the cores.
func openCPUs(n int, accounts *hostmem.Accounts) (all []device.Device, err error) {
	workers := 0 // all
	if n > 1 {
		workers = max(runtime.GOMAXPROCS(0)/n, 1)
	}
	for range n {
		d, err := cpu.New(cpu.Options{Accounts: accounts, Workers: workers})
		if err != nil {
			return nil, errors.Join(err, closeAll(all))
		}
		all = append(all, d)
	}
	return all, nil
}

func closeAll(devices []device.Device) (err error) {
	for _, d := range devices {
		err = errors.Join(err, d.Close())
	}
	return err
}
