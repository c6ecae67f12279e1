package modeltest

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/batch"
)

func eachVariant(t *testing.T, check func(t *testing.T, g *Golden)) {
	for _, name := range Variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, Load(t, name))
		})
	}
}

// The families and features that the files must cover are listed here, so that a variant cannot vanish unnoticed.
func TestVariants(t *testing.T) {
	want := []string{"llama", "llama-bias", "llama-linear-tied", "llama-llama3-headdim", "llama-padding", "mistral",
		"mistral-window", "qwen2", "qwen3", "qwen3-bias-untied", "glm4_moe", "gpt_oss", "mixtral", "qwen3_moe",
		"qwen3_moe-mixed", "cohere", "cohere2", "exaone4", "gemma2", "gemma3", "gemma3_text", "gemma4",
		"gemma4-mixture", "gemma4-shared", "gemma4_text", "gemma4_unified", "glm4", "gpt2", "gpt_neox",
		"gpt_neox-sequential", "granite", "mistral3", "olmo2", "olmo3", "phi3", "qwen2_5_vl", "qwen3_vl",
		"qwen3_vl_moe", "seed_oss", "smollm3",
		"qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
		"deepseek_v2", "deepseek_v2-groups", "deepseek_v3", "deepseek_v3-direct", "glm4_moe_lite"}
	if got := Variants(t); !slices.Equal(got, want) {
		t.Errorf("variants are %q, want %q", got, want)
	}
	want = []string{"glm4_moe", "gpt_oss", "mixtral", "qwen3_moe", "qwen3_moe-mixed"}
	if got := ExpertVariants(t); !slices.Equal(got, want) {
		t.Errorf("variants with experts are %q, want %q", got, want)
	}
}

func TestPacking(t *testing.T) {
	eachVariant(t, func(t *testing.T, g *Golden) {
		batches := []Batch{g.First}
		for _, s := range g.Steps {
			batches = append(batches, s.Batch)
		}
		documents := 0
		for i, b := range batches {
			if b.TargetCount() == 0 {
				t.Errorf("batch %d counts nothing", i)
			}
			for _, m := range append(Batch{b.Join()}, b...) {
				checkMicroBatch(t, g, m)
				for at := 0; at < len(m.IDs); at = int(m.DocEnd[at]) {
					documents++
					if m.DocStart[at] != int32(at) || m.DocEnd[at] <= int32(at) {
						t.Fatalf("batch %d: the document at %d is [%d, %d)", i, at, m.DocStart[at], m.DocEnd[at])
					}
				}
			}
		}
		if documents < 4*len(batches) {
			t.Errorf("%d documents in %d batches: nothing is packed", documents, len(batches))
		}
	})
}

func checkMicroBatch(t *testing.T, g *Golden, m batch.Micro) {
	t.Helper()
	n := len(m.IDs)
	for _, x := range [][]int32{m.Targets, m.Positions, m.DocStart, m.DocEnd} {
		if len(x) != n {
			t.Fatalf("a field has %d entries for %d positions", len(x), n)
		}
	}
	for i := range n {
		at := int32(i)
		if m.IDs[i] < 0 || int(m.IDs[i]) >= g.Vocab {
			t.Errorf("token %d is outside the vocabulary of %d", m.IDs[i], g.Vocab)
		}
		if m.Positions[i] != at-m.DocStart[i] || at >= m.DocEnd[i] {
			t.Errorf("position %d at %d in the document [%d, %d)", m.Positions[i], i, m.DocStart[i], m.DocEnd[i])
		}
		last := at == m.DocEnd[i]-1
		if target := m.Targets[i]; target != -1 && (last || target != m.IDs[i+1]) {
			t.Errorf("target %d at %d is not the next token of the document", target, i)
		}
	}
}

// The recorded loss is the one that the recorded logits and targets give.
func TestLossOfLogits(t *testing.T) {
	eachVariant(t, func(t *testing.T, g *Golden) {
		sum := 0.0
		for row, m := range g.First {
			if len(g.Logits[row]) != len(m.IDs)*g.Vocab {
				t.Fatalf("%d logits for %d positions of %d", len(g.Logits[row]), len(m.IDs), g.Vocab)
			}
			for i, target := range m.Targets {
				if target < 0 {
					continue
				}
				z := g.Logits[row][i*g.Vocab : (i+1)*g.Vocab]
				exps := 0.0
				for _, x := range z {
					exps += math.Exp(float64(x))
				}
				sum += math.Log(exps) - float64(z[target])
			}
		}
		if got := sum / float64(g.First.TargetCount()); math.Abs(got/float64(g.Loss)-1) > 1e-6 {
			t.Errorf("the logits give a loss of %v, recorded is %v", got, g.Loss)
		}
	})
}

// carried are the tensors of files that text does not use.
var carried = regexp.MustCompile(`(^|\.)(vision_tower|multi_modal_projector|visual|mtp|vision_embedder|embed_vision|` +
	`embed_audio)\.`)

