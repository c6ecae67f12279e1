package train

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
)

// rolloutNumbers counts the numbers that a position of an answer has at most: by the reference, by its sampler, from
// before the first update, and a critic's from then.
const rolloutNumbers = 4

// readsReference reports whether rows have what the reference says.
func (r *Run) readsReference() bool { return r.config.Objective.Reference == runfile.ReferenceData }

// ownSays reports whether old: data is of a loop, whose own sampler has the log-probabilities from before the first
// update: the same weights gave the answers.
func (r *Run) ownSays() bool { return r.rounds != nil && !r.aim.objective.Needs().OldOfStart }

// checkRollouts refuses rows that lack what the objective reads of answers, or have what it leaves out.
func (r *Run) checkRollouts(d *data.Dataset) error {
	needs := r.aim.objective.Needs()
	if !needs.Rollouts || !d.HasRollouts() {
		return nil
	}
	if of, ok := r.aim.objective.(objective.Rewarded); ok { // which says so before anything is computed
		if _, _, err := of.Advantages(nil, d.RewardNames()); err != nil {
			return fmt.Errorf("objective.%w", err)
		}
	}
	if needs.OldOfStart && r.env.Cluster != nil {
		return errors.New("objective.old is start, which a run on several hosts does not evaluate: write old into the " +
			"rows, and set objective.old to data")
	}
	for _, of := range []struct {
		key    string
		column data.TokenColumn
		reads  bool
		set    string // what has it read, or not
		isLeft bool   // it says nothing that a run may leave out
	}{
		{"logprobs", data.TokenLogProbs, needs.Sampler, "take another loss, or objective.old: now", true},
		{"old", data.TokenOld, needs.Old && !needs.OldOfStart && !r.ownSays(), "objective.old: data", false},
		{"values", data.TokenValues, needs.OldValues, "objective.old: data with loss: ppo", true},
		{"ref", data.TokenReferences, needs.Reference && r.readsReference(), "objective.reference: data", !needs.Reference},
	} {
		switch all, some := d.HasColumn(of.column); {
		case of.reads && !all && of.column == data.TokenLogProbs:
			return fmt.Errorf("the objective reads the log-probabilities of the sampler, and rows have no %s: write them, or %s",
				of.key, of.set)
		case of.reads && !all:
			return fmt.Errorf("%s is set, and rows have no %s: write it, or leave the key out", of.set, of.key)
		case some && !of.reads && !of.isLeft:
			return fmt.Errorf("rows have %s, and the run does not read it: set %s, or list %[1]s under ignore in the entry",
				of.key, of.set)
		}
	}
	return r.checkEndings()
}

// checkEndings refuses answers that do not say how they end, where that decides whether they count.
func (r *Run) checkEndings() error {
	for i := 0; r.aim.objective.Needs().Endings && i < r.data.Len(); i++ {
		if a := r.data.Scored(i, nil); a.Ends == objective.UnknownEnding {
			return fmt.Errorf("objective.mask_truncated is set, and an answer of group %d has no finish: write it, length "+
				"where an answer was cut off, or leave the key out", a.Group)
		}
	}
	return nil
}

// rolled gives the documents of a step what is known of the answers that they are. room has zeros for a number of each
// position, and is used up.
func (r *Run) rolled(placed []data.Placed, d *data.Dataset, room []byte) error {
	of, ok := r.aim.objective.(objective.Rewarded)
	if !ok || !d.HasRollouts() {
		return nil
	}
	names := d.RewardNames()
	answers := make([]objective.Scored, len(placed))
	for i, p := range placed {
		answers[i] = d.Scored(p.Document, names)
	}
	var err error
	if r.aim.rollouts, r.aim.figures, err = of.Advantages(answers, names); err != nil {
		return fmt.Errorf("objective: %w", err)
	}
	needs := r.aim.objective.Needs()
	_, hasSampler := d.HasColumn(data.TokenLogProbs)
	isFirst := r.rounds != nil && r.rounds.place.Taken == 0 && needs.Old
	old := data.TokenOld
	if r.ownSays() {
		old = data.TokenLogProbs
	}
	for i, p := range placed {
		own := &r.aim.rollouts[i]
		for _, one := range []struct {
			has    bool
			column data.TokenColumn
			into   *[]float32
		}{{hasSampler, data.TokenLogProbs, &own.Sampler}, {needs.Old && !isFirst, old, &own.Old},
			{needs.OldValues, data.TokenValues, &own.Values}} {
			if !one.has {
				continue
			}
			mem := room[: 4*p.Length : 4*p.Length]
			*one.into, room = hostmem.F32(mem), room[4*p.Length:]
			if one.into == &own.Old && r.aim.old != nil {
				part, document := d.Origin(p.Document)
				err = r.aim.old.Read(mem[:4*(p.Length-1)], part, document)
			} else {
				err = d.Following(p.Document, one.column, (*one.into)[:p.Length-1])
			}
			if err != nil {
				return blame.NotRequest(err)
			}
		}
		own.First = isFirst
		r.aim.documents[i].Rollout = own
	}
	return nil
}
