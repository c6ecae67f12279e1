// Package modeltest holds golden files for the decoder families: what PyTorch and transformers compute, in fp32, for
// tiny random models, and a reader for tests. Each variant is a Hugging Face directory under testdata (config.json
// and model.safetensors) with its golden.safetensors; golden.py writes them all and says what they hold. Those of
// mixtures of experts are in testdata-experts, and golden_experts.py writes them; those of further families are in
// testdata-families, and golden_families.py writes them; those of gated delta nets are in testdata-delta, of
// golden_delta.py, and those of latent attention in testdata-latent, of golden_latent.py. A variant's greedy.json has
// tokens that were generated, by golden_tokens.py.
//
// [Load] reads one variant as a [Golden]: a first [Batch] with its logits, loss and the gradient of every parameter,
// and 20 [Step] of AdamW with clipping, all from the weights in the directory. A Batch has what one optimizer step
// sees: some [batch.Micro], each a row of packed documents.
//
// Invariants, which the tests of this package check: a target is the next token of the same document, or -1 where no
// token counts; the documents of a micro-batch are contiguous and cover it; a pad is a document of one position. A loss
// is the sum of the token losses of all micro-batches over the number of targets in all of them.
package modeltest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/batch"
)

// Batch is the micro-batches of one optimizer step, each a row of packed documents.
type Batch []batch.Micro

// TargetCount is the number of positions that count in the loss.
func (b Batch) TargetCount() int {
	n := 0
	for _, m := range b {
		n += m.Count()
	}
	return n
}

// Join is the same batch as a single micro-batch, its rows one after the other.
func (b Batch) Join() batch.Micro {
	var j batch.Micro
	for _, m := range b {
		first := int32(len(j.IDs))
		j.IDs = append(j.IDs, m.IDs...)
		j.Targets = append(j.Targets, m.Targets...)
		j.Positions = append(j.Positions, m.Positions...)
		for t := range m.IDs {
			j.DocStart = append(j.DocStart, first+m.DocStart[t])
			j.DocEnd = append(j.DocEnd, first+m.DocEnd[t])
		}
	}
	return j
}

// Step is one optimizer step. Loss and GradNorm are those before the update; the norm is that before clipping.
type Step struct {
	Batch        Batch
	LearningRate float64
	Loss         float32
	GradNorm     float32
	LossBF16     float32 // the loss of a run of its own, with bf16 compute (torch.autocast) and fp32 weights
}

// AdamW are the settings of all steps. WeightDecay is for matrices; norms and biases have none, stacked ones included.
type AdamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
	MaxGradNorm                    float64
}

// Golden is one variant.
type Golden struct {
	Dir   string // the Hugging Face directory: config.json and model.safetensors (F32)
	Vocab int

	First  Batch
	Logits [][]float32         // of First: per micro-batch [T, Vocab]
	Loss   float32             // of First
	Grads  map[string]Gradient // gradient of Loss by Hugging Face parameter name; a tied head has no entry of its own
	// Padded is the whole gradient of the embedding as transformers has it with a padding token: without that token's
	// row of the embedding. Nil without such a token.
	Padded []float32

	// Of mixtures of experts, some have the auxiliary loss of First, with all micro-batches as one, and the gradients
	// of Loss + AuxCoef*AuxLoss, named as in Grads. The steps are without it. AuxGrads is nil where AuxLoss does not
	// exist.
	AuxCoef  float64
	AuxLoss  float32
	AuxGrads map[string]Gradient

	AdamW AdamW
	Steps []Step

	Greedy []Continued // after prompts of several lengths, all by as many tokens
}

// sets are the directories of variants, and the scripts that write them.
var sets = []struct{ dir, script string }{
	{denseDir, "golden.py"},
	{expertsDir, "golden_experts.py"},
	{familiesDir, "golden_families.py"},
	{deltaDir, "golden_delta.py"},
	{latentDir, "golden_latent.py"},
}

const (
	denseDir    = "testdata"
	expertsDir  = "testdata-experts"
	familiesDir = "testdata-families"
	deltaDir    = "testdata-delta"
	latentDir   = "testdata-latent"
)

// Variants are the names of all variants, by set.
func Variants(tb testing.TB) (all []string) {
	tb.Helper()
	for _, set := range sets {
		all = append(all, variants(tb, set.dir)...)
	}
	return all
}

// DeltaVariants are the names of all variants with gated delta nets, sorted. Some have experts, too.
func DeltaVariants(tb testing.TB) []string {
	tb.Helper()
	return variants(tb, deltaDir)
}

// ExpertVariants are the names of the variants of mixtures of experts with attention alone, sorted.
func ExpertVariants(tb testing.TB) []string {
	tb.Helper()
	return variants(tb, expertsDir)
}

