package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
)

// Document is a document of a step as its objective sees it.
type Document struct {
	Micro         int // number of its micro-batch in the step
	First, Length int // its positions there
	Group         int // number of its pair in the step, or of itself
	Side          objective.Side
	Margin        float64
	Reference     []float32 // log-probabilities of the reference by position; nil: no reference is needed
	// TopIDs and TopLogProbs are the likeliest tokens by a teacher and their log-probabilities, at the objective's
	// temperature, as many by position as it needs; negative where there are fewer. Nil: no teacher is needed.
	TopIDs      []int32
	TopLogProbs []float32
	Rollout     *objective.Rollout // of an answer that was sampled; nil: the objective reads none
}

// of returns the document's part of a micro-batch's numbers.
func (d *Document) of(all []float32) []float32 {
	if all == nil {
		return nil
	}
	return all[d.First:][:d.Length:d.Length]
}

// documents lists the documents of a batch. One without a list has those of its micro-batches, each by itself.
func (b *Batch) documents() []Document {
	if b.Documents != nil {
		return b.Documents
	}
	var all []Document
	for m, micro := range b.Micro {
		for at := 0; at < len(micro.DocEnd); at = int(micro.DocEnd[at]) {
			if n := int(micro.DocEnd[at]) - at; n > 1 || micro.Targets[at] >= 0 { // else it is padding
				all = append(all, Document{Micro: m, First: at, Length: n, Group: len(all)})
			}
		}
	}
	return all
}

// checkDocuments refuses documents that are not those of their micro-batches.
func (b *Batch) checkDocuments() error {
	for i, d := range b.Documents {
		if d.Micro < 0 || d.Micro >= len(b.Micro) {
			return fmt.Errorf("batch: document %d is in micro-batch %d of %d", i, d.Micro, len(b.Micro))
		}
		micro := b.Micro[d.Micro]
		if d.First < 0 || d.Length < 1 || d.First+d.Length > len(micro.IDs) || int(micro.DocStart[d.First]) != d.First ||
			int(micro.DocEnd[d.First]) != d.First+d.Length {
			return fmt.Errorf("batch: document %d has positions %d to %d of micro-batch %d, which has no such document",
				i, d.First, d.First+d.Length, d.Micro)
		}
		if d.Reference != nil && len(d.Reference) != d.Length {
			return fmt.Errorf("batch: document %d has %d log-probabilities of the reference for %d positions",
				i, len(d.Reference), d.Length)
		}
		if of := d.Rollout; of != nil && (of.Sampler != nil && len(of.Sampler) != d.Length ||
			of.Old != nil && len(of.Old) != d.Length || of.Values != nil && len(of.Values) != d.Length) {
			return fmt.Errorf("batch: document %d has log-probabilities of a rollout for %d and %d of its %d positions, and "+
				"values for %d: give each position one, or none", i, len(of.Sampler), len(of.Old), d.Length, len(of.Values))
		}
	}
	return nil
}

// Sequences are the documents of n micro-batches of the step from one on, in the order of the batch's documents, with
// the figures of these micro-batches; nil: without. The objective sets weights, which have those of the batch before;
// nil: it sets the batch's own, if there are any.
func (b *Batch) Sequences(first, n int, figures []Figures, weights [][]float32) []objective.Sequence {
	var all []objective.Sequence
	for _, d := range b.documents() {
		if d.Micro < first || d.Micro >= first+n {
			continue
		}
		micro := b.Micro[d.Micro]
		s := objective.Sequence{Group: d.Group, Side: d.Side, Margin: d.Margin, Reference: d.Reference,
			Rollout: d.Rollout, Targets: micro.Targets[d.First:][:d.Length:d.Length]}
		if figures != nil {
			of := figures[d.Micro-first]
			s.LogProbs, s.Entropies, s.Hits, s.Values = d.of(of.LogProbs), d.of(of.Entropies), d.of(of.Hits), d.of(of.Values)
		}
		if s.Weights = d.of(micro.Weights); weights != nil {
			s.Weights = d.of(weights[d.Micro-first])
		}
		all = append(all, s)
	}
	return all
}

// Counts counts the documents of the whole step.
func (b *Batch) Counts() objective.Counts {
	return objective.Count(b.Sequences(0, len(b.Micro), nil, nil))
}

