package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/trace"
)

// NoStepError is of a run that has not done a step.
type NoStepError struct{ text string }

func (e *NoStepError) Error() string { return e.text }

// NoStep is the error with a text.
func NoStep(text string) *NoStepError { return &NoStepError{text} }

// Summary is a run in numbers. Losses are nats per target token. A pointer is nil where the run has no such number,
// or one that is not finite.
type Summary struct {
	Run          string   `json:"run"`
	FirstStep    int64    `json:"first_step"`
	LastStep     int64    `json:"last_step"`
	Tokens       int64    `json:"tokens"`
	FirstLoss    *float64 `json:"first_loss"`
	LastLoss     *float64 `json:"last_loss"`
	SmoothedLoss *float64 `json:"smoothed_loss"` // an average of the latest steps
	EvalLosses            // over all evaluation sets
	// EvalSets are the losses of the evaluation sets by their labels; nil where there is one without a label.
	EvalSets      map[string]*EvalLosses `json:"eval_sets,omitempty"`
	TokensPerSec  float64                `json:"tokens_per_sec"` // all tokens over the seconds of all steps
	StepSec       float64                `json:"step_sec"`       // median
	MeanTFLOPS    float64                `json:"model_tflops"`   // mean, weighted by seconds
	HoursStopped  float64                `json:"hours_stopped"`  // between steps, while the run did not run
	SkippedSteps  int                    `json:"skipped_steps"`  // their gradient norm was not finite
	HostPeakBytes int64                  `json:"host_peak_bytes"`
	DevicePeak    int64                  `json:"device_peak_bytes"`
	DiskWritten   int64                  `json:"disk_written_bytes"`
	// Rating is that of the drive, and WrittenShare the part of it that DiskWritten takes.
	*trace.Rating
	WrittenShare float64 `json:"written_share,omitempty"`
}

// EvalLosses are the losses of a run's evaluations.
type EvalLosses struct {
	EvalBefore    *float64 `json:"eval_loss_before"` // before training
	LeastEvalLoss *float64 `json:"least_eval_loss"`
	LeastEvalStep *int64   `json:"least_eval_step"`
	LastEvalLoss  *float64 `json:"last_eval_loss"`
}

// add adds the evaluation after a step, of which 0 is before training. A loss that is not finite is left out.
func (e *EvalLosses) add(step int64, loss float64) {
	x := finite(loss)
	switch {
	case x == nil:
		return
	case step > 0:
		e.LastEvalLoss = x
	default:
		e.EvalBefore = x
	}
	if e.LeastEvalLoss == nil || *x < *e.LeastEvalLoss {
		e.LeastEvalLoss, e.LeastEvalStep = x, &step
	}
}

// evaluated adds the evaluation of a record, if it has one.
func (s *Summary) evaluated(m *trace.Metrics) {
	if m.EvalLoss == nil {
		return
	}
	s.add(m.Step, *m.EvalLoss)
	for label, of := range m.EvalSets {
		loss, ok := of[trace.SetLoss]
		if !ok {
			continue
		}
		if s.EvalSets == nil {
			s.EvalSets = map[string]*EvalLosses{}
		}
		if s.EvalSets[label] == nil {
			s.EvalSets[label] = &EvalLosses{}
		}
		s.EvalSets[label].add(m.Step, loss)
	}
}

// Totals takes the records of a run one after the other. The zero value has none.
type Totals struct {
	of             Summary
	seconds, flops float64
	sum, weight    float64 // of the average of losses
	stopped        time.Duration
	count          int
	steps          []float64 // seconds of each, or of a run of more than mostStepTimes of one in each of them
	each           int
	before         trace.Metrics
}

// mostStepTimes bounds the steps whose times are kept for their median.
const mostStepTimes = 1 << 17

// Steps counts the records so far, without that before training.
func (t *Totals) Steps() int { return t.count }

// addTime keeps the time of a step.
func (t *Totals) addTime(sec float64) {
	if len(t.steps) == mostStepTimes {
		for i := range mostStepTimes / 2 {
			t.steps[i] = t.steps[2*i]
		}
		t.steps, t.each = t.steps[:mostStepTimes/2], 2*t.each
	}
	if t.each = max(t.each, 1); t.count%t.each == 0 {
		t.steps = append(t.steps, sec)
	}
	t.count++
}

// Add takes the next record. That of step 0 is the evaluation before training.
func (t *Totals) Add(m *trace.Metrics) {
	s := &t.of
	s.evaluated(m)
	if m.Step == 0 {
		return
	}
	if t.count == 0 {
		s.FirstStep, s.FirstLoss = m.Step, finite(m.Loss)
	} else {
		t.stopped += stoppedBetween(&t.before, m)
	}
	if finite(m.Loss) != nil {
		t.sum, t.weight = float64((1-smoothing)*t.sum)+float64(smoothing*m.Loss),
			float64((1-smoothing)*t.weight)+smoothing
	}
	s.LastStep, s.LastLoss, s.SmoothedLoss = m.Step, finite(m.Loss), finite(t.sum/t.weight)
	s.Tokens += m.Tokens
	sec, tflops := orZero(m.StepSec), orZero(m.ModelTFLOPS)
	t.seconds += sec
	t.flops += float64(sec * tflops)
	t.addTime(sec)
	s.DiskWritten += m.DiskWrittenBytes
	s.HostPeakBytes = max(s.HostPeakBytes, m.HostPeakBytes)
	s.DevicePeak = max(s.DevicePeak, m.DevicePeakBytes)
	if m.TargetTokens > 0 && finite(m.GradNorm) == nil {
		s.SkippedSteps++
	}
	t.before = trace.Metrics{Time: m.Time, EvalLoss: m.EvalLoss, WriteWaitSec: m.WriteWaitSec}
}

