package plan_test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// Passes that continue sequences are one micro-batch each.
func TestCachesWithOneMicroBatch(t *testing.T) {
	caches := nn.Caches{Sequences: 1, Positions: 9}
	request := plan.Request{Model: tiny.model(t).Frozen(), Numerics: numerics(1, false), Machine: machine,
		Device: device.Info{Unified: true}, Outputs: plan.Outputs{LogitRows: 1, Caches: caches}}
	if err := request.Fits(context.Background()); err != nil {
		t.Fatal(err)
	}
	request.Numerics = numerics(2, false)
	const want = "a step has 2 micro-batches, and a pass that continues sequences is one"
	if err := request.Fits(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	request.Outputs.Caches = nn.Caches{}
	if err := request.Fits(context.Background()); err != nil {
		t.Error(err)
	}
}
