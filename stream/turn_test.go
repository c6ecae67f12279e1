package stream_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// logitsAfter are the logits that an engine has for the positions of a text, in two passes.
func logitsAfter(t *testing.T, e *stream.Engine, tokens []int32, most int) (all [][]float32) {
	t.Helper()
	for at := 0; at < len(tokens); at += most {
		var pass []stream.Position
		for i := at; i < min(at+most, len(tokens)); i++ {
			pass = append(pass, stream.Position{Token: tokens[i], At: i, Length: len(tokens)})
		}
		got, err := e.Continue(t.Context(), pass, len(pass))
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range got {
			all = append(all, slices.Clone(row))
		}
	}
	return all
}

// stateOnDisk is a placement that streams weights through two slots, with all state on disk.
func stateOnDisk(p *plan.Placement) {
	streamed(2)(p)
	for part := range p.Where.State {
		p.Where.SetState(part, plan.Disk)
	}
}

// textsOver plans passes that continue texts, over the plan of steps: with all that they can have on the device.
func textsOver(t *testing.T, steps *plan.Plan, on device.Info, out plan.Outputs) *plan.Plan {
	t.Helper()
	r := plan.Request{Model: steps.Model.Frozen(), Numerics: steps.Whole, Outputs: out, Machine: machine, Over: steps,
		Device: on, DiskBytes: steps.DiskBytes}
	r.Numerics.SequenceLen, r.Numerics.MicroBatch, r.Numerics.MicroBatches = out.LogitRows, 1, 1
	q, err := plan.New(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// Two engines that take turns compute the bits of one that does all: what steps come to, the state after them, and the
// logits of texts between them. That holds wherever the steps have their state, and whatever the other one keeps on the
// device.
func TestEnginesTakeTurns(t *testing.T) {
	const most = 6
	on := newCPU(t)
	defer on.Close()
	for i, variant := range modeltest.Variants(t) {
		if testing.Short() && i%8 != 0 {
			continue // every eighth kind of model; make long has all
		}
		g := modeltest.Load(t, variant)
		n := []plan.Numerics{f32, bf16}[i%2]
		tokens := g.First[0].IDs[:min(9, len(g.First[0].IDs))]
		out := plan.Outputs{LogitRows: most, Caches: nn.Caches{Sequences: 1, Positions: len(tokens)}}
		for name, place := range map[string]func(*plan.Placement){"streamed": streamed(1), "on disk": stateOnDisk,
			"state on the device": updatedResident} {
			t.Run(variant+" "+name, func(t *testing.T) {
				alone, turns := golden(t, g, n), golden(t, g, n)
				alone.outputs = out
				want := start(t, alone, setup{change: streamed(2)})
				defer want.close(t)
				r := start(t, turns, setup{change: place, sampler: func(p *plan.Plan) *plan.Plan {
					q := textsOver(t, p, on.Info(), out)
					if name == "streamed" { // and so is the sampler
						place := q.Placement.Clone()
						streamed(1)(&place)
						q = q.With(place)
					}
					return q
				}})
				defer r.close(t)
				for step := range alone.batches {
					a, errA := want.engine.Step(t.Context(), alone.batches[step], alone.updates[step])
					b, errB := r.engine.Step(t.Context(), turns.batches[step], turns.updates[step])
					if errA != nil || errB != nil {
						t.Fatal(errA, errB)
					}
					if a.LossSum != b.LossSum || a.GradNorm != b.GradNorm {
						t.Errorf("step %d: loss %v and norm %v in turns, alone %v and %v", step+1, b.LossSum, b.GradNorm, a.LossSum,
							a.GradNorm)
					}
					if step == 1 {
						continue // two steps without a turn between them
					}
					for range 2 { // of which the second pass finds what the first one has left
						x, y := logitsAfter(t, r.sampler, tokens, most), logitsAfter(t, want.engine, tokens, most)
						if fmt.Sprint(x) != fmt.Sprint(y) {
							t.Errorf("after step %d: other logits", step+1)
						}
					}
				}
				if _, err := r.engine.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := want.engine.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				sameBits(t, stateOf(t, r), stateOf(t, want), r.plan)
			})
		}
	}
}

// An engine that has its turn reads weights again that the caller of the other one has written.
func TestReloadInAnothersTurn(t *testing.T) {
	g := modeltest.Load(t, "llama")
	tokens, s := g.First[0].IDs[:5], golden(t, g, f32)
	on := newCPU(t)
	defer on.Close()
	out := plan.Outputs{LogitRows: 5, Caches: nn.Caches{Sequences: 1, Positions: 5}}
	r := start(t, s, setup{change: streamed(2),
		sampler: func(p *plan.Plan) *plan.Plan { return textsOver(t, p, on.Info(), out) }})
	defer r.close(t)
	before := logitsAfter(t, r.sampler, tokens, 5)
	for range 2 { // the same weights
		if err := stream.Fill(t.Context(), r.plan, r.store, s.fill); err != nil {
			t.Fatal(err)
		}
		r.engine.Reload()
		if fmt.Sprint(logitsAfter(t, r.sampler, tokens, 5)) != fmt.Sprint(before) {
			t.Error("other logits of the same weights")
		}
	}
}
