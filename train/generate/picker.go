package generate

import (
	"container/heap"
	"errors"
	"math"

	"github.com/millrace/millrace/internal/rng"
)

// ErrNotFinite ends a text whose next token cannot be chosen.
var ErrNotFinite = errors.New("the model's logits are not finite: it has diverged")

// picker chooses tokens from logits.
type picker struct {
	Options
	vocab int // ids from here on are padding of the model's table, which no text has
	order byLikelihood
	ids   []int32 // the likeliest ones
	probs []float64
}

func newPicker(o Options, vocab int) *picker {
	return &picker{Options: o, vocab: vocab}
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
			return 0, ErrNotFinite
		}
	}
	if math.IsInf(float64(logits[best]), -1) {
		return 0, ErrNotFinite
	}
	if p.Temperature == 0 {
		return int32(best), nil
	}
	p.order.begin(logits)
	weight := func(id int32) float64 {
		return math.Exp((float64(logits[id]) - float64(logits[best])) / p.Temperature)
	}
	most, sum := len(logits), 0.0
	if p.TopK > 0 {
		most = min(p.TopK, most)
	} else {
		for id := range logits {
			sum += weight(int32(id))
		}
	}
	// Few tokens have most of the probability, so that the others need no order.
	p.ids, p.probs = p.ids[:0], p.probs[:0]
	next := func() float64 {
		id := p.order.next()
		p.ids, p.probs = append(p.ids, id), append(p.probs, weight(id))
		return p.probs[len(p.probs)-1]
	}
	if p.TopK > 0 {
		for len(p.ids) < most {
			sum += next()
		}
	}
	if p.TopP > 0 && p.TopP < 1 {
		kept, n := 0.0, 0
		for all := sum; n < most && kept < p.TopP*all; n++ {
			if n == len(p.ids) {
				next()
			}
			kept += p.probs[n]
		}
		most, sum = n, kept
	}
	draw := rng.New(p.Seed, "generate", uint64(at), uint64(text)).Float64() * sum
	for i := range most {
		if i == len(p.ids) {
			next()
		}
		if draw -= p.probs[i]; draw < 0 {
			return p.ids[i], nil
		}
	}
	return p.ids[most-1], nil
}

// byLikelihood gives token ids from the likeliest on; of equal logits, the lower id first. It is a heap.
type byLikelihood struct {
	logits []float32
	ids    []int32
}

func (h *byLikelihood) Len() int      { return len(h.ids) }
func (h *byLikelihood) Swap(i, j int) { h.ids[i], h.ids[j] = h.ids[j], h.ids[i] }
func (h *byLikelihood) Push(any)      { panic("train: an id is pushed") }

func (h *byLikelihood) Less(i, j int) bool {
	a, b := h.ids[i], h.ids[j]
	return h.logits[a] > h.logits[b] || h.logits[a] == h.logits[b] && a < b
}

func (h *byLikelihood) Pop() any {
	last := h.ids[len(h.ids)-1]
	h.ids = h.ids[:len(h.ids)-1]
	return last
}

// begin takes all ids.
func (h *byLikelihood) begin(logits []float32) {
	h.logits, h.ids = logits, h.ids[:0]
	for id := range logits {
		h.ids = append(h.ids, int32(id))
	}
	heap.Init(h)
}

// next is the likeliest id of those that are left.
func (h *byLikelihood) next() int32 { return heap.Pop(h).(int32) }
