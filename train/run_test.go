package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

func withEval(c *runfile.Config) *runfile.Config {
	c.Eval = runfile.Eval{Datasets: fewOf(c), Every: 6}
	return c
}

// fewOf is the first ten documents of what a run trains on. More would take longer than the training.
func fewOf(c *runfile.Config) []data.Source {
	lines, err := os.ReadFile(c.Datasets[0].Path)
	if err != nil {
		panic(err)
	}
	few := c.Datasets[0].Path + ".few.jsonl"
	if err := os.WriteFile(few, bytes.Join(bytes.SplitAfterN(lines, []byte{'\n'}, 11)[:10], nil), 0o666); err != nil {
		panic(err)
	}
	return []data.Source{{Path: few, Type: c.Datasets[0].Type}}
}

// A loop of the caller's evaluates on what Train evaluates on, with the same bits, also on what val_size holds out of
// the data that it trains on.
func TestRunEvaluates(t *testing.T) {
	for name, change := range map[string]func(c *runfile.Config){
		"data sets": func(c *runfile.Config) { c.Eval = withEval(c).Eval },
		"val_size":  func(c *runfile.Config) { c.ValSize = 0.2 },
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			change(c)
			want, err := Train(t.Context(), c, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			r := openRun(t, c, "", OpenOptions{})
			before, err := r.Evaluate(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			walk(t, r, c, c.MaxSteps)
			b, err := r.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			after, err := r.Evaluate(t.Context())
			if _, err := r.Step(t.Context(), b, r.Update(1e-3)); err == nil || !strings.Contains(err.Error(), "no position") {
				t.Errorf("a step on a batch that the evaluation has overwritten: error %v", err)
			}
			if err != nil || before.Loss != *want.EvalBefore || after.Loss != *want.EvalAfter {
				t.Errorf("%v, after it %v, error %v; Train has %v and %v", before, after, err, *want.EvalBefore, *want.EvalAfter)
			}
		})
	}
	if _, err := openRun(t, smallConfig(t), "", OpenOptions{}).Evaluate(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("without data: %v", err)
	}
}

func TestTrainLearns(t *testing.T) {
	for name, change := range map[string]func(*runfile.Config){
		"f32": func(*runfile.Config) {},
		"bf16 streamed": func(c *runfile.Config) {
			c.Precision, c.Memory.Device = runfile.Defaults().Precision, budget(t, "3MiB").Device
		},
		"bf16 random": func(c *runfile.Config) { c.Precision, c.Init = runfile.Defaults().Precision, "random" },
		"8-bit moments": func(c *runfile.Config) {
			c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "8bit"}
		},
		"4-bit moments": func(c *runfile.Config) {
			c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: "4bit"}
		},
	} {
		if testing.Short() && name != "bf16 streamed" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := withEval(smallConfig(t))
			change(c)
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			sum, err := Train(context.Background(), c, Options{Env: newEnv(t), Trace: true})
			if err != nil {
				t.Fatal(err)
			}
			if sum.Steps != 12 || !(sum.LastLoss < sum.FirstLoss-1) || sum.EvalBefore == nil || sum.EvalAfter == nil || !(*sum.EvalAfter < *sum.EvalBefore-1) {
				t.Errorf("%+v", sum)
			}
			checkMetrics(t, c, sum)

			// The model that was written is the one that was evaluated.
			l, err := verbs.Evaluate(context.Background(), newEnv(t), verbs.EvalOptions{Model: sum.Model, Data: c.Eval.Datasets,
				Tokenizer:   "bytes",
				SequenceLen: c.SequenceLen, Compute: c.Precision.Compute})
			if err != nil || math.Abs(l.Loss-*sum.EvalAfter) > 1e-6 {
				t.Errorf("loss %+v of the written model (%v), %v in the run", l, err, *sum.EvalAfter)
			}
			// run.yaml is what was run: it can be read again.
			again, err := runfile.Read(filepath.Join(c.OutputDir, "run.yaml"), []string{"output_dir=" + filepath.Join(t.TempDir(), "again")})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Train(context.Background(), again, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			sameModel(t, filepath.Join(again.OutputDir, "model"), sum.Model)
			var events any
			doc, err := os.ReadFile(filepath.Join(c.OutputDir, "trace.json"))
			if err := errors.Join(err, json.Unmarshal(doc, &events)); err != nil {
				t.Errorf("trace: %v", err)
			}
		})
	}
}

