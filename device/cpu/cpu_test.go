package cpu_test

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/devicetest"
)

func open(t testing.TB, o cpu.Options) *cpu.Device {
	d, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func fail(s device.Stream, err error) { s.(*cpu.Stream).Fail(err) }

func TestConformance(t *testing.T) {
	levels := isa.Available()
	if cpu.RaceEnabled { // which slows the reference down twenty times
		levels = levels[len(levels)-1:]
	}
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			devicetest.Suite{
				Open: func() device.Device { return open(t, cpu.Options{Workers: 2, Level: &level}) },
				Fail: fail,
			}.Run(t)
		})
	}
}
