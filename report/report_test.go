package report_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/trace"
)

// records are n steps of a run whose loss falls from 4 to 2, an evaluation after each tenth, and a night between
// steps 5 and 6.
func records(n int) []trace.Metrics {
	var all []trace.Metrics
	at := time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC)
	for i := range n {
		at = at.Add(2 * time.Second)
		if i == 5 {
			at = at.Add(8 * time.Hour)
		}
		ended := at.Format(time.RFC3339)
		m := trace.Metrics{Step: int64(i + 1), Loss: 4 - 2*float64(i)/float64(n-1), GradNorm: 1, LearningRate: 1e-3,
			Tokens: 100, TargetTokens: 90, StepSec: 2,
			TokensPerSec: 50, ModelTFLOPS: 3, HostPeakBytes: 1 << 30, DiskWrittenBytes: 7, Time: &ended,
			Lanes: trace.Lanes{trace.Compute: 1.5, trace.Fetch: 0.5}}
		if m.Step%10 == 0 {
			loss := m.Loss + 0.1
			m.EvalLoss = &loss
		}
		all = append(all, m)
	}
	return all
}

// summarize takes records one after the other.
func summarize(name string, records []trace.Metrics) report.Summary {
	var t report.Totals
	for i := range records {
		t.Add(&records[i])
	}
	return t.Summary(name, nil)
}

func TestSummary(t *testing.T) {
	r := records(20)
	r[2].GradNorm = math.Inf(1)
	got := summarize("a", r)
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	waited := 600.0
	r[9].WriteWaitSec, r[15].TargetTokens, r[15].GradNorm = &waited, 0, math.NaN() // neither a stop nor a skipped step
	for i := 10; i < len(r); i++ {
		ended := time.Date(2026, 3, 2, 4, 10, 20+2*(i-9), 0, time.UTC).Format(time.RFC3339)
		r[i].Time = &ended
	}
	before := trace.BeforeTraining(trace.Evaluation{Loss: 5}, "2026-03-01T19:59:00Z")
	got = summarize("a", append([]trace.Metrics{before}, r...))
	if got.Loss() != "4.0000 -> 2.0000" || got.Eval() != "5.0000 -> 2.1000" || got.LeastEval() != "2.1000 at step 20" {
		t.Errorf("%s, %s, %s", got.Loss(), got.Eval(), got.LeastEval())
	}
	smoothed, first, last, least, leastStep := *got.SmoothedLoss, 4.0, 2.0, r[19].Loss+0.1, int64(20)
	if smoothed <= 2 || smoothed >= 3 {
		t.Errorf("the average of the last losses is %g: %s", smoothed, text)
	}
	want := report.Summary{Run: "a", FirstStep: 1, LastStep: 20, Tokens: 2000, FirstLoss: &first, LastLoss: &last,
		SmoothedLoss: &smoothed,
		EvalLosses: report.EvalLosses{EvalBefore: before.EvalLoss, LeastEvalLoss: &least, LeastEvalStep: &leastStep,
			LastEvalLoss: &least}, TokensPerSec: 50, StepSec: 2, MeanTFLOPS: 3,
		HoursStopped: 8,
		SkippedSteps: 1, HostPeakBytes: 1 << 30, DiskWritten: 140}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// Of several drives the one counts that is written most.
func TestDrives(t *testing.T) {
	var totals report.Totals
	r := records(1)
	r[0].DiskWrittenBytes = 4e12
	totals.Add(&r[0])
	for part, want := range map[float64]string{
		0:     "4 TB, 10% of the 40 TB that the drive is rated for",
		0.75:  "4 TB, about 3 TB of it to the drive that gets most, 7.5% of the 40 TB that the drive is rated for",
		-1:    "4 TB, 10% of the 40 TB that the drive is rated for",
		1e300: "4 TB, 10% of the 40 TB that the drive is rated for",
	} {
		rating := trace.Rating{Bytes: 40e12, DrivePart: part}
		s := totals.Summary("a", &rating)
		if got := s.Written(); got != want || s.WrittenShare != rating.ShareOf(rating.OfDrive(4e12)) {
			t.Errorf("%v: %q, %v", part, got, s.WrittenShare)
		}
	}
}

// Evaluation sets have the losses of their evaluations, each by itself.
func TestSummaryOfSets(t *testing.T) {
	r := []trace.Metrics{trace.BeforeTraining(trace.Evaluation{Loss: 5, Sets: map[string]trace.Numbers{
		"task": {trace.SetLoss: 6}, "forget": {trace.SetLoss: 4}}}, "2026-03-01T19:59:00Z")}
	r = append(r, records(20)...)
	r[10].EvalSets = map[string]trace.Numbers{"task": {trace.SetLoss: 2}, "forget": {trace.SetLoss: math.NaN()}}
	r[20].EvalSets = map[string]trace.Numbers{"task": {trace.SetLoss: 3}, "forget": {trace.SetLoss: 4.5}}
	s := summarize("a", r)
	task, forget := s.EvalSets["task"], s.EvalSets["forget"]
	if len(s.EvalSets) != 2 || task.Eval() != "6.0000 -> 3.0000" || task.LeastEval() != "2.0000 at step 10" ||
		forget.Eval() != "4.0000 -> 4.5000" || forget.LeastEval() != "4.0000 at step 0" {
		t.Errorf("task %s, %s; forget %s, %s", task.Eval(), task.LeastEval(), forget.Eval(), forget.LeastEval())
	}
}

// Numbers that are not finite are left out, and nothing fails.
func TestOddRecords(t *testing.T) {
	nan, inf, loss := math.NaN(), math.Inf(1), math.NaN()
	for name, change := range map[string]func(i int, m *trace.Metrics){
		"all NaN": func(_ int, m *trace.Metrics) {
			m.Loss, m.GradNorm, m.LearningRate, m.EvalLoss = nan, nan, nan, &loss
		},
		"one infinite": func(i int, m *trace.Metrics) { m.Loss = []float64{2, inf}[min(i, 4)/4] },
		"huge": func(i int, m *trace.Metrics) {
			m.Loss, m.GradNorm = math.MaxFloat64*float64(1-2*(i%2)), math.Pow(10, float64(60*i-300))
		},
		"tiny":       func(i int, m *trace.Metrics) { m.Loss, m.GradNorm = 5e-324*float64(i), 5e-324 },
		"no seconds": func(_ int, m *trace.Metrics) { m.StepSec, m.Time = 0, nil },
		"no number":  func(_ int, m *trace.Metrics) { m.StepSec, m.ModelTFLOPS = nan, inf },
		"one step":   func(_ int, m *trace.Metrics) { m.Step = 7 },
		"a bad time": func(_ int, m *trace.Metrics) { m.Time = new(string) },
	} {
		r := records(10)
		for i := range r {
			change(i, &r[i])
		}
		s := summarize(name, r)
		if _, err := json.Marshal(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range []string{s.Loss(), s.Average(), s.Eval(), s.LeastEval()} {
			if len(text) > 40 {
				t.Errorf("%s: a text of the summary is %s", name, text)
			}
		}
	}
}

// A run of more steps than whose times are kept has about the same median.
func TestManySteps(t *testing.T) {
	all := records(10)
	var totals report.Totals
	for i := range 300_000 {
		m := all[i%10]
		m.Step, m.StepSec = int64(i+1), float64(1+i%1000)
		totals.Add(&m)
	}
	if s := totals.Summary("a", nil); totals.Steps() != 300_000 || s.Tokens != 30_000_000 || math.Abs(s.StepSec-500) > 5 {
		t.Errorf("%d steps, %+v", totals.Steps(), s)
	}
}
