package data

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
)

// Side says what a document is to an objective: of a pair, document 2i is the chosen side, and 2i+1 the rejected one.
// An answer with a label is desirable or undesirable.
func (d *Dataset) Side(i int) objective.Side {
	switch {
	case d.HasPairs() && i%2 == 0:
		return objective.Chosen
	case d.HasPairs():
		return objective.Rejected
	case !d.HasLabels():
		return objective.Alone
	case d.number(i) == 1:
		return objective.Desirable
	}
	return objective.Undesirable
}

// Margin is by how much the chosen side of the pair that document i is of is the better one, as its row says; 0 where
// it says nothing.
func (d *Dataset) Margin(i int) float64 {
	if !d.HasPairs() {
		return 0
	}
	return d.number(i)
}

// number is the number that document i has; 0 where its source has none.
func (d *Dataset) number(i int) float64 {
	r, at := d.documentRun(i)
	if r.numbers == nil || r.wide > 1 {
		return 0
	}
	return r.numbers[at]
}

// HasPairs reports whether documents 2i and 2i+1 are the two sides of a pair.
func (d *Dataset) HasPairs() bool { return d.groupSize() == 2 && !d.HasLabels() }

// HasLabels reports whether documents are answers with a label, each of them desirable or not.
func (d *Dataset) HasLabels() bool { return len(d.sources) > 0 && d.sources[0].kind.format().isLabeled }

// Labels counts the desirable and the undesirable answers.
func (d *Dataset) Labels() (desirable, undesirable int) {
	for i := range d.Len() {
		switch d.Side(i) {
		case objective.Desirable:
			desirable++
		case objective.Undesirable:
			undesirable++
		}
	}
	return desirable, undesirable
}

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

// LabelLine says how many answers are desirable or not; "" where documents have no labels.
func (d *Dataset) LabelLine() string {
	if !d.HasLabels() {
		return ""
	}
	good, bad := d.Labels()
	return fmt.Sprintf("%s desirable, and %d undesirable", spelling.Count(good, "answer"), bad)
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
		if is.isPair != other.isPair || is.isLabeled != other.isLabeled || is.isSampled != other.isSampled ||
			is.isAsked != other.isAsked {
			return fmt.Errorf("datasets has type %s (%s) and type %s (%s), which no objective reads together: give each a run of "+
				"its own", first.Type, first.Path, f.Type, f.Path)
		}
		if (is.isPair || is.isLabeled || is.isTokens || is.isAsked) && o.TrainOnPrompt {
			return fmt.Errorf("dataset %s: train_on_prompt counts prompts, and type %s says itself what counts: remove it",
				f.Path, f.Type)
		}
		if w := f.Source.withDefaults().Weight; is.isSampled && w != 1 {
			return fmt.Errorf("dataset %s: weight is %v, and answers of type %s are read once an epoch: remove it", f.Path, w,
				f.Type)
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
	for _, kind := range types {
		if kind.format().isTaught && needs.TopK == 0 {
			return fmt.Errorf("type %s has the likeliest tokens of a teacher, and the run learns from none: set objective: "+
				"{type: distill, teacher: none}", kind)
		}
		if kind.format().isAsked {
			return fmt.Errorf("type %s has no answers: a loop of reinforcement learning samples them (set rl), and millrace "+
				"preview shows the prompts", kind)
		}
		for _, of := range []struct {
			has        func(*format) bool
			isNeeded   bool
			does, such string
		}{
			{func(f *format) bool { return f.isPair }, needs.Pairs, "compares two answers", "dpo"},
			{func(f *format) bool { return f.isLabeled }, needs.Labels, "tells good answers from bad ones", "kto"},
			{func(f *format) bool { return f.isSampled }, needs.Rollouts, "learns from answers that were sampled", "policy"},
		} {
			switch has := of.has(kind.format()); {
			case has && name == "" && kind.format().isTokens:
				return fmt.Errorf("type %s needs an objective that %s: set objective: {type: %s}", kind, of.does, of.such)
			case has && name == "":
				return fmt.Errorf("type %s needs an objective that %s: set objective: {type: %s}; to train on one answer of a row as "+
					"text, set type to %s and name its key", kind, of.does, of.such, PromptResponse)
			case has && !of.isNeeded:
				return fmt.Errorf("the data are of type %s, which objective %s does not read: set objective to one that %s, such as "+
					"{type: %s}", kind, name, of.does, of.such)
			case !has && of.isNeeded:
				return fmt.Errorf("objective %s %s, and the data are of type %s: they must be of type %s", name, of.does, kind,
					strings.Join(typesThat(of.has), " or "))
			}
		}
	}
	return nil
}
