package nn

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Block is a decoder block on rows of width Hidden. It is made of two halves, which its rule joins to the residual stream;
// by the usual one, Pre:
//
//	h = x + mixer(norm(x))
//	y = h + feedForward(norm(h))
//
// Blocks of one model may differ in their halves and rules. Which of them go together is in [Block.Check].
type Block struct {
	Hidden      int
	Rule        Rule
	Residual    float32 // of the rule Scaled: multiplies the results of halves
	Mixer       Mixer
	FeedForward FeedForward
	Norm        Norm // all norms; of those inside of halves, Eps and Offset
	// The output is multiplied by a number of the model that is not trained (Args.Scalar).
	Scalar bool
	// The number of positions of a document that have a learned row each, which is added to the input; 0: none has. No
	// document may be longer. Such a block has no feed-forward with parts of its own.
	Positions int
	// PerLayer adds rows of a second embedding to the output, before it is multiplied. It needs Sandwich and
	// root-mean-square norms.
	PerLayer PerLayer
}

// Half has the methods that both halves of a block share. A half is a value that says its sizes; it has no memory.
type Half interface {
	// Fields are the half's tensors in rows of width hidden. What one product computes is glued ([Glued]).
	Fields(hidden int) []tensor.Field
	// Values are the matrices that the half computes with, on rows of width hidden. [Pass.Value] has them by their
	// index here.
	Values(hidden int) []Value
}

// Mixer is the first half of a block, in which positions look at each other: [Attention].
type Mixer interface {
	Half
	// Forward computes all that Output reads from x [T, Hidden].
	Forward(p *Pass, x device.Mat)
	// Output is h = x + the mixer's result, of a chunk; the result alone if x is the zero Mat.
	Output(p *Pass, x, h device.Mat)
	// Recompute does again what Forward did and p.Keeps says is not kept.
	Recompute(p *Pass, x device.Mat)
	// Backward adds the gradient of x to dx, given that of the result, and adds those of the parameters. dy may be dx: it is
	// read before dx is written.
	Backward(p *Pass, x, dy, dx device.Mat)
}

// FeedForward is the second half of a block: [Dense] or [Parted] or [Routed].
type FeedForward interface{ Half }

// Dense is a feed-forward that treats each position by itself, with weights that are fetched with the mixer's: [GLU].
// It sees a chunk at a time.
type Dense interface {
	FeedForward
	// Forward writes the half's result to y, or adds it to the residual stream there, as the flags of its last product say.
	Forward(p *Pass, h, y device.Mat, last device.MatMulFlags)
	// Backward adds the gradient of h to dx, given that of the result, and adds those of the parameters. It first computes
	// again whatever p.Keeps says is not kept, except the last product, whose result it does not read. dy may be dx: it is
	// read before dx is written.
	Backward(p *Pass, h, dy, dx device.Mat)
}

// AttentionHead is the number of columns of a head of the block's attention, and whether its scores have a soft cap; 0
// columns if the block has another mixer.
func (d *Block) AttentionHead() (columns int, capped bool) {
	if a, ok := d.Mixer.(interface{ head() (int, bool) }); ok {
		return a.head()
	}
	return 0, false
}

// Fields are the block's tensors. Matrices come first and decay; norms, other vectors and biases follow and do not,
// so that the optimizer walks two runs.
func (d *Block) Fields() []tensor.Field {
	var matrices, vectors []tensor.Field
	for _, f := range slices.Concat(d.positionFields(), d.Mixer.Fields(d.Hidden), d.FeedForward.Fields(d.Hidden),
		d.PerLayer.Fields(d.Hidden)) {
		if f.Decay {
			matrices = append(matrices, f)
		} else {
			vectors = append(vectors, f)
		}
	}
	mixer, feed := d.Rule.norms()
	for _, name := range slices.Compact([]string{mixer.in, feed.in, mixer.out, feed.out}) {
		if name != "" {
			matrices = append(matrices, d.Norm.fields(name, d.Hidden)...)
		}
	}
	return slices.Concat(matrices, vectors)
}

// param is a tensor that is trained. Matrices decay.
func param(name string, shape ...int) tensor.Field {
	return tensor.Field{Name: name, Shape: shape, Trainable: true, Decay: len(shape) == 2}
}

// glued is a tensor that makes up one matrix, or one vector, with the tensor before it.
func glued(name string, shape ...int) tensor.Field {
	f := param(name, shape...)
	f.Glued = true
	return f
}

// when returns n where the half has the thing that n counts, and else nothing.
func when[T int | int64](has bool, n T) T {
	if has {
		return n
	}
	return 0
}
