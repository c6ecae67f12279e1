package stream_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"pgregory.net/rapid"
)

// entropic is a made-up objective that also moves with the entropies of positions, in both directions.
type entropic struct{ rivals }

func (entropic) Needs() objective.Needs { return objective.Needs{Entropies: true} }

func (o entropic) Weigh(s *objective.Step) (objective.Result, error) {
	res, err := o.rivals.Weigh(s)
	for _, of := range s.Sequences {
		if len(of.Entropies) != len(of.LogProbs) || len(of.EntropySlopes) != len(of.LogProbs) {
			return res, errors.New("a document has no entropies, or no room for their slopes")
		}
		for t, x := range of.Entropies {
			of.EntropySlopes[t] = float32(0.25 - 0.125*float64(x))
			res.Loss += float64(x)
		}
	}
	return res, err
}

// critics is a made-up objective with a critic, and with entropies: what a position counts follows from the values of
// all, and a value should be the position's log-probability, and that of the next position.
type critics struct{ entropic }

func (critics) Needs() objective.Needs { return objective.Needs{Values: true, Entropies: true} }

func (o critics) Weigh(s *objective.Step) (objective.Result, error) {
	res, err := o.entropic.Weigh(s)
	mean, n := 0.0, 0.0
	for _, of := range s.Sequences {
		for _, v := range of.Values {
			mean += float64(v)
			n++
		}
	}
	for _, of := range s.Sequences {
		if len(of.Values) != len(of.LogProbs) || len(of.ValueSlopes) != len(of.LogProbs) {
			return res, errors.New("a document has no values, or no room for their slopes")
		}
		next := 0.0
		for t := len(of.Values) - 1; t >= 0; t-- {
			v := float64(of.Values[t])
			of.Weights[t] += float32(0.1 * (v - mean/n))
			of.ValueSlopes[t] = float32(0.5*(v-float64(of.LogProbs[t])) + 0.25*(v-next))
			next = v
		}
	}
	return res, err
}

// instructed is an objective that gives what it is told, by document of the step.
type instructed struct {
	objective.Objective // whose needs it has
	given               *[]objective.Sequence
	at                  *int
}

func (o instructed) Weigh(s *objective.Step) (res objective.Result, err error) {
	for i := range s.Sequences {
		of := (*o.given)[*o.at]
		copy(s.Sequences[i].Weights, of.Weights)
		copy(s.Sequences[i].ValueSlopes, of.ValueSlopes)
		copy(s.Sequences[i].EntropySlopes, of.EntropySlopes)
		*o.at++
	}
	return objective.Result{Parts: []objective.Part{{Name: "sum"}}}, nil
}

// withCritic is a subject whose model has values that are not 0 at first, and whose steps need them.
func (s shape) withCritic(t errorer, steps int) *subject {
	t.Helper()
	sub := s.subject(t, steps)
	m, err := sub.model.WithValues()
	if err != nil {
		t.Fatal(err)
	}
	sub.model, sub.outputs.Objective, sub.outputs.Entropies = m, true, true
	sub.fill = func(p *model.Part, v model.Values) error {
		all := model.Values{F32: make([]float32, p.Layout.WeightElems)}
		m.InitPart(7, p, all)
		if fields := p.Layout.Fields; p.Index == m.NormPart {
			row := all.F32[fields[len(fields)-1].First:][:m.Hidden]
			for i := range row {
				if row[i] != 0 {
					t.Errorf("a new critic has the weight %v", row[i])
				}
				row[i] = 0.125 * float32(i%5-2)
			}
		}
		return all.CopyTo(p.Layout, v, p.Layout)
	}
	return sub
}

