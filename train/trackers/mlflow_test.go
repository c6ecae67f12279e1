package trackers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

func TestMain(m *testing.M) { os.Exit(surroundings.Run(m)) }

// remoteRun is a run on a fakeServer.
type remoteRun struct {
	name, status string
	params       map[string]string
	metrics      map[string][]metric
}

// fakeServer is as much of an MLflow server as is asked for: it refuses what the real one refuses.
type fakeServer struct {
	*httptest.Server
	mu          sync.Mutex
	experiments map[string]string
	runs        map[string]*remoteRun
	asked       []string
	// fails answers a request in place of the server, with a status that is not 0.
	fails func(method string) (status int)
}

func newFakeServer(t *testing.T) *fakeServer {
	f := &fakeServer{experiments: map[string]string{}, runs: map[string]*remoteRun{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// ServeHTTP answers a request.
func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	method := strings.TrimPrefix(r.URL.Path, "/api/2.0/mlflow/")
	f.asked = append(f.asked, method+r.Header.Get("Authorization"))
	refuse := func(status int, code, message string) {
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(map[string]string{"error_code": code, "message": message})
	}
	if f.fails != nil {
		if status := f.fails(method); status != 0 {
			refuse(status, "", "as asked")
			return
		}
	}
	var ask struct {
		Name       string
		Experiment string `json:"experiment_id"`
		RunName    string `json:"run_name"`
		Run        string `json:"run_id"`
		Status     string
		Params     []keyValue
		Metrics    []metric
	}
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &ask); err != nil {
			refuse(http.StatusBadRequest, "INVALID_PARAMETER_VALUE", err.Error())
			return
		}
	}
	run := f.runs[ask.Run+r.URL.Query().Get("run_id")]
	answer := any(map[string]any{})
	switch method {
	case "experiments/get-by-name":
		id := f.experiments[r.URL.Query().Get("experiment_name")]
		if id == "" {
			refuse(http.StatusNotFound, codeMissing, "no such experiment")
			return
		}
		answer = map[string]any{"experiment": map[string]string{"experiment_id": id}}
	case "experiments/create":
		id := fmt.Sprint(1 + len(f.experiments))
		f.experiments[ask.Name] = id
		answer = map[string]string{"experiment_id": id}
	case "runs/create":
		id := fmt.Sprint("run", 1+len(f.runs))
		f.runs[id] = &remoteRun{ask.RunName, "RUNNING", map[string]string{}, map[string][]metric{}}
		answer = map[string]any{"run": map[string]any{"info": map[string]string{"run_id": id}}}
	case "runs/get":
		if run == nil {
			refuse(http.StatusNotFound, codeMissing, "no such run")
			return
		}
		var latest []map[string]any
		for key, all := range run.metrics {
			latest = append(latest, map[string]any{"key": key, "step": fmt.Sprint(all[len(all)-1].Step)})
		}
		answer = map[string]any{"run": map[string]any{"info": map[string]string{"lifecycle_stage": "active"},
			"data": map[string]any{"metrics": latest}}}
	case "runs/update":
		run.status = ask.Status
	case "runs/log-batch":
		if len(ask.Metrics) > 1000 || len(ask.Params) > 100 {
			refuse(http.StatusBadRequest, "INVALID_PARAMETER_VALUE", "too many")
			return
		}
		for _, p := range ask.Params {
			if _, has := run.params[p.Key]; has || strings.ContainsAny(p.Key, "[]") {
				refuse(http.StatusBadRequest, "INVALID_PARAMETER_VALUE", "parameter "+p.Key)
				return
			}
			run.params[p.Key] = p.Value
		}
		for _, m := range ask.Metrics {
			run.metrics[m.Key] = append(run.metrics[m.Key], m)
		}
	default:
		refuse(http.StatusNotFound, "ENDPOINT_NOT_FOUND", method)
		return
	}
	json.NewEncoder(w).Encode(answer)
}

