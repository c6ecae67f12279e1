package verbs

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/reference"
	"github.com/millrace/millrace/train/session"
)

// ReferencePlanned has the costs of a loop's reference while it reads the answers of a round, besides the run.
type ReferencePlanned struct {
	Plan    *plan.Plan
	Passes  int     // over the answers of a round, at most
	Seconds float64 // that they take, predicted, without the reading of the weights
	answers int
}

// referencePlanned plans the reference of a loop within rl.reference_memory; nil where a run has none. m is the run's
// model, and named is the machine that the plan is for; nil: this one.
func referencePlanned(ctx context.Context, e *session.Env, c *runfile.Config, m *model.Model, dev device.Info,
	rates plan.Machine, named *plan.NamedMachine) (*ReferencePlanned, error) {
	of, err := c.Objective.Open()
	if err != nil || !c.RL.Asked() || of == nil || !of.Needs().Reference {
		return nil, err
	}
	if name := c.Objective.Reference; name != runfile.ReferenceStart {
		if m, _, err = ModelToPlan(ctx, e, name, ""); err != nil {
			return nil, fmt.Errorf("objective.reference: %w", err)
		}
	}
	n, err := c.Types()
	if err != nil {
		return nil, err
	}
	n.SequenceLen = c.SequenceLen
	memory := c.RL.ReferenceMemory.Budgets()
	if err := reference.CheckRounds(memory, dev.Unified); err != nil {
		return nil, err
	}
	var request plan.Request
	if named != nil {
		request = named.Request(m.Frozen(), n)
		request.Devices, request.DeviceBytes, request.HostBytes = 1, memory.Device.N, memory.Host.N
		request.DiskBytes, request.Drives = 0, nil
	} else if request, err = e.PlanRequest(m.Frozen(), n, dev, 1, memory); err != nil {
		return nil, err
	}
	request.Guest = runfile.ReferenceMemoryKey
	r := &ReferencePlanned{answers: c.RL.PromptsPerStep * c.RL.Samples}
	r.Plan, err = plan.Fitting{Request: request, Rows: r.answers,
		OutputsOf: func(plan.Numerics) plan.Outputs { return plan.Outputs{LogProbs: true} }}.FitForward(ctx)
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	rows := r.Plan.Numerics.MicroBatch
	r.Passes = (r.answers + rows - 1) / rows
	r.Seconds = float64(r.Passes) * r.Plan.Simulate(rates, dev).StepSeconds
	return r, nil
}

// String says it in a line.
func (r *ReferencePlanned) String() string {
	memory := plan.FormatBytes(r.Plan.ProcessBytes()) + " of host memory"
	if !r.Plan.Unified {
		memory += fmt.Sprintf(" and %s of the device", plan.FormatBytes(r.Plan.DeviceTotalBytes()))
	}
	return fmt.Sprintf("reference: %s besides the run, while it reads the %d answers of a round; that takes %s "+
		"(predicted: passes over up to %d answers at a time, each as long as it can be), after its weights are read",
		memory, r.answers, plan.FormatSeconds(r.Seconds), r.Plan.Numerics.MicroBatch)
}
