package train

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/rl/server"
	"github.com/millrace/millrace/train/rl/server/servertest"
)

// judgeArg is the first argument of a process of the test program that judges: the second is a server that it asks
// about each of its lines.
const judgeArg = "judge-by"

// judgeBy judges what is on standard input, a line after the other, by a server.
func judgeBy(url string) int {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		answer, err := http.Post(url, "application/json", strings.NewReader("["+in.Text()+"]"))
		if err != nil {
			return 1
		}
		var said []json.RawMessage
		if err := json.NewDecoder(answer.Body).Decode(&said); err != nil || len(said) != 1 {
			return 1
		}
		fmt.Println(string(said[0]))
	}
	return 0
}

// A loop that is asked to stop while a judge thinks, a server or a process, ends at once, saves the steps that it has
// taken, and continues to the bits of a loop that was left alone. One whose context ends does not save, and continues
// as well.
func TestLoopStopsWhileAJudgeThinks(t *testing.T) {
	c := loopConfig(t)
	c.Save.Every, c.MaxSteps = 0, 3
	to, err := url.Parse(c.RL.Reward[0].URL)
	if err != nil {
		t.Fatal(err)
	}
	loopRecords(t, c)
	want := loopWeights(t, c)
	for name, how := range map[string]struct{ isProcess, cancels bool }{"a server": {false, false},
		"a process": {true, false}, "a process, whose loop is canceled": {true, true}} {
		t.Run(name, func(t *testing.T) {
			stop, allSampled, thinks, once := make(chan struct{}), make(chan struct{}), atomic.Bool{}, sync.Once{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			proxy := httputil.NewSingleHostReverseProxy(to)
			judge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !thinks.Load() {
					proxy.ServeHTTP(w, r)
					return
				}
				_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the other end is gone
				<-allSampled
				once.Do(func() {
					if how.cancels {
						cancel()
					} else {
						close(stop)
					}
				})
				<-r.Context().Done() // until the run gives the request up, or ends the process
			}))
			t.Cleanup(judge.Close)
			own := *c
			own.OutputDir = filepath.Join(t.TempDir(), "run")
			own.RL.Reward = []runfile.Reward{{Name: "letter", URL: judge.URL}}
			if how.isProcess {
				own.RL.Reward = []runfile.Reward{{Name: "letter", Command: []string{os.Args[0], judgeArg, judge.URL}}}
			}
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
			ended, first := ErrInterrupted, 2
			if how.cancels {
				ended, first = context.Canceled, 1
			}
			if _, err = Train(ctx, &own, Options{Env: env}); !errors.Is(err, ended) || scored != 2 {
				t.Fatalf("after %d rounds of answers the run ended with %v", scored, err)
			}
			thinks.Store(false)
			if all := loopRecords(t, &own); len(all) != 4-first || all[0].Step != int64(first) {
				t.Errorf("it continues with %+v", all)
			}
			if !bytes.Equal(loopWeights(t, &own), want) {
				t.Error("a loop that was stopped has other weights")
			}
		})
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

// A loop that is asked to stop while its reference reads ends at once, saves the steps that it has taken, and continues
// there: the reference reads what it has not read yet.
func TestLoopStopsWhileAReferenceReads(t *testing.T) {
	c := heldLoop(t, 0.05)
	// So that the answers are 1,024, which are read at once, and 4.
	c.RL.Samples, c.RL.MaxTokens, c.BatchTokens = 257, 2, 8192
	c.RL.Reward = []runfile.Reward{{Name: "a", Type: runfile.RewardRegex, Pattern: "[a-m]"}}
	c.Save.Every, c.MaxSteps = 0, 2
	loopRecords(t, c)
	want := loopWeights(t, c)

	own := *c
	own.OutputDir = filepath.Join(t.TempDir(), "run")
	stopped, again := newEnv(t), newEnv(t)
	stop := make(chan struct{})
	stopped.Stop = stop
	reads := 0
	count := func(where string) error {
		if where == "reference" {
			if reads++; reads == 3 { // the second round's first part
				close(stop)
			}
		}
		return nil
	}
	stopped.Tests.Reached, again.Tests.Reached = count, count
	if _, err := Train(t.Context(), &own, Options{Env: stopped}); !errors.Is(err, ErrInterrupted) || reads != 3 {
		t.Fatalf("after %d parts the run ended with %v", reads, err)
	}
	var steps []int64
	if _, err := Train(t.Context(), &own, Options{Env: again, OnStep: func(m trace.Metrics) error {
		steps = append(steps, m.Step)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if len(steps) != 1 || steps[0] != 2 || reads != 4 {
		t.Errorf("it continues with steps %v, and the reference has read %d parts, want 4", steps, reads)
	}
	if !bytes.Equal(loopWeights(t, &own), want) {
		t.Error("a loop that was stopped has other weights")
	}
}
