package serve

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/timeline"
	"github.com/millrace/millrace/trace"
)

// aRun writes the files of a run to a directory.
func aRun(t testing.TB, dir string, steps int64) {
	t.Helper()
	c := runfile.Defaults()
	c.Model, c.OutputDir, c.LearningRate = "org/SmolLM2-135M", "runs/a", 1e-5
	c.Datasets = []data.Source{{Path: "data/a.jsonl", Type: "text"}, {Path: "b.jsonl", Type: "text"}}
	c.MaxSteps = 500
	doc, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "run.yaml", runfile.ResolvedHeader+string(doc))
	write(t, dir, "plan.json", `{"host_bytes":300,"device_bytes":100,"state":[{"purpose":"weights","bytes":200}],
"host":[{"purpose":"tokens","bytes":100}],"device":[{"purpose":"work","bytes":100}],
"predicted":{"step_sec":2,"lane_sec":{"fetch":1,"compute":2}},"wear":{"steps":500,"rated_bytes":1000},
"timeline":{"step":1,"simulated":true,"seconds":2,"lanes":[]}}`)
	write(t, dir, "samples.jsonl", `{"step":0,"number":1,"prompt":"a","text":"b","finish":"stop","tokens":[1,2]}
{"step":10,"number":1,"prompt":[{"role":"user","content":"<a>"}],"text":"c","finish":"length","tokens":[3]}
`)
	write(t, dir, "run.json", `{"identity":{"ended":null}}`)
	write(t, dir, "metrics.jsonl", recordsTo(0, steps))
}

// aTrace writes the trace of two steps, in which compute waits for a fetch.
func aTrace(t testing.TB, dir string) {
	t.Helper()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	tr := trace.Trace{Spans: []trace.Span{
		{Worker: trace.Fetch.Of(0), Name: "fetch layer 0", Step: 1, Start: 0, End: ms(40)},
		{Worker: trace.Compute.Of(0), Name: "forward layer 0", Step: 1, Start: ms(40), End: ms(90)},
		{Worker: trace.Compute.Of(0), Name: "forward layer 0", Step: 1, Start: ms(90), End: ms(100)}}}
	var text bytes.Buffer
	if err := tr.WriteChrome(&text); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "trace.json", text.String())
}

