package stream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// A pass goes forward through the layers, to the head, and back; its share of the work rises to all of it.
func TestMarks(t *testing.T) {
	g := modeltest.Load(t, "qwen3")
	r := newRig(t, g, numerics(g, f32), streamed(2))
	forward, backward := []string{}, []string{}
	for layer := 1; layer <= 3; layer++ {
		forward = append(forward, fmt.Sprintf("forward, layer %d of 3", layer))
		backward = append(backward, fmt.Sprintf("backward, layer %d of 3", 4-layer))
	}
	for pass, want := range map[plan.Pass][]string{
		plan.Steady:   slices.Concat(forward, []string{"head"}, backward),
		plan.Forwards: append(slices.Clone(forward), "head"),
		plan.Flush:    nil,
	} {
		var where []string
		share := 0.0
		for _, m := range r.engine.Marks(pass) {
			where = append(where, m.Where)
			if m.Share <= share {
				t.Errorf("%v, %s: the share falls from %v to %v", pass, m.Where, share, m.Share)
			}
			share = m.Share
		}
		if !slices.Equal(where, want) || len(want) > 0 && share != 1 {
			t.Errorf("%v: %q, share %v; want %q", pass, where, share, want)
		}
	}
	r.engine.Watch(func(stream.Progress) { t.Error("there is no pass to watch") })
	if _, err := r.engine.Step(context.Background(), batchOf(g.First), updateOf(g, 0)); err != nil {
		t.Fatal(err)
	}
	r.engine.Watch(func(stream.Progress) { t.Error("the pass is over") })
}
