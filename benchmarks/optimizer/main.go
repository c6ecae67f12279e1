// Command optimizer prints, as markdown tables, how long a step takes in the simulator where the host's AdamW limits
// it: on an H200 with 16 cores whose AdamW has 200, 150 or 60 GB/s, and on a desktop with an RTX 4090. With
// -sensitivity it prints instead what other rates make of one of these steps. It needs no machine, model or data.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

const sequenceLen = 2048

// step is a step to plan and simulate.
type step struct {
	shape     string
	tokens    int
	on        plan.NamedMachine
	streamAll bool
	noClip    bool
	moments   optim.Moments
}

func main() {
	log.SetFlags(0)
	desktops := flag.Bool("desktops", true, "the rows of the RTX 4090 as well, which take longer to plan")
	sensitive := flag.Bool("sensitivity", false, "print what other rates make of a step of 7B on the H200")
	flag.Parse()
	if *sensitive {
		sensitivity()
		return
	}
	fmt.Println("| machine | model | moments | tokens | --stream | clipping | AdamW GB/s | step s | model TFLOP/s " +
		"| busy: compute, update | updated on the device | compute waits for |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, streamAll := range []bool{false, true} {
		for _, noClip := range []bool{false, true} {
			for _, adamw := range []float64{200e9, 150e9, 60e9} {
				line(step{"qwen2.5-7b", 32768, h200(adamw), streamAll, noClip, optim.MomentsF32})
			}
		}
	}
	if *desktops {
		for _, shape := range []string{"llama-3-8b", "qwen2.5-14b"} {
			for _, moments := range []optim.Moments{optim.MomentsF32, optim.Dynamic8} {
				line(step{shape, 65536, rtx4090(), false, false, moments})
			}
		}
	}
}

// sensitivity prints model TFLOP/s of a step of 7B with 32,768 tokens on the H200 whose AdamW has 150 GB/s, planned
// again for each rate that is another one than assumed.
func sensitivity() {
	fmt.Println("| changed | auto | always |\n|---|---|---|")
	for _, row := range []struct {
		name   string
		change func(m *plan.Machine)
	}{
		{"nothing", func(*plan.Machine) {}},
		{"products 580 instead of 680 TFLOP/s", func(m *plan.Machine) { m.BF16FLOPsPerSec = 580e12 }},
		{"products of our own kernels, 450", func(m *plan.Machine) { m.BF16FLOPsPerSec = 450e12 }},
		{"attention 150 instead of 250 TFLOP/s", func(m *plan.Machine) { m.AttentionFLOPsPerSec = 150e12 }},
		{"device memory 2.4 instead of 3.4 TB/s", func(m *plan.Machine) { m.DeviceBytesPerSec = 2.4e12 }},
		{"link 25 instead of 50 GB/s", func(m *plan.Machine) { link(m, 25e9) }},
		{"AdamW under copies 75 instead of 150 GB/s", func(m *plan.Machine) { m.AdamWUnderCopiesBytesPerSec = 75e9 }},
		{"AdamW 90", func(m *plan.Machine) { updates(m, 90e9, 90e9) }},
		{"AdamW 60", func(m *plan.Machine) { updates(m, 60e9, 60e9) }},
		{"AdamW 60, 35 under copies", func(m *plan.Machine) { updates(m, 60e9, 35e9) }},
		{"launches 10 instead of 4 us", func(m *plan.Machine) { m.DeviceOpsPerSec = 100e3 }},
		{"together: products 640, attention 200, memory 2.8, link 40 both ways at once, AdamW 80, 50 under copies",
			func(m *plan.Machine) {
				m.BF16FLOPsPerSec, m.AttentionFLOPsPerSec, m.DeviceBytesPerSec = 640e12, 200e12, 2.8e12
				m.DuplexUploadBytesPerSec, m.DuplexDownloadBytesPerSec = 40e9, 40e9
				updates(m, 80e9, 50e9)
			}},
	} {
		fmt.Printf("| %s ", row.name)
		for _, streamAll := range []bool{false, true} {
			s := step{"qwen2.5-7b", 32768, h200(150e9), streamAll, false, optim.MomentsF32}
			row.change(&s.on.Machine)
			fmt.Printf("| %.0f ", modelTFLOPS(s.plan(), s.tokens))
		}
		fmt.Println("|")
	}
}

// link sets the rate of copies, one way and both.
func link(m *plan.Machine, bytesPerSec float64) {
	m.UploadBytesPerSec, m.DownloadBytesPerSec = bytesPerSec, bytesPerSec
	m.ShareRAM(h200RAM)
}

// updates sets the rate of AdamW, and that under copies.
func updates(m *plan.Machine, alone, underCopies float64) {
	m.AdamWBytesPerSec, m.HostBytesPerSec, m.AdamWUnderCopiesBytesPerSec = alone, alone, underCopies
}

