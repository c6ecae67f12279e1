package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/stream"
)

// Loss is the mean token loss over a data set.
type Loss struct {
	Loss         float64 `json:"loss"` // nats per target token
	Perplexity   float64 `json:"perplexity"`
	TargetTokens int64   `json:"target_tokens"`
	Tokens       int64   `json:"tokens"`
}

// evaluate is the mean loss over all of the loader's rows, each taken once. A pending update is carried out first. When the run is asked
// to stop it ends after the pass that it is at, with ErrInterrupted: to end a pass would break the engine, which has a step to save.
// All hosts of a run evaluate together.
func (s *Session) evaluate(ctx context.Context, l *data.EvalLoader, what string) (Loss, error) {
	l.Reset()
	b := s.env.bar("evaluating " + what)
	defer b.End()
	var out Loss
	sum := 0.0
	for done := 0; ; {
		if stop, err := s.env.stopsAnywhere(ctx); err != nil || stop {
			return out, cmp.Or(err, ErrInterrupted)
		}
		err := l.Next(ctx, s.rows)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out, err
		}
		before := done
		for _, micro := range s.rows {
			out.Tokens += int64(micro.RealTokens)
			done += micro.Sequences
		}
		done = min(done, l.Rows())
		batch := batchOf(s.rows)
		end := s.watching(func(p stream.Progress) {
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

// evalDue reports whether an evaluation follows a step.
func (t *trainer) evalDue(step int) bool {
	every := t.config.Eval.Every
	return every > 0 && step%every == 0 || t.eval != nil && step == t.rates.Steps
}

// evaluateAfter evaluates after the latest step, and reports whether the model is the best so far. If the run is asked to
// stop, the evaluation ends without a loss, and the run evaluates when it continues.
func (t *trainer) evaluateAfter(ctx context.Context) (isBest bool, err error) {
	if t.steps > t.begun {
		t.env.willFinish(fmt.Sprintf("ending the evaluation, and saving step %d", t.steps))
	}
	l, err := t.session.evaluate(ctx, t.eval, fmt.Sprintf("after step %d", t.steps))
	err = t.env.Cluster.Alone(err)
	t.leaveOut()
	if errors.Is(err, ErrInterrupted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	t.evals.note(l.Loss)
	t.summary.EvalAfter = t.evals.loss
	t.tell(Evaluated{Step: t.steps, Loss: l.Loss, Late: t.steps == t.begun})
	return t.saves.improved(l.Loss), nil
}

// evaluateAgain makes up for the evaluation of the step that the run continues after, if that was interrupted. The step
// is saved, so that nothing but its record is missing.
func (t *trainer) evaluateAgain(ctx context.Context) error {
	if t.begun == 0 || t.evals.loss != nil || !t.evalDue(t.begun) {
		return nil
	}
	_, err := t.evaluateAfter(ctx)
	return err
}
