package main

import (
	"os"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/drivers"
)

// openDevice opens the devices that a value of `device` in run.yaml stands for.
func (p *program) openDevice(name string, accounts *hostmem.Accounts) (computes []device.Device, host device.Device,
	err error) {
	onCPU := func(why error) { p.stderr.line("millrace: computing on the CPU: %s", oneLine(why)) }
	return drivers.Opener{Load: loadDriver, OwnProducts: os.Getenv("MILLRACE_OWN_PRODUCTS") == "1",
		NoPeers: os.Getenv("MILLRACE_PEER_COPIES") == "0", Note: p.note, OnCPU: onCPU,
		Part: p.hosts.part, Parts: p.hosts.parts}.Open(name, accounts)
}

// note tells people something in addition to the result.
func (p *program) note(line string) { p.stderr.note("millrace: %s", line) }
