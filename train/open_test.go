package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

// openRun opens a run for a test, which closes it.
func openRun(t *testing.T, c *runfile.Config, cache string, o OpenOptions) *Run {
	t.Helper()
	env := newEnv(t)
	env.Tests.ProgramBytes, env.CacheDir = 1, cache
	o.Env = env
	r, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// walk takes steps up to one with Train's learning rates, and looks at the model between two of them.
func walk(t *testing.T, r *Run, c *runfile.Config, to int) (losses []float64) {
	t.Helper()
	rates := c.Schedule(c.MaxSteps)
	for r.Steps() < to {
		b, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.Step(t.Context(), b, r.Update(rates.At(r.Steps()+1)))
		if err != nil {
			t.Fatal(err)
		}
		if r.Steps()%5 == 2 {
			if _, err := r.Eval(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		losses = append(losses, res.Loss())
	}
	return losses
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A loop of the caller's that does what Train does ends with Train's bits, wherever the state is, also where it is
// saved and continued elsewhere, and its checkpoints export like Train's.
func TestRunIsTraining(t *testing.T) {
	for name, precision := range map[string]runfile.Precision{
		"f32":  {Compute: "f32", Master: "f32", Moments: "f32"},
		"bf16": runfile.Defaults().Precision,
	} {
		if testing.Short() && name != "bf16" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			base := smallConfig(t)
			base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9}) // enough for the disk
			base.Precision, base.Numerics = precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
			var losses []float64
			_, err := Train(t.Context(), base, Options{Env: newEnv(t), OnStep: func(m trace.Metrics) error {
				losses = append(losses, m.Loss)
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			want := readAll(t, filepath.Join(base.OutputDir, rundir.LastModel, "model.safetensors"))
			dir := t.TempDir()
			from := ""
			var got []float64
			for i, p := range placementsOf(t, base) {
				c := *base
				c.Memory = p.memory
				r := openRun(t, &c, p.cache, OpenOptions{From: from})
				if r.Steps() != 3*i {
					t.Errorf("it continues after step %d, want %d", r.Steps(), 3*i)
				}
				got = append(got, walk(t, r, &c, 3*(i+1))...)
				if from, err = r.Save(t.Context(), dir); err != nil {
					t.Fatal(err)
				}
				if i == 3 {
					exportsAlike(t, r, base, from, want)
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(got, losses) {
				t.Errorf("losses %v, Train's %v", got, losses)
			}
		})
	}
}

// exportsAlike holds the model of a run, its checkpoint and the file that Train wrote against each other.
func exportsAlike(t *testing.T, r *Run, c *runfile.Config, saved string, want []byte) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "exported")
	if err := r.Export(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readAll(t, filepath.Join(out, "model.safetensors")), want) {
		t.Error("the model is not Train's")
	}
	if err := r.Export(t.Context(), out); err == nil {
		t.Error("a model is written over another")
	}
	again := filepath.Join(t.TempDir(), "again")
	if _, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Checkpoint: saved, Model: c.Model,
		Dir: again}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readAll(t, filepath.Join(again, "model.safetensors")), want) {
		t.Error("the checkpoint's model is not Train's")
	}
	open, err := checkpoint.Open(vfs.OS{}, saved)
	if err != nil {
		t.Fatal(err)
	}
	m, err := open.Model()
	if err != nil {
		t.Fatal(err)
	}
	w, values := open.Weights(m), readFile(t, filepath.Join(out, "model.safetensors"))
	for _, x := range m.Tensors() {
		mine, err := r.Tensor(t.Context(), x.Name)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := w.Tensor(x.Name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(mine, values[x.Name]) || !slices.Equal(kept, mine) {
			t.Errorf("%s differs between the run, the checkpoint and the file", x.Name)
		}
	}
	// Any range of a part is that of the whole part.
	for part := range m.Parts {
		layout := m.Parts[part].Layout
		whole, err := open.Weights(m).Part(part, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, cut := range [][2]int64{{0, 1}, {1, layout.WeightElems - 2}, {layout.WeightElems / 3, layout.WeightElems / 2},
			{layout.WeightElems, 0}} {
			got, err := w.Range(part, cut[0], cut[1], true)
			if err != nil {
				t.Fatal(err)
			}
			for i := range cut[1] {
				if at := cut[0] + i; whole.F32 != nil && got.F32[i] != whole.F32[at] ||
					whole.F32 == nil && (got.High[i] != whole.High[at] || at < layout.StateElems && got.Low[i] != whole.Low[at]) {
					t.Fatalf("part %d, range %v: element %d differs", part, cut, i)
				}
			}
		}
	}
	for _, read := range []func() ([]float32, error){
		func() ([]float32, error) { return r.Tensor(t.Context(), "lm_tail.weight") },
		func() ([]float32, error) { return w.Tensor("lm_tail.weight") },
	} {
		if _, err := read(); err == nil || !strings.Contains(err.Error(), `no tensor "lm_tail.weight"`) {
			t.Errorf("error %v", err)
		}
	}
}

// The logits of a row give the loss that Eval has, and with own examples a batch need not be full.
func TestRunLogits(t *testing.T) {
	c := smallConfig(t)
	c.Datasets = nil
	r := openRun(t, c, "", OpenOptions{LogitRows: c.BatchTokens, LogProbs: true})
	tok, err := r.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode("the wheel turns", false)
	b, err := r.Batch(data.Example{InputIDs: ids, Labels: ids})
	if err != nil {
		t.Fatal(err)
	}
	loss, err := r.Eval(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	logits, err := r.Logits(t.Context(), b, 0)
	if err != nil {
		t.Fatal(err)
	}
	vocab, want := r.Model().Vocab, 0.0
	for i, next := range ids[1:] {
		row, sum := logits[0][i*vocab:][:vocab], 0.0
		for _, x := range row {
			sum += math.Exp(float64(x))
		}
		want += (math.Log(sum) - float64(row[next])) / float64(len(ids)-1)
	}
	probs, err := r.LogProbs(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, p := range slices.Concat(probs...) {
		sum += float64(p)
	}
	if math.Abs(loss+sum/float64(len(ids)-1)) > 1e-5 {
		t.Errorf("loss %v, log-probabilities %v", loss, probs)
	}
	if math.Abs(loss-want) > 1e-5 {
		t.Errorf("loss %v, by the logits %v", loss, want)
	}
	if _, err := r.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("without data sets: %v", err)
	}
	if _, err := r.Step(t.Context(), b, r.Update(1e-2)); err != nil {
		t.Fatal(err)
	}
	if after, err := r.Eval(t.Context(), b); err != nil || !(after < loss) {
		t.Errorf("a loss of %v, and %v after a step; error %v", loss, after, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	saved := func(t *testing.T, c *runfile.Config) string {
		path, err := openRun(t, c, "", OpenOptions{}).Save(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, x := range []struct {
		what   string
		change func(*runfile.Config, *OpenOptions)
		want   string
	}{
		{"a bad key", func(c *runfile.Config, _ *OpenOptions) { c.SequenceLen = 1 }, "sequence_len is 1"},
		{"no model", func(c *runfile.Config, _ *OpenOptions) { c.Model = "" }, "model is missing"},
		{"another device", func(c *runfile.Config, _ *OpenOptions) { c.Memory = budget(t, "1KiB") }, "memory.device"},
		{"rows", func(_ *runfile.Config, o *OpenOptions) { o.LogitRows = -1 }, "LogitRows is -1"},
		{"no checkpoint", func(_ *runfile.Config, o *OpenOptions) { o.From = t.TempDir() }, "not a checkpoint"},
		{"another model's checkpoint", func(c *runfile.Config, o *OpenOptions) {
			other := *c
			other.Model = writeModel(t, map[string]any{"hidden_size": 32})
			o.From = saved(t, &other)
		}, "is not of model"},
		{"other sizes than the checkpoint's", func(c *runfile.Config, o *OpenOptions) {
			c.Numerics.MicroBatch = 2
			o.From = saved(t, c)
			c.Numerics.MicroBatch = 1
		}, "numerics.micro_batch is 1, and 2 in the checkpoint"},
		{"another precision than the checkpoint's", func(c *runfile.Config, o *OpenOptions) {
			o.From = saved(t, c)
			c.Precision, c.BatchTokens = runfile.Defaults().Precision, 2*c.BatchTokens
		}, "of another model or precision"},
		{"another seed than the checkpoint's", func(c *runfile.Config, o *OpenOptions) {
			o.From = saved(t, c)
			c.Seed++
		}, "in another order; restore the seed"},
		{"data that is not there", func(c *runfile.Config, _ *OpenOptions) { c.Datasets[0].Path = "none.jsonl" },
			"none.jsonl"},
	} {
		t.Run(x.what, func(t *testing.T) {
			c, o := smallConfig(t), OpenOptions{Env: newEnv(t)}
			x.change(c, &o)
			r, err := Open(context.Background(), c, o)
			if r != nil || err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v, want %q", err, x.want)
			}
			if !errors.Is(err, ErrRequest) {
				t.Errorf("%v is not marked as one of the request", err)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	c := smallConfig(t)
	c.MaxGradNorm = 0
	r := openRun(t, c, "", OpenOptions{})
	one := data.Example{InputIDs: []int32{1, 2}, Labels: []int32{1, 2}}
	b, err := r.Batch(one)
	if err != nil {
		t.Fatal(err)
	}
	none, err := r.Batch(data.Example{InputIDs: []int32{1}, Labels: []int32{1}})
	if err != nil {
		t.Fatal(err)
	}
	clipped := r.Update(1)
	clipped.MaxGradNorm = 1
	_, noTargets := r.Step(t.Context(), none, r.Update(1))
	_, noTargetsEval := r.Eval(t.Context(), none)
	_, clips := r.Step(t.Context(), b, clipped)
	_, tooMany := r.Batch(slices.Repeat([]data.Example{one}, 5)...)
	_, noExample := r.Batch()
	_, tooLong := r.Batch(data.Example{InputIDs: make([]int32, 65), Labels: make([]int32, 65)})
	_, noLogits := r.Logits(t.Context(), b, 0)
	rate := func(lr float64) error {
		_, err := r.Step(t.Context(), b, r.Update(lr))
		return err
	}
	badNorm := r.Update(1)
	badNorm.MaxGradNorm = math.NaN()
	_, norm := r.Step(t.Context(), b, badNorm)
	adamW := func(change func(*optim.AdamW)) error {
		u := r.Update(1)
		change(&u.AdamW)
		_, err := r.Step(t.Context(), b, u)
		return err
	}
	groups := func(bad optim.Rates) error {
		u := r.Update(1)
		u.Groups = []optim.Rates{{LR: 1}, bad}
		_, err := r.Step(t.Context(), b, u)
		return err
	}
	foreign := &stream.Batch{Targets: 1}
	_, otherSize := r.Step(t.Context(), foreign, r.Update(1))
	for _, x := range []struct {
		err  error
		want string
	}{
		{noTargets, "no position"}, {noTargetsEval, "no position"}, {clips, "max_grad_norm is 0"},
		{tooMany, "a step has 4 rows"}, {noExample, "a step has 4 rows"}, {tooLong, "has 65 tokens, and a row 64"},
		{rate(math.NaN()), "the learning rate is NaN"}, {rate(math.Inf(1)), "the learning rate is +Inf"},
		{rate(-1e-3), "the learning rate is -0.001"}, {norm, "MaxGradNorm is NaN"},
		{adamW(func(a *optim.AdamW) { *a = optim.AdamW{Beta1: math.NaN(), Beta2: 0.9, Eps: 1e-8} }), "betas are NaN"},
		{adamW(func(a *optim.AdamW) { a.Beta2 = 1 }), "betas are 0.9 and 1"},
		{adamW(func(a *optim.AdamW) { a.Eps = math.NaN() }), "Eps is NaN"},
		{adamW(func(a *optim.AdamW) { a.WeightDecay = math.Inf(1) }), "WeightDecay is +Inf"},
		{groups(optim.Rates{LR: math.NaN()}), "Groups[1]: the learning rate is NaN"},
		{groups(optim.Rates{WeightDecay: -1}), "Groups[1]: the weight decay is -1"},
		{noLogits, "the plan is for 0"}, {otherSize, "micro-batches"},
	} {
		if x.err == nil || !strings.Contains(x.err.Error(), x.want) {
			t.Errorf("error %v, want %q", x.err, x.want)
		}
	}
	if _, err := r.Step(t.Context(), b, r.Update(1e-3)); err != nil || r.Steps() != 1 {
		t.Errorf("after what was refused: %v", err)
	}
}

// Without surroundings there is an error, and no panic.
func TestNoEnv(t *testing.T) {
	c := smallConfig(t)
	_, errTrain := Train(t.Context(), c, Options{})
	_, errOpen := Open(t.Context(), c, OpenOptions{})
	_, errPlan := verbs.PlanFor(t.Context(), c, verbs.PlanOptions{})
	for _, err := range []error{errTrain, errOpen, errPlan} {
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "millrace.NewEnv") {
			t.Errorf("error %v", err)
		}
	}
}

// Weights that are not finite are not saved.
func TestRunKeepsBadWeights(t *testing.T) {
	c := smallConfig(t)
	r := openRun(t, c, "", OpenOptions{})
	b, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Step(t.Context(), b, r.Update(1e300)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Save(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "infinite or NaN") {
		t.Errorf("error %v", err)
	}
	out := filepath.Join(t.TempDir(), "model")
	if err := r.Export(t.Context(), out); err == nil || !strings.Contains(err.Error(), "infinite or NaN") ||
		vfs.Exists(out) {
		t.Errorf("error %v", err)
	}
}

// A callback sees every step, ends the run well with ErrStop, and ends it with a checkpoint by any other error.
func TestOnStep(t *testing.T) {
	errTooLarge := errors.New("the norm is too large")
	for i, end := range []error{ErrStop, fmt.Errorf("early: %w", ErrStop), errTooLarge} {
		c := smallConfig(t)
		c.Save.AtEnd = i == 0
		var seen []int64
		sum, err := Train(t.Context(), c, Options{Env: newEnv(t), OnStep: func(m trace.Metrics) error {
			seen = append(seen, m.Step)
			if m.Step == 3 {
				return end
			}
			return nil
		}})
		if !slices.Equal(seen, []int64{1, 2, 3}) {
			t.Errorf("it saw steps %v", seen)
		}
		model := files(t, filepath.Join(c.OutputDir, rundir.LastModel))
		if errors.Is(end, ErrStop) {
			if err != nil || sum.Steps != 3 || model == nil {
				t.Errorf("%v: %+v, error %v", end, sum, err)
			}
		} else if !errors.Is(err, errTooLarge) || !strings.HasPrefix(err.Error(), "step 3: ") || model != nil ||
			errors.Is(err, ErrRequest) {
			t.Errorf("error %v", err)
		}
		if _, err := os.Stat(filepath.Join(rundir.CheckpointsDir(c), "step-000003")); err != nil {
			t.Errorf("%v: %v", end, err)
		}
		c.Resume = "auto"
		if sum, err = Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil || sum.ResumedAfter != 3 || sum.Steps != 12 {
			t.Errorf("started again: %+v, error %v", sum, err)
		}
	}
}

// A rate of the caller's goes with a callback, and with the rates of the schedule the run has the same bits. A rate that
// is not finite ends the run with its state saved.
func TestOwnRate(t *testing.T) {
	c := smallConfig(t)
	want, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	rates := optim.Schedule{Shape: c.LRScheduler, Peak: c.LearningRate, WarmupSteps: c.WarmupSteps, Steps: c.MaxSteps}
	own := *c
	own.OutputDir, own.LearningRate = filepath.Join(t.TempDir(), "own"), 1
	var seen []float64
	got, err := Train(t.Context(), &own, Options{Env: newEnv(t), Rate: rates.At, OnStep: func(m trace.Metrics) error {
		seen = append(seen, m.LearningRate)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)
	if len(seen) != 12 || seen[4] != rates.At(5) {
		t.Errorf("the callback saw the rates %v", seen)
	}
	bad := *c
	bad.OutputDir = filepath.Join(t.TempDir(), "bad")
	_, err = Train(t.Context(), &bad, Options{Env: newEnv(t), Rate: func(step int) float64 {
		if step == 4 {
			return math.NaN()
		}
		return 1e-3
	}})
	if err == nil || !strings.Contains(err.Error(), "step 4: Rate returns NaN") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(rundir.CheckpointsDir(&bad), "step-000003")); err != nil {
		t.Errorf("after a bad rate: %v", err)
	}
}

// A plan can be for a machine that the caller describes.
func TestPlanOnOwnMachine(t *testing.T) {
	named, err := plan.FindMachine("h100-pcie5")
	if err != nil {
		t.Fatal(err)
	}
	ofName, err := verbs.PlanFor(t.Context(), smallConfig(t), verbs.PlanOptions{Env: newEnv(t), Machine: "h100-pcie5"})
	if err != nil {
		t.Fatal(err)
	}
	slow := named
	slow.Machine.BF16FLOPsPerSec, slow.Machine.F32FLOPsPerSec = named.Machine.BF16FLOPsPerSec/10, named.Machine.F32FLOPsPerSec/10
	own, err := verbs.PlanFor(t.Context(), smallConfig(t), verbs.PlanOptions{Env: newEnv(t), On: &slow})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := ofName.Plan.Predicted.StepSeconds, own.Plan.Predicted.StepSeconds; !(b > a) {
		t.Errorf("a step takes %v s, and %v s with a tenth of the arithmetic", a, b)
	}
}

// TestClosedRun: what is called after Close is an error.
func TestClosedRun(t *testing.T) {
	r := openRun(t, smallConfig(t), "", OpenOptions{})
	b, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own, err := r.Batch(data.Example{InputIDs: []int32{1, 2}, Labels: []int32{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"Next":     func() error { _, err := r.Next(t.Context()); return err },
		"Step":     func() error { _, err := r.Step(t.Context(), own, r.Update(1e-3)); return err },
		"Eval":     func() error { _, err := r.Eval(t.Context(), b); return err },
		"Logits":   func() error { _, err := r.Logits(t.Context(), own, 0); return err },
		"LogProbs": func() error { _, err := r.LogProbs(t.Context(), own); return err },
		"Tensor":   func() error { _, err := r.Tensor(t.Context(), "lm_head.weight"); return err },
		"Save":     func() error { _, err := r.Save(t.Context(), t.TempDir()); return err },
		"Export":   func() error { return r.Export(t.Context(), filepath.Join(t.TempDir(), "model")) },
	} {
		if err := call(); !errors.Is(err, errClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Close(); err != nil || r.Plan() == nil || r.Model() == nil || r.Steps() != 0 {
		t.Errorf("closed again: %v", err)
	}
}

// TestACopyOfTheNextBatchIsTaken: the place in the data moves after a batch whose arrays the caller has copied.
func TestACopyOfTheNextBatchIsTaken(t *testing.T) {
	c := smallConfig(t)
	r := openRun(t, c, "", OpenOptions{})
	b, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := *b
	own.Micro = slices.Clone(b.Micro)
	for i := range own.Micro {
		own.Micro[i].IDs = slices.Clone(own.Micro[i].IDs)
	}
	before := r.at.Cursor
	if _, err := r.Step(t.Context(), &own, r.Update(1e-3)); err != nil || r.at.Cursor == before || r.at.Cursor != r.after {
		t.Errorf("%v; the place was %+v and is %+v, want %+v", err, before, r.at.Cursor, r.after)
	}
}

// TestAnyOrderResumes draws an order of Next, Step, Eval and Save. A run that does all of it has the bits of one that
// is closed after each Save and continues from the checkpoint, where it fetches those batches again that came after
// the latest step: weights, steps and the place in the data.
func TestAnyOrderResumes(t *testing.T) {
	base := smallConfig(t)
	base.Numerics = runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	rapid.Check(t, func(rt *rapid.T) {
		order := rapid.SliceOfN(rapid.SampledFrom([]string{"Next", "Next", "Step", "Step", "Step", "Eval", "Save"}),
			1, 12).Draw(rt, "order")
		do := func(resumes bool) (weights []float32, steps int, next []int32) {
			dir := t.TempDir() // each is a run of its own
			open := func(from string) *Run {
				env := newEnv(t)
				env.Tests.ProgramBytes = 1
				r, err := Open(t.Context(), base, OpenOptions{Env: env, From: from})
				if err != nil {
					rt.Fatal(err)
				}
				return r
			}
			r := open("")
			defer func() { _ = r.Close() }()
			var b *stream.Batch
			ahead := 0 // batches since the one that was stepped on
			fetch := func() {
				var err error
				if b, err = r.Next(t.Context()); err != nil {
					rt.Fatal(err)
				}
			}
			for _, what := range order {
				var err error
				switch {
				case what == "Next":
					fetch()
					ahead++
				case what == "Step" && b != nil:
					_, err = r.Step(t.Context(), b, r.Update(1e-2))
					ahead = 0
				case what == "Eval" && b != nil:
					_, err = r.Eval(t.Context(), b)
				case what == "Save":
					var path string
					if path, err = r.Save(t.Context(), dir); err == nil && resumes {
						if err = r.Close(); err != nil {
							break
						}
						r, b = open(path), nil
						for range ahead {
							fetch()
						}
					}
				}
				if err != nil {
					rt.Fatalf("%s: %v", what, err)
				}
				if what == "Save" && ahead == 0 { // the batch that was stepped on does not come again
					ahead++
					fetch()
				}
			}
			fetch()
			weights, err := r.Tensor(t.Context(), "lm_head.weight")
			if err != nil {
				rt.Fatal(err)
			}
			return weights, r.Steps(), slices.Clone(b.Micro[0].IDs)
		}
		weights, steps, next := do(false)
		weightsResumed, stepsResumed, nextResumed := do(true)
		if steps != stepsResumed || !slices.Equal(next, nextResumed) || !slices.Equal(weights, weightsResumed) {
			rt.Errorf("after %d and %d steps: the same next batch %v, the same weights %v", steps, stepsResumed,
				slices.Equal(next, nextResumed), slices.Equal(weights, weightsResumed))
		}
	})
}
