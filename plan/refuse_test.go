package plan_test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// A document cannot be longer than a model has weights for.
func TestLearnedPositions(t *testing.T) {
	for positions, want := range map[int]string{39: "",
		40: "sequence_len 40 is more than the 39 positions that the model has weights for; lower sequence_len"} {
		m, err := model.Read(modeltest.Load(t, "gpt2").Dir)
		if err != nil {
			t.Fatal(err)
		}
		n := numerics(1, false)
		n.SequenceLen = positions
		request := plan.Request{Model: m, Numerics: n, Machine: machine, Device: device.Info{Unified: true}}
		got := ""
		if err := request.Fits(context.Background()); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d positions: %q", positions, got)
		}
	}
}

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