// Weigh has an objective give the positions of a batch their weights, from the figures of all of its micro-batches:
// what a step with that objective does in the middle, if it trains all of them. It returns a batch that trains to the
// same bits without the objective, by groups of that number of micro-batches, which see each other's documents. The
// objective needs no critic and no entropies, of which a batch has no slopes.
func (b *Batch) Weigh(o objective.Objective, group int, figures []Figures) (*Batch, objective.Result, error) {
	var sum objective.Result
	if n := o.Needs(); n.Values || n.Entropies {
		return nil, sum, fmt.Errorf("%s has slopes of a critic's values or of entropies, which a batch has no place for: "+
			"step with it", o.Name())
	}
	weighed := *b
	weighed.Micro, weighed.Documents = slices.Clone(b.Micro), nil
	whole := b.Counts()
	for first := 0; first < len(b.Micro); first += group {
		weights := make([][]float32, group)
		for i, micro := range b.Micro[first:][:group] {
			if weights[i] = slices.Clone(micro.Weights); weights[i] == nil {
				weights[i] = slices.Repeat([]float32{1}, len(micro.IDs))
			}
		}
		res, err := weigh(o, &objective.Step{Whole: whole,
			Sequences: b.Sequences(first, group, figures[first:][:group], weights)})
		if err != nil {
			return nil, sum, err
		}
		objective.Merge(&sum, res)
		for i, of := range weights {
			weighed.Micro[first+i].Weights = of
		}
	}
	return &weighed, sum, nil
}

// weigh refuses weights and slopes that are not finite, with which a step would have no gradient.
func weigh(o objective.Objective, s *objective.Step) (objective.Result, error) {
	res, err := objective.Weigh(o, s)
	if err != nil {
		return res, err
	}
	for i, of := range s.Sequences {
		if t := slices.IndexFunc(of.Weights, isNotFinite); t >= 0 {
			return res, fmt.Errorf("%s gives a position of document %d the weight %v: its log-probabilities are too far from "+
				"what it can compare; lower the learning rate or beta", o.Name(), i, of.Weights[t])
		}
		for _, x := range []struct {
			what, fix string
			slopes    []float32
		}{{"value", "lower the learning rate", of.ValueSlopes}, {"entropy", "lower its coefficient", of.EntropySlopes}} {
			if t := slices.IndexFunc(x.slopes, isNotFinite); t >= 0 {
				return res, fmt.Errorf("%s gives the %s of a position of document %d the slope %v: %s", o.Name(), x.what, i,
					x.slopes[t], x.fix)
			}
		}
	}
	return res, nil
}

func isNotFinite(x float32) bool { return math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) }

// checkNeeds refuses an objective that the plan has no room for, or whose needs no head has together.
func (e *Engine) checkNeeds(n objective.Needs) error {
	out, head := e.Plan.Outputs, e.Plan.Head()
	switch {
	case n.TopK != out.TopK:
		return fmt.Errorf("the objective compares %d tokens of each position, and the plan has room for %d: plan for the "+
			"objective", n.TopK, out.TopK)
	case n.Entropies != out.Entropies:
		return errors.New("the plan and the objective must both move with entropies, or neither: plan for the objective")
	case n.Entropies && (n.TopK > 0 || head.Scores):
		return errors.New("the objective moves with entropies, which a model that ends in scores does not have, and which " +
			"the gradients of a teacher's tokens replace: leave one of both out")
	case n.Values && !head.Values:
		return errors.New("the objective needs a critic, and the model has none: plan for Model.WithValues")
	}
	return nil
}

// temper gives the head the temperature of the objective, if there is one, until the function that it returns is
// called.
func (e *Engine) temper() (end func()) {
	if e.Plan.Outputs.TopK > 0 {
		e.temperature = float32(e.Objective.Needs().Temperature)
	}
	return func() { e.temperature = 0 }
}

