package stream_test

import (
	"context"
	"math"
	"testing"

	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// Twenty steps of AdamW with clipping against PyTorch: bound and streamed, in fp32 and in bf16. With -short they are
// ten, and every second variant has fp32 bound and bf16 streamed, the others the opposite.
func TestTrainingAgreesWithPyTorch(t *testing.T) {
	for i, variant := range modeltest.Variants(t) {
		t.Run(variant, func(t *testing.T) {
			g := modeltest.Load(t, variant)
			steps := len(g.Steps)
			switch {
			case raceEnabled:
				steps = 2 // the numbers are the same, and slow
			case testing.Short():
				steps = 10
			}
			for w, way := range []struct {
				name   string
				rows   int // of a chunk
				change func(*plan.Placement)
			}{{"bound", 0, nil}, {"streamed, in chunks", 8, streamed(2)}} {
				inTurn := func(isBF16 int) bool { return !testing.Short() || (i+w+isBF16)%2 == 0 }
				t.Run("f32 "+way.name, func(t *testing.T) {
					if !inTurn(0) {
						t.Skip("with -short bf16 has this way")
					}
					r := newRig(t, g, chunked(numerics(g, f32), way.rows), way.change)
					for i, s := range g.Steps[:steps] {
						res := step(t, r, g, i)
						loss := res.LossSum / float64(s.Batch.TargetCount())
						if d := math.Abs(loss - float64(s.Loss)); !(d <= modeltest.WithinSteps) {
							t.Errorf("step %d: loss %v, PyTorch %v", i, loss, s.Loss)
						}
						if d := math.Abs(res.GradNorm/float64(s.GradNorm) - 1); !(d <= 1e-3) {
							t.Errorf("step %d: norm %v, PyTorch %v", i, res.GradNorm, s.GradNorm)
						}
					}
				})
				t.Run("bf16 "+way.name, func(t *testing.T) {
					if !inTurn(1) {
						t.Skip("with -short fp32 has this way")
					}
					r := newRig(t, g, chunked(numerics(g, bf16), way.rows), way.change)
					for i, s := range g.Steps[:steps] {
						res := step(t, r, g, i)
						loss := res.LossSum / float64(s.Batch.TargetCount())
						if d := math.Abs(loss/float64(s.Loss) - 1); !(d <= modeltest.WithinBF16) {
							t.Errorf("step %d: loss %v, PyTorch in fp32 %v", i, loss, s.Loss)
						}
					}
				})
			}
		})
	}
}

func step(t testing.TB, r *rig, g *modeltest.Golden, i int) stream.Result {
	t.Helper()
	res, err := r.engine.Step(context.Background(), batchOf(g.Steps[i].Batch), updateOf(g, i))
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Every parameter's gradient of the first batch is PyTorch's, in chunks of rows that do not divide the batch.
func TestGradientsAgreeWithPyTorch(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		t.Run(variant, func(t *testing.T) {
			g := modeltest.Load(t, variant)
			r := newRig(t, g, chunked(numerics(g, f32), 8), streamed(1))
			res, err := r.engine.Step(context.Background(), batchOf(g.First), stream.Update{Step: 1})
			if err != nil {
				t.Fatal(err)
			}
			loss := res.LossSum / float64(g.First.TargetCount())
			if d := math.Abs(loss - float64(g.Loss)); !(d <= modeltest.WithinLogits) {
				t.Errorf("loss %v, PyTorch %v", loss, g.Loss)
			}
			sameGradients(t, variant, r, g.Grads)
		})
	}
}

// sameGradients compares the gradients of the last step with those that are wanted.
func sameGradients(t *testing.T, what string, r *rig, want map[string]modeltest.Gradient) {
	t.Helper()
	m, seen := r.plan.Model, 0
	for _, of := range m.Tensors() {
		got := make([]float32, of.Shape.Elems())
		if err := of.Read(got, 0, func(part, field int, dst []float32, first int64) error {
			grads, err := stream.Grads(context.Background(), r.plan, r.store, part)
			if err == nil {
				copy(dst, grads[m.Parts[part].Layout.Fields[field].State+first:])
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		want, known := want[of.Name]
		if d := want.RelDiff(got); known && !(d <= modeltest.WithinGradients) {
			t.Errorf("%s: gradient of %s differs by %.2g of its norm", what, of.Name, d)
		}
		if known {
			seen++
		}
	}
	if seen < len(want) {
		t.Errorf("%s: the model has %d of the %d tensors with a gradient", what, seen, len(want))
	}
}
