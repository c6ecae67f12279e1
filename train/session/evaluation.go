package session

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/hosts"
)

// Loss is the mean token loss over a data set.
type Loss struct {
	Loss         float64 `json:"loss"` // nats per target token
	Perplexity   float64 `json:"perplexity"`
	TargetTokens int64   `json:"target_tokens"`
	Tokens       int64   `json:"tokens"`
}

// Evaluate is the mean loss over all of the loader's rows, each taken once. A pending update is carried out first. When
// the run is asked to stop it ends after the pass that it is at, with ErrInterrupted: to end a pass would break the
// engine, which has a step to save. All hosts of a run evaluate together.
func (s *Session) Evaluate(ctx context.Context, l *data.EvalLoader, what string) (Loss, error) {
	l.Reset()
	b := s.Env.Bar("evaluating " + what)
	defer b.End()
	var out Loss
	sum := 0.0
	for done := 0; ; {
		if stop, err := s.Env.StopsAnywhere(ctx); err != nil || stop {
			return out, cmp.Or(err, hosts.ErrInterrupted)
		}
		err := l.Next(ctx, s.Rows)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out, err
		}
		before := done
		for _, micro := range s.Rows {
			out.Tokens += int64(micro.RealTokens)
			done += micro.Sequences
		}
		done = min(done, l.Rows())
		batch := BatchOf(s.Rows)
		end := s.Watching(func(p stream.Progress) {
			b.Show((float64(before)+p.Share*float64(done-before))/float64(l.Rows()), "")
		})
		loss, err := s.Engine.Eval(ctx, batch)
		end()
		if err != nil {
			return out, err
		}
		sum += loss
		out.TargetTokens += int64(batch.Targets)
		b.Set(int64(done), int64(l.Rows()))
	}
	if out.TargetTokens > 0 {
		out.Loss = sum / float64(out.TargetTokens)
		out.Perplexity = math.Exp(out.Loss)
	}
	return out, nil
}
