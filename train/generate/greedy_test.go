package generate

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
)

// planning is planTexts, or another way to plan for texts.
type planning func(ctx context.Context, e *session.Env, src *source.Source, n plan.Numerics, dev *session.Devices,
	mem runfile.Memory,
	count, positions, prompt int) (*plan.Plan, error)

// planWholes has each token take a pass over all of its text, as if the model had no caches.
func planWholes(ctx context.Context, e *session.Env, src *source.Source, n plan.Numerics, dev *session.Devices,
	mem runfile.Memory,
	_, positions, _ int) (*plan.Plan, error) {
	return planWholeText(ctx, e, src, n, dev, mem, positions)
}

// planLogits and planDraws are planTexts for tokens that the host chooses, and for those that the device draws.
func planLogits(ctx context.Context, e *session.Env, src *source.Source, n plan.Numerics, dev *session.Devices,
	mem runfile.Memory, count, positions, prompt int) (*plan.Plan, error) {
	return planTexts(ctx, e, src, n, dev, mem, false, count, positions, prompt)
}

func planDraws(ctx context.Context, e *session.Env, src *source.Source, n plan.Numerics, dev *session.Devices,
	mem runfile.Memory, count, positions, prompt int) (*plan.Plan, error) {
	return planTexts(ctx, e, src, n, dev, mem, true, count, positions, prompt)
}

// The likeliest tokens are those of transformers for models of each family, with caches and without.
func TestGreedyTokensAgreeWithTransformers(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		t.Run(variant, func(t *testing.T) {
			g := modeltest.Load(t, variant)
			for how, plans := range map[string]planning{"with caches": planLogits, "drawn": planDraws, "without": planWholes} {
				for i, got := range greedily(t, g.Dir, g.Greedy, plans) {
					if want := g.Greedy[i]; !slices.Equal(got, want.Tokens) {
						t.Errorf("%s, prompt %v:\n got %v\nwant %v", how, want.Prompt, got, want.Tokens)
					}
				}
			}
		})
	}
}

// Tokens are the same without caches also of a model whose rotary positions are others as soon as a text is long, and
// of a mixture of experts with gated delta nets.
func TestGreedyTokensWithoutCaches(t *testing.T) {
	long := map[string]any{"rope_scaling": map[string]any{"rope_type": "longrope", "factor": 4.0,
		"original_max_position_embeddings": 16, "long_factor": []float64{1, 3, 9, 20},
		"short_factor": []float64{1, 1, 1, 1}}, "head_dim": 8}
	for name, change := range map[string]map[string]any{"plain": nil, "longrope": long,
		"delta nets": traintest.HybridConfig} {
		dir := traintest.WriteModel(t, change)
		of := []modeltest.Continued{{Prompt: byteIDs("the wheel"), Tokens: make([]int32, 20)}}
		with, without := greedily(t, dir, of, planLogits), greedily(t, dir, of, planWholes)
		if !slices.Equal(with[0], without[0]) {
			t.Errorf("%s: with caches %v, without %v", name, with[0], without[0])
		}
	}
}

// byteIDs are the tokens of a text of ASCII by the tokenizer of bytes.
func byteIDs(text string) (ids []int32) {
	for _, b := range []byte(text) {
		ids = append(ids, int32(b))
	}
	return ids
}

// A gated delta net continues a state row by row where a whole text goes through it in chunks, so that their results
// differ in the last bits of fp32, and bf16 rounds some of them apart. In bf16 both are as far from fp32.
func TestCachesOfDeltaNetsRoundAlike(t *testing.T) {
	dir := traintest.WriteModel(t, map[string]any{"model_type": "qwen3_5_text", "full_attention_interval": 2,
		"head_dim":    16,
		"hidden_size": 256, "max_position_embeddings": 128, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
		"linear_key_head_dim": 64, "linear_value_head_dim": 64})
	const prompt, more = 70, 6 // a chunk of a delta net has 64
	ids := byteIDs("it was the best of times, it was the worst of times, it was the age of wisdom, it was")
	logits := func(precision string, plans planning) (all []float32) {
		texts := openTextsIn(t, precision, dir, plans, 1, prompt+more, prompt)
		defer texts.Close()
		for n := range more {
			next, err := texts.next(t.Context(), [][]int32{ids[:prompt+n]})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, next[0]...)
		}
		return all
	}
	exact := logits("f32", planWholes)
	distance := func(precision string, plans planning) float64 {
		sum, whole := 0.0, 0.0
		for i, got := range logits(precision, plans) {
			want := float64(exact[i])
			sum, whole = sum+(float64(got)-want)*(float64(got)-want), whole+want*want
		}
		return math.Sqrt(sum / whole)
	}
	if d := distance("f32", planLogits); d > 1e-5 {
		t.Errorf("in fp32, logits with caches are %.2g from those of the whole text", d)
	}
	with, without := distance("bf16", planLogits), distance("bf16", planWholes)
	t.Logf("from fp32: with caches %.3g, without %.3g", with, without)
	if with > 1.3*without || with > 0.05 {
		t.Errorf("in bf16, logits with caches are %.3g from those of fp32; without caches they are %.3g", with, without)
	}
}

// openAny opens a model for texts, in fp32.
func openAny(t *testing.T, dir string, plans planning, count, positions, prompt int) *texts {
	t.Helper()
	return openTextsIn(t, "f32", dir, plans, count, positions, prompt)
}

// openTextsIn opens a model for texts, with weights and activations of a type.
func openTextsIn(t *testing.T, precision, dir string, plans planning, count, positions, prompt int) *texts {
	t.Helper()
	return openIn(t, traintest.NewEnv(t), precision, dir, plans, count, positions, prompt)
}

// openIn is openTextsIn in an environment.
func openIn(t *testing.T, env *session.Env, precision, dir string, plans planning, count, positions,
	prompt int) *texts {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	src, err := source.OpenTrained(t.Context(), env, dir)
	check(err)
	n, err := runfile.NumericsOf(precision, precision)
	check(err)
	dev, err := env.OpenDevices("auto")
	check(err)
	t.Cleanup(func() { dev.Close() })
	p, err := plans(t.Context(), env, src, n, dev, runfile.Memory{}, count, positions, prompt)
	check(err)
	texts, err := openTexts(t.Context(), env, p, dev, nil, src)
	check(err)
	return texts
}

// greedily continues prompts by as many tokens as they come with, in fp32.
func greedily(t *testing.T, dir string, of []modeltest.Continued, plans planning) [][]int32 {
	t.Helper()
	longest, positions := 0, 0
	for _, of := range of {
		longest, positions = max(longest, len(of.Prompt)), max(positions, len(of.Prompt)+len(of.Tokens))
	}
	texts := openAny(t, dir, plans, len(of), positions, longest)
	defer texts.Close()
	var made [][]int32
	for together := range slices.Chunk(of, texts.places()) {
		at := make([]*writing, len(together))
		for i, of := range together {
			at[i] = newWriting(newPicker(Options{MaxTokens: len(of.Tokens)}, texts.Plan.Model.Vocab), i,
				slices.Clone(of.Prompt), nil, tokenizer.Bytes(), positions)
		}
		for range together[0].Tokens {
			chosen, err := texts.choose(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range at {
				w.ids = append(w.ids, chosen[i].ID)
			}
		}
		for i, of := range together {
			made = append(made, at[i].ids[len(of.Prompt):])
		}
	}
	return made
}