// The documents have what docs/serve.md says.
func TestDocuments(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a")
	aRun(t, a, 61)
	aTrace(t, a)
	write(t, dir, "sweep/one/metrics.jsonl",
		strings.ReplaceAll(recordsTo(1, 5), `"grad_norm"`, `"eval_sets":{"task":{"loss":1}},"grad_norm"`))
	write(t, dir, "not/a/run.txt", "")
	write(t, dir, ".hidden/metrics.jsonl", record(1))
	s := newSite(t, Options{Dirs: []string{dir}})
	list := get[runsDocument](s, "/api/runs")
	if list.Version != "v1" || list.Controls || list.Message != nil || len(list.Runs) != 2 {
		t.Fatalf("%+v", list)
	}
	got := list.Runs[0]
	columns := []string{"loss", "grad_norm", "learning_rate", "tokens", "lanes/compute", "eval_loss", "eval_kl"}
	for _, name := range columns {
		if !slices.Contains(got.Columns, name) {
			t.Errorf("no column %s in %v", name, got.Columns)
		}
	}
	if got.Summary == nil || got.Summary.LastStep != 61 || *got.Summary.EvalBefore != 5 || got.Summary.Rating == nil ||
		got.Summary.WrittenShare != 7*61/1000. {
		t.Errorf("summary %+v", got.Summary)
	}
	got.Summary, got.Columns = nil, nil
	model, objective, planned, left, updated := "SmolLM2-135M", "sft", int64(500), 439., "2026-03-01T12:01:00Z"
	want := runDocument{ID: "r1", Name: a, Dir: a, Model: &model, Data: []string{"a.jsonl", "b.jsonl"},
		Objective: &objective, State: "running", FirstStep: 1, LastStep: 61, PlannedSteps: &planned,
		SecondsLeft: &left, Updated: &updated,
		EvalSets: []evalSet{}, Complete: true, Revision: got.Revision}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff([]evalSet{{"task", []string{"eval/task/loss"}}}, list.Runs[1].EvalSets); d != "" {
		t.Error(d)
	}
	if list.Runs[1].Name != filepath.Join(dir, "sweep/one") || list.Runs[1].Model != nil {
		t.Errorf("%+v", list.Runs[1])
	}

	set := get[map[string]map[string]string](s, "/api/runs/r1/settings")["settings"]
	for key, value := range map[string]string{"learning_rate": "1e-05", "max_steps": "500", "datasets[1].path": "b.jsonl",
		"adam_betas": "[0.9, 0.999]", "memory.host": "auto"} {
		if set[key] != value {
			t.Errorf("settings: %s is %q, not %q", key, set[key], value)
		}
	}
	plan := get[planDocument](s, "/api/runs/r1/plan")
	tiers := []tier{{"device", []namedPart{{"work", 100}}}, {"host", []namedPart{{"weights", 200}, {"tokens", 100}}}}
	if d := cmp.Diff(tiers, plan.Tiers); d != "" || *plan.StepSec != 2 || plan.Lanes["compute"] != 2 ||
		*plan.HostBytes != 300 {
		t.Errorf("%s %+v", d, plan)
	}
	lines := get[timelineDocument](s, "/api/runs/r1/timeline")
	fetch := "fetch"
	compute := timeline.DocumentLane{Name: "compute", Busy: 0.06, Waiting: map[string]float64{"fetch": 0.04},
		Spans: []timeline.DocumentSpan{{From: 0.04, To: 0.1, What: "forward layer 0", WaitsFor: &fetch}}}
	if lines.Predicted == nil || !lines.Predicted.Simulated || lines.Measured == nil || lines.Measured.Seconds != 0.1 {
		t.Fatalf("%+v", lines)
	}
	if d := cmp.Diff(compute, lines.Measured.Lanes[1]); d != "" {
		t.Error(d)
	}
	if w := s.do(request("GET", "/api/runs/r1/samples?after=0")).Body.String(); w != `{"samples":[{"step":10,"number":1,`+
		`"prompt":[{"role":"user","content":"\u003ca\u003e"}],"text":"c","finish":"length"}]}` {
		t.Errorf("samples: %s", w)
	}
	write(t, a, "rows.jsonl", `{"input_ids":[5,6],"labels":[-100,6],"losses":[null,2.5],"loss":2.5,"tokens":["a","b"],`+
		`"pair":3,"side":"chosen"}
{"input_ids":[5,7],"labels":[-100,7],"losses":[null,1.5],"loss":1.5,"tokens":["a","c"],"pair":3,"side":"rejected"}
{"input_ids":[5],"labels":[-100],"losses":[null],"tokens":["a"]}
{"summary":{"documents":2}}
`)
	for path, want := range map[string]string{
		"": `{"rows":[{"index":1,"loss":2.5,"source":"ab","tokens":2},{"index":2,"loss":null,"source":"a","tokens":1}]}`,
		"/1": `{"sides":[{"name":"chosen","tokens":[{"id":5,"learned":false,"loss":null,"text":"a"},` +
			`{"id":6,"learned":true,"loss":2.5,"text":"b"}]},{"name":"rejected","tokens":[{"id":5,"learned":false,` +
			`"loss":null,"text":"a"},{"id":7,"learned":true,"loss":1.5,"text":"c"}]}]}`,
		"/2": `{"sides":[{"name":"text","tokens":[{"id":5,"learned":false,"loss":null,"text":"a"}]}]}`} {
		if got := s.do(request("GET", "/api/runs/r1/rows"+path)).Body.String(); got != want {
			t.Errorf("rows%s: %s", path, got)
		}
	}
	empty := map[string]string{"settings": `{"settings":{}}`, "samples": `{"samples":[]}`, "rows": `{"rows":null}`,
		"timeline": `{"predicted":null,"measured":null}`, "plan": `{"host_bytes":null,"device_bytes":null,` +
			`"disk_bytes":null,"tiers":[],"step_sec":null,"lanes":null,"timeline":null}`}
	for name, want := range empty {
		if got := s.do(request("GET", "/api/runs/r2/"+name)).Body.String(); got != want {
			t.Errorf("%s of a run without it: %s", name, got)
		}
	}

	write(t, a, "run.json", `{"identity":{"ended":{"step":61}}}`)
	s.pass(now, true)
	if again := get[runsDocument](s, "/api/runs").Runs[0]; again.State != "ended" || again.Revision <= got.Revision ||
		again.SecondsLeft != nil {
		t.Errorf("of a run that has ended: %+v", again)
	}
	s.pass(now.Add(time.Hour), true)
	if state := get[runsDocument](s, "/api/runs").Runs[1].State; state != "stopped" {
		t.Errorf("after an hour the other run is %s", state)
	}
}

