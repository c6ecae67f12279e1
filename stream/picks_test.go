package stream_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"pgregory.net/rapid"
)

// taught is the same subject, which learns from a made-up teacher of k tokens at each position: a list of the target
// and others, of tokens without the target, a shorter one, or an empty one.
func taught(s *subject, k int) *subject {
	c := *s
	c.batches = slices.Clone(s.batches)
	c.outputs.Objective, c.outputs.TopK, c.outputs.LogProbs = true, k, true
	vocab := s.model.Vocab
	for i := range c.batches {
		b := *c.batches[i]
		b.Documents = nil
		for m, micro := range b.Micro {
			for at := 0; at < len(micro.DocEnd); at = int(micro.DocEnd[at]) {
				d := stream.Document{Micro: m, First: at, Length: int(micro.DocEnd[at]) - at, Group: len(b.Documents)}
				for t := range d.Length {
					first := (7*t + 3*at + i) % vocab
					if target := int(micro.Targets[at+t]); target >= 0 && t%3 > 0 {
						first = target - t%2 // it is the first one, or the second one
					}
					for j := range k {
						id := int32((first + j + vocab) % vocab)
						if t%4 == 3 && j > t%k {
							id = -1
						}
						d.TopIDs, d.TopLogProbs = append(d.TopIDs, id), append(d.TopLogProbs, -float32(j+1)-float32(t%5)/8)
					}
				}
				b.Documents = append(b.Documents, d)
			}
		}
		c.batches[i] = &b
	}
	return &c
}

// teaching learns from lists of k tokens, at a temperature or for the next token as well.
func teaching(t errorer, k int, temperature float64) objective.Objective {
	s := objective.Settings{Type: "distill", TopK: k, Temperature: &temperature}
	if temperature == 1 {
		s.Share = new(0.75)
	}
	o, err := objective.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// compares returns what the objective makes of a batch in an evaluation.
func compares(t errorer, r *rig, s *subject) objective.Result {
	t.Helper()
	all, err := r.engine.Compare(context.Background(), s.batches[0], s.batches[0].Counts())
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// The law: steps that learn from a teacher, and evaluations, have the bits of a serial execution with streamed weights,
// wherever things are placed, on any number of devices and hosts.
func TestTeachersChangeNoBit(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	const k = 5
	type law struct {
		name        string
		taught      *subject
		temperature float64
		want        outcome
		held        objective.Result
	}
	var laws []law
	for _, s := range objectiveSubjects(t, lawSteps, 1) {
		if s.model.Scores() {
			continue // it has no logits
		}
		l := law{name: s.name, taught: taught(s.subject, k), temperature: 1 + float64(len(laws)%2)/2}
		ref := start(t, l.taught, setup{device: dev, change: streamed(1), serial: true,
			objective: teaching(t, k, l.temperature)})
		l.held = compares(t, ref, l.taught)
		l.want = train(t, ref, l.taught, lawSteps)
		ref.close(t)
		if kl := l.held.Metrics()["kl"]; !(kl > 0.1) || math.IsInf(kl, 0) {
			t.Errorf("%s: kl %v", s.name, kl)
		}
		laws = append(laws, l)
	}
	atOnce := 0
	rapid.Check(t, func(rt *rapid.T) {
		l := laws[rapid.IntRange(0, len(laws)-1).Draw(rt, "subject")]
		r := start(rt, l.taught, setup{device: dev, serial: rapid.Bool().Draw(rt, "serial"),
			objective: teaching(rt, k, l.temperature),
			change:    func(p *plan.Placement) { placements(rt, l.taught.model, p, true) }})
		defer r.close(rt)
		rt.Log(l.name)
		if r.plan.Placement.HeadAtOnce {
			atOnce++
		}
		if got := compares(rt, r, l.taught); fmt.Sprint(got) != fmt.Sprint(l.held) {
			rt.Fatalf("an evaluation has %v, not %v", got, l.held)
		}
		sameBits(rt, train(rt, r, l.taught, lawSteps), l.want, r.plan)
	})
	if atOnce == 0 {
		t.Error("no head was on the device at once")
	}
	for _, l := range laws {
		for _, hosts := range []int{2, 4} {
			if l.taught.numerics.CohortCount()%hosts != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s on %d hosts", l.name, hosts), func(t *testing.T) {
				on := setup{device: dev, objective: teaching(t, k, l.temperature)}
				c := startHosts(t, l.taught, slices.Repeat([]setup{on}, hosts)...)
				defer c.close(t)
				sameOnHosts(t, c, c.train(t, l.taught, lawSteps), l.want)
			})
		}
	}
}