// FamilyVariants are the names of the variants of further families, sorted.
func FamilyVariants(tb testing.TB) []string {
	tb.Helper()
	return variants(tb, familiesDir)
}

func variants(tb testing.TB, dir string) []string {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(testdata(tb, dir), "*", "golden.safetensors"))
	if err != nil || len(files) == 0 {
		i := slices.IndexFunc(sets, func(s struct{ dir, script string }) bool { return s.dir == dir })
		tb.Fatalf("modeltest: no golden files in %s: run model/modeltest/%s", testdata(tb, dir), sets[i].script)
	}
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	slices.Sort(names)
	return names
}

// Load reads a variant; the test fails if it cannot be read.
func Load(tb testing.TB, variant string) *Golden {
	tb.Helper()
	for _, set := range sets {
		if slices.Contains(variants(tb, set.dir), variant) {
			g, err := load(filepath.Join(testdata(tb, set.dir), variant))
			if err != nil {
				tb.Fatalf("modeltest: %v", err)
			}
			return g
		}
	}
	tb.Fatalf("modeltest: there is no variant %q", variant)
	return nil
}

// testdata finds a directory of this package from a test of any package: tests run in the directory of their package.
func testdata(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return filepath.Join(dir, "model", "modeltest", name)
		}
		if dir == filepath.Dir(dir) {
			err = os.ErrNotExist
		}
		dir = filepath.Dir(dir)
	}
	tb.Fatalf("modeltest: no module root above the test's directory: %v", err)
	return ""
}

const paddedName = "padded.grad.model.embed_tokens.weight"

func load(dir string) (*Golden, error) {
	f, err := openTensors(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		return nil, err
	}
	g := &Golden{
		Dir:    dir,
		Vocab:  f.dim("first.logits", 2),
		First:  f.batches("first")[0],
		Loss:   read[float32](f, "first.loss")[0],
		Grads:  f.gradients("grad."),
		Logits: rows(read[float32](f, "first.logits"), f.dim("first.logits", 0)),
		AdamW: AdamW{
			Beta1: f.setting("beta1"), Beta2: f.setting("beta2"), Eps: f.setting("eps"),
			WeightDecay: f.setting("weight_decay"), MaxGradNorm: f.setting("max_grad_norm"),
		},
	}
	if len(g.Grads) == 0 {
		return nil, fmt.Errorf("%s has no gradients in the form of gradient.go: write it again with the script", f.path)
	}
	if _, ok := f.entries["first.aux_loss"]; ok {
		g.AuxCoef, g.AuxLoss = f.setting("router_aux_loss_coef"), read[float32](f, "first.aux_loss")[0]
		g.AuxGrads = f.gradients("aux.grad.")
	}
	if _, ok := f.entries[paddedName]; ok {
		g.Padded = read[float32](f, paddedName)
	}
	if g.Greedy, err = readGreedy(dir); err != nil {
		return nil, err
	}
	lr := read[float64](f, "steps.lr")
	loss, norm, bf16 := read[float32](f, "steps.loss"), read[float32](f, "steps.grad_norm"), read[float32](f, "steps.loss_bf16")
	for i, b := range f.batches("steps") {
		g.Steps = append(g.Steps, Step{Batch: b, LearningRate: lr[i], Loss: loss[i], GradNorm: norm[i], LossBF16: bf16[i]})
	}
	return g, nil
}

// batches reads <prefix>.tokens, .targets and .positions, [batches, rows, T] or [rows, T] for a single batch.
func (f *tensors) batches(prefix string) []Batch {
	shape := f.entries[prefix+".tokens"].Shape
	count := 1
	if len(shape) == 3 {
		count = shape[0]
	}
	perBatch := shape[len(shape)-2]
	tokens := rows(read[int32](f, prefix+".tokens"), count*perBatch)
	targets := rows(read[int32](f, prefix+".targets"), count*perBatch)
	positions := rows(read[int32](f, prefix+".positions"), count*perBatch)

	all := make([]Batch, count)
	for i := range tokens {
		m := batch.Micro{IDs: tokens[i], Targets: targets[i], Positions: positions[i]}
		m.DocStart, m.DocEnd = documents(m.Positions)
		all[i/perBatch] = append(all[i/perBatch], m)
	}
	return all
}

// documents finds each position's document: one starts wherever the position is 0.
func documents(positions []int32) (start, end []int32) {
	n := len(positions)
	start, end = make([]int32, n), make([]int32, n)
	for t, p := range positions {
		start[t] = int32(t) - p
	}
	for t := n - 1; t >= 0; t-- {
		if t == n-1 || positions[t+1] == 0 {
			end[t] = int32(t + 1)
		} else {
			end[t] = end[t+1]
		}
	}
	return start, end
}

// rows cuts x into n equal rows.
func rows[T any](x []T, n int) [][]T {
	return slices.Collect(slices.Chunk(x, len(x)/n))
}
