package generate

import (
	"container/heap"
	"errors"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/stream"
)

// ErrNotFinite ends a text whose next token cannot be chosen.
var ErrNotFinite = errors.New("the model's logits are not finite: it has diverged")

// picker chooses tokens. Where all tokens may be chosen, the device does that, from the picker's draws; its own choices
// from logits on the host are the slow reference of those, and serve top k, top p and models without caches.
type picker struct {
	Options
	vocab int // ids from here on are padding of the model's table, which no text has
	key   rng.Key
	order byLikelihood
	ids   []int32 // the likeliest ones
	probs []float64
}

func newPicker(o Options, vocab int) *picker {
	return &picker{Options: o, vocab: vocab, key: rng.KeyOf(o.Seed, "generate", 0)}
}

// choosesOfAll reports whether any token may be chosen, or the likeliest one is.
func (o *Options) choosesOfAll() bool {
	return o.Temperature == 0 || o.TopK == 0 && (o.TopP == 0 || o.TopP == 1)
}

// drawFor names the choice for the place at of a text, by its number.
func (p *picker) drawFor(text, at int) device.TokenDraw {
	return device.TokenDraw{Key: p.key, Text: uint64(text), At: uint32(at), Inverse: device.Inverse(p.Temperature)}
}

// token is the choice for the place at of a text, by its number. Of equal logits the lower id is the more likely one,
// also at the edge of TopK, where transformers keeps all of them.
//
// Logits are divided by the temperature, the TopK largest kept, of these the fewest whose probability is at least TopP, and
// one drawn by probability: the order of transformers. It is the one with the greatest sum of logit and noise, as in
// [device.HeadOps.DrawTokens], so that a token has the same noise whether or not others are kept. Its log-probability
// is that among the kept ones. Source of TopP: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020).
// It is noToken where logits are not finite.
func (p *picker) token(logits []float32, text, at int) stream.Drawn {
	chosen, ids, logProb := p.distribution(logits)
	if d := p.drawFor(text, at); chosen != noToken && d.Inverse != 0 {
		most := float32(math.Inf(-1))
		for _, id := range ids {
			x := float32(float64(logits[id]*d.Inverse) + rng.Gumbel(wordOf(d, id)))
			if x > most || x == most && id < chosen {
				chosen, most = id, x
			}
		}
	}
	if chosen == noToken {
		return stream.Drawn{ID: noToken}
	}
	return stream.Drawn{ID: chosen, LogProb: float32(logProb(chosen))}
}

// distribution returns the likeliest token, the tokens that may be chosen, and the natural logarithm of the probability
// that one of these has among them; noToken where logits are not finite. At temperature 0 probabilities are those of 1.
func (p *picker) distribution(logits []float32) (likeliest int32, ids []int32, logProb func(id int32) float64) {
	logits = logits[:min(p.vocab, len(logits))]
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 1) {
			return noToken, nil, nil
		}
	}
	if math.IsInf(float64(logits[best]), -1) {
		return noToken, nil, nil
	}
	scale := device.Inverse(p.Temperature)
	if scale == 0 {
		scale = 1
	}
	exponent := func(id int32) float64 { return float64(logits[id]*scale) - float64(logits[best]*scale) }
	ids, sum := p.kept(logits, func(id int32) float64 { return math.Exp(exponent(id)) })
	all := math.Log(sum)
	return int32(best), ids, func(id int32) float64 { return exponent(id) - all }
}

// wordOf is the random word of a token.
func wordOf(d device.TokenDraw, id int32) uint32 {
	n := d.Words(int(id)).First / device.DrawTogether
	return rng.Philox4x32(d.Key, rng.Counter{uint32(n), uint32(n >> 32), uint32(d.Text), uint32(d.Text >> 32)})[id%4]
}

// kept are the tokens that may be chosen, and the sum of their weights.
func (p *picker) kept(logits []float32, weight func(id int32) float64) (ids []int32, sum float64) {
	p.ids, p.probs = p.ids[:0], p.probs[:0]
	if p.choosesOfAll() {
		for id := range logits {
			p.ids = append(p.ids, int32(id))
			sum += weight(int32(id))
		}
		return p.ids, sum
	}
	p.order.begin(logits)
	// Few tokens have most of the probability, so that the others need no order.
	next := func() float64 {
		id := p.order.next()
		p.ids, p.probs = append(p.ids, id), append(p.probs, weight(id))
		return p.probs[len(p.probs)-1]
	}
	most := len(logits)
	if p.TopK > 0 {
		for most = min(p.TopK, most); len(p.ids) < most; {
			sum += next()
		}
	} else {
		for id := range logits {
			sum += weight(int32(id))
		}
	}
	if p.TopP > 0 && p.TopP < 1 {
		all, n := sum, 0
		for sum = 0; n < most && sum < p.TopP*all; n++ {
			if n == len(p.ids) {
				next()
			}
			sum += p.probs[n]
		}
		most = n
	}
	return p.ids[:most], sum
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