// criticized trains a subject in two passes a step: one forward, whose figures the host weighs, and a step that is told
// what came of it.
func criticized(t errorer, s *subject, o objective.Objective, steps int) outcome {
	t.Helper()
	looks := *s
	looks.outputs.LogProbs, looks.batches = true, slices.Clone(s.batches)
	tells := instructed{Objective: o, given: new([]objective.Sequence), at: new(int)}
	r := start(t, &looks, setup{change: streamed(1), serial: true, objective: &tells})
	defer r.close(t)
	n := s.numerics.CohortMicros()
	var scalars outcome
	for i := range steps {
		b := s.batches[i]
		figures, err := r.engine.Figures(context.Background(), b)
		if err != nil {
			t.Fatal(err)
		}
		*tells.given, *tells.at = nil, 0
		for first := 0; first < len(b.Micro); first += n {
			sequences := b.Sequences(first, n, figures[first:][:n], nil)
			for i := range sequences {
				sequences[i].Weights = slices.Clone(sequences[i].Weights)
				if sequences[i].Weights == nil {
					sequences[i].Weights = slices.Repeat([]float32{1}, len(sequences[i].Targets))
				}
				sequences[i].ValueSlopes = make([]float32, len(sequences[i].Targets))
				sequences[i].EntropySlopes = make([]float32, len(sequences[i].Targets))
			}
			if _, err := o.Weigh(&objective.Step{Sequences: sequences, Whole: b.Counts()}); err != nil {
				t.Fatal(err)
			}
			*tells.given = append(*tells.given, sequences...)
		}
		res, err := r.engine.Step(context.Background(), b, s.updates[i])
		if err != nil {
			t.Fatal(err)
		}
		scalars.scalars = append(scalars.scalars, math.Float64bits(res.LossSum), math.Float64bits(res.GradNorm))
	}
	if _, err := r.engine.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	scalars.state = stateOf(t, r).state
	return scalars
}

// The law: steps with a critic or with entropies that stop in the head have the bits of two passes, wherever things are
// placed, on any number of devices and hosts.
func TestCriticsStopInTheHead(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	type law struct {
		name  string
		stops *subject
		of    objective.Objective
		want  outcome
	}
	var laws []law
	for name, change := range map[string]func(*shape){
		"untied":              func(*shape) {},
		"entropies, bf16":     func(s *shape) { s.BF16 = true },
		"tied, bf16, 24 bits": func(s *shape) { s.Type, s.Tied, s.BF16, s.Split24 = "qwen3", true, true, true },
		"cohorts, bf16":       func(s *shape) { s.Cohorts, s.BF16, s.Moments8, s.FrozenHead = 2, true, true, true },
	} {
		s := tiny
		s.Micro = 4
		change(&s)
		stops, of := s.withCritic(t, lawSteps), objective.Objective(critics{})
		if strings.HasPrefix(name, "entropies") {
			stops, of = s.subject(t, lawSteps), entropic{}
			stops.outputs.Objective, stops.outputs.Entropies = true, true
		}
		want := criticized(t, stops, of, lawSteps)
		r := start(t, stops, setup{device: dev, change: streamed(1), serial: true, objective: of})
		whole := train(t, r, stops, lawSteps)
		r.close(t)
		each := (len(whole.scalars) - 3) / lawSteps // 3 are of the evaluation after the second step
		for i := range 2 {
			if got := whole.scalars[i*each:][:2]; !slices.Equal(got, want.scalars[2*i:][:2]) {
				t.Errorf("%s: step %d has loss and norm %x, in two passes %x", name, i, got, want.scalars[2*i:][:2])
			}
		}
		want.scalars, want.saved, want.passes = whole.scalars, whole.saved, whole.passes
		sameBits(t, whole, want, r.plan) // the state in the end is compared
		laws = append(laws, law{name, stops, of, want})
	}
	slices.SortFunc(laws, func(a, b law) int { return strings.Compare(a.name, b.name) })
	rapid.Check(t, func(rt *rapid.T) {
		l := laws[rapid.IntRange(0, len(laws)-1).Draw(rt, "subject")]
		r := start(rt, l.stops, setup{device: dev, serial: rapid.Bool().Draw(rt, "serial"), objective: l.of,
			change: func(p *plan.Placement) { placements(rt, l.stops.model, p, true) }})
		defer r.close(rt)
		rt.Log(l.name)
		sameBits(rt, train(rt, r, l.stops, lawSteps), l.want, r.plan)
	})
	for _, l := range laws {
		if l.stops.numerics.CohortCount() == 2 {
			t.Run(fmt.Sprintf("%s on 2 hosts", l.name), func(t *testing.T) {
				c := startHosts(t, l.stops, setup{device: dev, objective: l.of}, setup{device: dev, objective: l.of})
				defer c.close(t)
				sameOnHosts(t, c, c.train(t, l.stops, lawSteps), l.want)
			})
		}
	}
}

