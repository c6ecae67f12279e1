package reference

import (
	"cmp"
	"context"
	"errors"
	"math"
	"runtime"
	"slices"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/session"
)

// A teacher's likeliest tokens are chosen on the host, from the logits of all positions: the head brings these there in
// any case, for callers that want logits, and no driver needs an operation more. A position costs the host a pass over
// the vocabulary. Log-probabilities are kept in fp32, not in bf16 with half of the bytes: bf16 is off by up to 2% of a
// probability of e^-10, and the probabilities of a position would add up to more than 1.

// logitBytes bounds the logits that wait in host memory, so that a long row has several passes.
const logitBytes = 2 << 30

// plan plans forward passes over rows.
func (o Options) plan(ctx context.Context, e *session.Env, dev *session.Devices, rows int) (*plan.Plan, error) {
	out := plan.Outputs{LogProbs: o.TopK == 0}
	if o.TopK > 0 {
		most := max(cmp.Or(o.logitBytes, logitBytes)/4/o.Model.Model.Vocab, 1)
		out.LogitRows = min(most, o.Numerics.SequenceLen)
		if rows = min(rows, max(most/o.Numerics.SequenceLen, 1)); most > o.Numerics.SequenceLen {
			out.LogitRows = rows * o.Numerics.SequenceLen
		}
	}
	return e.FitForward(ctx, o.Model.Model.Frozen(), o.Numerics, rows, dev, o.Memory, out)
}

// top computes the likeliest tokens of the documents of a batch.
func (o Options) top(ctx context.Context, s *session.Session, b *stream.Batch, now []placed) error {
	rows, vocab := s.Plan.Outputs.LogitRows, s.Plan.Model.Vocab
	for first := 0; first < s.Plan.Numerics.Positions(); first += rows {
		first := min(first, s.Plan.Numerics.Positions()-rows)
		all, err := s.Engine.Logits(ctx, b, first)
		if err != nil {
			return err
		}
		for _, p := range now {
			from, to := max(p.at, first), min(p.at+p.length-1, first+rows)
			err := fault.Share(ctx, max(to-from, 0), runtime.GOMAXPROCS(0), func(i int) error {
				at := from + i
				values := p.values[(at-p.at)*8*o.TopK:][:8*o.TopK]
				logits := all[p.micro][(at-first)*vocab:][:vocab]
				return topOf(logits, hostmem.I32(values[:4*o.TopK]), hostmem.F32(values[4*o.TopK:]),
					o.temperature())
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// topOf writes the tokens with the largest logits, of equal ones that with the lower number first, and their
// log-probabilities at a temperature. Where the vocabulary has fewer the rest are -1.
func topOf(logits []float32, ids []int32, logProbs []float32, temperature float64) error {
	before := func(a, b int32) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) }
	heap := ids[:0] // the last of the best so far is at its root
	down := func(i int) {
		for {
			child := 2*i + 1
			if child >= len(heap) {
				return
			}
			if child+1 < len(heap) && before(heap[child+1], heap[child]) > 0 {
				child++
			}
			if before(heap[child], heap[i]) <= 0 {
				return
			}
			heap[i], heap[child] = heap[child], heap[i]
			i = child
		}
	}
	for id := range logits {
		switch {
		case len(heap) < len(ids):
			if heap = append(heap, int32(id)); len(heap) == min(len(ids), len(logits)) {
				for i := len(heap)/2 - 1; i >= 0; i-- {
					down(i)
				}
			}
		case logits[id] > logits[heap[0]]: // an equal one has the lower number
			heap[0] = int32(id)
			down(0)
		}
	}
	slices.SortFunc(heap, before)
	most, sum := float64(logits[heap[0]]), 0.0
	for _, x := range logits {
		if d := float64(x) - most; d > -40*temperature { // others are below the last bit of the sum
			sum += math.Exp(d / temperature)
		} else if d != d {
			sum = d
		}
	}
	log := most/temperature + math.Log(sum)
	if math.IsNaN(log) || math.IsInf(log, 0) {
		return errors.New("a logit of the model is infinite or NaN: compute it in another type, or take another model")
	}
	for i, id := range heap {
		logProbs[i] = float32(float64(logits[id])/temperature - log)
	}
	for i := len(heap); i < len(ids); i++ {
		ids[i], logProbs[i] = -1, 0
	}
	return nil
}
