// Command optimizer prints, as markdown tables, how long a step takes in the simulator where the host's AdamW limits
// it: on an H200 with 16 cores whose AdamW has 200, 150 or 60 GB/s, and on a desktop with an RTX 4090. With
// -sensitivity it prints instead what other rates make of one of these steps. It needs no machine, model or data.
package main

import (
	"flag"
	"fmt"
	"log"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
)

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
	harness.Head("| machine | model | moments | tokens | --stream | clipping | AdamW GB/s | step s | model TFLOP/s " +
		"| busy: compute, update | updated on the device | compute waits for |")
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
	harness.Head("| changed | auto | always |")
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
			fmt.Printf("| %.0f ", s.plan().ModelTFLOPS())
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

// overheadBytes counts the GPU memory that the CUDA driver's streams and products take (device/cuda).
const overheadBytes = 32<<20 + 2<<10 + 16*64<<10

// Bytes per second that the RAM has for all that runs at once: 0.70 of two sockets of eight channels of DDR5-4800, and
// the 65 GB/s of the desktop's AdamW. Sixteen cores take less of the former than there is.
const h200RAM, rtx4090RAM = 430e9, 65e9

// h200 returns an H200 with assumed rates, on a host with 110 GiB for a run.
func h200(adamw float64) plan.NamedMachine {
	on := harness.Must(plan.FindMachine("h200-1.5tb"))
	m := &on.Machine
	m.BF16FLOPsPerSec, m.AttentionFLOPsPerSec, m.DeviceBytesPerSec = 680e12, 250e12, 3.4e12
	m.UploadBytesPerSec, m.DownloadBytesPerSec = 50e9, 50e9
	m.AdamWBytesPerSec, m.HostBytesPerSec = adamw, adamw
	m.ShareRAM(h200RAM)
	on.DeviceBytes, on.HostBytes = 1375<<30/10, 110<<30
	on.Device.OverheadBytes = overheadBytes
	return on
}

// rtx4090 returns a desktop whose DRAM has 65 GB/s for AdamW, and room for all state.
func rtx4090() plan.NamedMachine {
	on := harness.Must(plan.FindMachine("rtx4090-pc-256gb"))
	on.Machine.AdamWBytesPerSec, on.Machine.HostBytesPerSec = rtx4090RAM, rtx4090RAM
	on.Machine.ShareRAM(rtx4090RAM)
	on.Device.OverheadBytes = overheadBytes
	return on
}

// line prints a step.
func line(s step) {
	p := s.plan()
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
	fmt.Printf("| %s | %s | %s | %d | %s | %s | %.0f | %.2f | %.0f | %.0f%%, %.0f%% | %d of %d blocks | %s |\n",
		s.on.Name, s.shape, s.moments, s.tokens, stream, clipping,
		s.on.Machine.AdamWBytesPerSec/1e9, p.Predicted.StepSeconds, p.ModelTFLOPS(), p.Busy(plan.LaneCompute),
		p.Busy(plan.LaneUpdate), here, len(p.Model.Blocks), p.Waits())
}

// plan returns the fastest of the plans for several sizes of micro-batches and of chunks of the head.
func (s step) plan() (best harness.Step) {
	r := plan.Request{Model: harness.Model(s.shape, 0), Device: s.on.Device, Machine: s.on.Machine,
		DeviceBytes: s.on.DeviceBytes, HostBytes: s.on.HostBytes, StreamAll: s.streamAll,
		Outputs: plan.Outputs{NoClip: s.noClip}, Numerics: harness.Numerics(s.moments)}
	found := false
	for positions := 16384; positions >= harness.SequenceLen; positions /= 2 {
		p, ok := harness.PlanStep(r, s.tokens, positions)
		if !ok {
			continue
		}
		if found && p.Predicted.StepSeconds > 0.99*best.Predicted.StepSeconds {
			break
		}
		best, found = p, true
	}
	if !found {
		log.Fatalf("%s does not fit", s.shape)
	}
	return best
}
