package train

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/millrace/millrace/data"
)

// Loss is the mean token loss over a data set.
type Loss struct {
	Loss         float64 `json:"loss"` // nats per target token
	Perplexity   float64 `json:"perplexity"`
	TargetTokens int64   `json:"target_tokens"`
	Tokens       int64   `json:"tokens"`
}

// evaluate is the mean loss over all of the loader's rows, each taken once. A pending update is carried out first.
func (s *session) evaluate(ctx context.Context, l *data.EvalLoader, what string) (Loss, error) {
	l.Reset()
	b := s.env.bar("evaluating " + what)
	defer b.end()
	var out Loss
	sum := 0.0
	for done := 0; ; {
		var micro []data.Batch
		for len(micro) < s.plan.Numerics.MicroBatches {
			next, err := l.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return out, err
			}
			micro = append(micro, next)
			out.Tokens += int64(next.RealTokens)
		}
		if len(micro) == 0 {
			break
		}
		done += len(micro)
		for len(micro) < s.plan.Numerics.MicroBatches {
			micro = append(micro, padding(s.plan.Numerics.MicroBatch, s.plan.Numerics.SequenceLen))
		}
		batch := batchOf(micro)
		loss, err := s.engine.Eval(ctx, batch)
		if err != nil {
			return out, err
		}
		sum += loss
		out.TargetTokens += int64(batch.Targets)
		b.set(int64(done), int64(l.Batches()))
	}
	if out.TargetTokens > 0 {
		out.Loss = sum / float64(out.TargetTokens)
		out.Perplexity = math.Exp(out.Loss)
	}
	return out, nil
}

// padding is a micro-batch in which nothing counts.
func padding(sequences, sequenceLen int) data.Batch {
	n := sequences * sequenceLen
	b := data.Batch{Sequences: sequences, SequenceLen: sequenceLen, Tokens: make([]int32, n), Targets: make([]int32, n),
		Positions: make([]int32, n), DocStart: make([]int32, n), DocEnd: make([]int32, n)}
	for t := range n {
		b.Targets[t], b.DocStart[t], b.DocEnd[t] = -1, int32(t), int32(t+1)
	}
	return b
}