// Runs that come later get new ids, and those that are gone leave.
func TestRunsComeAndGo(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "b/metrics.jsonl", record(1))
	s := newSite(t, Options{Dirs: []string{dir}})
	ids := func() (all []string) {
		s.search()
		s.pass(now, true)
		for _, r := range get[runsDocument](s, "/api/runs").Runs {
			all = append(all, r.ID+" "+filepath.Base(r.Name))
		}
		return all
	}
	first := ids()
	write(t, dir, "a/run.json", "{}")
	second := ids()
	if err := os.RemoveAll(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([][]string{{"r1 b"}, {"r2 a", "r1 b"}, {"r2 a"}}, [][]string{first, second, ids()}); d != "" {
		t.Error(d)
	}
	s.failsWith(request("GET", "/api/runs/r1/plan"), 404, "there is no run r1")
}

// Each wrong request gets one line.
func TestBadRequests(t *testing.T) {
	dir := t.TempDir()
	aRun(t, dir, 3)
	s := newSite(t, Options{Dirs: []string{dir}})
	for path, want := range map[string]string{
		"/api/runs/r1/columns":                                     "names: give from 1",
		"/api/runs/r1/columns?names=loss&from=x":                   "from: it must be a whole number",
		"/api/runs/r1/columns?names=loss&to=-1":                    "to: it must be",
		"/api/runs/r1/columns?names=loss&points=0":                 "points: it must be a whole number from 1",
		"/api/runs/r1/samples?after=1e3":                           "after: it must be",
		"/api/runs/r1/columns?names=" + strings.Repeat("a,", 1001): "names: give from 1 to 1000",
	} {
		s.failsWith(request("GET", path), 400, want)
	}
	for _, path := range []string{"/api/", "/api/run", "/api/runs/r9/plan", "/api/runs/r1/rows/7", "/x", "/page.go"} {
		s.failsWith(request("GET", path), 404, "there is no")
	}
	if doc := get[answered](s, "/api/runs/r1/columns?names=none,loss&from=5&to=2&points=99999"); len(doc.Steps) != 0 {
		t.Errorf("steps 5 to 2: %+v", doc)
	}
}

// The page has its policy, and only its own files.
func TestPageFiles(t *testing.T) {
	s := newSite(t, Options{Dirs: []string{t.TempDir()}})
	w := s.do(request("GET", "/"))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `id="frozen"`) ||
		!strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy",
		"Cache-Control"} {
		for _, path := range []string{"/", "/api/runs", "/none"} {
			if got := s.do(request("GET", path)).Header().Get(name); got == "" {
				t.Errorf("%s has no %s", path, name)
			}
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %s", policy)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"#:]+)"`).FindAllStringSubmatch(w.Body.String(), -1) {
		if got := s.do(request("GET", "/"+m[1])); got.Code != 200 || got.Body.Len() == 0 {
			t.Errorf("%s: %d", m[1], got.Code)
		}
	}
}

