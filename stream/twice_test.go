package stream_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// A step that computes its gradients twice, and whose norm is not finite, changes nothing, and the next one does what
// it would have done.
func TestTwiceLeavesOutWhereTheNormIsNotFinite(t *testing.T) {
	for name, place := range map[string]func(*plan.Placement){"in memory": streamed(2), "on disk": allOnDisk} {
		t.Run(name, func(t *testing.T) {
			s := tiny.subject(t, 2)
			change := func(p *plan.Placement) {
				place(p)
				p.Twice = true
			}
			r := start(t, s, setup{change: change})
			defer r.close(t)
			if !r.plan.Placement.Twice || !r.plan.UpdatesInBackward() {
				t.Fatal("gradients are kept")
			}
			before := stateOf(t, r)
			fine := s.updates[0]
			fine.LR = math.Inf(1) // no update may have it
			broken := s.batches[0]
			for _, m := range broken.Micro {
				for i := range m.Weights {
					m.Weights[i] = math.MaxFloat32
				}
			}
			res, err := r.engine.Step(context.Background(), broken, fine)
			if err != nil {
				t.Fatal(err)
			}
			if !res.Skipped || res.ClipScale != 0 {
				t.Errorf("skipped %v, clip scale %v; the norm is %v", res.Skipped, res.ClipScale, res.GradNorm)
			}
			for id, bits := range stateOf(t, r).state {
				if !bytes.Equal(bits, before.state[id]) {
					t.Errorf("%v of %s have changed", id.Kind, r.plan.Model.Parts[id.Part].Name)
				}
			}
			got, err := r.engine.Step(context.Background(), s.batches[1], s.updates[0])
			if err != nil {
				t.Fatal(err)
			}
			ref := start(t, s, setup{change: place})
			defer ref.close(t)
			want, err := ref.engine.Step(context.Background(), s.batches[1], s.updates[0])
			if err != nil {
				t.Fatal(err)
			}
			if got.GradNorm != want.GradNorm || got.LossSum != want.LossSum || got.ClipScale != want.ClipScale {
				t.Errorf("a step after it: %+v, want %+v", got, want)
			}
			if _, err := ref.engine.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			sameBits(t, stateOf(t, r), stateOf(t, ref), r.plan)
		})
	}
}

// Wherever a step begins to compute its gradients twice, it does what a step does that keeps them all.
func TestTwiceInPart(t *testing.T) {
	const steps = 3
	shape := tiny
	shape.Layers, shape.BF16, shape.Tied = 4, true, false
	s := shape.subject(t, steps)
	ref := start(t, s, setup{change: streamed(2)})
	defer ref.close(t)
	want := train(t, ref, s, steps)
	for name, place := range map[string]func(*plan.Placement){"in memory": streamed(2), "on disk": allOnDisk} {
		for from := range shape.Layers + 2 {
			r := start(t, s, setup{change: func(p *plan.Placement) {
				place(p)
				p.Twice, p.TwiceFrom = true, from
			}})
			in := r.plan.Placement
			if is := min(from, shape.Layers); !in.Twice || is > 1 && in.TwiceFrom != is || is < 2 && in.TwiceFrom != 0 {
				t.Errorf("%s, from layer %d: %v, %d", name, from, in.Twice, in.TwiceFrom)
			}
			sameBits(t, train(t, r, s, steps), want, r.plan)
			r.close(t)
		}
	}
}

// The progress of a step that computes its gradients twice goes from 0 to 1, over both halves.
func TestMarksOfHalves(t *testing.T) {
	s := tiny.subject(t, 1)
	r := start(t, s, setup{change: func(p *plan.Placement) {
		streamed(2)(p)
		p.Twice = true
	}})
	defer r.close(t)
	share := 0.0
	for _, pass := range []plan.Pass{plan.FirstHalf, plan.SecondHalf} {
		marks := r.engine.Marks(pass)
		for _, m := range marks {
			if m.Share <= share || m.Share > 1+1e-12 {
				t.Errorf("%v, %s: from %v to %v", pass, m.Where, share, m.Share)
			}
			share = m.Share
		}
		if n := 2*len(r.plan.Model.Blocks) + 1; pass == plan.FirstHalf && len(marks) != n {
			t.Errorf("%d visits, want %d", len(marks), n)
		}
	}
	if math.Abs(share-1) > 1e-12 {
		t.Errorf("it ends at %v", share)
	}
}

// lonely are the peers of a host that is alone. It cancels when results are exchanged for the first time, at the end of
// the first half of a step.
type lonely struct {
	stream.Peers
	cancel context.CancelFunc
}

func (l *lonely) Exchange(b []byte) ([][]byte, error) {
	l.cancel()
	return [][]byte{b}, nil
}

// A step that is cancelled between its halves has changed nothing, and can be taken again.
func TestTwiceIsCancelledBetweenHalves(t *testing.T) {
	s := tiny.subject(t, 1)
	ctx, cancel := context.WithCancel(context.Background())
	o := setup{change: func(p *plan.Placement) {
		streamed(2)(p)
		p.Twice = true
	}}
	ref := start(t, s, o)
	defer ref.close(t)
	o.peers = &lonely{cancel: cancel}
	r := start(t, s, o)
	defer r.close(t)
	before := stateOf(t, r)
	if _, err := r.engine.Step(ctx, s.batches[0], s.updates[0]); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if _, err := r.engine.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	for id, bits := range stateOf(t, r).state {
		if !bytes.Equal(bits, before.state[id]) {
			t.Errorf("%v of %s have changed", id.Kind, r.plan.Model.Parts[id.Part].Name)
		}
	}
	for _, e := range []*rig{r, ref} {
		if _, err := e.engine.Step(context.Background(), s.batches[0], s.updates[0]); err != nil {
			t.Fatal(err)
		}
	}
	sameBits(t, stateOf(t, r), stateOf(t, ref), r.plan)
}
