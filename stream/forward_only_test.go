package stream_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// withoutGoingDown is the subject as steps take it whose last n micro-batches of each cohort only go up, and what they
// leave: with weights of rivals, which depend on the documents of all micro-batches. The reference takes two passes,
// and all micro-batches down; positions of those that are not trained have weights of 0.
func withoutGoingDown(t errorer, s *subject, n int, on setup) (fast *subject, want outcome) {
	t.Helper()
	with, plain := *s, *s
	with.numerics.ForwardOnly, with.outputs.Objective = n, true
	oracle, _ := inTwoPasses(t, s, lawSteps, func(b *stream.Batch) {
		for m := range b.Micro {
			if !with.numerics.TrainsMicro(m) {
				clear(b.Micro[m].Weights)
			}
		}
	})
	on.change, on.serial = streamed(1), true
	ref := start(t, oracle, on)
	defer ref.close(t)
	want = train(t, ref, oracle, lawSteps)
	// The same steps, where these micro-batches have no targets, add up the figures of the others.
	plain.batches = nil
	for _, b := range oracle.batches {
		less := *b
		less.Micro = slices.Clone(b.Micro)
		for m := range less.Micro {
			if !with.numerics.TrainsMicro(m) {
				less.Micro[m].Targets = slices.Repeat([]int32{-1}, len(less.Micro[m].Targets))
			}
		}
		plain.batches = append(plain.batches, &less)
	}
	again := start(t, &plain, on)
	defer again.close(t)
	losses := train(t, again, &plain, lawSteps)
	each := (len(losses.scalars) - device.TokenFigures) / lawSteps
	at := 0
	for i := range lawSteps {
		for figure, of := range []int{0, 3, 4} {
			if isLoss := figure == 0; isLoss && losses.scalars[at+of] == want.scalars[at+of] {
				t.Errorf("the losses of micro-batches that are not trained do not count")
			}
			want.scalars[at+of] = losses.scalars[at+of]
		}
		if at += each; i == 1 {
			at += device.TokenFigures // of an evaluation
		}
	}
	sameBits(t, losses, want, again.plan)
	return &with, want
}

// The law: micro-batches that only go up leave the bits of weights of 0, wherever things are placed, on any number of
// devices and hosts.
func TestForwardOnlyMicroBatches(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	type law struct {
		name string
		fast *subject
		want outcome
	}
	var laws []law
	for _, s := range objectiveSubjects(t, lawSteps, 2) {
		of := s.numerics.CohortMicros()
		for _, n := range slices.Compact([]int{of / 2, of - 1}) {
			fast, want := withoutGoingDown(t, s.subject, n, setup{device: dev})
			laws = append(laws, law{fmt.Sprintf("%s, %d of %d", s.name, n, of), fast, want})
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		l := laws[rapid.IntRange(0, len(laws)-1).Draw(rt, "subject")]
		r := start(rt, l.fast, setup{device: dev, serial: rapid.Bool().Draw(rt, "serial"), objective: rivals{},
			change: func(p *plan.Placement) { placements(rt, l.fast.model, p, true) }})
		defer r.close(rt)
		rt.Log(l.name)
		sameBits(rt, train(rt, r, l.fast, lawSteps), l.want, r.plan)
	})
	for _, l := range laws {
		t.Run(l.name+" on disk", func(t *testing.T) {
			r := start(t, l.fast, setup{device: dev, objective: rivals{}, change: allOnDisk})
			defer r.close(t)
			sameBits(t, train(t, r, l.fast, lawSteps), l.want, r.plan)
		})
		for _, on := range []struct {
			hosts int
			setup
		}{{2, setup{}}, {2, setup{change: alternating}}, {4, setup{change: streamed(2)}}} {
			if l.fast.numerics.CohortCount()%on.hosts != 0 || testing.Short() && on.hosts > 2 {
				continue
			}
			t.Run(fmt.Sprintf("%s on %d hosts", l.name, on.hosts), func(t *testing.T) {
				on.device, on.objective = dev, rivals{}
				c := startHosts(t, l.fast, slices.Repeat([]setup{on.setup}, on.hosts)...)
				defer c.close(t)
				sameOnHosts(t, c, c.train(t, l.fast, lawSteps), l.want)
			})
		}
	}
}
