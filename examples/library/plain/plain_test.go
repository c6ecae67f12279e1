package plain

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
)

// The driver keeps the contract, as every driver must.
func TestContract(t *testing.T) {
	devicetest.Suite{
		Open: func() device.Device { return New(64 << 20) },
		Fail: func(s device.Stream, err error) { s.(*stream).Fail(err) },
	}.Run(t)
}
