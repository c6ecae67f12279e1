package train

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/notify"
)

// hookServer is a web hook that keeps what it hears.
type hookServer struct {
	*httptest.Server
	mu    sync.Mutex
	heard []notify.Event
}

func newHook(t *testing.T, status int) *hookServer {
	h := &hookServer{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e notify.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		h.mu.Lock()
		h.heard = append(h.heard, e)
		h.mu.Unlock()
		w.WriteHeader(status)
	}))
	t.Cleanup(h.Close)
	return h
}

// names are the events that it has heard.
func (h *hookServer) names() string {
	var all []string
	for _, e := range h.heard {
		all = append(all, e.Event)
	}
	return strings.Join(all, " ")
}

// A run with notices has the bits of one without, tells of its end, and writes the address of a hook nowhere.
func TestNotices(t *testing.T) {
	c := withEval(smallConfig(t))
	c.MaxSteps, c.Save = 3, runfile.Save{Every: 2, Keep: 2, AtEnd: true}
	alone := *c
	alone.OutputDir = filepath.Join(t.TempDir(), "alone")
	want, err := Train(t.Context(), &alone, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	h := newHook(t, 200)
	t.Setenv("MILLRACE_TEST_HOOK", "s3cret-of-the-environment")
	told := filepath.Join(t.TempDir(), "told")
	c.Notify = []runfile.Notice{{URL: h.URL + "/s3cret/$MILLRACE_TEST_HOOK"},
		{On: []string{runfile.EventEnded}, Command: []string{"sh", "-c", `cat > "$0"`, told}}}
	got, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)
	if h.names() != "ended" {
		t.Fatalf("the hook has heard %q", h.names())
	}
	e := h.heard[0]
	if e.Run != c.OutputDir || e.Step != 3 || e.Steps != 3 || e.Loss == nil || *e.Loss != got.LastLoss ||
		e.EvalLoss == nil || !strings.Contains(e.Text, c.OutputDir+": it has ended after step 3: loss ") ||
		!strings.Contains(e.Text, got.Model) {
		t.Errorf("%+v", e)
	}
	if text, err := os.ReadFile(told); err != nil || !strings.Contains(string(text), `"event":"ended"`) {
		t.Errorf("the command has heard %q, %v", text, err)
	}
	err = filepath.WalkDir(c.OutputDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "s3cret") || strings.Contains(string(text), "MILLRACE_TEST_HOOK") {
			t.Errorf("%s has the address of the hook", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil || h.names() != "ended" {
		t.Errorf("a run that has ended is started again: %v, %q", err, h.names())
	}
}

// Each end of a run has its event. A hook that fails changes no end, and a line says what it was not told.
func TestNoticesOfEnds(t *testing.T) {
	for name, of := range map[string]struct {
		change func(*runfile.Config, *Options)
		want   string
		text   string
	}{
		"diverged": {func(c *runfile.Config, _ *Options) { c.Stop = runfile.Stop{UnhealthySteps: 2, LossAbove: 1e-9} },
			"diverged", "step 2: the run has diverged"},
		"failed": {func(_ *runfile.Config, o *Options) {
			o.OnStep = func(trace.Metrics) error { return errors.New("no\nluck") }
		},
			"failed", "it has failed: step 1: no; luck"},
		"stopped": {func(_ *runfile.Config, o *Options) {
			stop := make(chan struct{})
			o.Env.Stop = stop
			o.OnStep = func(trace.Metrics) error { close(stop); return nil }
		}, "stopped", "interrupted after step 1, saved in "},
		"a bad request": {func(c *runfile.Config, _ *Options) { c.Datasets[0].Path = "no.jsonl" }, "failed", "no.jsonl"},
	} {
		c, h := smallConfig(t), newHook(t, 400)
		c.MaxSteps, c.Notify = 3, []runfile.Notice{{URL: h.URL + "/s3cret"}}
		var said strings.Builder
		env := newEnv(t)
		env.Progress = &said
		o := Options{Env: env}
		of.change(c, &o)
		_, err := Train(t.Context(), c, o)
		if err == nil || h.names() != of.want || !strings.Contains(h.heard[0].Text, of.text) {
			t.Errorf("%s: error %v, heard %+v", name, err, h.heard)
		}
		if warning := "was not told of the event " + of.want + ": the server answered 400"; !strings.Contains(said.String(),
			warning) || strings.Contains(said.String(), "s3cret") {
			t.Errorf("%s: no %q in %s", name, warning, &said)
		}
		if env.Events != nil {
			t.Errorf("%s: it still listens", name)
		}
	}
}

// Notices that cannot be delivered end no run late: the environment is looked at before anything is written.
func TestNoticesAreChecked(t *testing.T) {
	c := smallConfig(t)
	t.Setenv("MILLRACE_TEST_HOOK", "")
	c.Notify = []runfile.Notice{{URL: "$MILLRACE_TEST_HOOK"}}
	_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "notify[0]: url names $MILLRACE_TEST_HOOK") {
		t.Error(err)
	}
	if _, err := os.Stat(c.OutputDir); err == nil {
		t.Error("the output directory was made")
	}
}

// Of several hosts the first one tells, and the others need not be able to.
func TestNoticesOfHosts(t *testing.T) {
	c, h := hostsConfig(t), newHook(t, 200)
	c.MaxSteps = 2
	succeed(t, trainHosts(t, 2, c, func(of *aHost) {
		of.config.Notify = []runfile.Notice{{URL: "$MILLRACE_TEST_NO_HOOK"}}
		if of.host == 0 {
			of.config.Notify = []runfile.Notice{{URL: h.URL}}
		}
	}))
	if h.names() != "ended" {
		t.Errorf("the hook has heard %q", h.names())
	}
}

// A run tells once that other files take the space of its checkpoints.
func TestNoticesOfLittleSpace(t *testing.T) {
	c, h := smallConfig(t), newHook(t, 200)
	c.MaxSteps, c.Notify = 3, []runfile.Notice{{On: []string{runfile.EventLittleSpace}, URL: h.URL}}
	tr := &trainer{Run: &Run{env: newEnv(t), config: c}}
	room := &roomFS{free: 100}
	tr.env.FS = room
	clock := &handClock{at: time.Unix(1e9, 0)}
	tr.env.Tests.Clock = clock
	tr.needs = spaceNeeds{peak: 90, checkpoint: 30, models: 20, most: 3}
	if err := tr.openNotices(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.OutputDir, "checkpoints", "step-000001"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, of := range []struct {
		free  int64
		tells bool
	}{{60, false}, {59, false}, {59, true}, {1, false}, {60, false}, {59, false}, {60, false}, {59, false}, {59, true}} {
		room.free = of.free
		clock.at = clock.at.Add(lookForSpace)
		before := tr.notices.shorts
		tr.env.Tell(StepDone{})
		tr.notices.looking.Wait()
		after := tr.notices.shorts
		if tells := after == 2 && before == 1; tells != of.tells {
			t.Errorf("look %d, %d bytes free: it tells: %v", i, of.free, tells)
		}
		tr.env.Tell(StepDone{}) // at once, which is no look
		if tr.notices.looking.Wait(); tr.notices.shorts != after {
			t.Errorf("look %d: it looks again at once", i)
		}
	}
	tr.notices.sender.Close(t.Context(), noticePatience)
	if h.names() != "little_space little_space" {
		t.Fatalf("the hook has heard %q", h.names())
	}
	if text := h.heard[0].Text; !strings.Contains(text, "59 B are free in output_dir, and the next checkpoint and the "+
		"model need 60 B") {
		t.Error(text)
	}
}

// Slow steps and saves that fail are told of, and steps without a token that counts are no slow ones.
func TestNoticesOfSteps(t *testing.T) {
	c, h := smallConfig(t), newHook(t, 200)
	c.Notify = []runfile.Notice{{On: []string{runfile.EventSlow, runfile.EventSaveFailed}, URL: h.URL}}
	tr := &trainer{Run: &Run{env: newEnv(t), config: c}}
	if err := tr.openNotices(); err != nil {
		t.Fatal(err)
	}
	for i := range 70 {
		m := trace.Metrics{Step: int64(i + 1), StepSec: 1, TargetTokens: 5, Loss: 2, TokensPerSec: 7}
		switch {
		case i >= 60:
			m.StepSec = 2
		case i%2 == 0:
			m.StepSec, m.TargetTokens = 1e-9, 0
		}
		tr.env.Tell(StepDone{Metrics: m, Steps: 100, LeftSec: 30})
	}
	tr.env.Tell(SaveFailed{Why: "no space left", NextStep: 80})
	troubles := tr.notices.sender.Close(t.Context(), noticePatience)
	if troubles != nil || h.names() != "slow save_failed" {
		t.Fatalf("the hook has heard %q; %q", h.names(), troubles)
	}
	if e := h.heard[0]; *e.Loss != 2 || e.TokensPerSec != 7 || e.LeftSec != 30 || !strings.Contains(e.Text,
		": step 65 of 100: a step takes 1.5 s, the median of 10; it took 1 s before") {
		t.Errorf("%+v", e)
	}
	want := c.OutputDir + ": no space left; the run continues, and tries to save again after step 80"
	if text := h.heard[1].Text; text != want {
		t.Error(text)
	}
}