// A batch has no place for slopes of values and of entropies, and slopes that are not finite end the step.
func TestCriticsAreRefused(t *testing.T) {
	s := tiny.withCritic(t, 1)
	for _, o := range []objective.Objective{critics{}, entropic{}} {
		if _, _, err := s.batches[0].Weigh(o, 1, nil); err == nil || !strings.Contains(err.Error(), "has no place for") {
			t.Errorf("a batch with slopes: %v", err)
		}
	}
	end := int(s.batches[0].Micro[0].DocEnd[0])
	others := &stream.Batch{Micro: s.batches[0].Micro, Targets: s.batches[0].Targets,
		Documents: []stream.Document{{Length: end, Rollout: &objective.Rollout{Values: make([]float32, end+1)}}}}
	infinite := []float32{float32(math.Inf(1))}
	tells := instructed{Objective: critics{}, given: new([]objective.Sequence), at: new(int)}
	r := start(t, s, setup{objective: tells})
	_, err := r.engine.Step(t.Context(), others, s.updates[0])
	if err == nil || !strings.Contains(err.Error(), "give each position one, or none") {
		t.Errorf("values of other positions: %v", err)
	}
	r.close(t)
	for what, of := range map[string]objective.Sequence{"value": {ValueSlopes: infinite},
		"entropy": {EntropySlopes: infinite}} {
		*tells.at, *tells.given = 0, slices.Repeat([]objective.Sequence{of}, s.batches[0].Counts().Groups)
		r := start(t, s, setup{objective: tells})
		_, err := r.engine.Step(t.Context(), s.batches[0], s.updates[0])
		r.close(t)
		if err == nil || !strings.Contains(err.Error(), "gives the "+what+" of a position of document 0 the slope +Inf") {
			t.Errorf("the step ends with %v", err)
		}
	}
}

// asks is an objective with any needs.
type asks struct {
	rivals
	needs objective.Needs
}

func (o asks) Needs() objective.Needs { return o.needs }

// An engine is not made for an objective that its plan has no room for, or whose needs no head has together.
func TestNeedsOfAnObjective(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	for _, x := range []struct {
		needs   objective.Needs
		outputs plan.Outputs
		scores  bool
		want    string
	}{
		{objective.Needs{}, plan.Outputs{}, false, "must both have an objective, or neither"},
		{objective.Needs{TopK: 3}, plan.Outputs{Objective: true, TopK: 2}, false, "compares 3 tokens of each position"},
		{objective.Needs{Entropies: true}, plan.Outputs{Objective: true}, false, "must both move with entropies"},
		{objective.Needs{}, plan.Outputs{Objective: true, Entropies: true}, false, "must both move with entropies"},
		{objective.Needs{Entropies: true, TopK: 2}, plan.Outputs{Objective: true, Entropies: true, TopK: 2}, false,
			"a teacher's tokens replace"},
		{objective.Needs{Entropies: true}, plan.Outputs{Objective: true, Entropies: true}, true, "does not have"},
		{objective.Needs{Values: true}, plan.Outputs{Objective: true}, false, "plan for Model.WithValues"},
	} {
		shape := tiny
		shape.Scores = x.scores
		s := shape.subject(t, 1)
		s.outputs = x.outputs
		_, err := stream.New(stream.Config{Plan: newPlan(t, s, dev.Info(), streamed(1)), Objective: asks{needs: x.needs},
			Devices: []device.Device{dev}, Host: dev, Accounts: hostmem.New()})
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v of a plan with %+v: %v", x.needs, x.outputs, err)
		}
	}
}