// checkMetrics looks at every line and every field of metrics.jsonl.
func checkMetrics(t *testing.T, c *runfile.Config, sum *Summary) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(c.OutputDir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(doc), "\n"), "\n")
	if len(lines) != sum.Steps+1 {
		t.Fatalf("%d lines for %d steps and the evaluation before", len(lines), sum.Steps)
	}
	keys := []string{"clip_scale", "device_peak_bytes", "disk_read_bytes", "disk_written_bytes", "entropy", "grad_norm",
		"host_peak_bytes", "lanes",
		"learning_rate", "loss", "mean_token_accuracy", "model_tflops", "step", "step_sec", "target_tokens", "time",
		"tokens", "tokens_per_sec"}
	all, err := trace.ReadMetrics(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	b := all[0]
	if b.Step != 0 || *b.EvalLoss != *sum.EvalBefore || !math.IsNaN(b.Loss) || b.Tokens != 0 || b.Time == nil {
		t.Errorf("before training: %s", lines[0])
	}
	all, lines = all[1:], lines[1:]
	var tokens, targets int64
	for i, m := range all {
		var object map[string]any
		if err := json.Unmarshal([]byte(lines[i]), &object); err != nil {
			t.Fatal(err)
		}
		want := slices.Clone(keys)
		if step := i + 1; step%6 == 0 {
			want = append(want, "eval_loss", "eval_entropy", "eval_mean_token_accuracy")
		}
		if i > 0 && all[i-1].LearningRate > 0 {
			want = append(want, "max_update_over_lr")
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(object)); !slices.Equal(got, want) {
			t.Errorf("step %d has the fields %v, want %v", i+1, got, want)
		}
		if m.Step != int64(i+1) || !(m.Loss > 0 && m.GradNorm > 0 && m.ClipScale > 0 && m.ClipScale <= 1 && m.LearningRate >= 0) ||
			m.Tokens < 1 || m.Tokens > int64(c.BatchTokens) || m.TargetTokens < 1 || m.TargetTokens > m.Tokens || !(m.TokensPerSec > 0 &&
			m.StepSec > 0 && m.ModelTFLOPS > 0) || m.DevicePeakBytes < 1 || m.HostPeakBytes < 1 || m.Lanes[trace.Compute] <= 0 {
			t.Errorf("step %d: %s", i+1, lines[i])
		}
		if i > 0 && m.Lanes[trace.Update] <= 0 {
			t.Errorf("step %d: the update of the step before takes no time", i+1)
		}
		tokens, targets = tokens+m.Tokens, targets+m.TargetTokens
	}
	if tokens != sum.Tokens || targets != sum.TargetTokens {
		t.Errorf("%d tokens and %d targets in the metrics, %d and %d in the summary", tokens, targets, sum.Tokens, sum.TargetTokens)
	}
}

// modelFiles are the files of a model without its card, which names the run.
func modelFiles(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := files(t, dir)
	delete(all, hf.CardName)
	return all
}

func sameModel(t *testing.T, got, want string) {
	t.Helper()
	a, b := modelFiles(t, got), modelFiles(t, want)
	if len(a) == 0 || !maps.Equal(a, b) {
		t.Errorf("%s and %s differ", got, want)
	}
}

// The same seed gives the same files, another one does not.
func TestTrainRepeats(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps = 4
	run := func(seed uint64) string {
		t.Helper()
		c := *c
		c.Seed, c.OutputDir = seed, filepath.Join(t.TempDir(), "run")
		sum, err := Train(context.Background(), &c, Options{Env: newEnv(t)})
		if err != nil {
			t.Fatal(err)
		}
		return sum.Model
	}
	first := run(42)
	sameModel(t, run(42), first)
	if other := run(43); maps.Equal(modelFiles(t, other), modelFiles(t, first)) {
		t.Error("the seed changes nothing")
	}
}

