package session

import (
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
)

// Of many texts as many grow together as the device has caches for besides all weights, where that makes more tokens a
// second than all texts with weights that come for each token; where weights come in any case, all of them do.
func TestTextsLeaveWeightsOnDevice(t *testing.T) {
	shape, err := plan.Shape("llama-3.2-1b")
	if err != nil {
		t.Fatal(err)
	}
	config, err := hf.ParseConfig("shape", shape)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(config)
	if err != nil {
		t.Fatal(err)
	}
	on, err := plan.FindMachine("h100-pcie5")
	if err != nil {
		t.Fatal(err)
	}
	n, err := runfile.NumericsOf("bf16", "bf16")
	if err != nil {
		t.Fatal(err)
	}
	n.SequenceLen, n.MicroBatches = 64, 1
	r := plan.Request{Model: m.Frozen(), Numerics: n, Device: on.Device, Machine: on.Machine, HostBytes: on.HostBytes}
	for bytes, texts := range map[int64][2]int{8 << 30: {16, 64}, 2 << 30: {100, 256}} {
		r.DeviceBytes = bytes
		p, err := FitTexts(t.Context(), plan.Fitting{Request: r, Rows: 1}, 256, 4096)
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Outputs.Caches.Sequences; n < texts[0] || n > texts[1] || nothingMoves(p) != (bytes > 4<<30) {
			t.Errorf("on %d bytes %d texts grow together, and weights stay on the device: %v", bytes, n, nothingMoves(p))
		}
	}
}