// overheadBytes is the GPU memory that the CUDA driver's streams and products take (device/cuda).
const overheadBytes = 32<<20 + 2<<10 + 16*64<<10

// Bytes per second that the RAM has for all that runs at once: 0.70 of two sockets of eight channels of DDR5-4800, and
// the 65 GB/s of the desktop's AdamW. Sixteen cores take less of the former than there is.
const h200RAM, rtx4090RAM = 430e9, 65e9

// h200 is an H200 with assumed rates, on a host with 110 GiB for a run.
func h200(adamw float64) plan.NamedMachine {
	on, err := plan.FindMachine("h200-1.5tb")
	must(err)
	m := &on.Machine
	m.BF16FLOPsPerSec, m.AttentionFLOPsPerSec, m.DeviceBytesPerSec = 680e12, 250e12, 3.4e12
	m.UploadBytesPerSec, m.DownloadBytesPerSec = 50e9, 50e9
	m.AdamWBytesPerSec, m.HostBytesPerSec = adamw, adamw
	m.ShareRAM(h200RAM)
	on.DeviceBytes, on.HostBytes = 1375<<30/10, 110<<30
	on.Device.OverheadBytes = overheadBytes
	return on
}

// rtx4090 is a desktop whose DRAM has 65 GB/s for AdamW, and room for all state.
func rtx4090() plan.NamedMachine {
	on, err := plan.FindMachine("rtx4090-pc-256gb")
	must(err)
	on.Machine.AdamWBytesPerSec, on.Machine.HostBytesPerSec = rtx4090RAM, rtx4090RAM
	on.Machine.ShareRAM(rtx4090RAM)
	on.Device.OverheadBytes = overheadBytes
	return on
}

// line prints a step.
func line(s step) {
	p := s.plan()
	q := p.Predicted
	stream, clipping := "auto", "exact"
	if s.streamAll {
		stream = "always"
	}
	if s.noClip {
		clipping = "none"
	}
	here := 0
	for part := range p.Model.Parts {
		if p.StateResident(part) && p.Model.Parts[part].Kind == model.Block {
			here++
		}
	}
	busy := func(lane plan.Lane) float64 { return 100 * q.LaneSeconds[lane] / q.StepSeconds }
	fmt.Printf("| %s | %s | %s | %d | %s | %s | %.0f | %.2f | %.0f | %.0f%%, %.0f%% | %d of %d blocks | %s |\n",
		s.on.Name, s.shape, s.moments, s.tokens, stream, clipping,
		s.on.Machine.AdamWBytesPerSec/1e9, q.StepSeconds, modelTFLOPS(p, s.tokens), busy(plan.LaneCompute), busy(plan.LaneUpdate),
		here, len(p.Model.Blocks), waits(p, s.on))
}

// plan is the fastest of the plans for several sizes of micro-batches and of chunks of the head.
func (s step) plan() *plan.Plan {
	text, err := plan.Shape(s.shape)
	must(err)
	c, err := hf.ParseConfig(s.shape, text)
	must(err)
	m, err := model.New(c)
	must(err)
	r := plan.Request{Model: m, Device: s.on.Device, Machine: s.on.Machine, DeviceBytes: s.on.DeviceBytes, HostBytes: s.on.HostBytes,
		StreamAll: s.streamAll, Outputs: plan.Outputs{NoClip: s.noClip},
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, Moments: s.moments, SequenceLen: sequenceLen}}
	var best *plan.Plan
	for positions := 16384; positions >= sequenceLen; positions /= 2 {
		var fits *plan.Plan
		for _, chunk := range []int{4096, 2048, 1024, 512} {
			n := &r.Numerics
			n.MicroBatch, n.MicroBatches, n.HeadChunk = positions/sequenceLen, s.tokens/positions, min(chunk, positions)
			p, err := plan.New(context.Background(), r)
			if err != nil {
				continue
			}
			if fits != nil && p.Predicted.StepSeconds > 0.99*fits.Predicted.StepSeconds {
				break
			}
			fits = p
		}
		if fits == nil {
			continue
		}
		if best != nil && fits.Predicted.StepSeconds > 0.99*best.Predicted.StepSeconds {
			break
		}
		best = fits
	}
	if best == nil {
		log.Fatalf("%s does not fit", s.shape)
	}
	return best
}

func modelTFLOPS(p *plan.Plan, tokens int) float64 {
	docs := make([]int, tokens/sequenceLen)
	for i := range docs {
		docs[i] = sequenceLen
	}
	return float64(p.Model.TrainFLOPs(docs)) / p.Predicted.StepSeconds / 1e12
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
