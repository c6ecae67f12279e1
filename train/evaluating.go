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
		err := l.Next(ctx, s.rows)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out, err
		}
		for _, micro := range s.rows {
			out.Tokens += int64(micro.RealTokens)
			done += micro.Sequences
		}
		batch := batchOf(s.rows)
		loss, err := s.engine.Eval(ctx, batch)
		if err != nil {
			return out, err
		}
		sum += loss
		out.TargetTokens += int64(batch.Targets)
		b.set(int64(min(done, l.Rows())), int64(l.Rows()))
	}
	if out.TargetTokens > 0 {
		out.Loss = sum / float64(out.TargetTokens)
		out.Perplexity = math.Exp(out.Loss)
	}
	return out, nil
}
