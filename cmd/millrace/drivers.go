package main

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/internal/hostmem"
)

// openDevice is the list of drivers: it opens the device that a name in run.yaml stands for, and the host's.
func openDevice(name string, accounts *hostmem.Accounts) (computes, host device.Device, err error) {
	kind, _, _ := strings.Cut(name, ":")
	switch kind {
	case "auto", "cpu":
		d, err := cpu.New(cpu.Options{Accounts: accounts})
		if err != nil {
			return nil, nil, err
		}
		return d, d, nil
	case "cuda":
		return nil, nil, fmt.Errorf("device %s: not built yet: this version computes on the CPU; set device to auto or cpu", name)
	}
	return nil, nil, fmt.Errorf("device %q: unknown; known are auto and cpu", name)
}
