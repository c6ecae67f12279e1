package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/rl/server"
	"github.com/millrace/millrace/train/rl/server/servertest"
	"github.com/millrace/millrace/train/session"
)

// policyRun opens a run of a policy on bytes in bf16.
func policyRun(t *testing.T, env *session.Env, model string) *Run {
	t.Helper()
	c := smallConfig(t)
	if model != "" {
		c.Model = model
	}
	c.Datasets, c.ValSize, c.Eval = nil, 0, runfile.Eval{}
	c.Objective = runfile.Objective{Type: "policy"}
	c.LearningRate, c.WeightDecay = 1e-2, 0
	c.Precision.Compute, c.Precision.Master = "bf16", "split" // forward passes have the weights that are handed over
	r, err := Open(t.Context(), c, OpenOptions{Env: env, LogProbs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// reading samples with the model of a directory: the tokens are those of package generate, and the log-probabilities
// those of a run of the model that never trains.
type reading struct {
	env  *session.Env
	dir  string
	eval *Run
}

func (x *reading) Name() string { return "own" }

// endOfBytes ends a text of bytes.
const endOfBytes = 256

// seedOf is the seed of an answer: one is asked for at a time.
func seedOf(p sampler.Params, group int64, sample int) uint64 {
	return p.Seed + uint64(1000*group) + uint64(sample)
}

func (x *reading) Sample(ctx context.Context, prompts []sampler.Prompt, p sampler.Params,
	done func(sampler.Completion) error) error {
	for i, q := range prompts {
		text := make([]byte, len(q.IDs))
		for j, id := range q.IDs {
			text[j] = byte(id)
		}
		sample := q.Samples - 1 // the server asks for one answer by its number
		o := generate.Options{Model: x.dir, Prompt: string(text), Tokenizer: "bytes", MaxTokens: p.MaxTokens,
			Temperature: p.Temperature, Seed: seedOf(p, q.Group, sample), Compute: "bf16"}
		made, err := generate.Text(ctx, x.env, o)
		if err != nil {
			return err
		}
		c := sampler.Completion{Prompt: i, Sample: sample, IDs: made.Tokens, Finish: made.Finish, Version: p.Version}
		if made.Finish == sampler.FinishStop {
			c.IDs = append(c.IDs, endOfBytes)
		}
		c.LogProbs, err = x.eval.logProbsOf(ctx, append(slices.Clone(q.IDs), c.IDs...), len(q.IDs))
		if err == nil {
			err = done(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A step, a hand-over by files, and answers of a server with these weights: the trainer gives them the same
// log-probabilities, and the files have the same answers. Each round trains on the answers of the one
// before.
func TestHandOver(t *testing.T) {
	for _, engine := range []string{server.SGLang, server.VLLM} {
		t.Run(engine, func(t *testing.T) {
			env := newEnv(t)
			r := policyRun(t, env, "")
			plays := servertest.New(t, servertest.Options{ModelType: "llama", Vocab: 320, Positions: 128, Seed: 11,
				Open: func(dir string) (sampler.Sampler, func() error, error) {
					return &reading{env, dir, policyRun(t, env, dir)}, func() error { return nil }, nil
				}})
			var handed []server.Handover
			dir := filepath.Join(t.TempDir(), "policy")
			r.config.RL.Sampler = runfile.Sampler{URL: plays.URL, Engine: engine, Dir: dir}
			s, err := r.ServerSampler(t.Context(), []int32("say a"), func(h server.Handover) { handed = append(handed, h) })
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			prompts := []sampler.Prompt{{Group: 1, IDs: []int32("say a"), Samples: 2, Ends: []int32{endOfBytes}},
				{Group: 2, IDs: []int32("say b"), Samples: 2, Ends: []int32{endOfBytes}}}
			p := sampler.Params{MaxTokens: 6, Temperature: 1, Seed: 11}
			var before []string
			for round := range 2 {
				p.Version = int64(r.Steps())
				var rows []sampler.Completion
				err := s.Sample(t.Context(), prompts, p, func(c sampler.Completion) error {
					rows = append(rows, c)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if h := handed[round]; h.Version != int64(r.Steps()) || !(h.Most <= 5e-7) || h.Tensors+h.Moved == 0 && round > 0 {
					t.Errorf("round %d: %+v", round, h)
				}
				slices.SortFunc(rows, func(a, b sampler.Completion) int { return 10*(a.Prompt-b.Prompt) + a.Sample - b.Sample })
				out := filepath.Join(dir, string("ab"[round]))
				var seen []string
				for _, c := range rows {
					q := prompts[c.Prompt]
					seen = append(seen, fmt.Sprint(c.IDs))
					made, err := generate.Text(t.Context(), env, generate.Options{Model: out, Prompt: string("say ") +
						string("ab"[c.Prompt]), Tokenizer: "bytes", MaxTokens: 6, Temperature: 1, Compute: "bf16",
						Seed: seedOf(p, q.Group, c.Sample)})
					if err != nil {
						t.Fatal(err)
					}
					ids := made.Tokens
					if made.Finish == sampler.FinishStop {
						ids = append(ids, endOfBytes)
					}
					if !slices.Equal(ids, c.IDs) || made.Finish != c.Finish || c.Version != int64(round) {
						t.Errorf("round %d: the server's answer is %v, and the export's %v", round, c, ids)
					}
					own, err := r.logProbsOf(t.Context(), append(slices.Clone(q.IDs), c.IDs...), len(q.IDs))
					if err != nil {
						t.Fatal(err)
					}
					for i, lp := range own {
						if d := math.Abs(float64(lp - c.LogProbs[i])); !(d <= 5e-7) {
							t.Errorf("round %d: a log-probability is %v at the server and %v at the trainer", round, c.LogProbs[i], lp)
						}
					}
				}
				if slices.Equal(seen, before) {
					t.Errorf("round %d has the answers of the one before: %q", round, seen)
				}
				before = seen
				trainOn(t, r, prompts, rows)
			}

			plays.Stale = true
			p.Version = int64(r.Steps())
			err = s.Sample(t.Context(), prompts, p, func(sampler.Completion) error { return nil })
			if err == nil || !strings.Contains(err.Error(), "the server still has old weights") {
				t.Errorf("a server with old weights: %v", err)
			}
		})
	}
}

// trainOn takes a step on answers, of which each prompt's first one is the better one.
func trainOn(t *testing.T, r *Run, prompts []sampler.Prompt, rows []sampler.Completion) {
	t.Helper()
	var examples []data.Example
	for _, c := range rows {
		q := prompts[c.Prompt]
		ids := append(slices.Clone(q.IDs), c.IDs...)
		labels := slices.Clone(ids)
		for i := range q.IDs {
			labels[i] = data.Ignore
		}
		examples = append(examples, data.Example{InputIDs: ids, Labels: labels})
	}
	b, err := r.Batch(examples...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.Documents {
		known := make([]float32, b.Documents[i].Length) // at each token, of the one that follows
		copy(known[len(prompts[rows[i].Prompt].IDs)-1:], rows[i].LogProbs)
		b.Documents[i].Rollout = &objective.Rollout{Advantage: float64(1 - 2*rows[i].Sample), Sampler: known}
	}
	if _, err := r.Step(t.Context(), b, r.Update(0.05)); err != nil {
		t.Fatal(err)
	}
}

// What keeps a run from its server is said by the key.
func TestOpenServerRefuses(t *testing.T) {
	r := policyRun(t, newEnv(t), "")
	plays := servertest.New(t, servertest.Options{ModelType: "qwen3", Vocab: 320, Positions: 128})
	for want, s := range map[string]runfile.Sampler{
		"rl.sampler is own":                {},
		"the run trains one of kind llama": {URL: plays.URL, Engine: server.SGLang, Dir: t.TempDir()},
		"rl.sampler: dir: ":                {URL: plays.URL, Engine: server.SGLang, Dir: r.config.Model},
		"token_env is MILLRACE_TEST_NO_TOKEN": {URL: plays.URL, Engine: server.VLLM, Dir: t.TempDir(),
			TokenEnv: "MILLRACE_TEST_NO_TOKEN"},
	} {
		r.config.RL.Sampler = s
		_, _, err := r.OpenServer(t.Context(), nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A server on the run's device that has no room for its weights next to the run is refused before anything is sampled.
func TestSleepingServersNeedRoom(t *testing.T) {
	const gib = 1 << 30
	if err := checkSleeps(24*gib, 22*gib, 8e9); err == nil || !strings.Contains(err.Error(), "lower memory.device") {
		t.Errorf("22 of 24 GiB, and 8 billion parameters: %v", err)
	}
	for _, fits := range [][2]int64{{24 * gib, 8 * gib}, {0, 8 * gib}} {
		if err := checkSleeps(fits[0], fits[1], 8e9); err != nil {
			t.Errorf("%v: %v", fits, err)
		}
	}
}

// A loop has a server sample: each round by the weights of its step.
func TestLoopWithServer(t *testing.T) {
	env, c := newEnv(t), loopConfig(t)
	plays := servertest.New(t, servertest.Options{ModelType: "qwen3", Vocab: 320, Positions: 128, Seed: 3,
		Open: func(dir string) (sampler.Sampler, func() error, error) {
			return &reading{env, dir, policyRun(t, env, dir)}, func() error { return nil }, nil
		}})
	c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}
	c.RL.PromptsPerStep, c.RL.Samples, c.MaxSteps = 2, 2, 2
	c.RL.Sampler = runfile.Sampler{URL: plays.URL, Engine: server.SGLang, Dir: filepath.Join(t.TempDir(), "policy")}
	compared, told := 0, []string(nil)
	own := newEnv(t)
	own.Progress = lines(func(line string) {
		if strings.Contains(line, "nats from the trainer's on average") {
			compared++
		}
		told = append(told, line)
	})
	var records []trace.Metrics
	if _, err := Train(t.Context(), c, Options{Env: own, OnStep: func(m trace.Metrics) error {
		records = append(records, m)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	for i, m := range records {
		if d, ok := m.Objective["sampling/sampling_logp_difference/max"]; !ok || !(d < 0.01) ||
			m.Objective["staleness"] != 0 {
			t.Errorf("step %d: the server's log-probabilities are %v from the model's, %v", i, d, m.Objective)
		}
	}
	loads := 0
	for _, path := range plays.Paths() {
		if path == "POST /update_weights_from_disk" {
			loads++
		}
	}
	if loads != 2 {
		t.Errorf("weights were handed over %d times, want 2: %q", loads, plays.Paths())
	}
	if compared != 1 {
		t.Errorf("log-probabilities were compared at %d hand-overs, want the first one: %q", compared, told)
	}
}

// shifted samples by another sampler, and takes nats off what this says of its tokens.
type shifted struct {
	sampler.Sampler
	nats float32
}

func (s *shifted) Sample(ctx context.Context, prompts []sampler.Prompt, p sampler.Params,
	done func(sampler.Completion) error) error {
	return s.Sampler.Sample(ctx, prompts, p, func(c sampler.Completion) error {
		for i := range c.LogProbs {
			c.LogProbs[i] -= s.nats
		}
		return done(c)
	})
}

// A server that agrees with the trainer at first, and whose log-probabilities of later rounds are far from the
// trainer's, is warned of once. A distribution of another temperature is far by itself.
func TestLoopWarnsOfServer(t *testing.T) {
	for _, of := range []struct {
		nats        float32
		temperature float64
		warnings    int
	}{{0.6, 1, 1}, {0.4, 1, 0}, {0.6, 0.9, 0}} {
		env, c := newEnv(t), loopConfig(t)
		opened := 0
		plays := servertest.New(t, servertest.Options{ModelType: "qwen3", Vocab: 320, Positions: 128, Seed: 3,
			Open: func(dir string) (sampler.Sampler, func() error, error) {
				s := &shifted{Sampler: &reading{env, dir, policyRun(t, env, dir)}}
				if opened++; opened > 1 {
					s.nats = of.nats
				}
				return s, func() error { return nil }, nil
			}})
		c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}
		c.RL.PromptsPerStep, c.RL.Samples, c.RL.Temperature, c.RL.MaxTokens, c.MaxSteps = 1, 2, of.temperature, 2, 3
		c.LearningRate = 1e-6 // so that the model stays as it is
		c.RL.Sampler = runfile.Sampler{URL: plays.URL, Engine: server.VLLM, Dir: filepath.Join(t.TempDir(), "policy")}
		var warned []string
		own := newEnv(t)
		own.Progress = lines(func(line string) {
			if strings.HasPrefix(line, "warning: ") {
				warned = append(warned, line)
			}
		})
		if _, err := Train(t.Context(), c, Options{Env: own}); err != nil {
			t.Fatal(err)
		}
		const says = "its log-probabilities of a round are "
		if len(warned) != of.warnings || of.warnings > 0 && !(strings.Contains(warned[0], says) &&
			strings.Contains(warned[0], " nats from the trainer's on average: it has old weights, or another model")) {
			t.Errorf("%v nats off at temperature %v: warnings %q, want %d", of.nats, of.temperature, warned, of.warnings)
		}
	}
}