// told counts what a run on the server has of a number: its values by step.
func (f *fakeServer) told(run, key string) (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.runs[run].metrics[key] {
		all = append(all, fmt.Sprintf("%d:%v", m.Step, m.Value))
	}
	return all
}

// rig is a run's trackers in a test.
type rig struct {
	about About
	warns []string
}

func newRig(t *testing.T, url string) *rig {
	r := &rig{}
	c := runfile.Defaults()
	c.Model, c.OutputDir, c.ReportTo = "m", t.TempDir(), []runfile.Tracker{{MLflow: runfile.MLflow{URL: url}}}
	r.about = About{Config: &c, Run: "own", Name: "name", Mathematics: "a", Files: rundir.Files{FS: vfs.OS{},
		Warn: func(format string, args ...any) { r.warns = append(r.warns, fmt.Sprintf(format, args...)) }}}
	return r
}

// steps tells steps from one to another.
func steps(tr *Trackers, from, to int64) {
	for step := from; step <= to; step++ {
		tr.Step(&trace.Metrics{Step: step, Loss: float64(step) / 2, GradNorm: math.NaN()})
	}
}

// A run is told once, with its settings and its end. One that continues is the same run there, which has each step
// once; one with other settings that takes steps again is another one, and so are a copy, and a run that was deleted.
func TestServer(t *testing.T) {
	f := newFakeServer(t)
	r := newRig(t, f.URL)
	tr := Open(r.about)
	tr.Evaluation(0, trace.Evaluation{Loss: 5, Sets: map[string]trace.Numbers{"task": {trace.SetLoss: 4}}})
	steps(tr, 1, 5)
	tr.End(Stopped)
	first := f.runs["run1"]
	if first == nil || first.status != "KILLED" || first.name != "name" || first.params["adam_betas"] != "[0.9, 0.999]" ||
		len(first.metrics["grad_norm"]) != 0 || fmt.Sprint(f.told("run1", "eval/task/loss")) != "[0:4]" || len(r.warns) > 0 {
		t.Fatalf("%+v, warnings %v", first, r.warns)
	}
	r.about.First = 4
	tr = Open(r.about)
	tr.Evaluation(3, trace.Evaluation{Loss: 2})
	steps(tr, 4, 6)
	tr.End(Done)
	if got := fmt.Sprint(f.told("run1", "loss"), f.told("run1", "eval_loss")); len(f.runs) != 1 ||
		got != "[1:0.5 2:1 3:1.5 4:2 5:2.5 6:3] [0:5 3:2]" || first.status != "FINISHED" {
		t.Errorf("continued it has %s, status %s, %d runs", got, first.status, len(f.runs))
	}
	for i, change := range []func(){
		func() { r.about.Mathematics = "b" }, // and steps 4 to 6 are told again
		func() { r.about.Run = "a copy" },
		func() { delete(f.runs, "run3") },
	} {
		change()
		tr = Open(r.about)
		steps(tr, 4, 4)
		tr.End(Failed)
		if got := fmt.Sprint(f.told(fmt.Sprint("run", 2+min(i, 1)), "loss")); got != "[4:2]" {
			t.Errorf("change %d: another run has %s", i, got)
		}
	}
	r.about.First, r.about.Mathematics = 7, "c" // and no step is told again
	before := len(f.runs)
	tr = Open(r.about)
	steps(tr, 7, 7)
	tr.End(Done)
	if got := fmt.Sprint(f.told("run3", "loss")); len(f.runs) != before || got != "[4:2 7:3.5]" {
		t.Errorf("other settings from the next step on: %s, %d runs", got, len(f.runs))
	}
	if len(r.warns) > 0 {
		t.Errorf("warnings %v", r.warns)
	}
}

