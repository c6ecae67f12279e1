package nn

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Block is a decoder block on rows of width Hidden. It is made of two halves, each with an RMS norm of its own, by the
// pre-norm rule of the residual stream:
//
//	h = x + mixer(norm(x))
//	y = h + feedForward(norm(h))
//
// Blocks of one model may differ in their halves. Two blocks that are equal (==) ask the device for the same.
type Block struct {
	Hidden      int
	Mixer       Mixer
	FeedForward FeedForward
	Eps         float32 // of all norms, those inside of halves included
}

// half is what both halves of a block have in common. Accounts count the norm at the half's beginning.
type half interface {
	// fields are the half's tensors in rows of width hidden, under the names that Hugging Face checkpoints use inside a
	// layer. What one product computes is glued.
	fields(hidden int) []tensor.Field
	// buffers are the matrices that the half computes with, see buffer.
	buffers() []buffer
	// flops, ops and elementTraffic are the half's parts of what Block.FLOPs, Ops and ElementTraffic say.
	flops(hidden, t int, pairs int64) (forward, backward int64, recompute [Keeps]int64)
	ops(chunks int) (forward, backward int, recompute [Keeps]int)
	elementTraffic(hidden int, keep Keep) (forward, backward int)
}

// Mixer is the first half of a block, in which positions look at each other: [Attention].
type Mixer interface {
	half
	// Pairs is the number of pairs of query and key that one head scores in documents of these lengths.
	Pairs(docs []int) int64
	// QueryHeads is the number of heads and their width in the queries of attention, for device.PrepareAttention.
	QueryHeads() (heads, headDim int)

	// againAccounts are those of recompute and of output in a backward visit, where less than everything was kept.
	againAccounts(hidden, t, chunks int, pairs int64, k Keep) (recompute, output Account)

	// forward computes all that output reads from x [T, Hidden].
	forward(p *pass, x device.Mat)
	// output is h = x + the mixer's result, of a chunk.
	output(p *pass, x, h device.Mat)
	// recompute does again what forward did and p.keep does not keep.
	recompute(p *pass, x device.Mat)
	// backward turns dx from the gradient of h into that of x, and adds those of the parameters.
	backward(p *pass, x, dx device.Mat)
}

// FeedForward is the second half of a block, which treats each position by itself: [GLU]. It sees a chunk at a time.
type FeedForward interface {
	half
	// forward is y = h + the half's result: the flags of its last product have that added to the residual stream.
	forward(p *pass, h, y device.Mat, last device.MatMulFlags)
	// backward turns dx from the gradient of y into the gradient of h, and adds the gradients of the parameters. It
	// first computes again whatever p.keep does not keep, except the last product, whose result nothing reads.
	backward(p *pass, h, dx device.Mat)
}

// The norms at the beginning of the halves.
const (
	mixerNorm = "input_layernorm.weight"
	feedNorm  = "post_attention_layernorm.weight"
)

// Fields are the block's tensors. Matrices come first and decay; norms, other vectors and biases follow and do not,
// so that the optimizer walks two runs.
func (d *Block) Fields() []tensor.Field {
	var matrices, vectors []tensor.Field
	for _, f := range slices.Concat(d.Mixer.fields(d.Hidden), d.FeedForward.fields(d.Hidden)) {
		if f.Decay {
			matrices = append(matrices, f)
		} else {
			vectors = append(vectors, f)
		}
	}
	return slices.Concat(matrices, []tensor.Field{param(mixerNorm, d.Hidden), param(feedNorm, d.Hidden)}, vectors)
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

// FLOPs is the arithmetic of one micro-batch of t positions in which each head scores the given number of pairs of
// query and key: of forward, of backward when everything was kept, and of what backward repeats at each Keep. It
// counts 2MNK for each product and leaves out what is element-wise. Backward has two products for each of forward's,
// and attention's gradient five for forward's two, since it forms the scores again.
func (d *Block) FLOPs(t int, pairs int64) (forward, backward int64, recompute [Keeps]int64) {
	forward, backward, recompute = d.Mixer.flops(d.Hidden, t, pairs)
	f, b, again := d.FeedForward.flops(d.Hidden, t, pairs)
	for k := range recompute {
		recompute[k] += again[k]
	}
	return forward + f, backward + b, recompute
}

// Ops counts the operations that Forward and Backward ask the device for when they run in that number of chunks and
// everything was kept, and the operations that Backward adds at each Keep. A frozen tensor saves its own operations.
func (d *Block) Ops(chunks int) (forward, backward int, recompute [Keeps]int) {
	forward, backward, recompute = d.Mixer.ops(chunks)
	f, b, again := d.FeedForward.ops(chunks)
	for k := range recompute {
		recompute[k] += again[k]
	}
	return forward + f, backward + b, recompute
}

// ElementTraffic counts the elements of the activation type that element-wise operations read and write for each
// position, in Forward and in Backward at a Keep: each operand once for each time that it is read or written. Vectors
// of weights, statistics and the tables of the rotation are small and left out. So is attention, except the sum of
// dout*out, which is a pass of its own. The operands of a matrix product count with the product. The rotation
// adds the biases of what it rotates. A GPU moves these elements; the CPU's RMSNormGrad reads dy and x twice.
//
// A block of Qwen2.5-7B (hidden 3584, inner 18944, q 3584, qkv 4608) that keeps everything has, in bf16:
//
//	forward   161 kB: 2 RMSNorm 2*14, bias of v 2, RoPE 16, SwiGLU 114
//	backward  353 kB: 2 RMSNorm 2*14, SwiGLUGrad 227, 2 RMSNormGrad 2*29, dout*out 14, RoPE 16, bias gradient 9
func (d *Block) ElementTraffic(keep Keep) (forward, backward int64) {
	forwardMixer, backwardMixer := d.Mixer.elementTraffic(d.Hidden, keep)
	forwardFeed, backwardFeed := d.FeedForward.elementTraffic(d.Hidden, keep)
	return int64(forwardMixer + forwardFeed), int64(backwardMixer + backwardFeed)
}

// Passes over a matrix, for accounts of traffic. An operation in place has two.
const once, twice = 1, 2

// normTraffic is that of a half's norm over rows of this width, and of its gradient, which reads dy, x and the residual
// stream's gradient, and writes dx.
func normTraffic(width int) (forward, backward int) { return twice * width, 4 * width }

// when is n where the half has the thing that n counts.
func when[T int | int64](has bool, n T) T {
	if has {
		return n
	}
	return 0
}
