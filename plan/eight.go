package plan

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
)

// eight GPUs make the node that full fine-tuning is usually done on.
const eight = 8

// EightGPUs is a step of the same tokens on eight such GPUs at their best: they hold all state, share the arithmetic
// evenly, and lose no time to communication, element-wise operations or the optimizer. Products, attention and gated
// delta nets run at the rates that the plan has. So StepSeconds is a lower bound, and TimesSlower, of this plan's step,
// an upper one.
type EightGPUs struct {
	StepSeconds float64 `json:"step_sec"` // 6 FLOPs for each parameter and token, and attention
	TimesSlower float64 `json:"times_slower"`
	// The same where blocks are computed again in the backward pass, as is usual: 8 FLOPs instead of 6.
	RecomputeStepSeconds float64 `json:"recompute_step_sec"`
	RecomputeTimesSlower float64 `json:"recompute_times_slower"`

	StateBytes  int64 `json:"state_bytes"`  // weights, gradients and optimizer state, which they have to hold
	MemoryBytes int64 `json:"memory_bytes"` // of all eight; 0: not known
}

// onEight compares the plan with eight such GPUs; nil for a device that computes on the host's memory, and for several
// hosts.
func (p *Plan) onEight(m Machine, dev device.Info) *EightGPUs {
	if dev.Unified || p.Cluster.Several() || !p.Trains() || p.Predicted.StepSeconds <= 0 {
		return nil
	}
	n := p.Numerics
	rows := n.MicroBatch * n.CohortCount()
	head, blocks := p.trainSeconds(&m, n.SequenceLen, rows*n.TrainedMicros())
	up := 0.0 // of micro-batches that are not trained
	if n.ForwardOnly > 0 {
		head, blocks := p.trainSeconds(&m, n.SequenceLen, rows*n.ForwardOnly)
		up = (head + blocks) / 3
	}
	e := &EightGPUs{StepSeconds: (head + blocks + up) / eight, RecomputeStepSeconds: (head + blocks*4/3 + up) / eight,
		MemoryBytes: eight * dev.MemoryBytes}
	e.TimesSlower = p.Predicted.StepSeconds / e.StepSeconds
	e.RecomputeTimesSlower = p.Predicted.StepSeconds / e.RecomputeStepSeconds
	for _, spec := range p.Extents() {
		e.StateBytes += spec.Bytes
	}
	return e
}

// trainSeconds returns the seconds that the arithmetic of model.TrainFLOPs takes on one device, of head and blocks:
// forward, and twice as much for backward at the same rates.
func (p *Plan) trainSeconds(m *Machine, sequenceLen, rows int) (head, blocks float64) {
	docs := slices.Repeat([]int{sequenceLen}, rows)
	sec := func(a nn.Account) float64 { return 3 * p.seconds(m, &a, nn.Class.IsFLOPs) }
	known := map[int]float64{}
	for block, like := range p.Model.Like {
		if _, ok := known[like]; !ok {
			known[like] = sec(p.Model.Account(1+block, docs))
		}
		blocks += known[like]
	}
	return sec(p.Model.Account(1+len(p.Model.Blocks), docs)), blocks
}

// text is the comparison for people.
func (e *EightGPUs) text() string {
	holds := ""
	switch {
	case e.MemoryBytes == 0:
	case e.StateBytes > e.MemoryBytes:
		holds = fmt.Sprintf("; their %s could not hold the %s of state", FormatBytes(e.MemoryBytes),
			FormatBytes(e.StateBytes))
	default:
		holds = fmt.Sprintf("; their %s hold the %s of state", FormatBytes(e.MemoryBytes), FormatBytes(e.StateBytes))
	}
	return fmt.Sprintf("8 GPUs      eight of these with everything resident take %s a step at the best, and this plan "+
		"%.1f times as long (%s and %.1f with recomputation)%s\n", FormatSeconds(e.StepSeconds), e.TimesSlower,
		FormatSeconds(e.RecomputeStepSeconds), e.RecomputeTimesSlower, holds)
}
