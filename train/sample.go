package train

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/rng"
)

// picker chooses tokens from logits.
type picker struct {
	GenerateOptions
	vocab int // ids from here on are padding of the model's table, which no text has
	ids   []int32
	probs []float64
}

func newPicker(o GenerateOptions, vocab int) *picker {
	return &picker{GenerateOptions: o, vocab: vocab, probs: make([]float64, vocab)}
}

// token is the choice for the place at of a text, by its number. Of equal logits the lower id is the more likely one.
//
// Logits are divided by the temperature, the TopK largest kept, of these the fewest whose probability is at least TopP, and
// one drawn by probability: the order of transformers. Source of TopP: Holtzman et al., "The Curious Case of Neural Text
// Degeneration" (2020).
func (p *picker) token(logits []float32, text, at int) (int32, error) {
	logits = logits[:min(p.vocab, len(logits))]
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 1) {
			return 0, errors.New("the model's logits are not finite: it has diverged")
		}
	}
	if p.Temperature == 0 {
		return int32(best), nil
	}
	p.ids = p.ids[:0]
	for i := range logits {
		p.ids = append(p.ids, int32(i))
	}
	slices.SortFunc(p.ids, func(a, b int32) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) })
	ids := p.ids
	if p.TopK > 0 {
		ids = ids[:min(p.TopK, len(ids))]
	}
	probs, sum := p.probs[:len(ids)], 0.0
	for i, id := range ids {
		probs[i] = math.Exp((float64(logits[id]) - float64(logits[best])) / p.Temperature)
		sum += probs[i]
	}
	if p.TopP > 0 && p.TopP < 1 {
		kept := 0.0
		for i, q := range probs {
			kept += q
			if kept >= p.TopP*sum {
				probs, sum = probs[:i+1], kept
				break
			}
		}
	}
	draw := rng.New(p.Seed, "generate", uint64(at), uint64(text)).Float64() * sum
	for i, q := range probs {
		if draw -= q; draw < 0 {
			return ids[i], nil
		}
	}
	return ids[len(probs)-1], nil
}
