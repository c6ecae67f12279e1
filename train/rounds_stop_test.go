package train

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/rl/server"
	"github.com/millrace/millrace/train/rl/server/servertest"
)

// A loop that is asked to stop while a judge thinks ends at once, saves the steps that it has taken, and continues to
// the bits of a loop that was left alone.
func TestLoopStopsWhileAJudgeThinks(t *testing.T) {
	c := loopConfig(t)
	c.Save.Every, c.MaxSteps = 0, 3
	to, err := url.Parse(c.RL.Reward[0].URL)
	if err != nil {
		t.Fatal(err)
	}
	stop, allSampled, thinks, once := make(chan struct{}), make(chan struct{}), atomic.Bool{}, sync.Once{}
	proxy := httputil.NewSingleHostReverseProxy(to)
	judge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !thinks.Load() {
			proxy.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the other end is gone
		<-allSampled
		once.Do(func() { close(stop) })
		<-r.Context().Done() // until the run gives the request up
	}))
	t.Cleanup(judge.Close)
	c.RL.Reward[0].URL = judge.URL
	loopRecords(t, c)
	want := loopWeights(t, c)

	own := *c
	own.OutputDir = filepath.Join(t.TempDir(), "run")
	env := newEnv(t)
	env.Stop = stop
	scored := 0
	env.Tests.Reached = func(where string) error {
		if where == "scoring" {
			if scored++; scored == 2 {
				close(allSampled)
			}
		}
		if scored == 1 && where == "sampling" { // of the second round, after its first answer
			thinks.Store(true)
		}
		return nil
	}
	_, err = Train(t.Context(), &own, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || scored != 2 {
		t.Fatalf("after %d rounds of answers the run ended with %v", scored, err)
	}
	thinks.Store(false)
	if all := loopRecords(t, &own); len(all) != 2 || all[0].Step != 2 {
		t.Errorf("it continues with %+v", all)
	}
	if !bytes.Equal(loopWeights(t, &own), want) {
		t.Error("a loop that was stopped has other weights")
	}
}

// waiting samples by another sampler, or never ends.
type waiting struct {
	sampler.Sampler
	stop func() // is told that an answer is asked for that never comes; nil: answers come
}

func (w *waiting) Sample(ctx context.Context, prompts []sampler.Prompt, p sampler.Params,
	done func(sampler.Completion) error) error {
	if w.stop == nil {
		return w.Sampler.Sample(ctx, prompts, p, done)
	}
	w.stop()
	<-ctx.Done()
	return ctx.Err()
}

// A loop that is asked to stop while a server samples ends at once, and continues.
func TestLoopStopsWhileAServerSamples(t *testing.T) {
	env, c := newEnv(t), loopConfig(t)
	stop, once, isOver := make(chan struct{}), sync.Once{}, atomic.Bool{}
	opened := 0
	plays := servertest.New(t, servertest.Options{ModelType: "qwen3", Vocab: 320, Positions: 128, Seed: 3,
		Open: func(dir string) (sampler.Sampler, func() error, error) {
			w := &waiting{Sampler: &reading{env, dir, policyRun(t, env, dir)}}
			if opened++; opened > 1 && !isOver.Load() {
				w.stop = func() { once.Do(func() { close(stop) }) }
			}
			return w, func() error { return nil }, nil
		}})
	c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}
	c.RL.PromptsPerStep, c.RL.Samples, c.MaxSteps = 2, 2, 2
	c.RL.Sampler = runfile.Sampler{URL: plays.URL, Engine: server.SGLang, Dir: filepath.Join(t.TempDir(), "policy")}
	stopped := newEnv(t)
	stopped.Stop = stop
	if _, err := Train(t.Context(), c, Options{Env: stopped}); !errors.Is(err, ErrInterrupted) || opened != 2 {
		t.Fatalf("after %d hand-overs the run ended with %v", opened, err)
	}
	isOver.Store(true)
	if all := loopRecords(t, c); len(all) != 1 || all[0].Step != 2 {
		t.Errorf("it continues with %+v", all)
	}
}
