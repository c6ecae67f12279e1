package plan

import (
	"fmt"
	"strings"
)

// Line is the forecast in a line.
func (o *RoundForecast) Line() string {
	sample := "sampling as long as the server takes"
	if o.SampleSeconds != nil {
		sample = fmt.Sprintf("sampling about %s (%.3g tokens/s)", FormatSeconds(*o.SampleSeconds), *o.SampledPerSec)
	}
	return fmt.Sprintf("a round of %s of up to %s: %s, training %s, hand-over %s; what limits it is %s",
		count(o.Answers, "answer"), count(o.AnswerTokens, "token"), sample, FormatSeconds(o.TrainSeconds),
		FormatSeconds(o.HandoverSeconds), phaseNames[o.Limit])
}

var phaseNames = map[string]string{phaseSample: "sampling", phaseEvaluate: "log-probabilities before the first step",
	phaseReference: "the reference", phaseTrain: "training", phaseHandover: "the hand-over"}

// text is the forecast for people.
func (o *RoundForecast) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "a round: %s of up to %s, to prompts of up to %s\n", count(o.Answers, "answer"),
		count(o.AnswerTokens, "token"), count(o.PromptPositions, "position"))
	row := func(phase, format string, args ...any) {
		fmt.Fprintf(&b, "  %-9s %s\n", phase, fmt.Sprintf(format, args...))
	}
	switch s := o.Sampling; {
	case s != nil:
		row(phaseSample, "%s, %.3g tokens/s: %s together, %s of caches, in %s", FormatSeconds(*o.SampleSeconds),
			*o.SampledPerSec, count(s.Texts, "text"), FormatBytes(s.CacheBytes), count(s.Waves, "wave"))
		bring := ""
		if s.BringSec > 1e-3 {
			bring = fmt.Sprintf("; %s to bring weights that stay", FormatSeconds(s.BringSec))
		}
		row("", "passes for tokens: %d of %s each; for prompts: %d in %s%s", s.Passes, FormatSeconds(s.PassSec),
			s.PromptPasses, FormatSeconds(s.PromptSec), bring)
		row("", "a pass reads %s of weights and %s of caches; %s and %s of them cross the link",
			FormatBytes(s.WeightBytes), FormatBytes(s.CacheReadBytes), FormatBytes(s.MovedWeightBytes),
			FormatBytes(s.MovedCacheBytes))
		if s.OwnPlan {
			row("", "passes have a plan of their own, in the memory of the device that steps leave between them")
		}
	case o.SampleSeconds != nil:
		row(phaseSample, "%s at %.3g tokens/s, as --server-rate says", FormatSeconds(*o.SampleSeconds), *o.SampledPerSec)
	default:
		row(phaseSample, "not known: a server does it")
	}
	row("score", "not known: judges work while answers are sampled, and may take longer")
	if o.ReferenceSeconds != nil {
		row(phaseReference, "%s, after its weights are read", FormatSeconds(*o.ReferenceSeconds))
	}
	also := " and the log-probabilities before the update"
	if o.EvaluateSeconds > 0 {
		row(phaseEvaluate, "%s: log-probabilities of all answers before the first step", FormatSeconds(o.EvaluateSeconds))
		also = ""
	}
	row(phaseTrain, "%s in %s, which also make the values%s", FormatSeconds(o.TrainSeconds), count(o.Steps, "step"), also)
	row(phaseHandover, "%s", FormatSeconds(o.HandoverSeconds))
	if o.Seconds != nil {
		row("together", "%s", FormatSeconds(*o.Seconds))
	}
	fmt.Fprintf(&b, "  what limits it is %s: %s\n", phaseNames[o.Limit], o.Why)
	fmt.Fprintf(&b, "  in no figure: %s\n", strings.Join(o.Unknown, "; "))
	if o.RunSeconds != nil {
		fmt.Fprintf(&b, "  %s take %s\n", count(o.Rounds, "round"), FormatSeconds(*o.RunSeconds))
	}
	return b.String()
}