// stopper is a progress writer that asks for an end when it reads of a step.
type stopper struct {
	at   string
	stop chan struct{}
}

func (s *stopper) Write(p []byte) (int, error) {
	if s.stop != nil && strings.HasPrefix(strings.TrimSpace(string(p)), s.at) {
		close(s.stop)
		s.stop = nil
	}
	return len(p), nil
}

// A run that is stopped finishes its step and leaves a checkpoint of it, and no model.
func TestTrainStops(t *testing.T) {
	c := smallConfig(t)
	env := newEnv(t)
	stop := make(chan struct{})
	env.Stop, env.Progress = stop, &stopper{"step  3/12", stop}
	sum, err := Train(context.Background(), c, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || sum == nil || sum.Steps != 3 || filepath.Base(sum.Checkpoint) != "step-000003" {
		t.Fatalf("%+v, error %v", sum, err)
	}
	if files(t, filepath.Join(c.OutputDir, "model")) != nil {
		t.Error("a model was written")
	}
}

// A run that is cancelled ends at once, with an error and without a model.
func TestTrainIsCancelled(t *testing.T) {
	c := smallConfig(t)
	ctx, cancel := context.WithCancel(context.Background())
	env := newEnv(t)
	env.Progress = writeFunc(func(p []byte) {
		if strings.HasPrefix(string(p), "step") {
			cancel()
		}
	})
	_, err := Train(ctx, c, Options{Env: env})
	if !errors.Is(err, context.Canceled) || errors.Is(err, blame.ErrRequest) {
		t.Fatalf("error %v", err)
	}
	if files(t, filepath.Join(c.OutputDir, "model")) != nil {
		t.Error("a model was written")
	}
}

type writeFunc func(p []byte)

func (f writeFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

// rewrite writes the weights of a model again, changed.
func rewrite(t *testing.T, dir string, change func(m *model.Model, values map[string][]float32)) {
	t.Helper()
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	values := readFile(t, filepath.Join(dir, "model.safetensors"))
	change(m, values)
	writeTensors(t, filepath.Join(dir, "model.safetensors"), m, values)
}

const someWeight = "model.layers.1.mlp.up_proj.weight"

// Whatever is wrong with what was asked for is one line, before anything is written.
func TestTrainRefuses(t *testing.T) {
	jsonl := func(text string) func(*testing.T, *runfile.Config) {
		return func(t *testing.T, c *runfile.Config) {
			path := filepath.Join(t.TempDir(), "bad.jsonl")
			write(t, path, text)
			c.Datasets[0].Path = path
		}
	}
	for name, x := range map[string]struct {
		break_ func(*testing.T, *runfile.Config)
		want   string
	}{
		"no model":    {func(t *testing.T, c *runfile.Config) { c.Model = filepath.Join(t.TempDir(), "none") }, "no such path"},
		"a file":      {func(t *testing.T, c *runfile.Config) { c.Model = filepath.Join(c.Model, "config.json") }, "not a directory"},
		"no config":   {func(t *testing.T, c *runfile.Config) { c.Model = t.TempDir() }, "config.json"},
		"family":      {func(t *testing.T, c *runfile.Config) { c.Model = writeConfig(t, map[string]any{"model_type": "bert"}) }, "bert"},
		"no weights":  {func(t *testing.T, c *runfile.Config) { c.Model = writeConfig(t, nil) }, "safetensors"},
		"cut weights": {func(t *testing.T, c *runfile.Config) { cut(t, filepath.Join(c.Model, "model.safetensors")) }, "safetensors"},
		"garbage": {func(t *testing.T, c *runfile.Config) {
			write(t, filepath.Join(c.Model, "model.safetensors"), "garbage!!")
		}, "safetensors"},
		"wrong shape":  {func(t *testing.T, c *runfile.Config) { reshape(t, c.Model) }, "shape"},
		"other layers": {func(t *testing.T, c *runfile.Config) { reconfigure(t, c.Model, "num_hidden_layers", 3) }, "model.layers.2"},
		"fewer layers": {func(t *testing.T, c *runfile.Config) { reconfigure(t, c.Model, "num_hidden_layers", 1) }, "model.layers.1"},
		"missing shard": {func(t *testing.T, c *runfile.Config) {
			from := c.Model
			c.Model = shards(t, from)
			if err := os.Remove(filepath.Join(c.Model, "model-00002-of-00002.safetensors")); err != nil {
				t.Fatal(err)
			}
		}, "model-00002-of-00002.safetensors"},
		"NaN": {func(t *testing.T, c *runfile.Config) {
			rewrite(t, c.Model, func(_ *model.Model, v map[string][]float32) { v[someWeight][7] = float32(math.NaN()) })
		}, someWeight},
		"infinity": {func(t *testing.T, c *runfile.Config) {
			rewrite(t, c.Model, func(_ *model.Model, v map[string][]float32) { v["lm_head.weight"][0] = float32(math.Inf(-1)) })
		}, "lm_head.weight"},
		"vocabulary":    {func(t *testing.T, c *runfile.Config) { c.Model = writeModel(t, map[string]any{"vocab_size": 256}) }, "vocabulary"},
		"no tokenizer":  {func(t *testing.T, c *runfile.Config) { c.Tokenizer = "auto" }, "tokenizer"},
		"bad tokenizer": {func(t *testing.T, c *runfile.Config) { c.Tokenizer = filepath.Join(c.Model, "config.json") }, "config.json"},
		"no data":       {func(t *testing.T, c *runfile.Config) { c.Datasets[0].Path = filepath.Join(t.TempDir(), "none.jsonl") }, "none.jsonl"},
		"empty data":    {jsonl(""), "bad.jsonl"},
		"bad row":       {jsonl("{\"text\": \"a\"}\n{\"text\": \n"), "bad.jsonl:2"},
		"no field":      {jsonl("{\"txt\": \"a\"}\n"), "text"},
		"not UTF-8":     {jsonl("{\"text\": \"a\xff\"}\n"), "UTF-8"},
		"no targets":    {jsonl("{\"text\": \"\"}\n"), ""},
		"long rows":     {func(t *testing.T, c *runfile.Config) { c.SequenceLen, c.BatchTokens = 256, 256 }, "sequence_len"},
		"host budget":   {func(t *testing.T, c *runfile.Config) { c.Memory.Host = budget(t, "1MiB").Device }, "memory.host"},
		"device budget": {func(t *testing.T, c *runfile.Config) { c.Memory.Device = budget(t, "1kB").Device }, "memory.device"},
		"groups":        {func(t *testing.T, c *runfile.Config) { c.Numerics.Groups = 3 }, "numerics.groups is 3"},
		"micro-batch":   {func(t *testing.T, c *runfile.Config) { c.Numerics.MicroBatch = 3 }, "micro_batch"},
		"eval data": {func(t *testing.T, c *runfile.Config) {
			c.Eval.Datasets = []data.Source{{Path: "none.txt", Type: data.Text}}
		}, "none.txt"},
		"a run is there": {func(t *testing.T, c *runfile.Config) { mkdir(t, filepath.Join(c.OutputDir, "model")) }, "output_dir"},
		"output is a file": {func(t *testing.T, c *runfile.Config) {
			mkdir(t, filepath.Dir(c.OutputDir))
			write(t, c.OutputDir, "in the way")
		}, "output_dir"},
		"output below a file": {func(t *testing.T, c *runfile.Config) {
			c.OutputDir = filepath.Join(c.Model, "config.json", "out")
		}, "output_dir"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HF_HUB_OFFLINE", "1")
			t.Setenv("HF_HUB_CACHE", t.TempDir())
			c := smallConfig(t)
			x.break_(t, c)
			before := files(t, filepath.Dir(c.OutputDir))
			_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
			refused(t, err, x.want)
			if after := files(t, filepath.Dir(c.OutputDir)); !maps.Equal(after, before) {
				t.Errorf("the output directory has changed: %v", slices.Collect(maps.Keys(after)))
			}
		})
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// cut takes the last bytes of a file.
func cut(t *testing.T, path string) {
	t.Helper()
	st, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, st.Size()-100)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reconfigure changes a key of config.json.
func reconfigure(t *testing.T, dir, key string, value any) {
	t.Helper()
	c := maps.Clone(bytesConfig)
	c[key] = value
	write(t, filepath.Join(dir, "config.json"), string(mustJSON(c)))
}

// reshape gives the directory the weights of a model with a wider MLP.
func reshape(t *testing.T, dir string) {
	t.Helper()
	wider, err := os.ReadFile(filepath.Join(writeModel(t, map[string]any{"intermediate_size": 100}), "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "model.safetensors"), string(wider))
}

// shards writes a model again in several files.
func shards(t *testing.T, from string) string {
	t.Helper()
	m, err := model.Read(from)
	if err != nil {
		t.Fatal(err)
	}
	c, err := hf.ReadConfig(from)
	if err != nil {
		t.Fatal(err)
	}
	values := readFile(t, filepath.Join(from, "model.safetensors"))
	total := 0
	var specs []hf.TensorSpec
	for _, x := range m.Tensors() {
		specs = append(specs, hf.TensorSpec{Name: x.Name, DType: tensor.F32, Shape: x.Shape})
		total += 4 * int(x.Shape.Elems())
	}
	dir := filepath.Join(t.TempDir(), "shards")
	err = hf.WriteModel(dir, hf.Model{Config: c.Raw(), Tensors: specs, Data: func(yield func(hf.Piece, error) bool) {
		for _, s := range specs {
			if !yield(hf.Piece{Name: s.Name, Bytes: hf.BytesOf(values[s.Name])}, nil) {
				return
			}
		}
	}}, hf.WriteOptions{ShardBytes: int64(total)*2/3 + 1})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Weights that an update has made infinite or NaN end the run, whatever follows the update: they are neither saved nor
// exported.
func TestSpoiledWeightsEndTheRun(t *testing.T) {
	for name, change := range map[string]func(*runfile.Config){
		"in the last step": func(c *runfile.Config) { c.MaxSteps = 1 },
		"before a step":    func(c *runfile.Config) { c.Save.Every = 1 },
		"in the backward pass": func(c *runfile.Config) {
			c.Memory, c.MaxGradNorm, c.MaxSteps = budget(t, "3MiB"), 0, 1
			c.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
		},
		"before an evaluation": func(c *runfile.Config) {
			c.Eval, c.MaxSteps = runfile.Eval{Datasets: fewOf(c), Every: 1}, 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.WarmupSteps, c.LearningRate = 0, 1e38 // a tenth of which is more than fp32 has
			c.AdamBetas[0] = 0.99
			change(c)
			_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
			if err == nil || !strings.Contains(err.Error(), "step 1: its update made") {
				t.Errorf("%v", err)
			}
			for _, left := range []string{"model", "checkpoints/step-000001"} {
				if _, err := os.Stat(filepath.Join(c.OutputDir, left)); err == nil {
					t.Errorf("%s is there", left)
				}
			}
		})
	}
}

// A run that does not clip ends where gradients are not finite, and its checkpoints are of before.
func TestUnclippedRunsEndWhereGradientsAreNotFinite(t *testing.T) {
	for name, mem := range map[string]runfile.Memory{"in memory": {}, "streamed": budget(t, "3MiB")} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.Memory, c.MaxGradNorm, c.LearningRate, c.Save = mem, 0, 1e30, runfile.Save{Every: 1}
			c.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
			_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
			if err == nil || !strings.Contains(err.Error(), "max_grad_norm") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v", err)
			}
			saved, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(c))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range saved {
				sumsOf(t, s.Dir)
			}
		})
	}
}
