package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/train/sweep"
)

// useTrainer has sweeps start the program of this test, or another one. It returns a count of the starts.
func useTrainer(t *testing.T, start func(args ...string) *exec.Cmd) (started *int) {
	t.Helper()
	was := trainer
	t.Cleanup(func() { trainer = was })
	started = new(int)
	trainer = func(args ...string) (*exec.Cmd, error) {
		*started++
		return start(args...), nil
	}
	return started
}

// A sweep runs each combination once, in a directory of its own, and says which settings are the best. Started again it
// runs what is left, with the bits of a run that was never stopped.
func TestSweep(t *testing.T) {
	w := newWorkshop(t)
	started := useTrainer(t, func(args ...string) *exec.Cmd { return inProcess("sweeps", args...) })
	held := "eval.datasets=[{path: " + w.path("data/b.txt") + ", type: text}]"
	w.write("run.yaml", w.read("run.yaml")+"lr_scheduler: constant\nresume_with: [max_steps]\n")
	args := []string{"sweep", w.path("run.yaml"), held, "learning_rate=1e-4,1e-2", "seed=1,2"}
	r := invoke(t, append(args, "--dry-run")...).must(t)
	for _, want := range []string{"in " + w.path("out"), "learning_rate=1e-4,seed=1  new",
		"learning_rate=1e-2,seed=2  new", "in all, by their plans"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in:\n%s", want, r.stdout)
		}
	}
	if left := w.files("out"); len(left) > 0 || *started > 0 {
		t.Fatalf("a list of runs has started %d, and made %v", *started, left)
	}
	// One run has done 2 of its 3 steps.
	half := "learning_rate=1e-2,seed=1"
	invoke(t, "train", w.path("run.yaml"), held, "learning_rate=1e-2", "seed=1", "max_steps=2",
		"output_dir="+w.path("out/"+half)).must(t)
	r = invoke(t, args...).must(t)
	for _, want := range []string{"run 1 of 4: learning_rate=1e-4,seed=1, about ", "run 3 of 4: " + half,
		"resuming after step 2 from"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%q is not in:\n%s", want, r.stderr)
		}
	}
	for _, want := range []string{"run  learning_rate  seed  state  steps", "best: learning_rate=1e-2, loss ",
		", the mean of 2 seeds\nthe next, learning_rate=1e-4, is ",
		"the noise of seeds: they alone make differences of up to ",
		"curves: " + w.path("out/sweep.html")} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in:\n%s", want, r.stdout)
		}
	}
	if *started != 4 || !strings.HasSuffix(w.read("out/sweep.html"), "</html>\n") {
		t.Errorf("%d runs were started; the page: %.100s", *started, w.read("out/sweep.html"))
	}
	invoke(t, "train", w.path("run.yaml"), held, "learning_rate=1e-2", "seed=1", "output_dir="+w.path("alone")).must(t)
	if w.read("alone/model/model.safetensors") != w.read("out/"+half+"/model/model.safetensors") {
		t.Error("a run of the sweep has other bits than the same run alone")
	}
	// Nothing is left to do, and the same command shows the results again.
	again := invoke(t, append(args, "--json")...).must(t)
	type results struct {
		Runs []struct {
			Run, State string
			Values     map[string]string
			Summary    struct {
				Least float64 `json:"least_eval_loss"`
			}
		}
		By      string
		Verdict struct {
			Settings []struct {
				Values map[string]string
				Loss   float64
			}
			Seeds  int
			Noise  *float64
			Within *bool `json:"within_noise"`
		}
	}
	got := jsonOf[results](t, again.stdout)
	v := got.Verdict
	if *started != 4 || len(got.Runs) != 4 || got.By != "least_eval_loss" || v.Seeds != 2 || v.Noise == nil ||
		v.Within == nil || len(v.Settings) != 2 || v.Settings[0].Values["learning_rate"] != "1e-2" ||
		v.Settings[0].Values["seed"] != "" {
		t.Errorf("%d runs were started: %+v", *started, got)
	}
	for i, r := range got.Runs {
		if r.State != "done" || i > 0 && r.Summary.Least < got.Runs[i-1].Summary.Least {
			t.Errorf("run %d: %+v", i, r)
		}
	}
}

// A run that fails stops no other, and the exit status says so at the end; the next start tries it again.
func TestSweepWithFailures(t *testing.T) {
	w := newWorkshop(t)
	started := useTrainer(t, func(args ...string) *exec.Cmd { return inProcess("sweeps", args...) })
	sets := fmt.Sprintf("datasets=[{path: %q, type: text}],[{path: %q, type: text}],"+
		"[{path: %[1]q, type: text, lines: true}]", w.path("data/a.txt"), w.path("data/none.txt"))
	r := invoke(t, "sweep", w.path("run.yaml"), sets, "max_steps=1")
	if r.status != exitFailed || *started != 3 || !strings.Contains(r.errorLine(),
		"1 of 3 runs failed or diverged (datasets=") {
		t.Errorf("status %d, %d runs: %s", r.status, *started, r.stderr)
	}
	for _, want := range []string{"failed, status 2", "not all runs evaluate",
		"the losses are of other tokens (datasets["} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in:\n%s", want, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "best:") || strings.Count(r.stdout, "done") != 2 {
		t.Errorf("it calls one the best, or two are not done:\n%s", r.stdout)
	}
	if r = invoke(t, "sweep", w.path("run.yaml"), sets, "max_steps=1"); r.status != exitFailed || *started != 4 {
		t.Errorf("again: status %d, %d runs in all", r.status, *started)
	}
}

