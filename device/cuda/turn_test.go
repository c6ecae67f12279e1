package cuda_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// turning takes steps on a device, with texts between them by an engine that takes turns with that of the steps. Steps
// have the bits that they have alone, and texts the logits that the engine of steps has for them; their bits, if these
// are asked for.
func turning(t *testing.T, variant string, compute tensor.DType, bits bool, d device.Device,
	place func(*plan.Placement)) {
	g := modeltest.Load(t, variant)
	m, fill := golden(t, g)
	texts := plan.Outputs{LogitRows: 8, Caches: nn.Caches{Sequences: 1, Positions: 9}}
	run := func(out, texts plan.Outputs, writes bool) (o outcome, logits [][]float32) {
		e, sampler, kept, done := engines(t, plan.Request{Model: m, Numerics: numerics(g, compute), Outputs: out}, nil,
			fill, []device.Device{d}, place, texts)
		defer done()
		if sampler == nil {
			sampler = e
		}
		o = takeSteps(t, e, kept, g, 2, func() {
			for at := 0; writes && at < 8; at += 4 {
				var rows []stream.Position
				for i := range 4 {
					rows = append(rows, stream.Position{Token: g.First[0].IDs[at+i], At: at + i, Length: 9})
				}
				got, err := sampler.Continue(context.Background(), rows, len(rows))
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range got {
					logits = append(logits, slices.Clone(row))
				}
			}
		})
		return o, logits
	}
	alone, _ := run(plan.Outputs{}, plan.Outputs{}, false)
	turns, got := run(plan.Outputs{}, texts, true)
	sameBits(t, "in turns", turns, alone)
	_, want := run(texts, plan.Outputs{}, true)
	if bits && fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("in turns: other logits")
	}
	most, off := 0.0, 0.0
	for i, row := range want {
		for j, x := range row {
			most, off = max(most, math.Abs(float64(x))), max(off, math.Abs(float64(got[i][j]-x)))
		}
	}
	if limit := map[tensor.DType]float64{tensor.F32: 1e-4, tensor.BF16: 3e-2}[compute]; !(off <= limit*most) {
		t.Errorf("logits are %v off those of one engine, of which the largest is %v", off, most)
	}
}

// Two engines take turns on a GPU as on the CPU.
func TestStandInTakesTurns(t *testing.T) {
	t.Parallel()
	d := open(t, standin.Options{}, library)
	defer mustClose(t, d)
	t.Run("updated", func(t *testing.T) { turning(t, "qwen3", tensor.BF16, true, d, updated) })
	t.Run("streamed", func(t *testing.T) {
		if testing.Short() {
			t.Skip("with -short only: interpreting a mixture's kernels takes some 15 seconds of a core; make test runs it, " +
				"and the other case runs always")
		}
		turning(t, "gpt_oss", tensor.F32, true, d, streamed)
	})
}

// So do they on a card.
func TestGPUTakesTurns(t *testing.T) {
	inGroups(t, []string{"qwen3", "gpt_oss", "qwen3_5"}, func(t *testing.T, variant string, compute tensor.DType,
		d *cuda.Device) {
		for name, place := range map[string]func(*plan.Placement){"updated": updated, "streamed": streamed} {
			t.Run(name, func(t *testing.T) { turning(t, variant, compute, false, d, place) })
		}
	})
}
