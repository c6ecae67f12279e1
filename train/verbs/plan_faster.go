package verbs

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
)

// FasterCompute is a plan's advice to compute in the other type.
type FasterCompute struct {
	Compute     string  `json:"compute"` // precision.compute
	Master      string  `json:"master"`  // precision.master, which goes with it
	StepSeconds float64 `json:"step_sec"`
	// ProcessBytes is the host memory of the run in that type, and MoreBytes what that is more than the plan's;
	// negative if it is less.
	ProcessBytes int64 `json:"process_bytes"`
	MoreBytes    int64 `json:"more_bytes"`

	now float64 // seconds of the plan's steps
}

// String is the advice in a line.
func (f *FasterCompute) String() string {
	memory := fmt.Sprintf("%s more memory", plan.FormatBytes(f.MoreBytes))
	if f.MoreBytes < 0 {
		memory = fmt.Sprintf("%s less memory", plan.FormatBytes(-f.MoreBytes))
	}
	return fmt.Sprintf("precision.compute: %s would take %s a step instead of %s on this machine, and %s; it goes with precision.master %s",
		f.Compute, plan.FormatSeconds(f.StepSeconds), plan.FormatSeconds(f.now), memory, f.Master)
}

// fasterCompute plans the run in the other compute type, and returns it if it is faster than p by more than
// plan.FasterBy. It returns nil on a GPU, on a machine on which a probe has not measured both types, and where the
// other type does not fit, or where state is kept in fewer bits.
func fasterCompute(ctx context.Context, e *session.Env, c *runfile.Config, m *model.Model, weights tensor.DType,
	p *plan.Plan,
	dev device.Info, devices int) *FasterCompute {
	rates, guess := probe.Measured(e.CacheDir, dev, c.Budgets().Path)
	if !dev.Unified || guess != "" || rates.F32AttentionFLOPsPerSec == 0 || p.Numerics.Moments.Coded() ||
		p.Numerics.Master == optim.Split24 {
		return nil
	}
	other := *c
	other.Precision.Compute, other.Precision.Master = tensor.F32.String(), optim.F32.String()
	if p.Numerics.Compute == tensor.F32 {
		other.Precision.Compute, other.Precision.Master = tensor.BF16.String(), optim.Split.String()
	}
	q, err := e.MakePlan(ctx, &other, m, weights, c.MaxSteps, plan.Outputs{}, session.SampleMemory{}, false, false, dev,
		devices)
	if err != nil || q.Predicted.StepSeconds > (1-plan.FasterBy)*p.Predicted.StepSeconds {
		return nil
	}
	return &FasterCompute{Compute: other.Precision.Compute, Master: other.Precision.Master,
		StepSeconds: q.Predicted.StepSeconds, ProcessBytes: q.ProcessBytes(), MoreBytes: q.ProcessBytes() - p.ProcessBytes(),
		now: p.Predicted.StepSeconds}
}
