package demo

import (
	"fmt"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// summary has the part of the result of millrace train that the demo needs.
type summary struct {
	ResumedAfter int      `json:"resumed_after_step"`
	EvalAfter    *float64 `json:"eval_loss_after"` // nats per token
	TrainSec     float64  `json:"train_sec"`
	PeakBytes    int64    `json:"peak_rss_bytes"`

	DiskWrittenBytes int64 `json:"disk_written_bytes"`
}

// stateBytes sums what a run keeps of each parameter from step to step, gradients included, in a list of purposes.
func stateBytes(list []plan.Bytes) (sum int64) {
	for _, b := range list {
		for kind := range store.Kind(store.Kinds) {
			if b.Purpose == kind.String() && (kind == store.Grad || !kind.Transient()) {
				sum += b.Bytes
			}
		}
	}
	return sum
}

// ownBytes sums the host memory of the program and of its kernels in a list of purposes.
func ownBytes(list []plan.Bytes) (sum int64) {
	for _, b := range list {
		if b.Purpose == plan.ProgramPurpose || b.Purpose == plan.DriverPurpose {
			sum += b.Bytes
		}
	}
	return sum
}

// evaluatedBefore is the loss, in nats per token, of a line with which a run begins.
func evaluatedBefore(line string) (loss float64, ok bool) {
	n, _ := fmt.Sscanf(line, "eval loss %f before training", &loss)
	return loss, n == 1
}
