package session

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/hosts"
)

// Loss is the mean token loss over a data set, or what the session's objective comes to there.
type Loss struct {
	Loss         float64 `json:"loss"` // nats per target token, or of the objective
	Perplexity   float64 `json:"perplexity,omitempty"`
	TargetTokens int64   `json:"target_tokens"`
	Tokens       int64   `json:"tokens"`
	// Objective has the numbers of the objective by their names: for the next token entropy and mean_token_accuracy.
	Objective map[string]float64 `json:"objective,omitempty"`
}

// HeldOut has the documents that an evaluation gives to an objective.
type HeldOut struct {
	Documents func() ([]stream.Document, error) // of what the loader has filled in
	Counts    objective.Counts                  // of all data
}

// Evaluate is the mean loss over all of the loader's rows, each taken once. A pending update is carried out first. When
// the run is asked to stop it ends after the pass that it is at, with ErrInterrupted: to end a pass would break the
// engine, which has a step to save. All hosts of a run evaluate together.
//
// With an objective it needs what that is given, and the loss is the objective's.
func (s *Session) Evaluate(ctx context.Context, l *data.EvalLoader, held *HeldOut, what string) (Loss, error) {
	l.Reset()
	b := s.Env.Bar("evaluating " + what)
	defer b.End()
	var out Loss
	var sum stream.Result
	weighed := objective.Result{}
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
		var res stream.Result
		if held == nil {
			res, err = s.Engine.Measure(ctx, batch)
		} else {
			err = s.weigh(ctx, batch, held, &weighed)
		}
		end()
		if err != nil {
			return out, err
		}
		sum.LossSum, sum.EntropySum, sum.Hits = sum.LossSum+res.LossSum, sum.EntropySum+res.EntropySum, sum.Hits+res.Hits
		sum.Targets += batch.Targets
		b.Set(int64(done), int64(l.Rows()))
	}
	if out.TargetTokens = int64(sum.Targets); held != nil {
		out.Loss, out.Objective = weighed.Loss, weighed.Metrics()
	} else if sum.Targets > 0 {
		out.Loss, out.Objective = sum.Loss(), sum.Metrics()
		out.Perplexity = math.Exp(out.Loss)
	}
	return out, nil
}

// Count counts the documents of all data of a loader, by which losses are divided.
func (s *Session) Count(ctx context.Context, l *data.EvalLoader, documents func() ([]stream.Document, error)) (
	all objective.Counts, err error) {
	for l.Reset(); ; {
		err := l.Next(ctx, s.Rows)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		b := BatchOf(s.Rows)
		if b.Documents, err = documents(); err != nil {
			return all, err
		}
		all.Add(b.Counts())
	}
}

// weigh adds what the objective makes of a batch.
func (s *Session) weigh(ctx context.Context, b *stream.Batch, held *HeldOut, sum *objective.Result) (err error) {
	if b.Documents, err = held.Documents(); err != nil {
		return err
	}
	if s.Objective.Needs().TopK > 0 { // each host has the logits of its own micro-batches
		res, err := s.Engine.Compare(ctx, b, held.Counts)
		if err == nil {
			objective.Merge(sum, res)
		}
		return err
	}
	all, err := s.Engine.Figures(ctx, b)
	if err != nil {
		return err
	}
	sequences := b.Sequences(0, len(b.Micro), all, nil)
	for i := range sequences { // it sets no weights, and a loss may be NaN
		if of := &sequences[i]; s.Objective.Needs().Prompts {
			of.Weights = slices.Clone(of.Weights)
		} else {
			of.Weights = nil
		}
	}
	res, err := objective.Weigh(s.Objective, &objective.Step{Sequences: sequences, Whole: held.Counts})
	if err == nil {
		objective.Merge(sum, res)
	}
	return err
}