// A teacher that is sure of each target is the cross-entropy, to what fp32 keeps of a logit: losses, norms and weights
// are near those of steps without an objective, also where logits are capped. At a temperature the first step is that
// of a model whose logits are divided by it, times its square.
func TestSureTeacher(t *testing.T) {
	for _, is := range []struct{ softCap, temperature float32 }{{0, 1}, {0.3, 1}, {0, 2}, {0.3, 2}} {
		s := tiny.subject(t, lawSteps)
		m, steps, square := *s.model, lawSteps, 1.0
		m.Head.SoftCap = is.softCap
		s.model = &m
		with := taught(s, 1)
		if is.temperature != 1 {
			divided := m
			divided.Head.Scale, divided.Head.SoftCap = 1/is.temperature, is.softCap/is.temperature
			s.model, steps, square = &divided, 1, float64(is.temperature*is.temperature)
		}
		plain := start(t, s, setup{change: streamed(1)})
		for _, b := range with.batches {
			for i := range b.Documents {
				d := &b.Documents[i]
				for at := range d.Length {
					d.TopIDs[at], d.TopLogProbs[at] = b.Micro[d.Micro].Targets[d.First+at], 0
				}
			}
		}
		taught := start(t, with, setup{objective: teaching(t, 1, float64(is.temperature))})
		for i := range steps {
			want, err := plain.engine.Step(t.Context(), s.batches[i], s.updates[i])
			if err != nil {
				t.Fatal(err)
			}
			got, err := taught.engine.Step(t.Context(), with.batches[i], s.updates[i])
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got.GradNorm/want.GradNorm/square-1) > 1e-5 || math.Abs(got.Loss()/want.Loss()/square-1) > 1e-6 {
				t.Errorf("%+v, step %d: loss %v and norm %v, and %v and %v without a teacher", is, i+1, got.Loss(),
					got.GradNorm, want.Loss(), want.GradNorm)
			}
		}
		plain.close(t)
		taught.close(t)
	}
}

// Lists of a teacher are refused with tokens that are not of the vocabulary or twice there, and of another length.
func TestBadTeachers(t *testing.T) {
	const k = 5
	for want, change := range map[string]func(d *stream.Document){
		"batch: document 0 has token 90000 of a teacher, and the vocabulary has": func(d *stream.Document) {
			d.TopIDs[1] = 90000
		},
		"of a teacher twice at position 0": func(d *stream.Document) {
			d.TopIDs[1] = d.TopIDs[0]
		},
		"log-probabilities of them for": func(d *stream.Document) {
			d.TopIDs = d.TopIDs[1:]
		},
		"has 0 log-probabilities of the teacher": func(d *stream.Document) {
			d.TopIDs,
				d.TopLogProbs = nil, nil
		},
		"has a weight that is infinite or NaN": func(d *stream.Document) { d.TopLogProbs[0] = float32(math.NaN()) },
	} {
		s := taught(tiny.subject(t, 1), k)
		change(&s.batches[0].Documents[0])
		r := start(t, s, setup{objective: teaching(t, k, 1)})
		_, err := r.engine.Step(t.Context(), s.batches[0], s.updates[0])
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the step ends with %v, not with %q", err, want)
		}
		r.close(t)
	}
}