// Links out of the directories are not followed, and other files than those of runs are not read.
func TestNothingElseIsRead(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	aRun(t, outside, 3)
	write(t, outside, "secret", "")
	aRun(t, filepath.Join(dir, "a"), 3)
	for _, link := range []string{"out", "a/samples.jsonl", "a/trace.json", "a/plan.json", "a/run.yaml", "b"} {
		to := outside
		if base := filepath.Base(link); strings.Contains(base, ".") {
			to = filepath.Join(outside, base)
		}
		os.Remove(filepath.Join(dir, link))
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Skip("it tests links out of a directory, and this system refuses to make one: ", err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "metrics.jsonl"), filepath.Join(dir, "c/metrics.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "within")); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, Options{Dirs: []string{dir}})
	var names []string
	for _, r := range get[runsDocument](s, "/api/runs").Runs {
		names = append(names, filepath.Base(r.Name))
	}
	if d := cmp.Diff([]string{"a", "within"}, names); d != "" {
		t.Error(d)
	}
	for name, want := range map[string]string{"samples": `{"samples":[]}`, "settings": `{"settings":{}}`,
		"timeline": `{"predicted":null,"measured":null}`} {
		if got := s.do(request("GET", "/api/runs/r1/"+name)).Body.String(); got != want {
			t.Errorf("%s through a link: %s", name, got)
		}
	}
	for _, path := range []string{"/api/runs/../../secret", "/api/runs/%2e%2e/plan",
		"/api/runs/r1%2f..%2f..%2fsecret/plan", "/..%2fsecret", "//secret"} {
		if w := s.do(request("GET", path)); w.Code == 200 {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}

// Prometheus gets the numbers of the newest record of each run.
func TestMetrics(t *testing.T) {
	dir := t.TempDir()
	aRun(t, filepath.Join(dir, `a"b`), 61)
	write(t, dir, "c/metrics.jsonl", `{"step":2,"loss":null,"experts":{"busiest":[1]},"rewards/margins":0.5}`+"\n")
	s := newSite(t, Options{Dirs: []string{dir}})
	w := s.do(request("GET", "/metrics"))
	text := w.Body.String()
	name := strings.ReplaceAll(filepath.Join(dir, `a\"b`), "\\\\", "\\")
	for _, want := range []string{`millrace_step{run="` + name + `"} 61`, `millrace_lanes_fetch{run="` + name + `"} 0.25`,
		`millrace_running{run="` + name + `"} 1`, `millrace_planned_steps{run="` + name + `"} 500`,
		`millrace_rewards_margins{run="` + filepath.Join(dir, "c") + `"} 0.5`,
		`millrace_loss{run="` + filepath.Join(dir, "c") + `"} NaN`,
		"# TYPE millrace_eval_loss gauge"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	line := regexp.MustCompile(`^(# TYPE millrace_[a-z0-9_]+ gauge|` +
		`millrace_[a-z0-9_]+\{run="(\\.|[^"\\])*"\} (NaN|[-+.e0-9]+))$`)
	for of := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if !line.MatchString(of) {
			t.Errorf("%q is not of the format", of)
		}
	}
	if strings.Contains(text, "experts") || w.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("%v %s", w.Header(), text)
	}
}

// A page of its own has the answers in it, and is not changed by what runs are called.
func TestFrozenPage(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "</script><b>")
	aRun(t, a, 61)
	write(t, dir, "c.jsonl", record(1))
	f, err := Freeze([]string{a, filepath.Join(dir, "c.jsonl")}, "v1", false)
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := f.WritePage(&page, 10); err != nil {
		t.Fatal(err)
	}
	frozen := regexp.MustCompile(`(?s)<script type="application/json" id="frozen">(.*?)</script>`)
	m := frozen.FindStringSubmatch(page.String())
	var answers map[string]json.RawMessage
	if err := json.Unmarshal([]byte(m[1]), &answers); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, id := range []string{"r1", "r2"} {
		for _, name := range []string{"columns", "plan", "rows", "samples", "settings", "timeline"} {
			want = append(want, "api/runs/"+id+"/"+name)
		}
	}
	if d := cmp.Diff(append([]string{"api/runs"}, want...), slices.Sorted(maps.Keys(answers))); d != "" {
		t.Error(d)
	}
	if got := f.Summaries(); len(got) != 2 || got[0].LastStep != 61 || got[1].Run != filepath.Join(dir, "c.jsonl") {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{`<link rel="stylesheet"`, "<script src=", "<b>"} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if !strings.Contains(page.String(), `<meta http-equiv="refresh" content="10">`) {
		t.Error("the page is not loaded again")
	}
	for name, want := range map[string]string{"none": "none does not exist; name the output_dir",
		filepath.Join(a, "plan.json"): "has no records of metrics; name the output_dir"} {
		if _, err := Freeze([]string{name}, "v1", false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f, err := Freeze([]string{"none"}, "v1", true); err != nil || len(f.Summaries()) != 0 {
		t.Errorf("a run that has not begun: %v", err)
	}
}
