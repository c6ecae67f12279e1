package nn

import (
	"slices"

	"github.com/millrace/millrace/device"
)

// Rule says what the halves of a block read of the residual stream and what they add to it; n are RMS norms, each with
// weights of its own.
type Rule uint8

// The rules. Sources: Xiong et al., "On Layer Normalization in the Transformer Architecture" (2020); OLMo 2 (2024);
// Gemma 2 (2024); Wang and Komatsuzaki, "GPT-J-6B" (2021); IBM, "Granite 3.0 Language Models" (2024).
const (
	Pre      Rule = iota // h = x + mixer(n(x)), y = h + feed(n(h))
	Post                 // h = x + n(mixer(x)), y = h + n(feed(h)): OLMo 2
	Sandwich             // h = x + n(mixer(n(x))), y = h + n(feed(n(h))): Gemma 2 and 3
	Parallel             // y = x + mixer(n(x)) + feed(n(x)), with one norm for both: Cohere, Phi
	Scaled               // h = x + Residual*mixer(n(x)), y = h + Residual*feed(n(h)): Granite
)

// Norm says how norms are taken: Eps keeps them finite, and Offset is added to their weights (device.NormSpec).
type Norm struct{ Eps, Offset float32 }

// of is the norm of each of the groups of columns of a row.
func (n Norm) of(groups int) device.NormSpec {
	return device.NormSpec{Groups: groups, Eps: n.Eps, Offset: n.Offset}
}

// The norms of the halves' inputs and of their results.
const (
	mixerNorm = "mixer_norm.weight"
	feedNorm  = "feed_norm.weight"
	mixerPost = "mixer_post_norm.weight"
	feedPost  = "feed_post_norm.weight"
)

// NormHasOffset reports whether a tensor of a block is the weight of a norm to which Norm.Offset is added.
func NormHasOffset(field string) bool {
	return slices.Contains([]string{mixerNorm, feedNorm, mixerPost, feedPost, qNorm, kNorm}, field)
}

// norms are the names of a half's norms; "" where it has none.
type norms struct{ in, out string }

// norms returns those of both halves.
func (r Rule) norms() (mixer, feed norms) {
	return [...]norms{{mixerNorm, ""}, {"", mixerPost}, {mixerNorm, mixerPost}, {mixerNorm, ""},
			{mixerNorm, ""}}[r],
		[...]norms{{feedNorm, ""}, {"", feedPost}, {feedNorm, feedPost}, {mixerNorm, ""}, {feedNorm, ""}}[r]
}

// hasPost reports whether the results of halves are normed.
func (r Rule) hasPost() bool { return r == Post || r == Sandwich }

// Normalize writes what the half reads of x to p.Norm: normed rows, or rows as they are.
func (p *Pass) Normalize(x device.Mat) {
	if p.norms.in == "" {
		p.Copy(p.norm.Mem, x.Mem)
		return
	}
	p.RMSNorm(p.norm, p.rstd, x, p.w.named(p.norms.in, 1), p.normed.of(1))
}

// NormalizeGrad adds to dx, the residual stream's gradient, what comes through Normalize. The gradient of the rows that
// it wrote is in p.Norm.
func (p *Pass) NormalizeGrad(x, dx device.Mat) {
	if p.norms.in == "" {
		p.Add(dx, dx, p.norm)
		return
	}
	p.RMSNormGrad(dx, p.g.named(p.norms.in, 1), p.norm, x, p.w.named(p.norms.in, 1), p.rstd, dx, p.normed.of(1))
}

// alters reports whether the results of halves are not added as they are.
func (r Rule) alters() bool { return r.hasPost() || r == Scaled }

// altered writes to p.Norm what the rule adds of the half's result, which is in p.out: its norm, or a multiple.
func (p *Pass) altered() {
	if p.norms.out == "" {
		p.Scale(p.norm, p.out, p.residual)
		return
	}
	p.RMSNorm(p.norm, p.outRstd, p.out, p.w.named(p.norms.out, 1), p.normed.of(1))
}

// alteredGrad writes the gradient of p.out, given that of what is added of it.
func (p *Pass) alteredGrad(dOut, dNormed device.Mat) {
	if p.norms.out == "" {
		p.Scale(dOut, dNormed, p.residual)
		return
	}
	p.RMSNormGrad(dOut, p.g.named(p.norms.out, 1), dNormed, p.out, p.w.named(p.norms.out, 1), p.outRstd, device.Mat{},
		p.normed.of(1))
}

// mix adds the mixer's result to a chunk of the residual stream: h = x + it.
func (d *Block) mix(p *Pass, x, h device.Mat) {
	if !d.Rule.alters() {
		d.Mixer.Output(p, x, h)
		return
	}
	d.Mixer.Output(p, device.Mat{}, p.out)
	p.altered()
	p.Add(h, x, p.norm)
}

// feed adds the feed-forward's result to a chunk of the residual stream: y = h + it. y may be h, or hold it already,
// as Parallel has it; else last says that it does not.
func (d *Block) feed(p *Pass, h, y device.Mat, last device.MatMulFlags) {
	if !d.Rule.alters() {
		d.FeedForward.(Dense).Forward(p, h, y, last)
		return
	}
	d.FeedForward.(Dense).Forward(p, h, p.out, device.MatMulFlags{TransB: true})
	p.altered()
	p.Add(y, h, p.norm)
}