// Summary is the run in numbers, under a name. Its drive has a rating, or nil where that is not known.
func (t *Totals) Summary(name string, rating *trace.Rating) Summary {
	s := t.of
	s.Run, s.HoursStopped = name, t.stopped.Hours()
	if s.Rating = rating; rating != nil {
		s.WrittenShare = s.ShareOf(s.OfDrive(s.DiskWritten))
	}
	if len(t.steps) > 0 {
		s.StepSec = trace.Median(slices.Sorted(slices.Values(t.steps)))
	}
	if t.seconds > 0 {
		s.TokensPerSec, s.MeanTFLOPS = float64(s.Tokens)/t.seconds, t.flops/t.seconds
	}
	return s
}

// finite returns nil for NaN and infinities, which JSON cannot say.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// orZero is 0 for a number that a record lacks.
func orZero(v float64) float64 {
	if finite(v) == nil {
		return 0
	}
	return v
}

// Loss says what the loss was in the first step and in the last one, as train does.
func (s *Summary) Loss() string { return number(s.FirstLoss) + " -> " + number(s.LastLoss) }

// Average is the average of the losses of the latest steps.
func (s *Summary) Average() string { return number(s.SmoothedLoss) }

// Eval says what the evaluation before training came to, if there was one, and the last one.
func (e *EvalLosses) Eval() string {
	switch {
	case e.LastEvalLoss == nil && e.EvalBefore == nil:
		return "-"
	case e.LastEvalLoss == nil:
		return number(e.EvalBefore)
	case e.EvalBefore == nil:
		return number(e.LastEvalLoss)
	}
	return number(e.EvalBefore) + " -> " + number(e.LastEvalLoss)
}

// LeastEval says which evaluation had the least loss.
func (e *EvalLosses) LeastEval() string {
	if e.LeastEvalLoss == nil {
		return "-"
	}
	return fmt.Sprintf("%s at step %d", decimals(e.LeastEvalLoss), *e.LeastEvalStep)
}

func number(v *float64) string {
	if v == nil {
		return "NaN"
	}
	return decimals(v)
}

// stoppedBetween is the time between two steps in which the run did not run, where that is longer than ten steps and a
// minute, without a wait for memory.max_write_per_day. A time after an evaluation is not counted, since the evaluation
// may have taken it.
func stoppedBetween(before, m *trace.Metrics) time.Duration {
	from, to := timeOf(before), timeOf(m)
	if from.IsZero() || to.IsZero() || before.EvalLoss != nil {
		return 0
	}
	step := time.Duration(m.StepSec * float64(time.Second))
	own := step
	if wait := before.WriteWaitSec; wait != nil {
		own += time.Duration(*wait * float64(time.Second))
	}
	if gap := to.Sub(from) - own; gap > max(10*step, time.Minute) {
		return gap
	}
	return 0
}

func timeOf(m *trace.Metrics) time.Time {
	if m.Time == nil {
		return time.Time{}
	}
	t, _ := time.Parse(time.RFC3339, *m.Time)
	return t
}

// smoothing is the share of the average of losses that a new one replaces. It is the exponential moving average,
// corrected for its begin as Adam's moments are (Kingma and Ba, arXiv 1412.6980, section 3), so that the first value
// counts fully. Values that are not finite are left out.
const smoothing = 0.1

// decimals is a loss for people. Those of a run that diverged have no more digits than others.
func decimals(v *float64) string {
	if math.Abs(*v) > 1e6 {
		return fmt.Sprintf("%.4g", *v)
	}
	return fmt.Sprintf("%.4f", *v)
}

// Written says what the run has written to disk, and which part of the drive's rating that is, where the rating is
// known.
func (s *Summary) Written() string {
	switch {
	case s.DiskWritten == 0:
		return "-"
	case s.Rating == nil:
		return trace.FormatWritten(s.DiskWritten)
	}
	text, most := trace.FormatWritten(s.DiskWritten), s.OfDrive(s.DiskWritten)
	if most < s.DiskWritten {
		text += fmt.Sprintf(", about %s of it to the drive that gets most", trace.FormatWritten(most))
	}
	return text + ", " + s.Text(most)
}

// stoppedFor says for how long the run did not run between steps.
func stoppedFor(s Summary) string {
	if s.HoursStopped == 0 {
		return "-"
	}
	return time.Duration(s.HoursStopped * float64(time.Hour)).Round(time.Minute).String()
}

// short is a number in few letters: 1.2k.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e9:
		return strconv.FormatFloat(v/1e9, 'g', 4, 64) + "G"
	case a >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	case a >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	}
	if math.Abs(v) < 1e-12 {
		return "0"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
