package train

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
)

// Gradients have the same bits wherever the state is, and those of a step on the same batch. To ask for them changes
// neither weights nor what steps come to. Steps down a gradient, written tensor by tensor, lower the loss by what the
// gradient says.
func TestRunGradients(t *testing.T) {
	for name, precision := range map[string]runfile.Precision{
		"f32":  {Compute: "f32", Master: "f32", Moments: "f32"},
		"bf16": runfile.Defaults().Precision,
	} {
		for _, isTied := range []bool{false, true} {
			if testing.Short() && (name != "bf16" || !isTied) {
				continue
			}
			t.Run(fmt.Sprintf("%s, tied %v", name, isTied), func(t *testing.T) {
				base := smallConfig(t)
				base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9, "tie_word_embeddings": isTied})
				base.Precision, base.Numerics = precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
				var want map[string][]float32
				plain := openRun(t, base, "", OpenOptions{})
				losses := walk(t, plain, base, 2)
				for _, p := range placementsOf(t, base) {
					t.Run(p.name, func(t *testing.T) {
						c := *base
						c.Memory = p.memory
						r := openRun(t, &c, p.cache, OpenOptions{Gradients: true})
						got := gradientsOf(t, r, losses)
						if want == nil {
							want = got
						}
						for name, g := range got {
							if !slices.Equal(g, want[name]) {
								t.Errorf("the gradient of %s depends on places", name)
							}
						}
					})
				}
			})
		}
	}
}

