package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/trace"
)

var update = flag.Bool("update", false, "write golden files")

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

func page(t *testing.T, runs ...report.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.WritePage(&b, runs, 0); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSummary(t *testing.T) {
	r := records(20)
	r[2].GradNorm = math.Inf(1)
	got := report.Summarize(report.Run{Name: "a", Records: r})
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
	before := trace.BeforeTraining(5, nil, "2026-03-01T19:59:00Z")
	got = report.Summarize(report.Run{Name: "a", Before: &before, Records: r})
	if got.Loss() != "4.0000 -> 2.0000" || got.Eval() != "5.0000 -> 2.1000" || got.LeastEval() != "2.1000 at step 20" {
		t.Errorf("%s, %s, %s", got.Loss(), got.Eval(), got.LeastEval())
	}
	smoothed, first, last, least, leastStep := *got.SmoothedLoss, 4.0, 2.0, r[19].Loss+0.1, int64(20)
	if smoothed <= 2 || smoothed >= 3 {
		t.Errorf("the average of the last losses is %g: %s", smoothed, text)
	}
	want := report.Summary{Run: "a", FirstStep: 1, LastStep: 20, Tokens: 2000, FirstLoss: &first, LastLoss: &last,
		SmoothedLoss:  &smoothed,
		EvalBefore:    before.EvalLoss,
		LeastEvalLoss: &least, LeastEvalStep: &leastStep, LastEvalLoss: &least, TokensPerSec: 50, StepSec: 2, MeanTFLOPS: 3,
		HoursStopped: 8,
		SkippedSteps: 1, HostPeakBytes: 1 << 30, DiskWritten: 140}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestPage(t *testing.T) {
	before := trace.BeforeTraining(5, nil, "2026-03-01T19:59:00Z")
	got := page(t, report.Run{Name: "runs/<a>", Before: &before, Records: records(20), Rating: &trace.Rating{Bytes: 1000}},
		report.Run{Name: "runs/b", Records: records(30)[10:]})
	golden := filepath.Join("testdata", "page.html")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("testdata/page.html (-want +got); after a change that is meant, run go test ./report -update and look at "+
			"the page\n%s", d)
	}
	for _, bad := range []string{"<a>", "<script", "http:", "https:", "NaN"} {
		if strings.Contains(got, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// The lanes of a run have a key, in which those that only some runs have are named if they were ever busy.
func TestLanesOfAPage(t *testing.T) {
	r := records(5)
	key := regexp.MustCompile(`<span class="key k(\d)"></span>(\w+) `)
	lanes := func() (found []string) {
		for _, m := range key.FindAllStringSubmatch(page(t, report.Run{Name: "a", Records: r}), -1) {
			found = append(found, m[1]+" "+m[2])
		}
		return found
	}
	usual := []string{"0 fetch", "1 compute", "2 drain", "3 update", "4 disk"}
	if d := cmp.Diff(usual, lanes()); d != "" {
		t.Error(d)
	}
	r[3].Lanes[trace.Send], r[3].Lanes[trace.Receive] = 0.5, 0.25
	if d := cmp.Diff(append(usual, "6 send", "7 receive"), lanes()); d != "" {
		t.Error(d)
	}
}

// A week of steps is no larger than what a screen can show, and a peak of one step stays visible.
func TestManySteps(t *testing.T) {
	r := records(200_000)
	r[123_456].Loss = 1000
	got := page(t, report.Run{Name: "week", Records: r})
	all := make([]report.Run, report.MostRuns)
	for i := range all {
		all[i] = report.Run{Name: "week", Records: r}
	}
	for runs, text := range map[int]string{1: got, report.MostRuns: page(t, all...)} {
		if len(text) > 128_000 {
			t.Errorf("the page of %d runs has %d bytes", runs, len(text))
		}
	}
	highest := math.Inf(1)
	raw := regexp.MustCompile(`class="line c0 raw" d="([^"]*)"`).FindStringSubmatch(got)
	for _, point := range regexp.MustCompile(`[ML]`).Split(raw[1], -1)[1:] {
		var x, y float64
		if _, err := fmt.Sscan(point, &x, &y); err != nil {
			t.Fatal(err)
		}
		highest = min(highest, y)
	}
	if highest > 30 {
		t.Errorf("the highest point is at %g of 250, below the top", highest)
	}
}

var notANumber = regexp.MustCompile(`(d|style)="[^"]*(NaN|Inf)`)

// Numbers that no curve can show are left out, and nothing fails.
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
		"one step":   func(_ int, m *trace.Metrics) { m.Step = 7 },
		"a bad time": func(_ int, m *trace.Metrics) { m.Time = new(string) },
	} {
		r := records(10)
		for i := range r {
			change(i, &r[i])
		}
		if got := page(t, report.Run{Name: name, Records: r}); notANumber.MatchString(got) {
			t.Errorf("%s: the page has a point that is no number:\n%s", name, got)
		}
		if _, err := json.Marshal(report.Summarize(report.Run{Name: name, Records: r})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "metrics.jsonl")
	bad := func(want string) {
		t.Helper()
		if _, err := report.Read(dir); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%v; the error should say %q", err, want)
		}
	}
	bad("does not exist; name the output_dir of a run")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	bad("has no record")
	before, err := json.Marshal(trace.BeforeTraining(5, nil, "2026-03-01T19:59:00Z"))
	if err != nil {
		t.Fatal(err)
	}
	write(string(before) + "\n") // an evaluation before training is no step
	bad("has no record of a step")
	write("\x00\x01\n{}\n")
	bad("name the output_dir of a run")
	write(string(before) + "\n" + `{"step": 3, "loss": 2.5}` + "\n" + `{"step": 4, "loss": null}` + "\n")
	for _, doc := range []string{"", "{", `{"wear": {"rated_bytes": -1}}`,
		`{"wear": {"rated_bytes": 5000000000000, "rated_is_assumed": true}}`} {
		if r, err := report.Read(dir); err != nil || r.Rating != nil {
			t.Errorf("%v, and the rating of a plan that is not there, or bad: %v", err, r.Rating)
		}
		if err := os.WriteFile(filepath.Join(dir, "plan.json"), []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{dir, path} {
		r, err := report.Read(name)
		if r.Before == nil || *r.Before.EvalLoss != 5 {
			t.Errorf("%s: before training: %v", name, r.Before)
		}
		if r.Rating == nil || *r.Rating != (trace.Rating{Bytes: 5e12, IsAssumed: true}) {
			t.Errorf("%s: the rating of the plan: %v", name, r.Rating)
		}
		if err != nil || r.Name != name || len(r.Records) != 2 || r.Records[0].Loss != 2.5 || !math.IsNaN(r.Records[1].Loss) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// Each chart has labels on its y axis, also between two round numbers of a log scale.
func TestChartsHaveTicks(t *testing.T) {
	for _, norms := range [][2]float64{{1.1, 1.8}, {3.1, 3.9}, {0.9, 7}, {1e-3, 1e3}} {
		all := records(200)
		for i := range all {
			all[i].GradNorm = norms[0] + (norms[1]-norms[0])*float64(i)/float64(len(all)-1)
		}
		var b strings.Builder
		if err := report.WritePage(&b, []report.Run{{Name: "a", Records: all}}, 0); err != nil {
			t.Fatal(err)
		}
		for _, chart := range strings.Split(b.String(), "<h2>")[1:] {
			if strings.Count(chart, `class="y"`) < 2 {
				title, _, _ := strings.Cut(chart, " <small>")
				t.Errorf("norms from %v to %v: the chart of the %s has no labels", norms[0], norms[1], title)
			}
		}
	}
}

// A page of runs that are going asks to be loaded again, and one of runs that have ended does not.
func TestRefresh(t *testing.T) {
	for _, c := range []struct {
		runs       []report.Run
		refreshSec int
		refreshes  bool
	}{{nil, 10, true}, {[]report.Run{{Name: "a", Records: records(3)}}, 10, true},
		{[]report.Run{{Name: "a", Records: records(3)}}, 0, false}} {
		var b strings.Builder
		if err := report.WritePage(&b, c.runs, c.refreshSec); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(b.String(), `<meta http-equiv="refresh" content="10">`); got != c.refreshes {
			t.Errorf("%d s: the page refreshes: %v", c.refreshSec, got)
		}
	}
}

// The evaluation before training is a dot at step 0, and an axis that is logarithmic says so.
func TestChartsSayWhatTheyShow(t *testing.T) {
	before := trace.BeforeTraining(5, nil, "2026-03-01T19:59:00Z")
	got := page(t, report.Run{Name: "a", Before: &before, Records: records(20)})
	for _, want := range []string{"a, evaluation, step 0: 5<", "a, evaluation, step 20: 2.1<",
		"before clipping; logarithmic axis", "the thick line is an average"} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
