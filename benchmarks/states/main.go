// Command states prints, as a markdown table, what the planner predicts for models on PCs with each form of state: how
// fast a step is, and what it writes. It needs no machine, model or data: shapes and machines are named ones.
package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
)

var only = flag.String("only", "", "models of the rows, as MODEL,MODEL; empty: all")

func main() {
	flag.Parse()
	harness.Head("| model | machine | tokens per step | state | gradients | device | host | disk | s per step " +
		"| tokens/s | bytes written per token | gradients the other way, s |")
	for _, on := range cases {
		if *only != "" && !strings.Contains(","+*only+",", ","+on.shape+",") {
			continue
		}
		for _, state := range states {
			fmt.Println(on.row(state))
		}
	}
}

// cases are the models, machines and steps that are compared.
var cases = []question{
	{"gpt-oss-120b", "rtx4090-pc-256gb", 131072},
	{"gpt-oss-120b", "rtx4090-pc-256gb", 524288},
	{"gpt-oss-120b", "rtx4090-pc-256gb", 1048576},
	{"gpt-oss-120b", "rtx4090-pc-256gb-2drives", 131072},
	{"qwen3.5-122b-a10b", "rtx4090-pc-256gb", 131072},
	{"qwen3.5-122b-a10b", "rtx4090-pc-256gb", 524288},
	{"qwen3.5-122b-a10b", "rtx4090-pc-256gb", 1048576},
	{"llama-3-70b", "rtx4090-pc-128gb", 131072},
	{"qwen3-32b", "rtx4090-pc-128gb", 131072},
	{"qwen3-30b-a3b", "rtx4090-pc-128gb", 131072},
	{"gpt-oss-20b", "rtx4090-pc-128gb", 131072},
	{"qwen3-14b", "rtx4090-pc-128gb", 131072},
	{"qwen3-14b", "rtx5060ti-pc-16gb-64gb", 131072},
	{"dense-123b", "h200-1.5tb", 131072},
}

// states are the forms of state: first the smallest one that keeps gradients, a 16-bit rest and moments in 8 bits.
var states = []state{
	{"split", "8bit", plan.GradientsKept},
	{"split", "8bit", plan.GradientsAuto},
	{"split24", "8bit", plan.GradientsAuto},
	{"split24", "8+4", plan.GradientsAuto},
	{"split24", "4bit", plan.GradientsAuto},
}

type state struct {
	master, moments string
	gradients       plan.Gradients
}

type question struct {
	shape, machine string
	batchTokens    int
}

// sequenceLen is the length of rows, in tokens.
const sequenceLen = 4096

// row plans, and returns a line of the table.
func (q question) row(s state) string {
	on := harness.Must(plan.FindMachine(q.machine))
	n := harness.Numerics(harness.Must(optim.ParseMoments(s.moments)))
	n.Master, n.SequenceLen = harness.Must(optim.ParseMaster(s.master)), sequenceLen
	r := on.Request(harness.Model(q.shape, 0), n)
	r.Gradients = s.gradients
	head := fmt.Sprintf("| %s | %s | %d | %s, %s ", q.shape, q.machine, q.batchTokens, s.master, s.moments)
	p, err := plan.Fitting{Request: r, Rows: q.batchTokens / sequenceLen}.Fit(context.Background())
	if err != nil {
		return head + "| does not fit | | | | | | | |"
	}
	way, other := "kept", "-"
	if p.ComputesTwice() {
		way = "twice"
	}
	if sec := p.OtherStepSeconds; sec > 0 {
		other = fmt.Sprintf("%.3g", sec)
	}
	return head + fmt.Sprintf("| %s | %s | %s | %s | %.3g | %.0f | %s | %s |", way, plan.FormatBytes(p.DeviceTotalBytes()),
		plan.FormatBytes(p.HostBytes), plan.FormatBytes(p.DiskBytes), p.Predicted.StepSeconds,
		float64(q.batchTokens)/p.Predicted.StepSeconds,
		plan.FormatBytes(p.Predicted.DiskWrittenBytes/int64(q.batchTokens)), other)
}
