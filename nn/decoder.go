package nn

import "github.com/millrace/millrace/tensor"

// Decoder is the pre-norm decoder block of the Llama family and its relatives, on rows of width Hidden:
//
//	h = x + attention(norm(x))
//	y = h + mlp(norm(h))
//
// with RMS norms, grouped-query attention with rotary positions, and a SwiGLU MLP.
// Source: Touvron et al., "LLaMA" (2023).
type Decoder struct {
	Hidden, Intermediate    int
	Heads, KVHeads, HeadDim int

	QKVBias bool // biases on the q, k and v projections
	OutBias bool // a bias on the attention's output projection
	MLPBias bool // biases on gate, up and down
	QKNorm  bool // RMS norms of each head's query and key, before the rotation

	Eps    float32 // of all norms
	Scale  float32 // of the attention scores, usually 1/sqrt(HeadDim)
	Window int     // a query sees this many latest keys, itself included; 0: all
}

func (d *Decoder) qCols() int   { return d.Heads * d.HeadDim }
func (d *Decoder) kvCols() int  { return d.KVHeads * d.HeadDim }
func (d *Decoder) qkCols() int  { return d.qCols() + d.kvCols() }
func (d *Decoder) qkvCols() int { return d.qkCols() + d.kvCols() }

// Fields are the block's tensors under the names that Hugging Face checkpoints use inside a layer. Matrices come first
// and decay; norms and biases follow and do not, so that the optimizer walks two runs. What one product computes is
// glued: q, k, v; gate, up; and their biases.
func (d *Decoder) Fields() []tensor.Field {
	fields, _ := d.fields()
	return fields
}

// places are the indices of tensors in Fields; an absent one is -1. Of glued tensors it is the first.
type places struct {
	qkv, out, gateUp, down                 int
	attnNorm, mlpNorm, qNorm, kNorm        int
	qkvBias, outBias, gateUpBias, downBias int
}

func (d *Decoder) places() places {
	_, p := d.fields()
	return p
}

func (d *Decoder) fields() ([]tensor.Field, places) {
	var fields []tensor.Field
	add := func(name string, shape ...int) int {
		fields = append(fields, tensor.Field{Name: name, Shape: shape, Trainable: true, Decay: len(shape) == 2})
		return len(fields) - 1
	}
	glue := func(name string, shape ...int) {
		fields[add(name, shape...)].Glued = true
	}
	var p places
	p.qkv = add("self_attn.q_proj.weight", d.qCols(), d.Hidden)
	glue("self_attn.k_proj.weight", d.kvCols(), d.Hidden)
	glue("self_attn.v_proj.weight", d.kvCols(), d.Hidden)
	p.out = add("self_attn.o_proj.weight", d.Hidden, d.qCols())
	p.gateUp = add("mlp.gate_proj.weight", d.Intermediate, d.Hidden)
	glue("mlp.up_proj.weight", d.Intermediate, d.Hidden)
	p.down = add("mlp.down_proj.weight", d.Hidden, d.Intermediate)
	p.attnNorm = add("input_layernorm.weight", d.Hidden)
	p.mlpNorm = add("post_attention_layernorm.weight", d.Hidden)
	p.qNorm, p.kNorm, p.qkvBias, p.outBias, p.gateUpBias, p.downBias = -1, -1, -1, -1, -1, -1
	if d.QKNorm {
		p.qNorm = add("self_attn.q_norm.weight", d.HeadDim)
		p.kNorm = add("self_attn.k_norm.weight", d.HeadDim)
	}
	if d.QKVBias {
		p.qkvBias = add("self_attn.q_proj.bias", d.qCols())
		glue("self_attn.k_proj.bias", d.kvCols())
		glue("self_attn.v_proj.bias", d.kvCols())
	}
	if d.OutBias {
		p.outBias = add("self_attn.o_proj.bias", d.Hidden)
	}
	if d.MLPBias {
		p.gateUpBias = add("mlp.gate_proj.bias", d.Intermediate)
		glue("mlp.up_proj.bias", d.Intermediate)
		p.downBias = add("mlp.down_proj.bias", d.Hidden)
	}
	return fields, p
}

