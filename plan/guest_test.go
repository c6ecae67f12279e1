package plan_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
)

// A model in memory besides a run is refused with advice that its own budgets can follow: it has no disk, and no key
// that shapes the run's steps gives it room.
func TestAdviceToGuests(t *testing.T) {
	f := plan.Fitting{Request: request(t, medium, numerics(2, true)), Rows: 4,
		OutputsOf: func(plan.Numerics) plan.Outputs { return plan.Outputs{LogProbs: true} }}
	f.Model, f.Guest = f.Model.Frozen(), "rl.reference_memory"
	fits, err := f.FitForward(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		host, device int64
		want         []string
	}{
		"host": {1 << 16, 1 << 40, []string{"rl.reference_memory.host: the model needs ", "raise it; the smallest changes",
			"makes it fit: rl.reference_memory.host="}},
		"device": {1 << 40, 1 << 12, []string{"rl.reference_memory.device: a step needs", "raise it; the smallest changes",
			"makes it fit: rl.reference_memory.device="}},
		"both": {1 << 16, 1 << 12, []string{"rl.reference_memory.device: a step needs",
			"rl.reference_memory.host: 64.0 KiB is too small as well, and the model needs ", "no change of one key alone"}},
	} {
		f.HostBytes, f.DeviceBytes = c.host, c.device
		_, err := f.FitForward(t.Context())
		oneLine(t, err, c.want...)
		for _, key := range []string{"disk", "batch_tokens", "sequence_len", "smaller model", "numerics.", "precision.",
			" memory."} {
			if err != nil && strings.Contains(err.Error(), key) {
				t.Errorf("%s: it advises %s: %v", name, key, err)
			}
		}
	}
	f.HostBytes, f.DeviceBytes = fits.ProcessBytes(), fits.DeviceTotalBytes()
	if _, err := f.FitForward(t.Context()); err != nil {
		t.Errorf("with what it needs: %v", err)
	}
	f.Guest, f.HostBytes = "", 1<<16 // a run's own model has the advice
	_, err = f.FitForward(t.Context())
	oneLine(t, err, "memory.host: the run needs", "set memory.disk, choose a smaller model, or lower batch_tokens")
}
