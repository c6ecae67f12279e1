package stream_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"pgregory.net/rapid"
)

// Values that no package knows. This file states them, and no file of plan or stream changes.

// rivals is a made-up objective over the documents of a cohort: each of them has the more weight the less likely it is
// among its rivals, and in it a position the more the likelier it is. It needs all losses of the cohort before any
// gradient.
type rivals struct{}

func (rivals) Name() string           { return "rivals" }
func (rivals) Needs() objective.Needs { return objective.Needs{} }

func (rivals) Weigh(s *objective.Step) (res objective.Result, err error) {
	sums, all := make([]float64, len(s.Sequences)), 0.0
	for i, of := range s.Sequences {
		for _, p := range of.LogProbs {
			sums[i] += float64(p)
		}
		all += sums[i]
	}
	for i, of := range s.Sequences {
		share := 1.5
		if all != 0 {
			share = 0.25 + sums[i]/all
		}
		for t, p := range of.LogProbs {
			of.Weights[t] *= float32(share * math.Exp(0.1*float64(p)))
		}
	}
	return objective.Result{Loss: all, Parts: []objective.Part{{Name: "sum", Sum: all, Of: float64(len(sums))}}}, nil
}

// refuses is an objective that fails.
type refuses struct{ rivals }

func (refuses) Weigh(*objective.Step) (objective.Result, error) {
	return objective.Result{}, errors.New("no pairs")
}

// boundless is an objective whose weights are not finite.
type boundless struct{ rivals }

func (boundless) Weigh(s *objective.Step) (res objective.Result, err error) {
	s.Sequences[0].Weights[0] = float32(math.Inf(1))
	return res, nil
}

// inTwoPasses is the same subject with the weights of rivals in its batches, which a forward pass before each step has
// found: the oracle of steps with a stop. The other one has the objective. Each batch may be changed.
func inTwoPasses(t errorer, s *subject, steps int, change func(*stream.Batch)) (oracle, stops *subject) {
	t.Helper()
	plain, with := *s, *s
	plain.batches, with.outputs.Objective = slices.Clone(s.batches), true
	looks := *s
	looks.outputs.LogProbs = true
	r := start(t, &looks, setup{change: streamed(1), serial: true})
	defer r.close(t)
	n := s.numerics.CohortMicros()
	for i := range steps {
		b := s.batches[i]
		figures, err := r.engine.Figures(context.Background(), b)
		if err != nil {
			t.Fatal(err)
		}
		weighed, _, err := b.Weigh(rivals{}, n, figures)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(weighed)
		}
		if _, err := r.engine.Step(context.Background(), weighed, s.updates[i]); err != nil {
			t.Fatal(err)
		}
		plain.batches[i] = weighed
	}
	return &plain, &with
}

// objectiveSubjects are models whose steps have four micro-batches or more, and in each of their cohorts at least as
// many as asked.
func objectiveSubjects(t errorer, steps, each int) (all []named) {
	t.Helper()
	for name, change := range map[string]func(s *shape){
		"untied":       func(*shape) {},
		"tied, bf16":   func(s *shape) { s.Type, s.Tied, s.BF16, s.Moments8 = "qwen3", true, true, true },
		"untied, bf16": func(s *shape) { s.BF16, s.FrozenBlocks = true, 1 },
		"cohorts":      func(s *shape) { s.Cohorts = 2 },
		"cohorts, bf16": func(s *shape) {
			s.Cohorts, s.BF16, s.Narrow, s.Tied, s.Type = 4, true, true, true,
				"qwen3"
		},
		"scores, tied": func(s *shape) { s.Scores, s.Tied, s.Type = true, true, "qwen3" },
		"scores, cohorts, bf16": func(s *shape) {
			s.Scores, s.Cohorts, s.BF16, s.Narrow, s.Moments8 = true, 2, true, true, true
		},
		"frozen head":         func(s *shape) { s.FrozenHead, s.Unclipped = true, true },
		"blocks of two kinds": func(s *shape) { s.Type, s.Groups = modeltest.Patchwork.ModelType, 2 },
		"values that cross": func(s *shape) {
			s.Type, s.families, s.Layers = crossing.ModelType,
				[]model.Family{crossing}, 6
		},
		"two chains, cohorts": func(s *shape) {
			s.Type, s.families, s.Layers, s.Cohorts = towered.ModelType, []model.Family{towered}, 4, 2
		},
		"experts, cohorts, bf16": ofExperts,
	} {
		s := tiny
		change(&s)
		s.Micro = max(4, each*s.Cohorts)
		all = append(all, named{name, s.subject(t, steps)})
	}
	slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.name, b.name) })
	return all
}

