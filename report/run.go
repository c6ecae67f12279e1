package report

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// metricsName is the file of records in an output directory.
const metricsName = "metrics.jsonl"

// Run is the records of one run, in the order of steps.
type Run struct {
	Name    string         // as the user named it, safe to show
	Before  *trace.Metrics // the evaluation before training; nil: there is no such record
	Records []trace.Metrics
	Rating  *trace.Rating // of the run's drive, as its plan has it; nil: not known
}

// NoStepError is of a run that has not done a step.
type NoStepError struct{ text string }

func (e *NoStepError) Error() string { return e.text }

// Read reads the records of an output directory, or a file of records. The error says what to name instead.
func Read(name string) (Run, error) {
	path := name
	open := func() (io.ReadCloser, error) { return vfs.OpenRegular(path) }
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		path = filepath.Join(name, metricsName)
		open = func() (io.ReadCloser, error) { return vfs.OpenBelow(vfs.OS{}, name, metricsName) }
	}
	f, err := open()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Run{}, &NoStepError{path + " does not exist; name the output_dir of a run that has done a step"}
	case err != nil:
		return Run{}, fmt.Errorf("%w; name the output_dir of a run", err)
	}
	defer f.Close()
	records, err := trace.ReadMetrics(f)
	if err != nil {
		return Run{}, fmt.Errorf("%s: %w; name the output_dir of a run", path, err)
	}
	r := Run{Name: terminal.Text(name), Records: records, Rating: ratingIn(filepath.Dir(path))}
	if len(records) > 0 && records[0].Step == 0 && records[0].EvalLoss != nil {
		r.Before, r.Records = &records[0], records[1:]
	}
	if len(r.Records) == 0 {
		return Run{}, &NoStepError{path + " has no record of a step, since the run has not done one; name another run, or " +
			"wait for the step"}
	}
	return r, nil
}

// planName is the file with the plan of a run in its output directory, of which maxPlanBytes are more than any has.
const (
	planName     = "plan.json"
	maxPlanBytes = 16 << 20
)

// ratingIn is the rating that a run's plan has; nil where there is no such plan.
func ratingIn(dir string) *trace.Rating {
	doc, err := vfs.ReadBelow(vfs.OS{}, dir, planName, maxPlanBytes)
	if err != nil {
		return nil
	}
	var planned struct {
		Wear *trace.Rating `json:"wear"`
	}
	if budget.Unmarshal(doc, &planned) != nil || planned.Wear == nil || planned.Wear.Bytes <= 0 {
		return nil
	}
	return planned.Wear
}

// Summary is a run in numbers. Losses are nats per target token. A pointer is nil where the run has no such number,
// or one that is not finite.
type Summary struct {
	Run           string   `json:"run"`
	FirstStep     int64    `json:"first_step"`
	LastStep      int64    `json:"last_step"`
	Tokens        int64    `json:"tokens"`
	FirstLoss     *float64 `json:"first_loss"`
	LastLoss      *float64 `json:"last_loss"`
	SmoothedLoss  *float64 `json:"smoothed_loss"`    // the average that the page draws, at the last step
	EvalBefore    *float64 `json:"eval_loss_before"` // before training
	LeastEvalLoss *float64 `json:"least_eval_loss"`
	LeastEvalStep *int64   `json:"least_eval_step"`
	LastEvalLoss  *float64 `json:"last_eval_loss"`
	TokensPerSec  float64  `json:"tokens_per_sec"` // all tokens over the seconds of all steps
	StepSec       float64  `json:"step_sec"`       // median
	MeanTFLOPS    float64  `json:"model_tflops"`   // mean, weighted by seconds
	HoursStopped  float64  `json:"hours_stopped"`  // between steps, while the run did not run
	SkippedSteps  int      `json:"skipped_steps"`  // their gradient norm was not finite
	HostPeakBytes int64    `json:"host_peak_bytes"`
	DevicePeak    int64    `json:"device_peak_bytes"`
	DiskWritten   int64    `json:"disk_written_bytes"`
	// Rating is that of the drive, and WrittenShare the part of it that DiskWritten takes.
	*trace.Rating
	WrittenShare float64 `json:"written_share,omitempty"`
}

