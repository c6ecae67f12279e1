// Command speed prints, as markdown tables, the simulated steps of one GPU at the sizes at which systems of this kind
// are measured: FLOPs over rate and bytes over bandwidth first, then the step, the lanes and the waits of the compute
// lane. It needs no machine, model or data: shapes and machines are named ones.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// size is a step that is asked for.
type size struct {
	shape   string
	layers  int // 0: the shape's
	machine string
	moments optim.Moments
	tokens  int

	streamAll    bool
	recomputeAll bool
}

const sequenceLen = 2048

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
	fmt.Print("\n## Blocks, h100-sxm\n\nBlocks of qwen2.5-7b, 32,768 tokens, all streamed.\n\n| blocks | parameters | step | model TFLOP/s | compute busy |\n|---|---|---|---|---|\n")
	for _, layers := range []int{28, 56, 84, 112, 140, 180} {
		p, m, _ := made(size{shape: "qwen2.5-7b", layers: layers, machine: "h100-sxm", tokens: 32768, streamAll: true, recomputeAll: true})
		params, _ := m.Params()
		fmt.Printf("| %d | %s | %.3g s | %.0f | %.1f%% |\n", layers, plan.FormatCount(params), p.Predicted.StepSeconds, modelTFLOPS(p, m, 32768), busy(p, plan.LaneCompute))
	}
	fmt.Print("\n## Streamed against resident, qwen2.5-7b\n\n| machine | tokens | streamed | resident | ratio |\n|---|---|---|---|---|\n")
	for _, machine := range []string{"h100-sxm", "h100-pcie5"} {
		for _, tokens := range []int{8192, 16384, 32768, 65536} {
			p, _, on := made(size{shape: "qwen2.5-7b", machine: machine, tokens: tokens, streamAll: true, recomputeAll: true})
			streamed, resident := p.Predicted.StepSeconds, allResident(p).Simulate(on.Machine, on.Device).StepSeconds
			fmt.Printf("| %s | %d | %.3f s | %.3f s | %.3f |\n", machine, tokens, streamed, resident, streamed/resident)
		}
	}
}

// allResident is the plan on a device that has memory for the state of all blocks, and updates it.
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
	fmt.Println("| model | moments | tokens | FLOPs / rate | up / link | down / link | limit | step | tokens/s | model TFLOP/s | executed TFLOP/s | busy: compute, fetch, drain, update | compute waits for |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, s := range sizes {
		p, m, on := made(s)
		q := p.Predicted
		fmt.Printf("| %s | %s | %d | %.3g / %.3g = %.3g s | %.3g / %.3g = %.3g s | %.3g / %.3g = %.3g s | %s | %.3g s | %.0f | %.0f | %.0f | %.1f%%, %.0f%%, %.0f%%, %.0f%% | %s |\n",
			s.shape, s.moments, s.tokens,
			float64(q.FLOPs), on.Machine.BF16FLOPsPerSec, float64(q.FLOPs)/on.Machine.BF16FLOPsPerSec,
			float64(q.UploadBytes), on.Machine.UploadBytesPerSec, float64(q.UploadBytes)/on.Machine.UploadBytesPerSec,
			float64(q.DownloadBytes), on.Machine.DownloadBytesPerSec, float64(q.DownloadBytes)/on.Machine.DownloadBytesPerSec,
			q.Limit, q.StepSeconds, float64(s.tokens)/q.StepSeconds, modelTFLOPS(p, m, s.tokens), float64(q.FLOPs)/q.StepSeconds/1e12,
			busy(p, plan.LaneCompute), busy(p, plan.LaneFetch), busy(p, plan.LaneDrain), busy(p, plan.LaneUpdate), waits(p, on))
	}
}

// made is the plan of a size, its model and its machine.
func made(s size) (*plan.Plan, *model.Model, plan.NamedMachine) {
	text, err := plan.Shape(s.shape)
	must(err)
	if s.layers > 0 {
		var fields map[string]any
		must(json.Unmarshal(text, &fields))
		fields["num_hidden_layers"] = s.layers
		delete(fields, "max_window_layers")
		delete(fields, "layer_types")
		text, err = json.Marshal(fields)
		must(err)
	}
	c, err := hf.ParseConfig(s.shape, text)
	must(err)
	m, err := model.New(c)
	must(err)
	on, err := plan.FindMachine(s.machine)
	must(err)
	positions := min(s.tokens, 16384)
	r := plan.Request{Model: m, Device: on.Device, Machine: on.Machine, DeviceBytes: on.DeviceBytes, StreamAll: s.streamAll, RecomputeAll: s.recomputeAll,
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, Moments: s.moments, SequenceLen: sequenceLen,
			MicroBatch: positions / sequenceLen, MicroBatches: s.tokens / positions}}
	var best *plan.Plan
	for _, chunk := range []int{4096, 2048, 1024, 512} { // as the program does where head_chunk is auto
		r.Numerics.HeadChunk = chunk
		p, err := plan.New(context.Background(), r)
		must(err)
		if best != nil && p.Predicted.StepSeconds > 0.99*best.Predicted.StepSeconds {
			break
		}
		best = p
	}
	return best, m, on
}

func modelTFLOPS(p *plan.Plan, m *model.Model, tokens int) float64 {
	docs := make([]int, tokens/sequenceLen)
	for i := range docs {
		docs[i] = sequenceLen
	}
	return float64(m.TrainFLOPs(docs)) / p.Predicted.StepSeconds / 1e12
}

func busy(p *plan.Plan, lane plan.Lane) float64 {
	return 100 * p.Predicted.LaneSeconds[lane] / p.Predicted.StepSeconds
}

// waits are the longest times in which the compute lane stalls.
func waits(p *plan.Plan, on plan.NamedMachine) string {
	var say []string
	for _, i := range p.Stalls(on.Machine, on.Device) {
		if i.Seconds >= 0.002*p.Predicted.StepSeconds && len(say) < 3 {
			say = append(say, fmt.Sprintf("%s before %s %.1f%%", i.For, i.Before, 100*i.Seconds/p.Predicted.StepSeconds))
		}
	}
	return strings.Join(say, ", ")
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
