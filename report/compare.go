package report

import (
	"fmt"
	"math"
	"slices"
)

// Compared is a number of several runs.
type Compared struct {
	Name  string
	Field string   // of Summary in JSON
	Cells []string // by run
	Best  []bool   // by run; all false where no run is better than another
}

// CompareOptions say which numbers of runs must not be called better or worse, since they are of other things.
type CompareOptions struct {
	OtherLosses bool // the training losses
	OtherEvals  bool // the losses of evaluations
}

// Compare has the numbers of runs side by side, and marks the best of each where more or less of it is better. Equal
// numbers are all the best, unless all runs have the same.
func Compare(all []Summary, o CompareOptions) (rows []Compared) {
	type number func(*Summary) (value float64, text string)
	none := math.NaN()
	const less, more, either = -1, 1, 0
	add := func(name, field string, better int, of number) {
		row := Compared{Name: name, Field: field, Best: make([]bool, len(all))}
		var values, known []float64
		for i := range all {
			value, text := of(&all[i])
			values, row.Cells = append(values, value), append(row.Cells, text)
			if !math.IsNaN(value) {
				known = append(known, value)
			}
		}
		if better != either && len(known) > 1 && slices.Min(known) != slices.Max(known) {
			best := slices.Min(known)
			if better == more {
				best = slices.Max(known)
			}
			for i, v := range values {
				row.Best[i] = v == best
			}
		}
		if slices.ContainsFunc(row.Cells, func(text string) bool { return text != "-" }) {
			rows = append(rows, row)
		}
	}
	loss := func(of func(*Summary) *float64) number {
		return func(s *Summary) (float64, string) {
			v := of(s)
			if v == nil {
				return none, "-"
			}
			return *v, decimals(v)
		}
	}
	count := func(of func(*Summary) float64, format string) number {
		return func(s *Summary) (float64, string) {
			v := of(s)
			if v == 0 {
				return none, "-"
			}
			return v, fmt.Sprintf(format, v)
		}
	}
	trained, evaluated := less, less
	if o.OtherLosses {
		trained = either
	}
	if o.OtherEvals {
		evaluated = either
	}
	gib := func(of func(*Summary) int64) number {
		return count(func(s *Summary) float64 { return float64(of(s)) / (1 << 30) }, "%.2f GiB")
	}
	add("steps", "last_step", either, func(s *Summary) (float64, string) {
		return none, fmt.Sprintf("%d to %d", s.FirstStep, s.LastStep)
	})
	add("tokens", "tokens", either, func(s *Summary) (float64, string) { return none, short(float64(s.Tokens)) })
	add("loss, first step", "first_loss", either, loss(func(s *Summary) *float64 { return s.FirstLoss }))
	add("loss, last step", "last_loss", either, loss(func(s *Summary) *float64 { return s.LastLoss })) // of few documents
	add("average loss", "smoothed_loss", trained, loss(func(s *Summary) *float64 { return s.SmoothedLoss }))
	add("eval loss before", "eval_loss_before", either, loss(func(s *Summary) *float64 { return s.EvalBefore }))
	add("eval loss", "last_eval_loss", evaluated, loss(func(s *Summary) *float64 { return s.LastEvalLoss }))
	add("least eval loss", "least_eval_loss", evaluated, loss(func(s *Summary) *float64 { return s.LeastEvalLoss }))
	add("at step", "least_eval_step", either, func(s *Summary) (float64, string) {
		if s.LeastEvalStep == nil {
			return none, "-"
		}
		return none, fmt.Sprint(*s.LeastEvalStep)
	})
	add("tokens/s", "tokens_per_sec", more, count(func(s *Summary) float64 { return s.TokensPerSec }, "%.0f"))
	add("step", "step_sec", either, count(func(s *Summary) float64 { return s.StepSec }, "%.3g s"))
	add("model TFLOPS", "model_tflops", more, count(func(s *Summary) float64 { return s.MeanTFLOPS }, "%.3g"))
	add("host memory", "host_peak_bytes", less, gib(func(s *Summary) int64 { return s.HostPeakBytes }))
	add("device memory", "device_peak_bytes", less, gib(func(s *Summary) int64 { return s.DevicePeak }))
	add("written to disk", "disk_written_bytes", less, func(s *Summary) (float64, string) {
		if s.DiskWritten == 0 {
			return none, "-"
		}
		return float64(s.DiskWritten), s.Written()
	})
	add("stopped for", "hours_stopped", either, func(s *Summary) (float64, string) { return none, stoppedFor(*s) })
	add("skipped steps", "skipped_steps", less, func(s *Summary) (float64, string) {
		if s.SkippedSteps == 0 {
			return 0, "-"
		}
		return float64(s.SkippedSteps), fmt.Sprint(s.SkippedSteps)
	})
	return rows
}
