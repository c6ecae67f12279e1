package plan_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
)

// Where steps wait for the disk, the first change in the list that halves what is written for a token is advised, with
// the figures that its own plan has.
func TestLessWritten(t *testing.T) {
	for _, c := range []struct {
		name, shape, machine string
		change               func(*plan.Request)
		want                 string
		apply                func(*plan.Request)
	}{
		{"8-bit moments", "qwen2.5-1.5b", "rtx2060-laptop-6gb",
			func(r *plan.Request) {}, "precision.moments=8bit",
			func(r *plan.Request) { r.Numerics.Moments = optim.Dynamic8 }},
		{"gradients that are not kept", "qwen2.5-1.5b", "rtx2060-laptop-6gb",
			func(r *plan.Request) {
				r.Numerics.MicroBatch, r.Numerics.SequenceLen = 1, 1024
				r.Numerics.Moments, r.HostBytes = optim.Dynamic8, 12<<30
			},
			"memory.gradients=twice", func(r *plan.Request) { r.Gradients = plan.GradientsTwice }},
		{"a larger step", "qwen2.5-7b", "rtx2060-laptop-6gb",
			func(r *plan.Request) { r.Numerics.Moments = optim.Dynamic8 },
			"batch_tokens=8192", func(r *plan.Request) { r.Numerics.MicroBatches = 2 }},
		{"more memory", "qwen2.5-7b", "rtx2060-laptop-6gb",
			func(r *plan.Request) { r.Begun = true }, "memory.host=", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.apply != nil && c.name != "8-bit moments" {
				t.Skip("-short leaves out searches for four or five more plans; make test runs them")
			}
			r, _ := onMachine(t, c.shape, c.machine)
			r.Numerics.MicroBatches, r.Numerics.MicroBatch = 1, 2 // 4,096 positions
			r.Gradients = plan.GradientsKept
			c.change(&r)
			p, err := plan.New(context.Background(), r)
			if err != nil {
				t.Fatal(err)
			}
			l, err := p.LessWritten(context.Background())
			if err != nil || l == nil {
				t.Fatalf("%v, %v: lanes %v", l, err, p.Predicted.LaneSeconds)
			}
			if !strings.HasPrefix(l.Change, c.want) || l.TokenBytes > l.TokenBytesNow/2 {
				t.Errorf("%+v, want %s", l, c.want)
			}
			if now := float64(p.Predicted.DiskWrittenBytes) / float64(p.Whole.StepPositions()); l.TokenBytesNow != now {
				t.Errorf("%+v, and the plan writes %v for a token", l, now)
			}
			if c.apply == nil {
				return
			}
			c.apply(&r)
			q, err := plan.New(context.Background(), r)
			if err != nil {
				t.Fatal(err)
			}
			if each := float64(q.Predicted.DiskWrittenBytes) / float64(q.Whole.StepPositions()); l.TokenBytes != each ||
				l.TokensPerSec != float64(q.Whole.StepPositions())/q.Predicted.StepSeconds {
				t.Errorf("%+v, and the plan with the change writes %v for a token in steps of %v s", l, each,
					q.Predicted.StepSeconds)
			}
			if got, err := q.LessWritten(context.Background()); err != nil || got != nil && got.Change == l.Change {
				t.Errorf("after the change it is advised again: %+v, %v", got, err)
			}
			ended, end := context.WithCancel(context.Background())
			end()
			if _, err := p.LessWritten(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("after the context has ended: %v", err)
			}
		})
	}
}

// A plan whose steps wait for arithmetic has no such advice.
func TestLessWrittenOfAnIdleDisk(t *testing.T) {
	r, _ := onMachine(t, "qwen2.5-1.5b", "rtx3090-pc-24gb-64gb")
	p, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := p.LessWritten(context.Background()); l != nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
}

func TestLessWrittenText(t *testing.T) {
	l := plan.LessWritten{Change: "precision.moments=8bit", TokenBytes: 1.2e6, TokensPerSec: 405, TokenBytesNow: 2.6e6,
		TokensPerSecNow: 290}
	const want = "precision.moments=8bit would write 1.2 MB to disk for each token, now 2.6 MB, at 405 tokens/s, now 290"
	if got := l.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	l.TokenBytes = 1.4e6
	if got := l.String(); !strings.HasSuffix(got, "now 290; no change of one key alone halves it") {
		t.Errorf("%q", got)
	}
}
