package data

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
)

// Side says what a document is to an objective: of a pair, document 2i is the chosen side, and 2i+1 the rejected one.
func (d *Dataset) Side(i int) objective.Side {
	switch {
	case !d.HasPairs():
		return objective.Alone
	case i%2 == 0:
		return objective.Chosen
	}
	return objective.Rejected
}

// Margin is by how much the chosen side of the pair that document i is of is the better one, as its row says; 0 where
// it says nothing.
func (d *Dataset) Margin(i int) float64 {
	r, at := d.documentRun(i)
	if r.numbers == nil {
		return 0
	}
	return r.numbers[at]
}

// HasPairs reports whether documents 2i and 2i+1 are the two sides of a pair.
func (d *Dataset) HasPairs() bool { return d.groupSize() == 2 }

// EqualPairs counts the pairs that were left out since both sides have the same tokens, which teaches nothing.
func (d *Dataset) EqualPairs() int { return d.equal }

// EqualLine says how many pairs were left out; "" for 0.
func (d *Dataset) EqualLine() string {
	if d.equal == 0 {
		return ""
	}
	return equalLine(d.equal)
}

// SidesOver counts the sides of pairs that have more than a number of tokens.
func (d *Dataset) SidesOver(tokens int) (chosen, rejected int) {
	for i := range d.Len() {
		switch is := d.length(i) > int64(tokens); {
		case is && d.Side(i) == objective.Chosen:
			chosen++
		case is && d.Side(i) == objective.Rejected:
			rejected++
		}
	}
	return chosen, rejected
}

func equalLine(n int) string {
	return spelling.Count(n, "pair") + " left out whose sides have the same tokens"
}

// usable refuses data of several kinds in one run, before their rows are read.
func usable(all []found, o Options) error {
	first, kinds := all[0], []Type{}
	for _, f := range all {
		kinds = append(kinds, f.Type)
		is, other := f.Type.format(), first.Type.format()
		if is.isPair != other.isPair {
			return fmt.Errorf("datasets has type %s (%s) and type %s (%s): a run compares pairs, or it does not; give each a run "+
				"of its own", first.Type, first.Path, f.Type, f.Path)
		}
		if is.isPair && o.TrainOnPrompt {
			return fmt.Errorf("dataset %s: train_on_prompt counts prompts, and type %s compares answers alone: remove it",
				f.Path, f.Type)
		}
	}
	if o.Check == nil {
		return nil
	}
	return o.Check(kinds)
}

// CheckObjective refuses data of types that an objective cannot use, given its word in run files and what it has to be
// given. A run without an objective has the word "".
func CheckObjective(types []Type, name string, needs objective.Needs) error {
	isPair := func(f *format) bool { return f.isPair }
	for _, kind := range types {
		switch is := kind.format().isPair; {
		case is && name == "":
			return fmt.Errorf("type %s needs an objective that compares two answers: set objective: {type: dpo}; to train on one "+
				"answer as text, set type to %s and name its key", kind, PromptResponse)
		case is && !needs.Pairs:
			return fmt.Errorf("objective %s reads no pairs, and the data are of type %s: set objective to one that compares two "+
				"answers, such as {type: dpo}", name, kind)
		case !is && needs.Pairs:
			return fmt.Errorf("objective %s compares two answers, and the data are of type %s: they must be of type %s",
				name, kind, strings.Join(typesThat(isPair), " or "))
		}
	}
	return nil
}
