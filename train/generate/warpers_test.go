package generate

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/model/modeltest"
)

// warped is a distribution that transformers draws a token from. Source: testdata/warpers.py.
type warped struct {
	IDs      []int32
	LogProbs []float64 `json:"log_probs"`
}

// shaped says how logits are turned into a distribution.
type shaped struct {
	Temperature float64
	TopK        int     `json:"top_k"`
	TopP        float64 `json:"top_p"`
}

func (s shaped) options(most int) Options {
	return Options{MaxTokens: most, Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, Seed: 2}
}

// warpedFile is testdata/warpers.json.
type warpedFile struct {
	Given []struct {
		Logits []*float64 // null is no chance at all
		Tied   bool
		shaped
		warped
	}
	Families []struct {
		Variant        string
		Prompt, Tokens []int32
		shaped
		Steps []struct {
			At int
			warped
		}
	}
}

func readWarped(t *testing.T) (f warpedFile) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "warpers.json"))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The picker keeps of given logits what transformers' warpers for temperature, top k and top p keep, with the
// probabilities of their softmax. Of equal logits at the edge of top k transformers keeps all, and the picker the lower
// ids.
func TestDistributionsAreThoseOfWarpers(t *testing.T) {
	all, tied := readWarped(t).Given, 0
	for i, c := range all {
		logits, largest := make([]float32, len(c.Logits)), 0.0
		for id, x := range c.Logits {
			if x == nil {
				logits[id] = float32(math.Inf(-1))
				continue
			}
			logits[id], largest = float32(*x), max(largest, math.Abs(*x)/c.Temperature)
		}
		_, ids, logProb := newPicker(c.options(1), len(logits)).distribution(logits)
		ids = slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return math.IsInf(float64(logits[id]), -1) })
		slices.Sort(ids)
		name, limit := fmt.Sprintf("%d: %+v", i, c.shaped), 1e-6+largest*0x1p-22 // two roundings of a logit to fp32
		of := map[float32]float64{}                                              // of transformers, by logit
		for j, id := range c.IDs {
			of[logits[id]] = c.LogProbs[j]
		}
		kept := 0.0 // of transformers' probability
		for _, id := range ids {
			if lp, ok := of[logits[id]]; !ok {
				t.Errorf("%s: token %d is kept", name, id)
			} else {
				kept += math.Exp(lp)
			}
		}
		switch {
		case !c.Tied && !slices.Equal(ids, c.IDs):
			t.Errorf("%s: tokens %v are kept, want %v", name, ids, c.IDs)
		case c.Tied:
			tied++
			if c.TopK == 0 && len(ids) != len(c.IDs) || c.TopP == 1 && len(ids) != c.TopK || len(ids) > len(c.IDs) {
				t.Errorf("%s: tokens %v are kept, and by transformers %v", name, ids, c.IDs)
			}
		}
		for _, id := range ids {
			if d := math.Abs(logProb(id) - (of[logits[id]] - math.Log(kept))); !(d <= limit) {
				t.Errorf("%s: the log-probability of token %d is %v, want %v", name, id, logProb(id), of[logits[id]])
			}
		}
	}
	if len(all) < 20 || tied < 4 {
		t.Errorf("%d distributions, %d of them with equal logits at their edge", len(all), tied)
	}
}

// Texts that transformers has drawn have the same distributions at each of their places here, with caches, for models
// of eight families: of the tokens that top k and top p leave, and of those that a device draws from all.
func TestDistributionsOfFamilies(t *testing.T) {
	f := readWarped(t)
	families := map[string]bool{}
	var own apart // of a family
	near := func(name string, at int, id int32, got float64, want warped) {
		t.Helper()
		i := slices.Index(want.IDs, id)
		if i < 0 {
			t.Errorf("%s, token %d: %d may be drawn", name, at, id)
			return
		}
		own.add(math.Abs(got - want.LogProbs[i]))
	}
	for i := 0; i < len(f.Families); {
		variant, first := f.Families[i].Variant, i
		for i < len(f.Families) && f.Families[i].Variant == variant {
			i++
		}
		texts := f.Families[first:i]
		families[variant], own = true, apart{}
		g := modeltest.Load(t, variant)
		prompt, length := len(texts[0].Prompt), len(texts[0].Prompt)+len(texts[0].Tokens)
		chosen := openAny(t, g.Dir, planLogits, len(texts), length, prompt)
		drawn := openAny(t, g.Dir, planDraws, 1, length, prompt)
		w := newWriting(newPicker(texts[0].options(length), g.Vocab), 0, slices.Clone(texts[0].Prompt), nil,
			tokenizer.Bytes(), length)
		for n := range texts[0].Tokens {
			var ids [][]int32
			for _, text := range texts {
				ids = append(ids, slices.Concat(text.Prompt, text.Tokens[:n]))
			}
			logits, err := chosen.next(t.Context(), ids)
			if err != nil {
				t.Fatal(err)
			}
			one, err := drawn.choose(t.Context(), []*writing{w})
			if err != nil {
				t.Fatal(err)
			}
			w.ids = append(w.ids, texts[0].Tokens[n])
			for k, text := range texts {
				for _, step := range text.Steps {
					if step.At != n {
						continue
					}
					name := fmt.Sprintf("%s %+v", variant, text.shaped)
					_, kept, logProb := newPicker(text.options(length), g.Vocab).distribution(logits[k])
					if len(kept) != len(step.IDs) {
						t.Errorf("%s, token %d: %d tokens are kept, want %d", name, n, len(kept), len(step.IDs))
					}
					for _, id := range kept {
						near(name, n, id, logProb(id), step.warped)
					}
					if k == 0 {
						near(name+" on the device", n, one[0].ID, float64(one[0].LogProb), step.warped)
					}
				}
			}
		}
		chosen.Close()
		drawn.Close()
		t.Logf("%s: log-probabilities differ from those of transformers by %v", variant, &own)
		if !(own.most <= 2e-5) {
			t.Errorf("%s: log-probabilities differ by %v", variant, own.most)
		}
	}
	if len(families) != 8 {
		t.Errorf("texts of %d families", len(families))
	}
}
