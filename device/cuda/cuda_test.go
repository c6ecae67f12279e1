package cuda_test

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/standin"
	"github.com/millrace/millrace/device/devicetest"
)

// The suite of all drivers, on the kernels that the program carries.
func TestConformance(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("the interpreter of PTX is slow under the race detector; TestStandInTraining looks for missing waits")
	}
	for name, p := range map[string]products{"own products": ownProducts, "library": library} {
		if p == library && testing.Short() {
			continue // only products differ
		}
		t.Run(name, func(t *testing.T) {
			devicetest.Suite{
				Open: func() device.Device { return open(t, standin.Options{}, p) },
				Fail: fail,
			}.Run(t)
		})
	}
}
