package plan_test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// gated is an attention with a gate.
type gated struct{ nn.Attention }

func (g gated) Forward(p *nn.Pass, x device.Mat) {
	g.Attention.Forward(p, x)
	p.Gate(x, x, x, device.SigmoidGate)
}

// A model that asks for gates has no plan on a device that has none, and has one elsewhere.
func TestDeviceWithoutRecurrence(t *testing.T) {
	m := tiny.model(t)
	request := plan.Request{Model: m, Numerics: numerics(1, false), Machine: machine,
		Device: device.Info{Name: "a GPU", NoRecurrence: true}, DeviceBytes: 1 << 30}
	if err := request.Fits(context.Background()); err != nil {
		t.Fatal(err)
	}
	last := m.Blocks[len(m.Blocks)-1]
	last.Mixer = gated{last.Mixer.(nn.Attention)}
	m.Like[len(m.Blocks)-1] = len(m.Blocks) - 1
	const want = "no kernels for them yet on a GPU; set device to cpu"
	for name, err := range map[string]error{"New": second(plan.New(context.Background(), request)),
		"Estimate": second(plan.Estimate(context.Background(), request)), "Fits": request.Fits(context.Background())} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if says := request.SuggestFixes(context.Background(), err); says != err {
			t.Errorf("%s: memory is suggested: %v", name, says)
		}
	}
	request.Device.NoRecurrence = false
	if err := request.Fits(context.Background()); err != nil {
		t.Error(err)
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

func second[T any](_ T, err error) error { return err }
