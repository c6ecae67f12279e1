package model

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// partParams bounds the parameters of a part of experts, unless a single expert has more. In bf16 such a part
// takes 256 MiB of a slot and 512 MiB of a gradient in fp32. Smaller parts would be more operations of a step, larger
// ones more memory of the device; a link is as fast with both. Checkpoints name state by part, so it is the same for
// all runs.
const partParams = 128 << 20

// parted is a mixture whose experts are dealt to parts, as many to each as possible, and checks what concerns several
// keys.
func (s *Spec) parted(r *hf.ConfigReader, x nn.Experts) nn.Experts {
	if x.Route.TopK > x.Number {
		r.Fail("num_experts_per_tok", "each token has %d experts, and there are %d", x.Route.TopK, x.Number)
		return x
	}
	if groups, top := x.Route.Groups, x.Route.TopGroups; groups > 1 {
		switch each := x.Number / groups; {
		case x.Number%groups != 0 || each < x.Route.LeastInGroup():
			r.Fail("n_group", "it does not cut %d experts into equal groups of %d or more", x.Number,
				x.Route.LeastInGroup())
		case top > groups:
			r.Fail("topk_group", "each token has %d groups, and there are %d", top, groups)
		case top*each < x.Route.TopK:
			r.Fail("topk_group", "%d groups have %d experts, and each token has %d", top, top*each, x.Route.TopK)
		}
	}
	if x.Number > maxExperts/max(s.Layers, 1) {
		r.Fail("num_hidden_layers", "%d layers of %d experts are more than %d experts, and no more are supported",
			s.Layers, x.Number, maxExperts)
		return x
	}
	if x.PerPart == 0 && x.Number > 0 {
		each := 3 * int64(s.Hidden) * int64(x.Inner)
		most := int(min(max(partParams/max(each, 1), 1), int64(x.Number)))
		parts := (x.Number + most - 1) / most
		x.PerPart = (x.Number + parts - 1) / parts
	}
	return x
}

// Routed reports whether the model has experts.
func (m *Model) Routed() bool {
	return slices.ContainsFunc(m.Blocks, func(d *nn.Block) bool { return d.Loads() > 0 })
}

// either is the name of a key that versions of transformers save under two names.
func either(r *hf.ConfigReader, old, new string) string {
	if r.Has(new) && !r.Has(old) {
		return new
	}
	return old
}

// maxExperts bounds the experts of all layers, since each has tensors with names of their own. No model comes near.
const maxExperts = 1 << 16

// Balanced returns the same model with a load-balancing loss of a weight, over all of its blocks with experts; the
// model itself if the weight is 0. A model without experts has no such loss.
func (m *Model) Balanced(weight float64) (*Model, error) {
	if weight == 0 {
		return m, nil
	}
	blocks, experts := 0, 0
	for i, d := range m.Blocks {
		if n := d.Loads(); n > 0 {
			if experts != 0 && n != experts {
				return nil, fmt.Errorf("router_aux_loss_coef: layer %d has %d experts, another one %d, and the loss is "+
					"over equally many", i, n, experts)
			}
			blocks, experts = blocks+1, n
		}
	}
	if blocks == 0 {
		return nil, fmt.Errorf("router_aux_loss_coef is %g: a %s has no experts; leave it out", weight, m.Type)
	}
	balanced := *m
	balanced.Blocks = slices.Clone(m.Blocks)
	for i, d := range m.Blocks {
		if f, ok := d.FeedForward.(nn.Mixture); ok {
			x, d := f.Mixture(), *d
			x.Balance = nn.Balance{Weight: float32(weight), Blocks: blocks}
			d.FeedForward = f.With(x)
			balanced.Blocks[i] = &d
		}
	}
	return &balanced, nil
}
