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
	"github.com/millrace/millrace/trace"
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
	// Sets are the evaluation sets by their labels; nil where there is one without a label.
	Sets map[string]Loss `json:"eval_sets,omitempty"`
}

// Evaluation is the loss as records have it.
func (l *Loss) Evaluation() trace.Evaluation {
	e := trace.Evaluation{Loss: l.Loss, Objective: l.Objective}
	for label, of := range l.Sets {
		if e.Sets == nil {
			e.Sets = map[string]trace.Numbers{}
		}
		numbers := trace.Numbers{trace.SetLoss: of.Loss}
		for name, x := range of.Objective {
			if name != trace.SetLoss {
				numbers[name] = x
			}
		}
		e.Sets[label] = numbers
	}
	return e
}

// EvalSet is a part of the held-out data that has a loss of its own.
type EvalSet struct {
	Label string // empty: it is all of them
	Rows  *data.EvalLoader
	// Documents are what the loader has filled in, as the session's objective is given them; nil: it has none.
	Documents func() ([]stream.Document, error)
	Counts    objective.Counts // of the set's documents, for the objective
}

// Evaluate is the mean loss over all rows of the sets, each taken once: over all target tokens, or as the session's
// objective has it of all documents together. A pending update is carried out first. When the run is asked to stop it
// ends after the pass that it is at, with ErrInterrupted: to end a pass would break the engine, which has a step to
// save. All hosts of a run evaluate together.
func (s *Session) Evaluate(ctx context.Context, sets []EvalSet, what string) (Loss, error) {
	var all measured
	var whole objective.Counts
	for i := range sets {
		whole.Add(sets[i].Counts)
	}
	var losses map[string]Loss
	for i := range sets {
		of, counts, title := &sets[i], []objective.Counts{sets[i].Counts}, what
		if len(sets) > 1 {
			counts = append(counts, whole)
		}
		if of.Label != "" {
			title += ", " + of.Label
		}
		m, err := s.measure(ctx, of, counts, title)
		if err != nil {
			return Loss{}, err
		}
		if of.Label != "" {
			if losses == nil {
				losses = map[string]Loss{}
			}
			losses[of.Label] = m.loss()
		}
		all.add(&m)
	}
	out := all.loss()
	out.Sets = losses
	return out, nil
}

// measured has the sums of an evaluation.
type measured struct {
	tokens  int64
	sum     stream.Result      // of the next token
	weighed []objective.Result // for each of the counts that losses are divided by; nil: without an objective
}

// add adds a set to the sums over all sets, of which the last counts are.
func (m *measured) add(set *measured) {
	m.tokens += set.tokens
	m.addTokens(set.sum)
	n := len(set.weighed)
	if n > 0 && m.weighed == nil {
		m.weighed = make([]objective.Result, 1)
	}
	if n > 0 && set.weighed[n-1].Parts != nil { // else no document of the set fits a row
		objective.Merge(&m.weighed[0], set.weighed[n-1])
	}
}

func (m *measured) addTokens(r stream.Result) {
	m.sum.LossSum, m.sum.EntropySum, m.sum.Hits = m.sum.LossSum+r.LossSum, m.sum.EntropySum+r.EntropySum, m.sum.Hits+r.Hits
	m.sum.Targets += r.Targets
}

// loss makes a loss of the sums, of an objective for the first of the counts.
func (m *measured) loss() Loss {
	out := Loss{Tokens: m.tokens, TargetTokens: int64(m.sum.Targets)}
	if m.weighed != nil {
		out.Loss, out.Objective = m.weighed[0].Loss, m.weighed[0].Metrics()
	} else if m.sum.Targets > 0 {
		out.Loss, out.Objective = m.sum.Loss(), m.sum.Metrics()
		out.Perplexity = math.Exp(out.Loss)
	}
	return out
}

// measure evaluates a set. Losses of the objective are divided by each of the counts.
func (s *Session) measure(ctx context.Context, of *EvalSet, counts []objective.Counts, what string) (m measured,
	err error) {
	l := of.Rows
	l.Reset()
	b := s.Env.Bar("evaluating " + what)
	defer b.End()
	if of.Documents != nil {
		m.weighed = make([]objective.Result, len(counts))
	}
	for done := 0; ; {
		if stop, err := s.Env.StopsAnywhere(ctx); err != nil || stop {
			return m, cmp.Or(err, hosts.ErrInterrupted)
		}
		err := l.Next(ctx, s.Rows)
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return m, err
		}
		before := done
		for _, micro := range s.Rows {
			m.tokens += int64(micro.RealTokens)
			done += micro.Sequences
		}
		done = min(done, l.Rows())
		batch := BatchOf(s.Rows)
		end := s.Watching(func(p stream.Progress) {
			b.Show((float64(before)+p.Share*float64(done-before))/float64(l.Rows()), "")
		})
		res := stream.Result{}
		if of.Documents == nil {
			res, err = s.Engine.Measure(ctx, batch)
		} else {
			err = s.weigh(ctx, batch, of, counts, m.weighed)
		}
		end()
		if err != nil {
			return m, err
		}
		res.Targets = batch.Targets
		m.addTokens(res)
		b.Set(int64(done), int64(l.Rows()))
	}
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

// weigh adds what the objective makes of a batch to the sums for each of the counts.
func (s *Session) weigh(ctx context.Context, b *stream.Batch, of *EvalSet, counts []objective.Counts,
	sums []objective.Result) (err error) {
	if b.Documents, err = of.Documents(); err != nil {
		return err
	}
	if s.Objective.Needs().TopK > 0 { // each host has the logits of its own micro-batches
		all, err := s.Engine.Compare(ctx, b, counts...)
		for i, res := range all {
			objective.Merge(&sums[i], res)
		}
		return err
	}
	all, err := s.Engine.Figures(ctx, b)
	if err != nil {
		return err
	}
	for i, whole := range counts {
		sequences := b.Sequences(0, len(b.Micro), all, nil)
		for i := range sequences { // it sets no weights, and a loss may be NaN
			if of := &sequences[i]; s.Objective.Needs().Prompts {
				of.Weights = slices.Clone(of.Weights)
			} else {
				of.Weights = nil
			}
		}
		res, err := objective.Weigh(s.Objective, &objective.Step{Sequences: sequences, Whole: whole})
		if err != nil {
			return err
		}
		objective.Merge(&sums[i], res)
	}
	return nil
}
