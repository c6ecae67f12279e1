package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/vfs"
)

// tokenizedModel is a model with a tokenizer of 562 tokens.
func tokenizedModel(t *testing.T, change map[string]any) string {
	t.Helper()
	dir := writeModel(t, change)
	spec, err := os.ReadFile(filepath.Join("..", "data", "tokenizer", "testdata", "smollm2.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tokenizer.json"), string(spec))
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{
  "added_tokens_decoder": {
    "561": {"content": "<|eos|>", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": true}
  },
  "additional_special_tokens": [],
  "eos_token": "<|eos|>"
}`)
	return dir
}

// valuesOf are all values of a tensor.
func valuesOf(t *testing.T, w *hf.Weights, name string) []float32 {
	t.Helper()
	info, ok := w.Info(name)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	v := make([]float32, info.Shape.Elems())
	if err := w.ReadF32(name, v, 0); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAddTokens(t *testing.T) {
	const tokens = 562 // of the tokenizer
	rows := maps.Clone(rowsConfig)
	maps.Copy(rows, map[string]any{"vocab_size": tokens, "vocab_size_per_layer_input": tokens})
	for name, c := range map[string]struct {
		change map[string]any
		dtype  tensor.DType
		rows   int
	}{
		"a full vocabulary":    {map[string]any{"vocab_size": tokens}, tensor.F32, tokens + 3},
		"tied":                 {map[string]any{"vocab_size": tokens, "tie_word_embeddings": true}, tensor.F32, tokens + 3},
		"bf16":                 {map[string]any{"vocab_size": tokens}, tensor.BF16, tokens + 3},
		"padded":               {map[string]any{"vocab_size": 600}, tensor.F32, 600},
		"padded by one":        {map[string]any{"vocab_size": tokens + 1}, tensor.F32, tokens + 3},
		"padded by three":      {map[string]any{"vocab_size": tokens + 3}, tensor.F32, tokens + 3},
		"padded by more, tied": {map[string]any{"vocab_size": tokens + 5, "tie_word_embeddings": true}, tensor.F32, tokens + 5},
		"two embeddings":       {rows, tensor.F32, tokens + 3},
	} {
		t.Run(name, func(t *testing.T) {
			old := tokenizedModel(t, c.change)
			if c.dtype != tensor.F32 {
				converted := filepath.Join(t.TempDir(), "converted")
				if _, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: old, Dir: converted,
					DType: c.dtype}); err != nil {
					t.Fatal(err)
				}
				old = converted
			}
			dir := filepath.Join(t.TempDir(), "more")
			done, err := export.AddTokens(t.Context(), newEnv(t), export.AddTokensOptions{Model: old, Dir: dir,
				Tokens: []string{"<|im_start|>", "<|eos|>", "<tool>", "a b"}})
			if err != nil {
				t.Fatal(err)
			}
			if len(done.Added) != 3 || len(done.Known) != 1 || done.Known[0].ID != 561 || done.Rows != c.rows {
				t.Fatalf("%+v", done)
			}
			tok, err := tokenizer.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.Encode("x<|im_start|>a b<tool>", false); len(got) != 4 || got[1] != tokens || got[2] != tokens+2 || got[3] != tokens+1 {
				t.Errorf("ids %v", got)
			}
			if got := tok.Decode([]int32{tokens, tokens + 1}, true); got != "" {
				t.Errorf("a special token is %q where these are left out", got)
			}
			compareRows(t, old, dir, tokens, c.rows)

			run := *smallConfig(t)
			run.Model, run.Tokenizer, run.MaxSteps = dir, "auto", 2
			text := filepath.Join(t.TempDir(), "text.jsonl")
			write(t, text, `{"text": "<|im_start|>the wheel turns<tool>"}`+"\n")
			run.Datasets = []data.Source{{Path: text, Type: data.Text}}
			if c.dtype == tensor.BF16 {
				run.Precision = runfile.Defaults().Precision
			}
			if _, err := Train(context.Background(), &run, Options{Env: newEnv(t)}); err != nil {
				t.Errorf("it cannot be trained: %v", err)
			}
		})
	}
}

// Experts in MXFP4 stay as they are when a model gets tokens.
func TestAddTokensToMXFP4(t *testing.T) {
	plain := maps.Clone(ossConfig)
	delete(plain, "quantization_config")
	plain["vocab_size"] = 562
	old, dir := filepath.Join(t.TempDir(), "mxfp4"), filepath.Join(t.TempDir(), "more")
	if _, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: tokenizedModel(t, plain), Dir: old,
		MXFP4: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := export.AddTokens(t.Context(), newEnv(t), export.AddTokensOptions{Model: old, Dir: dir,
		Tokens: []string{"<tool>"}}); err != nil {
		t.Fatal(err)
	}
	before, after := tensorsOf(t, old), tensorsOf(t, dir)
	if len(before) != len(after) || quantizationOf(t, dir) != "mxfp4" {
		t.Errorf("%d tensors became %d, %q", len(before), len(after), quantizationOf(t, dir))
	}
	for name := range before {
		if grows := name == "lm_head.weight" ||
			name == "model.embed_tokens.weight"; (before[name] == after[name]) == grows {
			t.Errorf("%s has changed: %v", name, !grows)
		}
	}
}

// compareRows compares a model with the one that it was before it got three tokens.
func compareRows(t *testing.T, old, dir string, tokens, rows int) {
	t.Helper()
	before, err := hf.OpenWeights(old)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	after, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	if len(before.Names()) != len(after.Names()) {
		t.Errorf("tensors %v, want %v", after.Names(), before.Names())
	}
	grown := 0
	for _, name := range before.Names() {
		a, b := valuesOf(t, before, name), valuesOf(t, after, name)
		info, _ := after.Info(name)
		if !slices.Contains([]string{"model.embed_tokens.weight", "model.embed_tokens_per_layer.weight",
			"lm_head.weight"}, name) {
			if string(hf.BytesOf(a)) != string(hf.BytesOf(b)) {
				t.Errorf("%s has changed", name)
			}
			continue
		}
		grown++
		hidden := info.Shape[1]
		if info.Shape[0] != rows {
			t.Errorf("%s has %d rows, want %d", name, info.Shape[0], rows)
		}
		if string(hf.BytesOf(a[:tokens*hidden])) != string(hf.BytesOf(b[:tokens*hidden])) {
			t.Errorf("%s: rows of old tokens have changed", name)
		}
		if rest := (tokens + 3) * hidden; rest < len(a) && string(hf.BytesOf(a[rest:])) != string(hf.BytesOf(b[rest:])) {
			t.Errorf("%s: rows without a token have changed", name)
		}
		for i := range hidden {
			sum := 0.0
			for row := range tokens {
				sum += float64(a[row*hidden+i])
			}
			want, most := sum/float64(tokens), 1e-7
			if info.DType == tensor.BF16 {
				most = math.Abs(want) / 256
			}
			for row := tokens; row < tokens+3; row++ {
				if got := float64(b[row*hidden+i]); math.Abs(got-want) > most {
					t.Fatalf("%s: element %d of row %d is %v, want %v", name, i, row, got, want)
				}
			}
		}
	}
	if grown == 0 {
		t.Error("no matrix has a row for each token")
	}
}

// A tokenizer may have more tokens than the model has rows, as where tokens were added and the embedding was not resized.
// A run is refused with the command that gives them rows, and the command does.
func TestTokensWithoutRows(t *testing.T) {
	old, dir := tokenizedModel(t, map[string]any{"vocab_size": 561}), filepath.Join(t.TempDir(), "more")
	run := *smallConfig(t)
	run.Model, run.Tokenizer, run.MaxSteps = old, "auto", 1
	text := filepath.Join(t.TempDir(), "text.jsonl")
	write(t, text, `{"text": "the wheel turns<|eos|>"}`+"\n")
	run.Datasets = []data.Source{{Path: text, Type: data.Text}}
	_, err := Train(t.Context(), &run, Options{Env: newEnv(t)})
	want := fmt.Sprintf("it has 562 tokens and the model's vocabulary 561: tokens were added to %s without rows of the "+
		"embedding; millrace import %s DIR --add-tokens \"<|eos|>\" writes the model with a row for each of them",
		filepath.Join(old, "tokenizer.json"), old)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	done, err := export.AddTokens(t.Context(), newEnv(t), export.AddTokensOptions{Model: old, Dir: dir,
		Tokens: []string{"<|eos|>"}})
	if err != nil {
		t.Fatal(err)
	}
	if done.Rowless != 1 || done.First != 561 || done.OldRows != 561 || done.Rows != 562 || len(done.Added) != 0 {
		t.Errorf("%+v", done)
	}
	run.Model, run.OutputDir = dir, filepath.Join(t.TempDir(), "run")
	if _, err := Train(t.Context(), &run, Options{Env: newEnv(t)}); err != nil {
		t.Errorf("it cannot be trained: %v", err)
	}
}

func TestAddTokensRefuses(t *testing.T) {
	dir := tokenizedModel(t, map[string]any{"vocab_size": 600})
	bare := writeModel(t, nil)
	for name, c := range map[string]struct {
		model  string
		tokens []string
		want   string
	}{
		"known":        {dir, []string{"<|eos|>"}, "there is nothing to add"},
		"twice":        {dir, []string{"<a>", "<a>"}, "the token <a> is named twice"},
		"blank":        {dir, []string{" "}, "cannot be a token"},
		"no UTF-8":     {dir, []string{"\xff"}, "cannot be a token"},
		"too long":     {dir, []string{strings.Repeat("x", 5000)}, "tokenizer.json with the new tokens"},
		"no tokenizer": {bare, []string{"<a>"}, "tokenizer.json: name a tokenizer.json"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			_, err := export.AddTokens(t.Context(), newEnv(t), export.AddTokensOptions{Model: c.model, Dir: out,
				Tokens: c.tokens})
			if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if vfs.Exists(out) {
				t.Error("it has written something")
			}
		})
	}
}
