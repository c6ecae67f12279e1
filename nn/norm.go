package nn

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Norm says how the norms of a model are taken: Eps keeps them finite, and Offset is added to their weights
// (device.NormSpec). Norms of queries and keys, and of what a delta net remembers, are root-mean-square norms in any
// model.
type Norm struct {
	Eps, Offset float32
	Layer       bool // layer norms, whose Offset is 0; else root-mean-square norms
	Bias        bool // of layer norms: what they add after they multiply
}

// of is the root-mean-square norm of each of the groups of columns of a row.
func (n Norm) of(groups int) device.NormSpec {
	return device.NormSpec{Groups: groups, Eps: n.Eps, Offset: n.Offset}
}

// stats is the number of statistics of a row that the gradient needs: F32 [rows, stats].
func (n Norm) stats() int {
	if n.Layer {
		return 2
	}
	return 1
}

// fields are the tensors of a norm over a number of columns. The name is that of its weight.
func (n Norm) fields(weight string, cols int) []tensor.Field {
	fields := []tensor.Field{param(weight, cols)}
	if n.Bias {
		fields = append(fields, param(biasOf(weight), cols))
	}
	return fields
}

// biasOf is the name of the bias that goes with a weight.
func biasOf(weight string) string { return strings.TrimSuffix(weight, "weight") + "bias" }

// bias returns the bias of a norm, or its gradient; the zero Mat for none.
func (n Norm) bias(of Params, weight string) device.Mat {
	if !n.Bias {
		return device.Mat{}
	}
	return of.named(biasOf(weight), 1)
}

// apply writes the norm of rows x to y, and its statistics.
func (n Norm) apply(s device.Stream, y, stat, x device.Mat, w Params, weight string) {
	if n.Layer {
		s.LayerNorm(y, stat, x, w.named(weight, 1), n.bias(w, weight), n.Eps)
		return
	}
	s.RMSNorm(y, stat, x, w.named(weight, 1), n.of(1))
}

// grad writes dx plus the gradient that went around the norm, if that is given, and adds the gradients of parameters,
// except frozen ones. dx may be dy or around.
func (n Norm) grad(s device.Stream, dx, dy, x, stat, around device.Mat, w, g Params, weight string) {
	if !n.Layer {
		s.RMSNormGrad(dx, g.named(weight, 1), dy, x, w.named(weight, 1), stat, around, n.of(1))
		return
	}
	if db := n.bias(g, weight); !db.IsZero() { // first, since dx may overwrite dy
		s.BiasGrad(db, dy)
	}
	s.LayerNormGrad(dx, g.named(weight, 1), dy, x, w.named(weight, 1), stat, around)
}

// The weights of the norms of the halves' inputs and of their results.
const (
	mixerNorm = "mixer_norm.weight"
	feedNorm  = "feed_norm.weight"
	mixerPost = "mixer_post_norm.weight"
	feedPost  = "feed_post_norm.weight"
)

// The weights of norms of [WithDense]: of what its experts read, and of what they and the dense feed-forward made.
const (
	routedNorm = "routed_norm.weight"
	routedPost = "routed_post_norm.weight"
	sharedPost = "shared_post_norm.weight"
)

// NormHasOffset reports whether a tensor of a block is the weight of a norm to which Norm.Offset is added.
func NormHasOffset(field string) bool {
	return slices.Contains([]string{mixerNorm, feedNorm, mixerPost, feedPost, qNorm, kNorm, routedNorm, routedPost,
		sharedPost, routerScale}, field)
}
