// Command speed prints, as markdown tables, the simulated steps of one GPU at the sizes at which systems of this kind
// are measured: FLOPs over rate and bytes over bandwidth first, then the step, the lanes and the waits of the compute
// lane. It needs no machine, model or data: shapes and machines are named ones.
package main

import (
	"fmt"
	"log"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
)

// size is a step that is asked for.
type size struct {
	shape   string
	layers  int // 0: the shape's
	machine string
	moments optim.Moments
	tokens  int

	streamed bool // every block, and all of it is recomputed
}

func main() {
	log.SetFlags(0)
	for _, machine := range []string{"h100-sxm", "h100-pcie5"} {
		table("Sizes, "+machine,
			size{shape: "qwen2.5-7b", machine: machine, tokens: 32768},
			size{shape: "qwen2.5-7b", machine: machine, tokens: 65536},
			size{shape: "qwen2.5-7b", machine: machine, tokens: 8192},
			size{shape: "qwen2.5-14b", machine: machine, moments: optim.Dynamic8, tokens: 32768},
			size{shape: "llama-3-70b", machine: machine, tokens: 32768},
			size{shape: "dense-123b", machine: machine, tokens: 32768})
	}
	fmt.Print("\n## Blocks, h100-sxm\n\nBlocks of qwen2.5-7b, 32,768 tokens, all streamed.\n\n")
	harness.Head("| blocks | parameters | step | model TFLOP/s | compute busy |")
	for _, layers := range []int{28, 56, 84, 112, 140, 180} {
		p := size{shape: "qwen2.5-7b", layers: layers, machine: "h100-sxm", tokens: 32768, streamed: true}.plan()
		params, _ := p.Model.Params()
		fmt.Printf("| %d | %s | %.3g s | %.0f | %.1f%% |\n", layers, plan.FormatCount(params), p.Predicted.StepSeconds,
			p.ModelTFLOPS(), p.Busy(plan.LaneCompute))
	}
	fmt.Print("\n## Streamed against resident, qwen2.5-7b\n\n")
	harness.Head("| machine | tokens | streamed | resident | ratio |")
	for _, machine := range []string{"h100-sxm", "h100-pcie5"} {
		for _, tokens := range []int{8192, 16384, 32768, 65536} {
			p := size{shape: "qwen2.5-7b", machine: machine, tokens: tokens, streamed: true}.plan()
			on := p.Request
			streamed, resident := p.Predicted.StepSeconds, allResident(p.Plan).Simulate(on.Machine, on.Device).StepSeconds
			fmt.Printf("| %s | %d | %.3f s | %.3f s | %.3f |\n", machine, tokens, streamed, resident, streamed/resident)
		}
	}
}

// allResident changes a plan to one on a device that has memory for the state of all blocks, and updates it.
func allResident(p *plan.Plan) *plan.Plan {
	place := p.Placement.Clone()
	for _, part := range p.Model.BlockParts {
		place.Where.SetState(part, plan.Device)
	}
	return p.With(place)
}

// table prints sizes, a line each.
func table(title string, sizes ...size) {
	fmt.Printf("\n## %s\n\n", title)
	harness.Head("| model | moments | tokens | FLOPs / rate | up / link | down / link | limit | step | tokens/s " +
		"| model TFLOP/s | executed TFLOP/s | busy: compute, fetch, drain, update | compute waits for |")
	for _, s := range sizes {
		p := s.plan()
		q, on := p.Predicted, p.Request.Machine
		fmt.Printf("| %s | %s | %d | %.3g / %.3g = %.3g s | %.3g / %.3g = %.3g s | %.3g / %.3g = %.3g s "+
			"| %s | %.3g s | %.0f | %.0f | %.0f | %.1f%%, %.0f%%, %.0f%%, %.0f%% | %s |\n",
			s.shape, s.moments, s.tokens,
			float64(q.FLOPs), on.BF16FLOPsPerSec, float64(q.FLOPs)/on.BF16FLOPsPerSec,
			float64(q.UploadBytes), on.UploadBytesPerSec, float64(q.UploadBytes)/on.UploadBytesPerSec,
			float64(q.DownloadBytes), on.DownloadBytesPerSec, float64(q.DownloadBytes)/on.DownloadBytesPerSec,
			q.Limit, q.StepSeconds, float64(s.tokens)/q.StepSeconds, p.ModelTFLOPS(), float64(q.FLOPs)/q.StepSeconds/1e12,
			p.Busy(plan.LaneCompute), p.Busy(plan.LaneFetch), p.Busy(plan.LaneDrain), p.Busy(plan.LaneUpdate), p.Waits())
	}
}

func (s size) plan() harness.Step {
	on := harness.Must(plan.FindMachine(s.machine))
	r := plan.Request{Model: harness.Model(s.shape, s.layers), Device: on.Device, Machine: on.Machine,
		DeviceBytes: on.DeviceBytes, StreamAll: s.streamed, RecomputeAll: s.streamed, Numerics: harness.Numerics(s.moments)}
	p, ok := harness.PlanStep(r, s.tokens, min(s.tokens, 16384))
	if !ok {
		log.Fatalf("%s does not fit on %s", s.shape, s.machine)
	}
	return p
}
