package runfile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
)

// NextToken is the type of objective that needs no package: the mean loss of the tokens that count.
const NextToken = "sft"

// Losses names one loss, or several that are added: a word, or a list of words.
type Losses []string

// UnmarshalYAML reads a word or a list.
func (l *Losses) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if err := unmarshal(&one); err == nil {
		if *l = nil; one != "" {
			*l = Losses{one}
		}
		return nil
	}
	var all []string
	if err := unmarshal(&all); err != nil {
		return errors.New("write the name of a loss, or a list of names")
	}
	*l = all
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (l Losses) MarshalYAML() (any, error) {
	if len(l) == 1 {
		return l[0], nil
	}
	return []string(l), nil
}

// References of an objective that are no directories.
const (
	ReferenceStart = "start"
	ReferenceNone  = "none"
	ReferenceData  = "data" // rows have what it says
)

// TeacherNone says that what the teacher says is in the data.
const TeacherNone = "none"

// IsNextToken reports whether the run learns the next token and nothing else.
func (o *Objective) IsNextToken() bool { return o.Type == NextToken }

// settings returns the settings of the package that has the objectives.
func (o *Objective) settings() objective.Settings {
	number := func(s optim.Setting) *float64 {
		if !s.Given {
			return nil
		}
		return &s.Value
	}
	return objective.Settings{Type: o.Type, Losses: o.Loss, Shares: o.Weights, Beta: o.Beta,
		LabelSmoothing: o.LabelSmoothing, NLL: number(o.NLL), Gamma: number(o.Gamma), Desirable: number(o.Desirable),
		Undesirable: number(o.Undesirable), LDAlpha: number(o.LDAlpha), Center: number(o.Center), NLLPrompt: o.NLLPrompt,
		TopK: o.TopK, Share: number(o.Share), Temperature: number(o.Temperature),
		Policy: objective.Policy{Clip: o.Clip, Delta: number(o.Delta), KL: number(o.KL), KLPlain: o.KLPlain,
			KLTau: number(o.KLTau), Taus: o.Taus, Advantage: o.Advantage, RewardWeights: o.RewardWeights, Old: o.Old,
			Correction: o.Correction, CorrectionMin: number(o.CorrectionMin), CorrectionMax: number(o.CorrectionMax),
			Normalizer: o.Normalizer, MaxTokens: o.MaxTokens, MaskTruncated: o.MaskTruncated,
			OffPolicyThreshold: number(o.OffPolicyThreshold), Rejection: o.Rejection, RejectionMax: number(o.RejectionMax),
			Critic: o.Critic, Lambda: number(o.Lambda), VFCoef: number(o.VFCoef), ClipValue: number(o.ClipValue),
			EntropyCoef: number(o.EntropyCoef)}}
}

// Open returns the objective; nil for the next token.
func (o *Objective) Open() (objective.Objective, error) {
	if o.IsNextToken() {
		given := *o
		if given.Type = ""; given.String() != (&Objective{}).String() {
			return nil, fmt.Errorf("objective: type is %s, which reads no other key: set objective.type, or remove them",
				NextToken)
		}
		return nil, nil
	}
	of, err := objective.New(o.settings())
	if err != nil {
		return nil, fmt.Errorf("objective.%w", err)
	}
	switch needs := of.Needs(); {
	case o.Reference != "" && o.Reference != ReferenceNone && !needs.Reference:
		return nil, fmt.Errorf("objective.reference is %q, and %s compares with no reference: remove it", o.Reference, o.Type)
	case o.Teacher != "" && needs.TopK == 0:
		return nil, fmt.Errorf("objective.teacher is %q, and %s learns from no teacher: remove it", o.Teacher, o.Type)
	case o.Teacher == "" && needs.TopK > 0:
		return nil, fmt.Errorf("objective.teacher is missing: name the model that %s learns from, by its directory "+
			"or hub id, or %s where the data have what it says (type: distill)", o.Type, TeacherNone)
	case o.Teacher == TeacherNone && needs.IsTempered():
		return nil, fmt.Errorf("objective.temperature is %v, and the data have log-probabilities of the teacher at 1, of "+
			"which those at another temperature do not follow: leave it out, or name the teacher's model in objective.teacher",
			needs.Temperature)
	case needs.Rollouts && o.Reference == ReferenceNone, !needs.Rollouts && o.Reference == ReferenceData:
		return nil, fmt.Errorf("objective.reference is %q, which %s does not know: name a model, or leave it out",
			o.Reference, o.Type)
	case needs.Rollouts && o.PairsPerStep != 0:
		return nil, fmt.Errorf("objective.pairs_per_step is %d, and %s has groups: set groups_per_step", o.PairsPerStep,
			o.Type)
	case !needs.Rollouts && o.GroupsPerStep != 0:
		return nil, fmt.Errorf("objective.groups_per_step is %d, and %s has no groups of answers: remove it", o.GroupsPerStep,
			o.Type)
	case o.GroupsPerStep < 0:
		return nil, fmt.Errorf("objective.groups_per_step is %d: it must not be negative; 0 is no bound", o.GroupsPerStep)
	case o.PairsPerStep < 0:
		return nil, fmt.Errorf("objective.pairs_per_step is %d: it must not be negative; 0 is no bound", o.PairsPerStep)
	}
	return of, nil
}

