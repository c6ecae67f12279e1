// Command headlines prints, as a markdown table, the planner's predictions for the model sizes that systems of this
// kind are known for. It needs no machine, model or data: shapes and machines are named ones.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"slices"
	"strings"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

func main() {
	harness.Head("| model | machine | moments | tokens per step | device | host | disk | s per step | tokens/s " +
		"| what limits it | 1,000 steps write, of the drive's rating |")
	for _, r := range []row{
		{"dense-123b", "h200-1.5tb", "8bit", 65536},
		{"dense-123b", "h200-1.5tb", "f32", 65536},
		{"llama-3-70b", "rtx4090-pc-256gb", "8bit", 65536},
		{"llama-3-70b", "rtx4090-pc-256gb", "f32", 65536},
		{"llama-3-70b", "rtx4090-pc-128gb", "8bit", 65536},
		{"dense-123b", "rtx4090-pc-256gb", "8bit", 65536},
		{"dense-123b", "rtx4090-pc-128gb", "8bit", 32768},
		{"qwen2.5-14b", "rtx3090-pc-24gb-128gb", "8bit", 65536},
		{"qwen2.5-14b", "rtx3090-pc-24gb-128gb", "f32", 65536},
		{"qwen2.5-32b", "rtx3090-pc-24gb-128gb", "8bit", 65536},
		{"qwen2.5-32b", "rtx3090-pc-24gb-128gb", "f32", 65536},
		{"qwen2.5-1.5b", "rtx2060-laptop-6gb", "8bit", 65536},
		{"qwen2.5-1.5b", "rtx2060-laptop-6gb", "f32", 65536},
		{"qwen2.5-7b", "h200-1.5tb", "f32", 32768},
		{"llama-3-70b", "h100-pcie5", "8bit", 65536},
		{"llama-3-70b", "gh200-480gb", "8bit", 65536},
		{"qwen2.5-14b", "dgx-2", "f32", 65536},
		{"llama-3-70b", "dgx-2", "f32", 65536},
	} {
		fmt.Println(r.plan())
	}
}

// row is a plan that is asked for.
type row struct {
	shape, machine, moments string
	batchTokens             int
}

// plan returns the row's line of the table.
func (r row) plan() string {
	on := harness.Must(plan.FindMachine(r.machine))
	n := harness.Numerics(harness.Must(optim.ParseMoments(r.moments)))
	p, err := plan.Fitting{Request: on.Request(harness.Model(r.shape, 0), n), Rows: r.batchTokens / harness.SequenceLen}.
		Fit(context.Background())
	if err != nil {
		log.Fatalf("%s on %s: %v", r.shape, r.machine, err)
	}
	forecast, wear := p.Forecast(on.Machine, on.Device, 0), "-"
	if w := p.WearOf(1000, 0, nil, trace.RatingOf(on.RatedWriteBytes)); w.RunBytes > 0 {
		wear = fmt.Sprintf("%s, %.2g%%", trace.FormatWritten(w.RunBytes), 100*w.Share)
	}
	disk := "-"
	if p.DiskBytes > 0 {
		disk = plan.FormatBytes(p.DiskBytes)
	}
	return fmt.Sprintf("| %s | %s | %s | %d | %s | %s | %s | %.3g | %.0f | %s | %s |",
		r.shape, r.machine, r.moments, r.batchTokens, plan.FormatBytes(p.DeviceTotalBytes()),
		plan.FormatBytes(p.HostBytes), disk, p.Predicted.StepSeconds,
		forecast.TokensPerSec, limit(&p.Predicted), wear)
}

// limit lists the lanes that are busy for at least a third of the step, the busiest first.
func limit(q *plan.Prediction) string {
	names := [plan.Lanes]string{plan.LaneFetch: "link up", plan.LaneCompute: "arithmetic", plan.LaneDrain: "link down",
		plan.LaneUpdate: "updates", plan.LaneDisk: "disk"}
	lanes := []plan.Lane{plan.LaneFetch, plan.LaneCompute, plan.LaneDrain, plan.LaneUpdate, plan.LaneDisk}
	slices.SortStableFunc(lanes, func(a, b plan.Lane) int { return cmp.Compare(q.LaneSeconds[b], q.LaneSeconds[a]) })
	var say []string
	for i, lane := range lanes {
		if share := q.LaneSeconds[lane] / q.StepSeconds; i == 0 || share >= 1./3 {
			say = append(say, fmt.Sprintf("%s %.0f%%", names[lane], 100*share))
		}
	}
	return strings.Join(say, ", ")
}
