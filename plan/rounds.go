package plan

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// How long does a round of reinforcement learning take, and what of it? A step is simulated, and so is a pass in which
// each text grows by a token. A round is some of both, one after the other:
//
//	sample    of as many answers at a time as there are caches for, in waves: passes over the prompts, each of which is
//	          read once for all answers to it, and then a pass for each token, at the mean length of a text
//	reference where there is one, in passes by a plan of its own (AddReference)
//	evaluate  where the objective asks for log-probabilities before the first of several steps: passes forward
//	train     a step that begins without updates, and further ones that begin with those of the step before
//	hand over the updates of the last step, which in a run without a loop overlap with the next step; and for a server
//	          the weights, written as files
//
// Values of a critic and, in a round of one step, log-probabilities before the update take no passes of their own: the
// steps make them. What judges take is not known, nor is what a server takes to sample and to load weights. A figure
// that is not known is nil, and so is each sum that it is part of.

// Round says what a round is asked for, with texts of the greatest length.
type Round struct {
	Prompts, Samples int // of each prompt as many answers
	MostPrompts      int // where groups are replaced by those of further prompts; 0: they are not
	PromptPositions  int
	AnswerTokens     int
	Steps            int // of training
	Rounds           int // of the run; 0: not known
	Server           bool
	ServerPerSec     float64 // tokens a second of a server; 0: not known
	Referenced       bool    // a reference, which has a plan of its own, reads the answers
	Batches          int     // of answers whose log-probabilities the run evaluates before its first update; 0: none
}

// RoundForecast has the predicted seconds of a round, phase by phase.
type RoundForecast struct {
	Answers         int `json:"answers"`
	PromptPositions int `json:"prompt_positions"` // of each, at most
	AnswerTokens    int `json:"answer_tokens"`    // of each, at most
	Steps           int `json:"steps"`
	Rounds          int `json:"rounds,omitempty"`

	Sampling *SamplingForecast `json:"sampling,omitempty"` // nil: a server samples

	SampleSeconds   *float64 `json:"sample_sec"`
	SampledPerSec   *float64 `json:"sampled_tokens_per_sec"`
	EvaluateSeconds float64  `json:"evaluate_sec,omitempty"`
	// ReferenceSeconds are those of its passes, without the reading of its weights; nil: there is no reference, or it is
	// not planned.
	ReferenceSeconds *float64 `json:"reference_sec,omitempty"`
	TrainSeconds     float64  `json:"train_sec"`
	HandoverSeconds  float64  `json:"handover_sec"`
	Seconds          *float64 `json:"round_sec"`         // of all of these
	RunSeconds       *float64 `json:"rounds_sec"`        // of all rounds
	Unknown          []string `json:"unknown,omitempty"` // what is in no figure

	longest float64 // of the known phases

	Limit string `json:"limit"` // the longest phase: sample, evaluate, reference, train or handover
	Why   string `json:"why"`
}

// SamplingForecast says what the run's own sampling is made of.
type SamplingForecast struct {
	Texts        int     `json:"texts"` // that grow together
	Waves        int     `json:"waves"` // of that size, until all answers are there
	CacheBytes   int64   `json:"cache_bytes"`
	PromptPasses int     `json:"prompt_passes"` // of all waves
	PromptSec    float64 `json:"prompt_sec"`
	BringSec     float64 `json:"bring_sec"` // of weights that stay on the device until the next step
	Passes       int     `json:"passes"`    // that make a token of each text
	PassSec      float64 `json:"pass_sec"`  // on average

	OwnPlan bool `json:"own_plan"` // passes follow Plan.Sampler, and not the plan of the steps

	// Of a pass: what the device reads of weights and caches, and what of them crosses the link to it and back.
	WeightBytes      int64 `json:"weight_bytes"`
	CacheReadBytes   int64 `json:"cache_read_bytes"`
	MovedWeightBytes int64 `json:"moved_weight_bytes"`
	MovedCacheBytes  int64 `json:"moved_cache_bytes"`

	limit string // of a pass
}

// phases of a round, as Limit has them.
const (
	phaseSample    = "sample"
	phaseEvaluate  = "evaluate"
	phaseReference = "reference"
	phaseTrain     = "train"
	phaseHandover  = "handover"
)