// A request to stop is passed on to the run in progress, no further one begins, and the status is that of an interrupt.
func TestSweepInterrupted(t *testing.T) {
	w := newWorkshop(t)
	begun, begins, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	started := useTrainer(t, func(args ...string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", "trap 'echo it saves >&2; exit 130' TERM; echo >&3; while :; do sleep 0.05; done")
		cmd.ExtraFiles = []*os.File{begins}
		return cmd
	})
	signals := make(chan os.Signal, 1)
	fault.Go(func() {
		_, _ = io.ReadFull(begun, make([]byte, 1)) // the run is in progress
		signals <- syscall.SIGTERM
	})
	r := invokeWith(t, "", signals, "sweep", w.path("run.yaml"), "learning_rate=1e-4,1e-2")
	if r.status != exitInterrupted || *started != 1 || !strings.Contains(r.stderr, "it saves") ||
		!strings.Contains(r.errorLine(), "interrupted in run 1 of 2 (learning_rate=1e-4); the same command continues") {
		t.Errorf("status %d, %d runs: %s", r.status, *started, r.stderr)
	}
	if r.stdout != "" {
		t.Errorf("it prints results: %s", r.stdout)
	}
}

// A run that a signal has ended is one that failed.
func TestSweepOfKilledRuns(t *testing.T) {
	w := newWorkshop(t)
	useTrainer(t, func(args ...string) *exec.Cmd { return exec.Command("sh", "-c", "kill -9 $$") })
	r := invoke(t, "sweep", w.path("run.yaml"), "learning_rate=1e-4,1e-2")
	if r.status != exitFailed || strings.Count(r.stdout, "failed, status 137") != 2 ||
		strings.Contains(r.stdout, "curves") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
}

// Whatever is wrong with a run of the sweep is told before the first one begins.
func TestSweepChecksFirst(t *testing.T) {
	w := newWorkshop(t)
	started := useTrainer(t, func(args ...string) *exec.Cmd { return exec.Command("false") })
	for want, args := range map[string][]string{
		"no key has several values":                        {"learning_rate=1e-4"},
		"run learning_rate=x: ":                            {"learning_rate=1e-4,x"},
		"run batch_tokens=100: batch_tokens is 100: ":      {"batch_tokens=128,100"},
		"run learning_rat=1: learning_rat=1: unknown key ": {"learning_rat=1,2"},
		"output_dir has several values":                    {"output_dir=a,b"},
		"resume is never":                                  {"seed=1,2", "resume=never"},
		"run memory.device=auto: memory.host: the run ":    {"memory.device=auto,1MB", "memory.host=1MB"},
		"is empty: remove a comma":                         {"seed=1,"},
	} {
		r := invoke(t, append([]string{"sweep", w.path("run.yaml")}, args...)...)
		if r.status != exitBadRequest || !strings.Contains(r.errorLine(), want) || r.stdout != "" {
			t.Errorf("%v: status %d, %s", args, r.status, r.stderr)
		}
	}
	if *started > 0 || len(w.files("out")) > 0 {
		t.Errorf("%d runs were started; there is %v", *started, w.files("out"))
	}
}

func TestVerdictLines(t *testing.T) {
	noise, yes, no := 0.25, true, false
	of := func(values map[string]string, loss float64) sweepSetting { return sweepSetting{values, loss} }
	a, b := of(map[string]string{"x": "1"}, 1), of(map[string]string{"x": "2"}, 1.5)
	for _, c := range []struct {
		v    sweepVerdict
		want string
	}{
		{sweepVerdict{Settings: []sweepSetting{a}, Seeds: 1}, "best: x=1, loss 1.0000"},
		{sweepVerdict{Settings: []sweepSetting{of(nil, 2)}, Seeds: 3}, "loss 2.0000, the mean of 3 seeds"},
		{sweepVerdict{Settings: []sweepSetting{a, b}, Seeds: 1, Difference: 0.5},
			"best: x=1, loss 1.0000\nthe next, x=2, is 0.5000 above it; whether that is more than chance is not known: seeds " +
				"tell, as in seed=1,2,3"},
		{sweepVerdict{Settings: []sweepSetting{a, b}, Seeds: 2, Difference: 0.5, Noise: &noise, WithinNoise: &no},
			"best: x=1, loss 1.0000, the mean of 2 seeds\nthe next, x=2, is 0.5000 above it, more than the noise of seeds: " +
				"they alone make differences of up to 0.2500 (95% of them)"},
		{sweepVerdict{Settings: []sweepSetting{a, b}, Seeds: 2, Difference: 0.125, Noise: &noise, WithinNoise: &yes},
			"best: x=1, loss 1.0000, the mean of 2 seeds\nthe next, x=2, is 0.1250 above it, within the noise of seeds: they " +
				"alone make differences of up to 0.2500 (95% of them)"},
	} {
		if got := strings.Join(verdictLines(&c.v, sweepKeys("x", "seed")), "\n"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func sweepKeys(names ...string) (keys []sweep.Key) {
	for _, name := range names {
		keys = append(keys, sweep.Key{Name: name})
	}
	return keys
}