// FLOPs is the arithmetic of one micro-batch of t positions in which each head scores the given number of pairs of query
// and key: of forward, of backward when everything was kept, and of what backward repeats at each Keep. It counts 2MNK for
// each product and leaves out what is element-wise. Backward has two products for each of forward's, and attention's
// gradient five for forward's two, since it forms the scores again.
func (d *Decoder) FLOPs(t int, pairs int64) (forward, backward int64, recompute [Keeps]int64) {
	row := 2 * int64(t) * int64(d.Hidden)
	qkv, out := row*int64(d.qkvCols()), row*int64(d.qCols())
	gateUp, down := 2*row*int64(d.Intermediate), row*int64(d.Intermediate)
	pair := 2 * pairs * int64(d.qCols()) // one product over all pairs
	forward = qkv + out + gateUp + down + 2*pair
	backward = 2*(qkv+out+gateUp+down) + 5*pair
	recompute = [Keeps]int64{
		KeepInput:     qkv + out + gateUp + 2*pair,
		KeepAttention: qkv + out + gateUp,
		KeepGateUp:    qkv + out,
	}
	return forward, backward, recompute
}

// Ops is how many operations Forward and Backward ask the device for, in so many chunks, when everything was kept, and how many
// more Backward does at each Keep. A frozen tensor takes away its own.
func (d *Decoder) Ops(chunks int) (forward, backward int, recompute [Keeps]int) {
	count := func(has bool, ops int) int {
		if has {
			return ops
		}
		return 0
	}
	project := 2 + count(d.QKVBias, 1)
	rotate := 1 + count(d.QKNorm, 2)
	add := 1 + count(d.OutBias, 1)
	gateUp := 1 + count(d.MLPBias, 1)
	forward = 1 + chunks*(project+rotate+add+1+gateUp+1+1+count(d.MLPBias, 1))
	mlp := 1 + 6 + count(d.MLPBias, 2)
	attention := 2 + count(d.OutBias, 1) + rotate + 4 + count(d.QKVBias, 1)
	backward = 1 + chunks*(mlp+attention+count(d.QKNorm, rotate))
	kept := [Keeps]int{KeepGateUp: chunks * (project + count(!d.QKNorm, rotate) + add)}
	kept[KeepAttention] = kept[KeepGateUp] + chunks*gateUp
	kept[KeepInput] = kept[KeepAttention] + 1
	return forward, backward, kept
}

// ElementTraffic is how many elements of the activation type each position has its element-wise operations read and write, in Forward
// and in Backward at a Keep: each operand once for each time that it is read or written. Vectors of weights, statistics and the
// tables of the rotation are small and left out; so is attention but for the sum of dout*out, which is a pass of its own. What a matrix
// product reads and writes belongs to the product. The rotation adds the biases of what it rotates. That is what a GPU moves;
// the CPU's RMSNormGrad goes over dy and x twice.
//
// A block of Qwen2.5-7B (hidden 3584, inner 18944, q 3584, qkv 4608) that keeps everything has, in bf16:
//
//	forward   161 kB: 2 RMSNorm 2*14, bias of v 2, RoPE 16, SwiGLU 114
//	backward  353 kB: 2 RMSNorm 2*14, SwiGLUGrad 227, 2 RMSNormGrad 2*29, dout*out 14, RoPE 16, bias gradient 9
func (d *Decoder) ElementTraffic(keep Keep) (forward, backward int64) {
	when := func(has bool, elems int) int {
		if has {
			return elems
		}
		return 0
	}
	const once, twice = 1, 2 // passes over a matrix; an operation in place has two
	hidden, inner, q, qkv := d.Hidden, d.Intermediate, d.qCols(), d.qkvCols()
	rotated, biased := d.qkCols(), d.kvCols()
	if d.QKNorm {
		biased = qkv
	}
	norm := twice * hidden
	normGrad := 4 * hidden // dy, x, the residual's gradient, dx
	project := norm + when(d.QKVBias, twice*biased)
	rotate := twice*rotated + when(d.QKNorm, twice*rotated)
	add := when(d.OutBias, twice*hidden)
	gateUp := when(d.MLPBias, twice*2*inner)
	swiglu := 3 * inner // gate, up, y

	f := project + rotate + add + norm + gateUp + swiglu + when(d.MLPBias, twice*hidden)
	mlp := norm + when(d.MLPBias, once*hidden) + 6*inner + when(d.MLPBias, once*2*inner) + normGrad
	attention := when(d.OutBias, once*hidden) + twice*q + twice*rotated + when(d.QKNorm, 3*rotated) +
		norm + when(d.QKVBias, once*qkv) + normGrad
	b := mlp + attention + when(keep < KeepAll, project+add) + when(keep < KeepAll || d.QKNorm, rotate) + when(keep < KeepGateUp, gateUp)
	return int64(f), int64(b)
}

// Pairs is the number of pairs of query and key that one head scores in documents of these lengths.
func (d *Decoder) Pairs(docs []int) int64 {
	var n int64
	for _, l := range docs {
		m := int64(l)
		n += m * (m + 1) / 2
		if w := int64(d.Window); w > 0 && m > w {
			n -= (m - w) * (m - w + 1) / 2
		}
	}
	return n
}
