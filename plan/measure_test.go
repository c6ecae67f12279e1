package plan_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

// A driver's memory for the gradient of attention follows from the widest queries, whatever else blocks have.
func TestAttentionScratch(t *testing.T) {
	for _, patchwork := range []bool{false, true} {
		s := tiny
		s.Patchwork = patchwork
		n := numerics(1, false)
		of := func(bytes int64) int64 {
			p, err := plan.New(context.Background(), plan.Request{Model: s.model(t), Numerics: n, Machine: machine,
				Device: device.Info{Name: "test", OverheadBytes: 1 << 20, AttentionElemBytes: bytes}})
			if err != nil {
				t.Fatal(err)
			}
			return p.DeviceDriverBytes
		}
		const each = 1000
		elems := int64(n.Positions() * s.Heads * s.HeadDim)
		if got := of(each) - of(0); got < each*elems || got > each*elems+8192 {
			t.Errorf("two kinds of blocks %v: %d bytes for %d elements", patchwork, got, elems)
		}
	}
}
