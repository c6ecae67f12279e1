package plan_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// The plan with the tokens that are advised is bound by arithmetic, and that with half of them is not, whatever sizes a
// run of that many tokens chooses. There is no advice where a step is bound, and where the host has no room for what
// larger steps save.
func TestLargerBatchIsRight(t *testing.T) {
	type advised struct {
		shape, machine string
		rows           int
		short          bool // of host memory
		recompute      bool // fewer placements are tried
		moments        optim.Moments
		want           bool
	}
	cases := []advised{
		{"qwen2.5-7b", "rtx3090-pc-24gb-128gb", 1, false, true, optim.MomentsF32, true},
		{"qwen2.5-7b", "rtx3090-pc-24gb-128gb", 1, false, true, optim.Dynamic8, true},
		{"qwen2.5-7b", "rtx3090-pc-24gb-128gb", 1, true, true, optim.MomentsF32, false},
		{"qwen2.5-7b", "rtx3090-pc-24gb-128gb", 8, false, true, optim.MomentsF32, false},
	}
	if !testing.Short() {
		cases = append(cases, advised{"gpt-oss-20b", "h200-1.5tb", 4, false, true, optim.MomentsF32, true},
			advised{"qwen2.5-7b", "rtx3090-pc-24gb-128gb", 1, false, false, optim.MomentsF32, true})
	}
	for _, c := range cases {
		text, err := plan.Shape(c.shape)
		if err != nil {
			t.Fatal(err)
		}
		config, err := hf.ParseConfig(c.shape, text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.New(config)
		if err != nil {
			t.Fatal(err)
		}
		on, err := plan.FindMachine(c.machine)
		if err != nil {
			t.Fatal(err)
		}
		const length = 4096
		request := on.Request(m, plan.Numerics{Compute: tensor.BF16, Master: optim.Split, Moments: c.moments,
			SequenceLen: length})
		request.RecomputeAll, request.DiskBytes = c.recompute, 0
		request.HostUpdates = c.short // else some state may leave for the device
		if c.short {
			request.DeviceBytes = 4 << 30 // else inputs stay there
		}
		planOf := func(tokens int) *plan.Plan {
			p, err := plan.Fitting{Request: request, Rows: tokens / length}.Fit(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p := planOf(c.rows * length)
		if c.short {
			request.HostBytes = p.HostBytes + 1<<30 // of which the first placement that is tried takes a part
			p = planOf(c.rows * length)
		}
		larger, err := p.LargerBatch(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if (larger != nil) != c.want {
			t.Errorf("%+v: the advice is %v", c, larger)
		}
		if larger == nil {
			continue
		}
		t.Log(c.shape, c.machine, larger)
		if !planOf(larger.BatchTokens).BoundByArithmetic() || planOf(larger.BatchTokens/2).BoundByArithmetic() {
			t.Errorf("%+v: %v: that is not so", c, larger)
		}
	}
}
