package nn

import "github.com/millrace/millrace/device"

// Rule says what the halves of a block read of the residual stream and what they add to it; n are norms, each with
// weights of its own.
type Rule uint8

// The rules. Sources: Xiong et al., "On Layer Normalization in the Transformer Architecture" (2020); OLMo 2 (2024);
// Gemma 2 (2024); Wang and Komatsuzaki, "GPT-J-6B" (2021); IBM, "Granite 3.0 Language Models" (2024); Black et al.,
// "GPT-NeoX-20B" (2022).
const (
	Pre           Rule = iota // h = x + mixer(n(x)), y = h + feed(n(h))
	Post                      // h = x + n(mixer(x)), y = h + n(feed(h)): OLMo 2
	Sandwich                  // h = x + n(mixer(n(x))), y = h + n(feed(n(h))): Gemma 2 and 3
	Parallel                  // y = x + mixer(n(x)) + feed(n(x)), with one norm for both: Cohere, Phi
	Scaled                    // h = x + Residual*mixer(n(x)), y = h + Residual*feed(n(h)): Granite
	ParallelNorms             // y = x + mixer(n(x)) + feed(n(x)), with a norm for each: GPT-NeoX
	Branches                  // h = x + n(mixer(n(x))), y = h + feed(h), whose parts read n(h): Gemma 4 with experts
)

// norms are the names of a half's norms; "" where it has none.
type norms struct{ in, out string }

// norms returns those of both halves.
func (r Rule) norms() (mixer, feed norms) {
	in := [2]norms{{in: mixerNorm}, {in: feedNorm}}
	of := [...][2]norms{Pre: in, Post: {{out: mixerPost}, {out: feedPost}},
		Sandwich: {{mixerNorm, mixerPost}, {feedNorm, feedPost}}, Parallel: {in[0], in[0]}, Scaled: in,
		ParallelNorms: in, Branches: {{mixerNorm, mixerPost}, {in: routedNorm}}}[r]
	return of[0], of[1]
}

// isParallel reports whether both halves read the block's input.
func (r Rule) isParallel() bool { return r == Parallel || r == ParallelNorms }

// hasPost reports whether the result of the mixer is normed. By all rules but Branches, that of the feed-forward is
// then normed, too.
func (r Rule) hasPost() bool { return r == Post || r == Sandwich || r == Branches }

// Normalize writes what the half reads of x to p.Norm: normed rows, or rows as they are.
func (p *Pass) Normalize(x device.Mat) {
	if p.norms.in == "" {
		p.Copy(p.norm.Mem, x.Mem)
		return
	}
	p.normed.apply(p, p.norm, p.stat, x, p.w, p.norms.in)
}

// NormalizeGrad adds to dx, the residual stream's gradient, what comes through Normalize. The gradient of the rows that
// it wrote is in p.Norm.
func (p *Pass) NormalizeGrad(x, dx device.Mat) {
	if p.norms.in == "" {
		p.Add(dx, dx, p.norm)
		return
	}
	p.normed.grad(p, dx, p.norm, x, p.stat, dx, p.w, p.g, p.norms.in)
}

// alters reports whether the results of halves are not added as they are. A feed-forward with parts adds its own.
func (r Rule) alters() bool { return r.hasPost() || r == Scaled }

// altered writes to p.Norm what the rule adds of the half's result, which is in p.out: its norm, or a multiple.
func (p *Pass) altered() {
	if p.norms.out == "" {
		p.Scale(p.norm, p.out, p.residual)
		return
	}
	p.normed.apply(p, p.norm, p.outStat, p.out, p.w, p.norms.out)
}

// alteredGrad writes the gradient of p.out, given that of what is added of it.
func (p *Pass) alteredGrad(dOut, dNormed device.Mat) {
	if p.norms.out == "" {
		p.Scale(dOut, dNormed, p.residual)
		return
	}
	p.normed.grad(p, dOut, dNormed, p.out, p.outStat, device.Mat{}, p.w, p.g, p.norms.out)
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
