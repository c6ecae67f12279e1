package plan_test

import (
	"math"
	"testing"

	"github.com/millrace/millrace/plan"
)

// perPosition returns the bytes of the device that each further packed position takes in a placement.
func perPosition(t *testing.T, change func(*plan.Placement)) float64 {
	t.Helper()
	m := medium.model(t)
	place := moving(m, 2)
	change(&place)
	n := numerics(1, true)
	n.SequenceLen = 512 // so that alignment is little
	at := func(micros int) int64 {
		n.MicroBatches = micros
		return newPlan(t, m, n).With(place).DeviceBytes
	}
	return float64(at(40)-at(20)) / float64(20*n.Positions())
}

// The head in one visit has room for one micro-batch, and in visits of tiles for all. Inputs and gradients of layers take three buffers
// for each, or share one and some spare ones.
func TestDeviceBytesPerPosition(t *testing.T) {
	hidden := float64(medium.Hidden)
	tokens := 6 * 4.0
	working := 3 * 2 * hidden // x of two layers and the gradient, in bf16
	for _, c := range []struct {
		name   string
		change func(*plan.Placement)
		want   float64
	}{
		{"tiles", func(*plan.Placement) {}, tokens + working + (2+4)*hidden + 4 + 4*4 + 3*4},
		{"at once", func(p *plan.Placement) { p.HeadAtOnce = true }, tokens + working},
		{"tiles, shared inputs", func(p *plan.Placement) { p.Rings.Inputs = 2 }, tokens + working/3 + (2+4)*hidden + 4 +
			4*4 + 3*4},
		{"at once, shared inputs", func(p *plan.Placement) { p.HeadAtOnce, p.Rings.Inputs = true, 2 }, tokens + working/3},
	} {
		if got := perPosition(t, c.change); math.Abs(got-c.want) > 0.01*c.want {
			t.Errorf("%s: %.4g bytes, want %.4g", c.name, got, c.want)
		}
	}
}