// ForecastRound predicts a round.
func (p *Plan) ForecastRound(m Machine, dev device.Info, r Round) *RoundForecast {
	o := &RoundForecast{Answers: r.Prompts * r.Samples, PromptPositions: r.PromptPositions, AnswerTokens: r.AnswerTokens,
		Steps: r.Steps, Rounds: r.Rounds, Unknown: []string{"what judges take after the last answer"}}
	if more := r.MostPrompts - r.Prompts; more > 0 {
		o.Unknown = append(o.Unknown, fmt.Sprintf("answers to up to %s more, for groups of equal rewards",
			count(more, "prompt")))
	}
	if r.Referenced {
		o.Unknown = append(o.Unknown, referenceUnknown)
	}
	p.forecastSteps(m, dev, o)
	if r.Batches > 0 {
		q, _ := p.walkPass(Forwards, m, dev, walking{micros: simulatedMicros, unloaded: p.Sampler != nil})
		o.EvaluateSeconds = float64(r.Batches) * q.StepSeconds
	}
	tokens := float64(o.Answers) * float64(r.AnswerTokens)
	switch {
	case r.Server:
		params, _ := p.Model.Params()
		// Read where they are kept and written as files, to host memory.
		o.HandoverSeconds += 2 * float64(tensor.BF16.Bytes()*params) / m.HostBytesPerSec
		o.Unknown = append(o.Unknown, "what the server takes to load weights")
		if r.ServerPerSec > 0 {
			sec := tokens / r.ServerPerSec
			o.SampleSeconds, o.SampledPerSec = &sec, &r.ServerPerSec
		} else {
			o.Unknown = append(o.Unknown, "how fast the server samples (--server-rate says it)")
		}
	case p.Texts() != nil:
		s := p.Texts().forecastSampling(m, dev, r)
		s.OwnPlan = p.Sampler != nil
		sec := s.BringSec + s.PromptSec + float64(s.Passes)*s.PassSec
		perSec := tokens / sec
		o.Sampling, o.SampleSeconds, o.SampledPerSec = s, &sec, &perSec
	}
	o.limit(p, m)
	o.add()
	return o
}

const (
	referenceUnknown = "what the reference takes to read the answers"
	referenceLoads   = "the reading of the reference's weights"
)

// AddReference counts the passes of a reference over the answers of a round, which take that many seconds.
func (o *RoundForecast) AddReference(seconds float64) {
	o.ReferenceSeconds = &seconds
	if i := slices.Index(o.Unknown, referenceUnknown); i >= 0 {
		o.Unknown[i] = referenceLoads
	}
	if seconds > o.longest {
		o.longest, o.Limit, o.Why = seconds, phaseReference, "the reference, in the memory of rl.reference_memory"
	}
	o.add()
}

// add adds the phases up, where all are known.
func (o *RoundForecast) add() {
	if o.SampleSeconds == nil {
		return
	}
	sum := *o.SampleSeconds + o.EvaluateSeconds + o.TrainSeconds + o.HandoverSeconds
	if o.ReferenceSeconds != nil {
		sum += *o.ReferenceSeconds
	}
	o.Seconds = &sum
	if o.Rounds > 0 {
		all := float64(o.Rounds) * sum
		o.RunSeconds = &all
	}
}

// forecastSteps predicts the steps of a round. None of their updates overlaps with sampling.
func (p *Plan) forecastSteps(m Machine, dev device.Info, o *RoundForecast) {
	steady := p.Predicted.StepSeconds
	if p.Placement.Twice { // a step has its own updates, and no state on the device
		o.TrainSeconds = float64(o.Steps) * steady
		return
	}
	// A sampler has left nothing of the state that the steps keep on the device.
	first, _ := p.walkPass(Prologue, m, dev, walking{micros: simulatedMicros, unloaded: p.Sampler != nil})
	last, _ := p.walkPass(Flush, m, dev, walking{micros: simulatedMicros})
	o.TrainSeconds = first.StepSeconds + float64(o.Steps-1)*steady
	o.HandoverSeconds = last.StepSeconds
}