// A server that fails for a while is told all later, and one that refuses is left alone; one line says so. A run never
// waits for it.
func TestServerFails(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		times  int // that it fails
		want   string
		told   int
	}{
		"for a while":  {http.StatusServiceUnavailable, 3, "503: as asked; its records wait, and the run continues", 40},
		"too many":     {http.StatusTooManyRequests, 2, "429: as asked; its records wait", 40},
		"unauthorized": {http.StatusUnauthorized, math.MaxInt, "401: as asked; set MLFLOW_TRACKING_TOKEN", 0},
		"elsewhere":    {http.StatusFound, math.MaxInt, "302: as asked; the run continues without it", 0},
		"to the end":   {http.StatusInternalServerError, math.MaxInt, "500: as asked", 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t)
			left, answers := c.times, make(chan struct{})
			f.fails = func(string) int {
				if left--; left >= 0 {
					return c.status
				}
				if left == -1 {
					close(answers)
				}
				return 0
			}
			r := newRig(t, f.URL)
			r.about.pause = func(context.Context, <-chan struct{}, time.Duration) {}
			tr := Open(r.about)
			steps(tr, 1, 40)
			if c.told > 0 {
				<-answers
			}
			tr.End(Done)
			told := 0
			if len(f.runs) > 0 {
				told = len(f.told("run1", "loss"))
			}
			line := fmt.Sprintf("the records of 40 steps were not sent to %s; metrics.jsonl has them", f.URL)
			if told != c.told || !strings.Contains(strings.Join(r.warns, "\n"), c.want) ||
				slices.Contains(r.warns, "mlflow: "+line) != (c.told == 0) || len(r.warns) > 2 {
				t.Errorf("%d of 40 steps were told, warnings %q", told, r.warns)
			}
		})
	}
}

// What has no room in the queue is dropped and counted.
func TestServerIsSlow(t *testing.T) {
	f := newFakeServer(t)
	release := make(chan struct{})
	f.fails = func(string) int { <-release; return 0 }
	r := newRig(t, f.URL)
	tr := Open(r.about)
	const all = 4000
	steps(tr, 1, all)
	if tr.server.waiting > mostWaiting {
		t.Errorf("%d numbers wait", tr.server.waiting)
	}
	close(release)
	tr.End(Done)
	told := len(f.told("run1", "loss"))
	line := fmt.Sprintf("mlflow: the records of %d steps were not sent to %s; metrics.jsonl has them", all-told, f.URL)
	if told < 1000 || told == all || !slices.Contains(r.warns, line) {
		t.Errorf("%d of %d steps were told, warnings %v", told, all, r.warns)
	}
}

// Credentials are of the environment, and are sent over http to this machine alone.
func TestCredentials(t *testing.T) {
	f := newFakeServer(t)
	for name, env := range map[string]map[string]string{
		"Bearer secret":      {"MLFLOW_TRACKING_TOKEN": "secret"},
		"Basic bmFtZTp3b3Jk": {"MLFLOW_TRACKING_USERNAME": "name", "MLFLOW_TRACKING_PASSWORD": "word"},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range env {
				t.Setenv(key, value)
			}
			f.asked = nil
			r := newRig(t, f.URL)
			tr := Open(r.about)
			steps(tr, 1, 1)
			tr.End(Done)
			if len(f.asked) == 0 || slices.ContainsFunc(f.asked, func(a string) bool { return !strings.HasSuffix(a, name) }) {
				t.Errorf("asked %v", f.asked)
			}
			files, err := filepath.Glob(filepath.Join(r.about.Config.OutputDir, "*"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			if text, _ := os.ReadFile(files[0]); strings.Contains(string(text), "secret") {
				t.Errorf("%s has %s", files[0], text)
			}
			r = newRig(t, "http://192.0.2.1:5000")
			Open(r.about).End(Done)
			if len(r.warns) != 1 || !strings.Contains(r.warns[0], "is not sent to 192.0.2.1:5000 over http") {
				t.Errorf("warnings %v", r.warns)
			}
		})
	}
}

// The pause between tries ends with the run.
func TestPause(t *testing.T) {
	ending := make(chan struct{})
	close(ending)
	pauseFor(context.Background(), ending, 24*time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	pauseFor(ctx, nil, 24*time.Hour)
}
