package plan_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
)

// Eight GPUs do the arithmetic of 6 or 8 FLOPs for each parameter and token at the plan's rate, an eighth each.
func TestEightGPUs(t *testing.T) {
	r, on := onMachine(t, "llama-3-8b", "rtx4090-pc-256gb")
	r.Machine.AttentionFLOPsPerSec = r.Machine.BF16FLOPsPerSec // so that one rate is all
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	e := p.Forecast(r.Machine, r.Device, 0).Eight
	docs := make([]int, r.Numerics.MicroBatch*r.Numerics.MicroBatches)
	for i := range docs {
		docs[i] = r.Numerics.SequenceLen
	}
	want := float64(r.Model.TrainFLOPs(docs)) / r.Machine.BF16FLOPsPerSec / 8
	if math.Abs(e.StepSeconds/want-1) > 1e-9 {
		t.Errorf("%v s, want %v", e.StepSeconds, want)
	}
	params, _ := r.Model.Params()
	table := int64(r.Model.Vocab) * int64(r.Model.Hidden) // rows of the embedding are looked up, not multiplied
	sixN := 6 * float64(params-table) * float64(r.Numerics.StepPositions())
	if attention := e.StepSeconds*8*r.Machine.BF16FLOPsPerSec/sixN - 1; attention < 0 || attention > 0.1 {
		t.Errorf("attention is %v of 6N", attention)
	}
	if ratio := e.RecomputeStepSeconds / e.StepSeconds; ratio < 1.29 || ratio >= 4.0/3 {
		t.Errorf("with recomputation %v times as long", ratio)
	}
	if got := p.Predicted.StepSeconds / e.StepSeconds; got != e.TimesSlower || e.TimesSlower < 8 ||
		e.RecomputeTimesSlower < 6 {
		t.Errorf("%+v, %v s", e, p.Predicted.StepSeconds)
	}
	if state := 14 * params; math.Abs(float64(e.StateBytes)/float64(state)-1) > 0.01 ||
		e.MemoryBytes != 8*on.Device.MemoryBytes {
		t.Errorf("%+v", e)
	}
	if text := p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 0)); !strings.Contains(text,
		"of these with everything resident take") || !strings.Contains(text, "192.00 GiB hold the 104.") {
		t.Error(text)
	}
	r.Device.Unified, r.DeviceBytes = true, 0
	if p, err = plan.New(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	if e := p.Forecast(r.Machine, r.Device, 0).Eight; e != nil {
		t.Errorf("of a device that is no GPU: %+v", e)
	}
}