// forecastSampling predicts the sampling of a round by passes over the plan's caches.
func (p *Plan) forecastSampling(m Machine, dev device.Info, r Round) *SamplingForecast {
	answers := r.Prompts * r.Samples
	caches := p.Outputs.Caches
	positions := min(r.PromptPositions+ceilDiv(r.AnswerTokens, 2), caches.Positions) // of a text, on average
	// Texts may share blocks, and then they cannot all be long.
	s := &SamplingForecast{Texts: min(caches.Sequences, answers, max(caches.Rows()/positions, 1))}
	for b := range p.blocks() {
		s.CacheBytes += p.CacheBytes(b)
	}
	s.Waves = ceilDiv(answers, s.Texts)
	prompts := min(r.Prompts, ceilDiv(s.Texts, r.Samples)) * r.PromptPositions // positions of a wave
	rows := min(prompts, p.Numerics.Positions())
	_, read := p.passOf(m, dev, rows, max(r.PromptPositions/2, 1))
	s.PromptPasses = s.Waves * ceilDiv(prompts, rows)
	s.PromptSec = float64(s.PromptPasses) * read.StepSeconds

	pass, q := p.passOf(m, dev, s.Texts, positions)
	s.Passes, s.PassSec, s.BringSec = s.Waves*r.AnswerTokens, q.StepSeconds, pass.bringSeconds(m, dev, q)
	if rest := answers - (s.Waves-1)*s.Texts; rest < s.Texts { // the last wave has fewer
		_, last := p.passOf(m, dev, rest, positions)
		s.PassSec += (last.StepSeconds - s.PassSec) / float64(s.Waves)
	}
	s.of(pass)
	s.limit = s.whyPass(pass, m, &q)
	return s
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// of counts what a pass reads and moves.
func (s *SamplingForecast) of(pass *Plan) {
	for layer := 1; layer <= pass.blocks()+1; layer++ {
		for _, part := range pass.Model.LayerParts(layer) {
			s.WeightBytes += pass.weightBytes(part)
		}
		for _, stage := range pass.stages(layer, nn.Continue) {
			for i := range stage {
				a := pass.account(layer, &stage[i])
				s.CacheReadBytes += a.CacheBytes
			}
		}
	}
	for _, op := range pass.ScheduleOf(Mode{Pass: Continue, Loaded: true, Again: true}).Ops {
		if op.Do != DoMove {
			continue
		}
		switch c := pass.moveCost(op.Reads[0], op.Writes[0]); op.Writes[0].What {
		case Weights:
			s.MovedWeightBytes += c.up
		case Cache:
			s.MovedCacheBytes += c.up + c.down
		}
	}
}

// whyPass says what a pass waits for, by its busiest lane.
func (s *SamplingForecast) whyPass(pass *Plan, m Machine, q *Prediction) string {
	busiest := LaneFetch
	for _, lane := range []Lane{LaneCompute, LaneDrain, LaneDisk} {
		if q.LaneSeconds[lane] > q.LaneSeconds[busiest] {
			busiest = lane
		}
	}
	switch busiest {
	case LaneFetch, LaneDrain:
		caches := ""
		if s.MovedCacheBytes > 0 {
			caches = fmt.Sprintf(" and %s of caches, there and back,", FormatBytes(s.MovedCacheBytes))
		}
		return fmt.Sprintf("the link: %s of weights%s cross it for a token of each of %s", FormatBytes(s.MovedWeightBytes),
			caches, count(s.Texts, "text"))
	case LaneDisk:
		return "the disk, from which weights come for each token"
	}
	flops := seconds(q.FLOPs, m.MatMulFLOPsPerSec(pass.Numerics.Compute))
	if read := float64(s.WeightBytes+s.CacheReadBytes) / m.ElementBytesPerSec(pass.Numerics.Compute); flops < read {
		return fmt.Sprintf("the memory of the device: for a token of each of %s it reads %s of weights and %s of caches",
			count(s.Texts, "text"), FormatBytes(s.WeightBytes), FormatBytes(s.CacheReadBytes))
	}
	return fmt.Sprintf("arithmetic: %s TFLOP for a token of each of %s", three(float64(q.FLOPs)/1e12),
		count(s.Texts, "text"))
}

// limit notes the longest phase of those that are known, and why it takes so long.
func (o *RoundForecast) limit(p *Plan, m Machine) {
	for _, phase := range []struct {
		name    string
		seconds float64
		why     func() string
	}{
		{phaseTrain, o.TrainSeconds, func() string { return p.limit(m) }},
		{phaseHandover, o.HandoverSeconds, func() string { return "the updates of the last step" }},
		{phaseEvaluate, o.EvaluateSeconds, func() string { return "passes over all answers before the first step" }},
		{phaseSample, o.sampleSeconds(), o.whySample},
	} {
		if phase.seconds > o.longest {
			o.longest, o.Limit, o.Why = phase.seconds, phase.name, phase.why()
		}
	}
}

// sampleSeconds is SampleSeconds, or 0 where that is not known.
func (o *RoundForecast) sampleSeconds() float64 {
	if o.SampleSeconds == nil {
		return 0
	}
	return *o.SampleSeconds
}

// whySample says what sampling waits for.
func (o *RoundForecast) whySample() string {
	switch s := o.Sampling; {
	case s == nil:
		return "the server"
	case s.PromptSec > float64(s.Passes)*s.PassSec:
		return "the prompts, which are read before answers grow"
	default:
		return s.limit
	}
}