// compares reports whether completions are compared with each other, or with a reference.
func (o *Objective) compares() bool {
	of, err := o.Open()
	return err == nil && of != nil && (of.Needs().Pairs || of.Needs().Labels || of.Needs().Rollouts)
}

// Scores reports whether the run trains a reward model.
func (o *Objective) Scores() bool {
	of, err := o.Open()
	return err == nil && of != nil && of.Needs().Scores
}

// Values reports whether a critic shares the blocks of the run's model.
func (o *Objective) Values() bool {
	of, err := o.Open()
	return err == nil && of != nil && of.Needs().Values
}

// Mismatched reports whether a step also has answers after the prompts of others.
func (o *Objective) Mismatched() bool {
	return o.needs().Mismatched
}

// needs says what the objective has to be given, if its settings are right.
func (o *Objective) needs() (n objective.Needs) {
	if of, err := o.Open(); err == nil && of != nil {
		return of.Needs()
	}
	return n
}

// decide fills in what follows from the type. A type or a setting that is wrong stays as it is, for Check.
func (o *Objective) decide() {
	of, err := objective.New(o.settings())
	if o.IsNextToken() || err != nil {
		return
	}
	given := func(x *float64) optim.Setting {
		if x == nil {
			return optim.Setting{}
		}
		return optim.Given(*x)
	}
	s := o.settings().Resolved()
	o.Loss, o.Weights, o.Beta, o.LabelSmoothing, o.NLLPrompt = s.Losses, s.Shares, s.Beta, s.LabelSmoothing, s.NLLPrompt
	o.NLL, o.Gamma, o.LDAlpha = given(s.NLL), given(s.Gamma), given(s.LDAlpha)
	o.Desirable, o.Undesirable, o.Center = given(s.Desirable), given(s.Undesirable), given(s.Center)
	o.TopK, o.Share = s.TopK, given(s.Share)
	if o.Temperature = given(s.Temperature); o.Temperature.Value == 1 {
		o.Temperature = optim.Setting{} // so that checkpoints from before there was one have the same objective
	}
	o.Clip, o.Delta, o.KL, o.KLPlain = s.Clip, given(s.Delta), given(s.KL), s.KLPlain
	o.KLTau, o.Taus = given(s.KLTau), s.Taus
	o.Advantage, o.RewardWeights, o.Old, o.Correction = s.Advantage, s.RewardWeights, s.Old, s.Correction
	o.CorrectionMin, o.CorrectionMax = given(s.CorrectionMin), given(s.CorrectionMax)
	o.Normalizer, o.MaxTokens, o.MaskTruncated = s.Normalizer, s.MaxTokens, s.MaskTruncated
	o.Rejection = s.Rejection
	// Numbers that change nothing stay away, so that checkpoints from before there were any have the same objective.
	o.OffPolicyThreshold, o.RejectionMax = nonZero(s.OffPolicyThreshold), nonZero(s.RejectionMax)
	o.EntropyCoef = nonZero(s.EntropyCoef)
	o.Critic, o.Lambda, o.VFCoef, o.ClipValue = s.Critic, given(s.Lambda), given(s.VFCoef), given(s.ClipValue)
	if o.Reference == "" && of.Needs().Reference {
		o.Reference = ReferenceStart
	}
}

// nonZero is a setting that has a value if the number is not 0.
func nonZero(x *float64) optim.Setting {
	if x == nil || *x == 0 {
		return optim.Setting{}
	}
	return optim.Given(*x)
}

// String is the objective as checkpoints record it, in a line.
func (o *Objective) String() string {
	doc, err := yaml.MarshalWithOptions(o, yaml.Flow(true))
	if err != nil {
		return fmt.Sprint(*o) // a value that was read is written
	}
	return strings.TrimSpace(string(doc))
}
