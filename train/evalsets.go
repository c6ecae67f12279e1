package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/session"
)

// evalSets are the sets that a run evaluates on; without labels there is one.
type evalSets struct {
	sets      []data.EvalSet    // of the held-out data
	measured  []session.EvalSet // the same, packed into rows
	isCounted bool              // measured has the counts for an objective
}

// openEvalSets packs the held-out data into rows, set by set.
func (r *Run) openEvalSets() (err error) {
	if r.eval.sets, err = r.held.Sets(); err != nil {
		return err
	}
	for _, of := range r.eval.sets {
		if of.Label != "" && of.TargetTokens() == 0 {
			return fmt.Errorf("eval.datasets: no token of the set %s counts in the loss: see with millrace preview what is "+
				"wrong with its data, or leave it out", of.Label)
		}
		rows, err := data.NewEvalLoader(of.Dataset, r.evaluating())
		if err != nil {
			return err
		}
		m := session.EvalSet{Label: of.Label, Rows: rows}
		if r.aim.objective != nil {
			m.Documents = func() ([]stream.Document, error) {
				return r.compared(rows.Documents(), of.Dataset, r.aim.held)
			}
		}
		r.eval.measured = append(r.eval.measured, m)
	}
	return nil
}

// closeEvalSets gives back the memory of the sets, before the held-out data are closed.
func (r *Run) closeEvalSets() (err error) {
	for _, of := range r.eval.measured {
		err = errors.Join(err, of.Rows.Close())
	}
	if r.held != nil {
		err = errors.Join(err, r.held.CloseSets(r.eval.sets))
	}
	r.eval = evalSets{}
	return err
}

// evaluates reports whether the run has held-out data.
func (r *Run) evaluates() bool { return r.eval.sets != nil }

// heldFingerprint identifies the data whose loss decides which model is the best, and when the run stops early: all
// held-out data, or with eval.best those of a set.
func (r *Run) heldFingerprint() string {
	if r.held == nil {
		return ""
	}
	for _, of := range r.eval.sets {
		if of.Label == r.config.Eval.Best && of.Dataset != r.held {
			return of.Fingerprint()
		}
	}
	return r.held.Fingerprint()
}

// decidingLoss is the loss that decides which model is the best, and when the run stops early.
func (r *Run) decidingLoss(l *session.Loss) float64 {
	if of, ok := l.Sets[r.config.Eval.Best]; ok {
		return of.Loss
	}
	return l.Loss
}

// evaluate returns the loss on the held-out data.
func (r *Run) evaluate(ctx context.Context, what string) (session.Loss, error) {
	if r.aim.objective != nil && !r.eval.isCounted {
		for i := range r.eval.measured {
			of := &r.eval.measured[i]
			counts, err := r.session.Count(ctx, of.Rows, of.Documents)
			if err != nil {
				return session.Loss{}, err
			}
			of.Counts = counts
		}
		r.eval.isCounted = true
	}
	return r.session.Evaluate(ctx, r.eval.measured, what)
}
