package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// SequenceLen counts the positions of a row of a [Step].
const SequenceLen = 2048

// Numerics returns those of the steps: bf16, split fp32 masters, and the given moments.
func Numerics(moments optim.Moments) plan.Numerics {
	return plan.Numerics{Compute: tensor.BF16, Master: optim.Split, Moments: moments, SequenceLen: SequenceLen}
}

// Model returns the model of a named shape, with another number of layers unless that is 0.
func Model(shape string, layers int) *model.Model {
	text := Must(plan.Shape(shape))
	if layers > 0 {
		var fields map[string]any
		Must(0, json.Unmarshal(text, &fields))
		fields["num_hidden_layers"] = layers
		delete(fields, "max_window_layers")
		delete(fields, "layer_types")
		text = Must(json.Marshal(fields))
	}
	return Must(model.New(Must(hf.ParseConfig(shape, text))))
}

// Step is a planned and simulated step.
type Step struct {
	*plan.Plan
	Request plan.Request
}

// PlanStep plans a step of a number of tokens, with micro-batches of a number of positions. As the program does where
// head_chunk is auto, it halves the chunks of the head as long as that makes the step 1% faster. ok is false where no
// plan fits.
func PlanStep(r plan.Request, tokens, positions int) (s Step, ok bool) {
	n := &r.Numerics
	n.MicroBatch, n.MicroBatches = positions/SequenceLen, tokens/positions
	s.Request = r
	for _, chunk := range []int{4096, 2048, 1024, 512} {
		n.HeadChunk = min(chunk, positions)
		p, err := plan.New(context.Background(), r)
		if err != nil {
			continue
		}
		if ok && p.Predicted.StepSeconds > 0.99*s.Predicted.StepSeconds {
			break
		}
		s.Plan, ok = p, true
	}
	return s, ok
}

// ModelTFLOPS returns the model's FLOPs, without recomputation, in units of 1e12 per second.
func (s Step) ModelTFLOPS() float64 {
	n := s.Request.Numerics
	docs := slices.Repeat([]int{SequenceLen}, n.MicroBatch*n.MicroBatches)
	return float64(s.Model.TrainFLOPs(docs)) / s.Predicted.StepSeconds / 1e12
}

// Busy returns the share of the step in which a lane works, in percent.
func (s Step) Busy(lane plan.Lane) float64 {
	return 100 * s.Predicted.LaneSeconds[lane] / s.Predicted.StepSeconds
}

// Waits lists the three longest times in which the compute lane stalls for 0.2% of the step or more.
func (s Step) Waits() string {
	var say []string
	for _, i := range s.Stalls(s.Request.Machine, s.Request.Device) {
		if i.Seconds >= 0.002*s.Predicted.StepSeconds && len(say) < 3 {
			say = append(say, fmt.Sprintf("%s before %s %.1f%%", i.For, i.Before, 100*i.Seconds/s.Predicted.StepSeconds))
		}
	}
	return strings.Join(say, ", ")
}