// Summarize computes the numbers of a run that has records.
func Summarize(r Run) Summary {
	first, last := r.Records[0], r.Records[len(r.Records)-1]
	smoothed := smooth(column(r.Records, lossOf))
	s := Summary{Run: r.Name, FirstStep: first.Step, LastStep: last.Step, FirstLoss: finite(first.Loss),
		LastLoss:     finite(last.Loss),
		SmoothedLoss: finite(smoothed[len(smoothed)-1]), HoursStopped: stopped(r.Records).Hours()}
	evaluate := func(m *trace.Metrics) {
		if m.EvalLoss == nil || finite(*m.EvalLoss) == nil {
			return
		}
		if m.Step > 0 {
			s.LastEvalLoss = m.EvalLoss
		}
		if s.LeastEvalLoss == nil || *m.EvalLoss < *s.LeastEvalLoss {
			s.LeastEvalLoss, s.LeastEvalStep = m.EvalLoss, &m.Step
		}
	}
	if r.Before != nil {
		s.EvalBefore = finite(*r.Before.EvalLoss)
		evaluate(r.Before)
	}
	seconds, flops := 0.0, 0.0
	var steps []float64
	for i, m := range r.Records {
		s.Tokens += m.Tokens
		seconds += m.StepSec
		flops += m.StepSec * m.ModelTFLOPS
		steps = append(steps, m.StepSec)
		s.DiskWritten += m.DiskWrittenBytes
		s.HostPeakBytes = max(s.HostPeakBytes, m.HostPeakBytes)
		s.DevicePeak = max(s.DevicePeak, m.DevicePeakBytes)
		if m.TargetTokens > 0 && finite(m.GradNorm) == nil {
			s.SkippedSteps++
		}
		evaluate(&r.Records[i])
	}
	if s.Rating = r.Rating; s.Rating != nil {
		s.WrittenShare = s.ShareOf(s.DiskWritten)
	}
	slices.Sort(steps)
	s.StepSec = trace.Median(steps)
	if seconds > 0 {
		s.TokensPerSec, s.MeanTFLOPS = float64(s.Tokens)/seconds, flops/seconds
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

// Loss says what the loss was in the first step and in the last one, as train does.
func (s *Summary) Loss() string { return number(s.FirstLoss) + " -> " + number(s.LastLoss) }

// Average is the average of the losses of the latest steps, which the page draws as a line.
func (s *Summary) Average() string { return number(s.SmoothedLoss) }

// Eval says what the evaluation before training came to, if there was one, and the last one.
func (s *Summary) Eval() string {
	switch {
	case s.LastEvalLoss == nil && s.EvalBefore == nil:
		return "-"
	case s.LastEvalLoss == nil:
		return number(s.EvalBefore)
	case s.EvalBefore == nil:
		return number(s.LastEvalLoss)
	}
	return number(s.EvalBefore) + " -> " + number(s.LastEvalLoss)
}

// LeastEval says which evaluation had the least loss.
func (s *Summary) LeastEval() string {
	if s.LeastEvalLoss == nil {
		return "-"
	}
	return fmt.Sprintf("%s at step %d", decimals(s.LeastEvalLoss), *s.LeastEvalStep)
}

func number(v *float64) string {
	if v == nil {
		return "NaN"
	}
	return decimals(v)
}

// stopped is the time in which the run did not run: the gaps between steps that are longer than ten steps and a
// minute, without waits for memory.max_write_per_day. A gap after an evaluation is not counted, since the evaluation
// may have taken it.
func stopped(records []trace.Metrics) (sum time.Duration) {
	for i := 1; i < len(records); i++ {
		before, at := timeOf(records[i-1]), timeOf(records[i])
		if before.IsZero() || at.IsZero() || records[i-1].EvalLoss != nil {
			continue
		}
		step := time.Duration(records[i].StepSec * float64(time.Second))
		own := step
		if wait := records[i-1].WriteWaitSec; wait != nil {
			own += time.Duration(*wait * float64(time.Second))
		}
		if gap := at.Sub(before) - own; gap > max(10*step, time.Minute) {
			sum += gap
		}
	}
	return sum
}

func timeOf(m trace.Metrics) time.Time {
	if m.Time == nil {
		return time.Time{}
	}
	t, _ := time.Parse(time.RFC3339, *m.Time)
	return t
}

func lossOf(m trace.Metrics) float64 { return m.Loss }

func column(records []trace.Metrics, value func(trace.Metrics) float64) []float64 {
	all := make([]float64, len(records))
	for i, m := range records {
		all[i] = value(m)
	}
	return all
}

// smoothing is the share of the average that a new value replaces.
const smoothing = 0.1

// smooth is the exponential moving average, corrected for its begin as Adam's moments are (Kingma and Ba, arXiv
// 1412.6980, section 3), so that the first value counts fully. Values that are not finite are left out.
func smooth(values []float64) []float64 {
	all := make([]float64, len(values))
	sum, weight := 0.0, 0.0
	for i, v := range values {
		if finite(v) != nil {
			sum, weight = (1-smoothing)*sum+smoothing*v, (1-smoothing)*weight+smoothing
		}
		all[i] = sum / weight // NaN before the first finite value
	}
	return all
}

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
	return trace.FormatWritten(s.DiskWritten) + ", " + s.Text(s.DiskWritten)
}