// gradientsOf takes the steps with these losses, and asks for gradients before each.
func gradientsOf(t *testing.T, r *Run, losses []float64) (all map[string][]float32) {
	t.Helper()
	rates := r.config.Schedule(r.config.MaxSteps)
	for step, want := range losses {
		b, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.Gradients(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		all = readGradients(t, r)
		sum := 0.0
		for _, g := range all {
			for _, x := range g {
				sum += float64(x) * float64(x)
			}
		}
		if norm := math.Sqrt(sum); math.Abs(norm-res.GradNorm) > 1e-2*norm {
			t.Errorf("step %d: gradients of norm %v, want %v", step, norm, res.GradNorm)
		}
		trained, err := r.Step(t.Context(), b, r.Update(rates.At(step+1)))
		if err != nil {
			t.Fatal(err)
		}
		for name, g := range readGradients(t, r) {
			if !slices.Equal(g, all[name]) {
				t.Errorf("step %d: the gradient of %s is another in the step", step, name)
			}
		}
		if res.Loss() != want || trained.Loss() != want || trained.GradNorm != res.GradNorm {
			t.Errorf("step %d: loss %v, in the step %v, want %v", step, res.Loss(), trained.Loss(), want)
		}
	}
	goDown(t, r)
	return all
}

// goDown takes a short step down the gradient of the next batch.
func goDown(t *testing.T, r *Run) {
	t.Helper()
	b, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := r.Gradients(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	const lr = 1e-3
	for name, g := range readGradients(t, r) {
		w, err := r.Tensor(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range w {
			w[i] -= lr * g[i]
		}
		if err := r.SetTensor(t.Context(), name, w); err != nil {
			t.Fatal(err)
		}
		if got, err := r.Tensor(t.Context(), name); err != nil || !slices.Equal(got, w) {
			t.Fatalf("%s has other values than were written, error %v", name, err)
		}
	}
	after, err := r.Eval(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if want := lr * before.GradNorm * before.GradNorm; math.Abs(before.Loss()-after-want) > 0.2*want {
		t.Errorf("the loss fell from %v to %v, want by %v", before.Loss(), after, want)
	}
}

func readGradients(t *testing.T, r *Run) map[string][]float32 {
	t.Helper()
	all := map[string][]float32{}
	for _, x := range r.Model().Tensors() {
		g, err := r.Gradient(t.Context(), x.Name)
		if err != nil {
			t.Fatal(err)
		}
		all[x.Name] = g
	}
	return all
}

// A tensor that is written and written back leaves everything as it was, wherever it is, frozen or not, and one that is
// written is in checkpoints.
func TestSetTensor(t *testing.T) {
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	base.Groups = []optim.Group{{Match: "model.layers.1.*", Freeze: true}}
	const name = "model.layers.2.self_attn.q_proj.weight"
	for _, p := range placementsOf(t, base) {
		t.Run(p.name, func(t *testing.T) {
			c := *base
			c.Memory = p.memory
			r := openRun(t, &c, p.cache, OpenOptions{})
			walk(t, r, &c, 1)
			b, err := r.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			loss := func() float64 {
				loss, err := r.Eval(t.Context(), b)
				if err != nil {
					t.Fatal(err)
				}
				return loss
			}
			before := loss()
			for _, name := range []string{name, "model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight", "model.norm.weight"} {
				was, err := r.Tensor(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				other := slices.Clone(was)
				for i := range other {
					other[i] *= 2
				}
				if err := r.SetTensor(t.Context(), name, other); err != nil {
					t.Fatal(err)
				}
				if got, err := r.Tensor(t.Context(), name); err != nil || !slices.Equal(got, other) || loss() == before {
					t.Errorf("%s: not what was written, or the loss is still %v; error %v", name, before, err)
				}
				if err := r.SetTensor(t.Context(), name, was); err != nil {
					t.Fatal(err)
				}
				if after := loss(); after != before {
					t.Errorf("%s: written back it gives a loss of %v, before %v", name, after, before)
				}
			}
			w, err := r.Tensor(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			w[7] = 0.1234567
			if err := r.SetTensor(t.Context(), name, w); err != nil {
				t.Fatal(err)
			}
			from, err := r.Save(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			again := openRun(t, base, "", OpenOptions{From: from})
			if got, err := again.Tensor(t.Context(), name); err != nil || !slices.Equal(got, w) {
				t.Errorf("the checkpoint has other values, error %v", err)
			}
		})
	}
}

// Tensors that are written together, some of them in one part, have what each was given; one bad value changes none.
func TestSetTensors(t *testing.T) {
	c := smallConfig(t)
	r := openRun(t, c, "", OpenOptions{})
	values := map[string][]float32{}
	for i, name := range []string{"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight",
		"model.norm.weight"} {
		w, err := r.Tensor(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for k := range w {
			w[k] += float32(i + 1)
		}
		values[name] = w
	}
	if err := r.SetTensors(t.Context(), values); err != nil {
		t.Fatal(err)
	}
	bad := map[string][]float32{"model.norm.weight": {float32(math.NaN())}}
	for name, w := range values {
		if got, err := r.Tensor(t.Context(), name); err != nil || !slices.Equal(got, w) {
			t.Errorf("%s has other values than were written, error %v", name, err)
		}
		if name != "model.norm.weight" {
			bad[name] = make([]float32, len(w))
		}
	}
	if err := r.SetTensors(t.Context(), bad); err == nil {
		t.Error("a tensor of one value was accepted")
	}
	for name, w := range values {
		if got, err := r.Tensor(t.Context(), name); err != nil || !slices.Equal(got, w) {
			t.Errorf("%s changed with tensors of which one was refused, error %v", name, err)
		}
	}
}

func TestTensorsRefuse(t *testing.T) {
	c := smallConfig(t)
	c.Precision = runfile.Defaults().Precision
	c.Groups = []optim.Group{{Match: "model.norm.weight", Freeze: true}}
	const name = "model.layers.0.self_attn.q_proj.weight"
	r := openRun(t, c, "", OpenOptions{Gradients: true})
	plain := openRun(t, c, "", OpenOptions{})
	w, err := r.Tensor(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	with := func(x float32) []float32 {
		w := slices.Clone(w)
		w[len(w)-1] = x
		return w
	}
	b, err := r.Batch(data.Example{InputIDs: []int32{1, 2}, Labels: []int32{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	none, err := r.Batch(data.Example{InputIDs: []int32{1}, Labels: []int32{1}})
	if err != nil {
		t.Fatal(err)
	}
	gradient := func(r *Run, name string) error {
		_, err := r.Gradient(t.Context(), name)
		return err
	}
	early := gradient(r, name)
	_, noTargets := r.Gradients(t.Context(), none)
	_, notAsked := plain.Gradients(t.Context(), b)
	if _, err := r.Gradients(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	frozen, unknown := gradient(r, "model.norm.weight"), gradient(r, "lm_tail.weight")
	if _, err := r.Eval(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		err  error
		want string
	}{
		{early, "call Step or Gradients"}, {gradient(r, name), "call Step or Gradients"},
		{noTargets, "no position"}, {notAsked, "opened without gradients"}, {gradient(plain, name), "opened without gradients"},
		{frozen, "is not trained"}, {unknown, `no tensor "lm_tail.weight"`},
		{r.SetTensor(t.Context(), "lm_tail.weight", w), `no tensor "lm_tail.weight"`},
		{r.SetTensor(t.Context(), name, w[1:]), "and there are"},
		{r.SetTensor(t.Context(), name, with(float32(math.NaN()))), "it must be finite"},
		{r.SetTensor(t.Context(), name, with(float32(math.Inf(-1)))), "it must be finite"},
		{r.SetTensor(t.Context(), name, with(math.MaxFloat32)), "too large for bf16"},
	} {
		if x.err == nil || !strings.Contains(x.err.Error(), x.want) {
			t.Errorf("error %v, want %q", x.err, x.want)
		}
	}
	if got, err := r.Tensor(t.Context(), name); err != nil || !slices.Equal(got, w) {
		t.Errorf("what was refused has changed the tensor; error %v", err)
	}
}

// A model needs no directory: it has the numbers of the same one in a directory, and leaves no file.
func TestModelConfig(t *testing.T) {
	c := smallConfig(t)
	c.Model, c.Init = writeConfig(t, nil), "random"
	text := readAll(t, filepath.Join(c.Model, "config.json"))
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	want := walk(t, openRun(t, c, "", OpenOptions{}), c, 3)
	own := *c
	own.Model = ""
	r := openRun(t, &own, "", OpenOptions{ModelConfig: text})
	if got := walk(t, r, &own, 3); !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
	out := filepath.Join(t.TempDir(), "model")
	if err := r.Export(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, error %v", left, err)
	}
	trained := *c
	trained.Model, trained.Init = out, "pretrained"
	openRun(t, &trained, "", OpenOptions{})
	for want, change := range map[string]func(*runfile.Config){
		"leave model empty":  func(c *runfile.Config) { c.Model = out },
		"set init to random": func(c *runfile.Config) { c.Init = "pretrained" },
		"or to bytes":        func(c *runfile.Config) { c.Tokenizer = "auto" },
	} {
		bad := own
		change(&bad)
		if r, err := Open(context.Background(), &bad, OpenOptions{Env: newEnv(t), ModelConfig: text}); r != nil || err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if r, err := Open(context.Background(), &own, OpenOptions{Env: newEnv(t), ModelConfig: []byte("{")}); r != nil || err == nil {
		t.Error("half of a config.json")
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, error %v", left, err)
	}
}