// objective has the objective give the positions of a cohort their weights, in host memory.
func (r *execution) objective(s device.Stream, op *plan.Op) error {
	if err := s.Sync(); err != nil { // losses that this device has written are there
		return err
	}
	n := r.Plan.Numerics
	cohort, micros := op.Reads[0].Micro, n.CohortMicros()
	first := r.Plan.Cluster.Host*n.MicroBatches + cohort
	figures, weights, all := make([]Figures, micros), make([][]float32, micros), make([]given, micros)
	for i := range micros {
		mem := r.bytes(plan.TokensPurpose, r.host.At(&op.Reads[i])) // which nothing reads after this
		figures[i] = r.figuresIn(mem)
		all[i] = r.givenIn(hostmem.F32(r.bytes(plan.TokensPurpose, r.host.At(&op.Writes[i]))))
		weights[i] = all[i].weights
		if own := r.asked.Micro[first+i].Weights; copy(weights[i], own) == 0 {
			for t := range weights[i] {
				weights[i][t] = 1
			}
		}
	}
	sequences := r.asked.Sequences(first, micros, figures, weights)
	r.giveTop(sequences, first, micros)
	r.giveSlopes(sequences, first, all)
	res, err := weigh(r.Objective, &objective.Step{Whole: r.inStep, Sequences: sequences})
	if err != nil {
		return fmt.Errorf("objective: %w", err)
	}
	r.scalePicked(cohort, micros)
	r.weighed[cohort/n.CohortMicros()] = res
	for i := range all {
		for _, of := range [][]float32{all[i].weights, all[i].values, all[i].entropies} {
			for t := range of {
				if of[t] *= r.scale; r.asked.Micro[first+i].Targets[t] < 0 {
					of[t] = 0 // see nn.Head.Scores
				}
			}
			if !n.TrainsMicro(cohort + i) {
				clear(of) // it comes down all the same, if the model has experts
			}
		}
		if !n.TrainsMicro(cohort + i) {
			clear(r.picked(cohort + i))
		}
	}
	return nil
}

// given has what an objective gives the positions of a micro-batch: weights of losses, and slopes of values and of
// entropies; nil: the plan has no room for them.
type given struct{ weights, values, entropies []float32 }

// givenIn cuts memory into that ([nn.Head.Weighed]), with slopes of 0.
func (e *Engine) givenIn(all []float32) (g given) {
	head, n := e.Plan.Head(), e.Plan.Numerics.Positions()
	clear(all[n:])
	g.weights = all[:n]
	if head.Values {
		g.values = all[n:][:n]
	}
	if head.Entropies {
		g.entropies = all[len(all)-n:]
	}
	return g
}

// giveSlopes gives sequences of micro-batches of the step from one on the room for slopes of a critic's values and of
// entropies, where the objective needs them.
func (e *Engine) giveSlopes(sequences []objective.Sequence, first int, all []given) {
	needs, i := e.Objective.Needs(), 0
	for _, d := range e.asked.documents() {
		if d.Micro < first || d.Micro >= first+len(all) {
			continue
		}
		if needs.Values {
			sequences[i].ValueSlopes = d.of(all[d.Micro-first].values)
		}
		if needs.Entropies {
			sequences[i].EntropySlopes = d.of(all[d.Micro-first].entropies)
		}
		i++
	}
}

// exchangeObjective adds up the results of the objective over the cohorts of all hosts, in their order.
func (e *Engine) exchangeObjective() (sum objective.Result, err error) {
	all := e.weighed
	if e.Plan.Cluster.Several() {
		var own []byte
		put := func(x float64) { own = binary.NativeEndian.AppendUint64(own, math.Float64bits(x)) }
		for _, res := range e.weighed {
			put(res.Loss)
			put(res.Rest)
			for _, p := range res.Parts {
				put(p.Sum)
				put(p.Of)
			}
		}
		hosts, err := e.Peers.Exchange(own)
		if err != nil {
			return sum, err
		}
		all = all[:0:0]
		for host, of := range hosts {
			if len(of) != len(own) {
				return sum, fmt.Errorf("host %d has %d bytes of results of the objective, and host %d has %d: they do not "+
					"have the same objective; give all of them the same", host, len(of), e.Plan.Cluster.Host, len(own))
			}
			take := func() (x float64) { x, of = float(of, 0), of[8:]; return x }
			for _, like := range e.weighed {
				res := objective.Result{Loss: take(), Rest: take()}
				for _, p := range like.Parts {
					res.Parts = append(res.Parts, objective.Part{Name: p.Name, Sum: take(), Of: take(), Extreme: p.Extreme})
				}
				all = append(all, res)
			}
		}
	}
	for _, res := range all {
		objective.Merge(&sum, res)
	}
	return sum, nil
}