// The gradients are those of the weights in the directory, and none is trivial.
func TestGradients(t *testing.T) {
	eachVariant(t, func(t *testing.T, g *Golden) {
		weights, err := openTensors(filepath.Join(g.Dir, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(weights.entries, func(name string, _ entry) bool {
			return carried.MatchString(name) || strings.HasSuffix(name, ".e_score_correction_bias") ||
				strings.HasSuffix(name, ".layer_scalar") // not trained
		})
		all := []map[string]Gradient{g.Grads}
		if g.AuxGrads != nil {
			all = append(all, g.AuxGrads)
		}
		for _, grads := range all {
			if len(weights.entries) != len(grads) {
				t.Errorf("%d weights and %d gradients", len(weights.entries), len(grads))
			}
			for name := range weights.entries {
				w, dw := read[float32](weights, name), grads[name]
				if len(w) != dw.Elems() {
					t.Errorf("%s has %d elements and %d gradients", name, len(w), dw.Elems())
				}
				if dw.RelDiff(make([]float32, len(w))) != 1 {
					t.Errorf("%s: the gradient is zero or not finite", name)
				}
			}
		}
	})
}

// Some variants have the auxiliary loss, and the gradients of routers and of the embedding have a part of it.
func TestAuxiliaryLoss(t *testing.T) {
	count := 0
	for _, name := range ExpertVariants(t) {
		g := Load(t, name)
		if g.AuxGrads == nil {
			continue
		}
		count++
		if !(g.AuxLoss > 1) || g.AuxCoef != 0.05 {
			t.Errorf("%s: loss %v, coefficient %v", name, g.AuxLoss, g.AuxCoef)
		}
		differ := 0
		for param, dw := range g.AuxGrads {
			if RelDiff(g.Grads[param].Kept, dw.Kept) > 1e-3 {
				differ++
			} else if strings.Contains(param, "gate.weight") || strings.Contains(param, "embed_tokens") {
				t.Errorf("%s: %s: the auxiliary loss makes no difference", name, param)
			}
		}
		if differ == 0 {
			t.Errorf("%s: no gradient differs", name)
		}
	}
	if count != 3 {
		t.Errorf("%d variants have an auxiliary loss, want 3", count)
	}
}

// Prompts of two lengths are followed by tokens that rounding does not choose, and which are not all the same.
func TestGreedy(t *testing.T) {
	eachVariant(t, func(t *testing.T, g *Golden) {
		different := map[int32]bool{}
		if len(g.Greedy) != 2 || len(g.Greedy[0].Prompt) == len(g.Greedy[1].Prompt) {
			t.Fatalf("the prompts are %v", g.Greedy)
		}
		for _, c := range g.Greedy {
			if len(c.Tokens) != 20 || c.Margin < 1e-3 || int(slices.Max(c.Prompt)) >= g.Vocab {
				t.Errorf("%+v", c)
			}
			for _, token := range c.Tokens {
				different[token] = true
			}
		}
		if len(different) < 2 {
			t.Errorf("all tokens are %v", g.Greedy[0].Tokens[0])
		}
	})
}

func TestSteps(t *testing.T) {
	eachVariant(t, func(t *testing.T, g *Golden) {
		clipped := 0
		for i, s := range g.Steps {
			if float64(s.GradNorm) > g.AdamW.MaxGradNorm {
				clipped++
			}
			if s.LearningRate <= 0 || !(s.Loss > 0) || math.Abs(float64(s.LossBF16/s.Loss)-1) > WithinBF16 {
				t.Errorf("step %d: learning rate %v, loss %v, bf16 %v", i, s.LearningRate, s.Loss, s.LossBF16)
			}
		}
		if len(g.Steps) != 20 || clipped == 0 || clipped == len(g.Steps) {
			t.Errorf("%d of %d steps are clipped", clipped, len(g.Steps))
		}
	})
}

func TestDiffs(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		got, want []float32
		max, rel  float64
	}{
		{[]float32{1, 2}, []float32{1, 2}, 0, 0},
		{[]float32{3, 8}, []float32{3, 4}, 4, 0.8},
		{[]float32{0}, []float32{0}, 0, 0},
		{[]float32{1}, []float32{0}, 1, math.Inf(1)},
		{[]float32{nan}, []float32{1}, math.Inf(1), math.Inf(1)},
		{[]float32{1}, []float32{nan}, math.Inf(1), math.Inf(1)},
		{[]float32{1}, []float32{1, 2}, math.Inf(1), math.Inf(1)},
	} {
		if d, r := MaxDiff(c.got, c.want), RelDiff(c.got, c.want); d != c.max || r != c.rel {
			t.Errorf("%v and %v: MaxDiff %v, RelDiff %v, want %v, %v", c.got, c.want, d, r, c.max, c.rel)
		}
	}
}

// The files stay small enough for a source tree.
func TestSize(t *testing.T) {
	for dir, limit := range map[string]int64{denseDir: 2 << 20, expertsDir: 3 << 19, familiesDir: 3 << 20,
		deltaDir: 1 << 20, latentDir: 1 << 20} {
		total := int64(0)
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			total += info.Size()
			return err
		})
		if err != nil || total > limit {
			t.Errorf("%s has %d bytes (%v), at most %d are allowed", dir, total, err, limit)
		}
	}
}
