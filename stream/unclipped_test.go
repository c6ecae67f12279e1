package stream_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// Without clipping a gradient that is not finite is applied before anybody knows: the step says so, and the state can
// neither be saved nor trained on, wherever it is.
func TestUnclippedStepsEndWhereTheNormIsNotFinite(t *testing.T) {
	for name, change := range map[string]func(*plan.Placement){"bound": nil, "streamed": streamed(2), "on disk": allOnDisk} {
		t.Run(name, func(t *testing.T) {
			s := tiny.subject(t, 2).unclipped(true)
			fill := s.fill
			s.fill = func(p *model.Part, v model.Values) error {
				err := fill(p, v)
				if p.Kind == model.Block {
					for i := range v.F32 {
						v.F32[i] = float32(math.Inf(1))
					}
				}
				return err
			}
			r := start(t, s, setup{change: change})
			defer r.close(t)
			if got, want := r.plan.UpdatesInBackward(), name != "bound"; got != want {
				t.Fatalf("updates in the backward pass: %v, want %v", got, want)
			}
			_, err := r.engine.Step(context.Background(), s.batches[0], s.updates[0])
			if err == nil || !strings.Contains(err.Error(), "without clipping") {
				t.Fatalf("error %v", err)
			}
			r.engine.Save(func(context.Context, store.ID, uint64) error {
				t.Error("damaged state is saved")
				return nil
			})
			if _, err := r.engine.Flush(context.Background()); err == nil {
				t.Error("flushed")
			}
			if _, err := r.engine.Step(context.Background(), s.batches[1], s.updates[1]); err == nil {
				t.Error("a step after it")
			}
		})
	}
}
