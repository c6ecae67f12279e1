package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/serve"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
)

// controlledRun saves at its end alone, and evaluates after its last step.
func controlledRun(t *testing.T) *runfile.Config {
	c := hostsConfig(t)
	c.MaxSteps, c.Eval.Every = 8, 8
	c.Save = runfile.Save{Keep: 0, AtEnd: true}
	return c
}

// evaluatedSteps are the steps whose records have an evaluation.
func evaluatedSteps(t *testing.T, c *runfile.Config) (steps []int64) {
	for _, m := range metricsOf(t, c.OutputDir) {
		if m.EvalLoss != nil {
			steps = append(steps, m.Step)
		}
	}
	return steps
}

// The wishes of a user are followed at the next boundary after a step, on all hosts, and change no bit of the model.
// Those that come before the first step or after the last one, and those that the run cannot follow, are refused.
func TestControls(t *testing.T) {
	left := controlledRun(t)
	want, err := Train(t.Context(), left, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	for hosts := 1; hosts <= 2; hosts++ {
		c := *left
		c.OutputDir = t.TempDir()
		controls := &Controls{}
		if err := controls.Save(); !errors.Is(err, errNoSteps) {
			t.Errorf("before the run: %v", err)
		}
		asks := func(m trace.Metrics) error {
			switch m.Step {
			case 2:
				return controls.Save()
			case 4:
				return errors.Join(controls.EvaluateEvery(5), controls.EvaluateEvery(3), mustRefuse(controls.EvaluateEvery(0)))
			}
			return nil
		}
		var sum *Summary
		if hosts == 1 {
			sum, err = Train(t.Context(), &c, Options{Env: newEnv(t), Controls: controls, OnStep: asks})
			if err != nil {
				t.Fatal(err)
			}
		} else {
			all := trainHosts(t, hosts, &c, func(h *aHost) {
				if h.host == 0 {
					h.o = Options{Controls: controls, OnStep: asks}
				}
			})
			succeed(t, all)
			sum = all[0].sum
			if said := all[0].said.String(); !strings.Contains(said, "saving after step 3, as asked\n") ||
				!strings.Contains(said, "evaluating every 3 steps from step 5 on, as asked\n") {
				t.Errorf("it says %s", said)
			}
		}
		sameModel(t, sum.Model, want.Model)
		if got := stepsSaved(t, rundir.CheckpointsDir(&c)); !slices.Equal(got, []int{3, 8}) {
			t.Errorf("%d hosts: saved after steps %v", hosts, got)
		}
		if got := evaluatedSteps(t, &c); !slices.Equal(got, []int64{0, 6, 8}) {
			t.Errorf("%d hosts: evaluated after steps %v", hosts, got)
		}
		if err := controls.Save(); !errors.Is(err, errNoSteps) {
			t.Errorf("after the run: %v", err)
		}
	}
	c := smallConfig(t)
	controls := &Controls{}
	_, err = Train(t.Context(), c, Options{Env: newEnv(t), Controls: controls, OnStep: func(trace.Metrics) error {
		if err := controls.EvaluateEvery(1); err == nil || !strings.Contains(err.Error(), "no data to evaluate on") {
			t.Errorf("a run without such data: %v", err)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// mustRefuse makes an error of the lack of one.
func mustRefuse(err error) error {
	if err == nil {
		return errors.New("it is not refused")
	}
	return nil
}

// watchedRun is a control whose Stop closes the channel that stops the run.
type watchedRun struct {
	*Controls
	stop func()
}

func (r watchedRun) Stop() error { r.stop(); return nil }

// A run whose page is open, with twenty watchers, and which is asked for everything there, stopped and continued, has
// the weights of one that was left alone, to the bit.
func TestWatchedRunHasTheSameBits(t *testing.T) {
	left := controlledRun(t)
	want, err := Train(t.Context(), left, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	c := *left
	c.OutputDir = t.TempDir()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for start := range 2 {
		env, stop, once := newEnv(t), make(chan struct{}), sync.Once{}
		env.Stop = stop
		controls := &Controls{}
		s := serve.New(serve.Options{Dirs: []string{c.OutputDir}, Token: "a token of the test", Own: watchedRun{controls,
			func() { once.Do(func() { close(stop) }) }}})
		if err := s.Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		s.Start()
		base, _, _ := strings.Cut(s.URL(), "#")
		ctx, cancel := context.WithCancel(t.Context())
		var watchers sync.WaitGroup
		request := func(method, path string) (text string, err error) {
			q, err := http.NewRequestWithContext(ctx, method, base+path, nil)
			if err != nil {
				return "", err
			}
			q.Header.Set(serve.TokenHeader, "a token of the test")
			r, err := client.Do(q)
			if err != nil {
				return "", err
			}
			defer r.Body.Close()
			body, err := io.ReadAll(r.Body)
			if r.StatusCode >= 300 {
				err = fmt.Errorf("%s %s: %d %s", method, path, r.StatusCode, body)
			}
			return string(body), err
		}
		for range 20 {
			watchers.Go(func() { _, _ = request("GET", "api/events") }) // until the end
		}
		sum, err := Train(t.Context(), &c, Options{Env: env, Controls: controls, OnStep: func(m trace.Metrics) error {
			for _, path := range []string{"api/runs", "api/runs/r1/columns?names=loss", "api/runs/r1/plan", "metrics"} {
				if _, err := request("GET", path); err != nil {
					return err
				}
			}
			asks := map[int64]string{1: "save", 2: "evaluate-every?steps=1", 4: "stop"}[m.Step]
			if asks == "" {
				return nil
			}
			_, err := request("POST", "api/runs/r1/"+asks)
			return err
		}})
		plan, errPlan := request("GET", "api/runs/r1/plan")
		if errPlan != nil || !strings.Contains(plan, `"timeline":{"step":1,"simulated":true`) {
			t.Errorf("the plan has no step: %v %.300s", errPlan, plan)
		}
		cancel()
		s.Close()
		watchers.Wait()
		switch {
		case start == 0 && !errors.Is(err, ErrInterrupted):
			t.Fatalf("stopped by its page: %v", err)
		case start == 1 && err != nil:
			t.Fatal(err)
		case start == 1:
			sameModel(t, sum.Model, want.Model)
		}
	}
	if got := stepsSaved(t, rundir.CheckpointsDir(&c)); !slices.Equal(got, []int{2, 4, 8}) {
		t.Errorf("saved after steps %v", got)
	}
	if got := evaluatedSteps(t, &c); !slices.Equal(got, []int64{0, 3, 4, 8}) {
		t.Errorf("evaluated after steps %v", got)
	}
}