func ofExperts(s *shape) {
	f := modeltest.Balanced(modeltest.Mixtures(2))
	s.Type, s.families, s.Layers, s.BF16, s.Cohorts = f.ModelType, []model.Family{f}, 6, true, 2
}

// The law: steps that stop in the head for an objective have the bits of two passes, wherever things are placed, on any
// number of devices and hosts.
func TestObjectivesStopInTheHead(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	type law struct {
		name  string
		stops *subject
		want  outcome
	}
	var laws []law
	for _, s := range objectiveSubjects(t, lawSteps, 1) {
		oracle, stops := inTwoPasses(t, s.subject, lawSteps, nil)
		ref := start(t, oracle, setup{device: dev, change: streamed(1), serial: true})
		laws = append(laws, law{s.name, stops, train(t, ref, oracle, lawSteps)})
		ref.close(t)
		if plain := start(t, s.subject, setup{device: dev, change: streamed(1)}); true {
			if train(t, plain, s.subject, lawSteps).scalars[1] == laws[len(laws)-1].want.scalars[1] {
				t.Errorf("%s: the objective changes nothing", s.name)
			}
			plain.close(t)
		}
	}
	atOnce := 0
	rapid.Check(t, func(rt *rapid.T) {
		l := laws[rapid.IntRange(0, len(laws)-1).Draw(rt, "subject")]
		r := start(rt, l.stops, setup{device: dev, serial: rapid.Bool().Draw(rt, "serial"), objective: rivals{},
			change: func(p *plan.Placement) { placements(rt, l.stops.model, p, true) }})
		defer r.close(rt)
		rt.Log(l.name)
		if r.plan.Placement.HeadAtOnce {
			atOnce++
		}
		sameBits(rt, train(rt, r, l.stops, lawSteps), l.want, r.plan)
	})
	if atOnce == 0 {
		t.Error("no head was on the device at once")
	}
	for _, l := range laws {
		for _, on := range []struct {
			hosts int
			setup
		}{{2, setup{}}, {2, setup{change: alternating}}, {4, setup{change: streamed(2)}}} {
			if l.stops.numerics.CohortCount()%on.hosts != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s on %d hosts", l.name, on.hosts), func(t *testing.T) {
				on.device, on.objective = dev, rivals{}
				c := startHosts(t, l.stops, slices.Repeat([]setup{on.setup}, on.hosts)...)
				defer c.close(t)
				sameOnHosts(t, c, c.train(t, l.stops, lawSteps), l.want)
			})
		}
	}
}

// An objective that fails, or whose weights are not finite, ends the step with its error.
func TestAnObjectiveFails(t *testing.T) {
	s := tiny.subject(t, 1)
	s.outputs.Objective = true
	for of, want := range map[objective.Objective]string{refuses{}: "objective: no pairs",
		boundless{}: "the weight +Inf"} {
		for _, change := range []func(*plan.Placement){nil, streamed(1)} {
			r := start(t, s, setup{change: change, objective: of})
			_, err := r.engine.Step(t.Context(), s.batches[0], s.updates[0])
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the step ends with %v, not with %q", err, want)
			}
			r.close(t)
		}
	}
}
