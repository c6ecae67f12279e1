package nn

import (
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in this file: t rows of the pass, H the hidden width, h heads, n and r the columns of a head's
// query and key that are not rotated and that are, d = n + r, v the columns of its value, R and K the ranks of
// queries and of keys and values.
//
//	x, dx           [t, H]              input of the block and its gradient
//	in, dIn         [t, R + K + r]      latent queries, latent keys and values, and the key's rotated part, which all
//	                                    heads share: of one product. Without a rank of queries, [t, h*d + K + r], of
//	                                    which the queries are as in q
//	qLatent         [t, R]              the normed latent queries
//	kvLatent        [t, K]              the normed latent keys and values
//	q, dQ           [t, h*n + h*r]      queries: of all heads what is not rotated, and then what is
//	kv, dKV         [t, h*n + h*v]      keys, of what is not rotated, and then values
//	query, key      [t, h*d]            as attention reads them: head by head
//	value           [t, h*d]            values, with zeros after each head's, where v < d
//	att, dAtt       [t, h*d]            output of the heads, the same; columns v to d of each are zeros
//	out             [t, h*v]            output of the heads without these
//	lse, delta      F32 [t, h]          as of Attention
//
// A cache could keep the latents alone, K + r columns a position, but then each pass would compute the keys and values
// of all positions before it again. It keeps keys and values as attention reads them, 2*h*d columns.
//
// The operation of attention has one width for queries, keys and values. Values are narrower here, so zeros are added
// to them: with 192 and 128 columns that is a fifth more arithmetic than is needed.
//
// Which of these are kept? As of Attention: att and lse (KeepAttention); what the products give, in, q and kv
// (KeepAll). Norms and joins are done again. q and kv have no gradients of their own: once attention's gradient is
// there, backward does not read them, and their gradients take their place.

// LatentAttention is attention whose queries, keys and values are made from compressed ones, and of which a part of the
// key is one for all heads: multi-head latent attention. Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and
// Efficient Mixture-of-Experts Language Model" (2024).
type LatentAttention struct {
	Heads           int
	QueryRank       int // 0: queries are of one product
	KeyRank         int // of keys and values together
	Plain, Rotated  int // columns of a head's query and key that are not rotated, and after them those that are
	ValueDim        int // columns of a head's value, Plain + Rotated at most
	Rope            RopeFrequencies
	Scale           float32 // of the scores
	Eps             float32 // of the norms of the latents
	InBias, OutBias bool    // biases of what makes the latents and the shared part of the key; of the output
}

// The tensors of latent attention. Of those that are glued it is the first.
const (
	latentQueryIn   = "q_a.weight"
	latentQueryNorm = "q_a_norm.weight"
	latentQuery     = "q_b.weight" // and "q_b_rope.weight"
	latentPlainIn   = "q.weight"   // and "q_rope.weight": without a rank of queries
	latentKeyIn     = "kv_a.weight"
	latentKeyNorm   = "kv_a_norm.weight"
	latentKey       = "k_b.weight" // and "v_b.weight"
	latentQueryBias = "q_a.bias"
	latentKeyBias   = "kv_a.bias"
)

// The buffers of latent attention, t rows each.
const (
	laAtt      = iota // [t, h*d]
	laLSE             // F32 [t, h]
	laOut             // [t, h*v], where v < d; in backward then its gradient
	laIn              // [t, inCols]; what all heads share of keys is rotated
	laQ               // [t, h*d], with a rank of queries; the second part rotated; in backward then its gradient
	laKV              // [t, h*(n+v)]; in backward then its gradient
	laQLatent         // [t, R]; in backward then its gradient
	laKVLatent        // [t, K]; in backward then its gradient
	laQRstd           // F32 [t, 1]
	laKVRstd          // F32 [t, 1]
	laQuery           // [t, h*d]
	laKey             // [t, h*d]
	laValue           // [t, h*d], where v < d
	laDAtt            // [t, h*d]
	laDQuery          // [t, h*d]
	laDKey            // [t, h*d]
	laDValue          // [t, h*d]
	laDIn             // [t, inCols]
	laDelta           // F32 [t, h]
)

// Values implements Half.
func (l LatentAttention) Values(int) []Value {
	cols, padded, ranked := l.cols(), l.ValueDim < l.headDim(), l.QueryRank > 0
	return []Value{
		laAtt:      {Cols: cols, Level: KeepAttention, Lives: Result},
		laLSE:      {Cols: l.Heads, DType: tensor.F32, Level: KeepAttention, Lives: Result},
		laOut:      {Cols: when(padded, l.valueCols()), Lives: Result},
		laIn:       {Cols: l.inCols(), Level: KeepAll, Lives: Operand},
		laQ:        {Cols: when(ranked, cols), Level: KeepAll, Lives: Operand},
		laKV:       {Cols: l.Heads*l.Plain + l.valueCols(), Level: KeepAll, Lives: Operand},
		laQLatent:  {Cols: l.QueryRank, Lives: Operand},
		laKVLatent: {Cols: l.KeyRank, Lives: Operand},
		laQRstd:    {Cols: when(ranked, 1), DType: tensor.F32, Lives: Operand},
		laKVRstd:   {Cols: 1, DType: tensor.F32, Lives: Operand},
		laQuery:    {Cols: cols, Lives: Operand},
		laKey:      {Cols: cols, Lives: Operand},
		laValue:    {Cols: when(padded, cols), Lives: Operand},
		laDAtt:     {Cols: cols, Lives: Gradient},
		laDQuery:   {Cols: cols, Lives: Gradient},
		laDKey:     {Cols: cols, Lives: Gradient},
		laDValue:   {Cols: cols, Lives: Gradient},
		laDIn:      {Cols: l.inCols(), Lives: Gradient},
		laDelta:    {Cols: l.Heads, DType: tensor.F32, Lives: Gradient},
	}
}

// Rotary implements Rotated.
func (l LatentAttention) Rotary() RopeFrequencies { return l.Rope }

func (l LatentAttention) head() (columns int, capped bool) { return l.headDim(), false }

func (l LatentAttention) headDim() int   { return l.Plain + l.Rotated }
func (l LatentAttention) cols() int      { return l.Heads * l.headDim() }
func (l LatentAttention) valueCols() int { return l.Heads * l.ValueDim }

// queriesIn is the columns of the first product that are, or become, queries.
func (l LatentAttention) queriesIn() int {
	if l.QueryRank > 0 {
		return l.QueryRank
	}
	return l.cols()
}

func (l LatentAttention) inCols() int { return l.queriesIn() + l.KeyRank + l.Rotated }

// first is the tensor that the first product begins with, and the number of those that are glued to one.
func (l LatentAttention) first() (name string, n int) {
	if l.QueryRank > 0 {
		return latentQueryIn, 3
	}
	return latentPlainIn, 4
}

// Fields implements Half.
func (l LatentAttention) Fields(hidden int) []tensor.Field {
	plain, rotated := l.Heads*l.Plain, l.Heads*l.Rotated
	var fields []tensor.Field
	if l.QueryRank > 0 {
		fields = append(fields, param(latentQueryIn, l.QueryRank, hidden))
	} else {
		fields = append(fields, param(latentPlainIn, plain, hidden), glued("q_rope.weight", rotated, hidden))
	}
	fields = append(fields, glued(latentKeyIn, l.KeyRank, hidden), glued("k_rope.weight", l.Rotated, hidden))
	if l.QueryRank > 0 {
		fields = append(fields, param(latentQuery, plain, l.QueryRank),
			glued("q_b_rope.weight", rotated, l.QueryRank), param(latentQueryNorm, l.QueryRank))
	}
	fields = append(fields, param(latentKey, plain, l.KeyRank), glued("v_b.weight", l.valueCols(), l.KeyRank),
		param(outWeight, hidden, l.valueCols()), param(latentKeyNorm, l.KeyRank))
	if l.InBias {
		key := param(latentKeyBias, l.KeyRank)
		if l.QueryRank > 0 {
			fields = append(fields, param(latentQueryBias, l.QueryRank))
			key.Glued = true
		}
		fields = append(fields, key, glued("k_rope.bias", l.Rotated))
	}
	if l.OutBias {
		fields = append(fields, param(outBias, hidden))
	}
	return fields
}

// HeadRows is the number of rows of a tensor that belong to a head, or all of them where heads share it; 0: the tensor
// has no heads.
func (l LatentAttention) HeadRows(field string) int {
	switch stem, _, _ := strings.Cut(field, "."); stem {
	case "q", "q_b", "k_b":
		return l.Plain
	case "q_rope", "q_b_rope", "k_rope":
		return l.Rotated
	case "v_b":
		return l.ValueDim
	}
	return 0
}

// split views the columns of [t, inCols].
func (l LatentAttention) split(in device.Mat) (q, kv, rotated device.Mat) {
	at := l.queriesIn()
	return in.ColRange(0, at), in.ColRange(at, l.KeyRank), in.ColRange(at+l.KeyRank, l.Rotated)
}

// parts views the columns of [t, h*n + what follows].
func (l LatentAttention) parts(m device.Mat) (plain, rest device.Mat) {
	at := l.Heads * l.Plain
	return m.ColRange(0, at), m.ColRange(at, m.Cols-at)
}

// queries returns the queries before they are joined: the result of a product of their own if there is one, else
// columns of the first product. in numbers the buffer of the first product, or of its gradient.
func (l LatentAttention) queries(p *Pass, in int) device.Mat {
	if l.QueryRank > 0 {
		return p.buf[laQ]
	}
	q, _, _ := l.split(p.buf[in])
	return q
}

// Forward implements Mixer.
func (l LatentAttention) Forward(p *Pass, x device.Mat) {
	for c := range p.chunks() {
		part := p.At(c)
		l.project(part, c.rows(x))
		l.join(part)
	}
	l.attend(p)
}

// Recompute implements Mixer.
func (l LatentAttention) Recompute(p *Pass, x device.Mat) {
	for c := range p.chunks() {
		part := p.At(c)
		if p.keep < KeepAll {
			l.project(part, c.rows(x))
		} else {
			l.normalize(part)
		}
		l.join(part)
	}
	if p.keep < KeepAttention {
		l.attend(p)
	}
}

// project computes all that are products, and rotates.
func (l LatentAttention) project(p *Pass, x device.Mat) {
	p.Normalize(x)
	name, n := l.first()
	p.Project(p.buf[laIn], p.norm, name, n)
	if l.InBias {
		name, n, columns := l.biases(p.buf[laIn])
		p.AddBias(columns, p.w.named(name, n))
	}
	l.normalize(p)
	if l.QueryRank > 0 {
		p.Project(p.buf[laQ], p.buf[laQLatent], latentQuery, 2)
	}
	p.Project(p.buf[laKV], p.buf[laKVLatent], latentKey, 2)
	_, rotatedQ := l.parts(l.queries(p, laIn))
	_, _, rotatedK := l.split(p.buf[laIn])
	l.turn(p, rotatedQ, l.Heads, false)
	l.turn(p, rotatedK, 1, false)
}

// biases are the glued biases of the first product, and the columns of it that have some.
func (l LatentAttention) biases(in device.Mat) (name string, n int, columns device.Mat) {
	if l.QueryRank > 0 {
		return latentQueryBias, 3, in
	}
	at := l.queriesIn()
	return latentKeyBias, 2, in.ColRange(at, in.Cols-at)
}

// normalize norms the latents.
func (l LatentAttention) normalize(p *Pass) {
	q, kv, _ := l.split(p.buf[laIn])
	if l.QueryRank > 0 {
		p.RMSNorm(p.buf[laQLatent], p.buf[laQRstd], q, p.w.named(latentQueryNorm, 1), l.norm())
	}
	p.RMSNorm(p.buf[laKVLatent], p.buf[laKVRstd], kv, p.w.named(latentKeyNorm, 1), l.norm())
}

func (l LatentAttention) norm() device.NormSpec { return Norm{Eps: l.Eps}.of(1) }

// turn rotates heads, or turns their gradient back.
func (l LatentAttention) turn(p *Pass, x device.Mat, heads int, inverse bool) {
	p.RoPE(x, x, device.Mat{}, heads, p.r.Cos, p.r.Sin, p.positions, inverse)
}

// join writes queries, keys and values as attention reads them.
func (l LatentAttention) join(p *Pass) {
	q, rotatedQ := l.parts(l.queries(p, laIn))
	k, v := l.parts(p.buf[laKV])
	_, _, rotatedK := l.split(p.buf[laIn])
	p.JoinHeads(p.buf[laQuery], q, rotatedQ, l.Heads)
	p.JoinHeads(p.buf[laKey], k, rotatedK, l.Heads)
	if !p.buf[laValue].IsZero() {
		p.JoinHeads(p.buf[laValue], v, device.Mat{}, l.Heads)
	}
}

// value returns the matrix that attention reads as values.
func (l LatentAttention) value(p *Pass) device.Mat {
	if v := p.buf[laValue]; !v.IsZero() {
		return v
	}
	_, v := l.parts(p.buf[laKV])
	return v
}

// CacheValues implements Cached.
func (l LatentAttention) CacheValues(int, Caches) []Value {
	return []Value{cachedKeys: {Cols: l.cols()}, cachedValues: {Cols: l.cols()}}
}

func (l LatentAttention) attend(p *Pass) {
	if keys, ok := p.Cached(cachedKeys); ok {
		values, _ := p.Cached(cachedValues)
		p.Put(keys, p.buf[laKey], p.b.Places)
		p.Put(values, l.value(p), p.b.Places)
		p.AttendCached(p.buf[laAtt], p.buf[laQuery], keys, values, l.spec(p))
		return
	}
	p.Attention(p.buf[laAtt], p.buf[laLSE], p.buf[laQuery], p.buf[laKey], l.value(p), l.spec(p))
}

func (l LatentAttention) spec(p *Pass) device.AttentionSpec {
	return device.AttentionSpec{Heads: l.Heads, KVHeads: l.Heads, HeadDim: l.headDim(), Scale: l.Scale, Docs: p.b.Docs}
}

// output is the output of the heads without what is zero.
func (l LatentAttention) output(p *Pass) device.Mat {
	out := p.buf[laOut]
	if out.IsZero() {
		return p.buf[laAtt]
	}
	p.SplitHeads(out, device.Mat{}, p.buf[laAtt], l.Heads)
	return out
}

// Output implements Mixer.
func (l LatentAttention) Output(p *Pass, x, h device.Mat) {
	p.MatMul(h, l.output(p), p.w.named(outWeight, 1), device.MatMulFlags{TransB: true, Onto: x})
	if l.OutBias {
		p.AddBias(h, p.w.named(outBias, 1))
	}
}

// Backward implements Mixer.
func (l LatentAttention) Backward(p *Pass, x, dy, dx device.Mat) {
	for c := range p.chunks() {
		l.backwardOutput(p.At(c), c.rows(dy))
	}
	p.AttentionGrad(p.buf[laDQuery], p.buf[laDKey], p.buf[laDValue], p.buf[laDAtt], p.buf[laQuery], p.buf[laKey],
		l.value(p), p.buf[laAtt], p.buf[laLSE], p.buf[laDelta], l.spec(p))
	for c := range p.chunks() {
		part := p.At(c)
		l.backwardJoin(part)
		l.backwardIn(part, c.rows(x), c.rows(dx))
	}
}

// backwardOutput takes the gradient of a chunk's result back to the output of the heads.
func (l LatentAttention) backwardOutput(p *Pass, dy device.Mat) {
	p.WeightGrad(outWeight, 1, dy, l.output(p))
	if l.OutBias {
		p.BiasGradient(outBias, 1, dy)
	}
	if dOut := p.buf[laOut]; !dOut.IsZero() {
		p.ProjectGrad(dOut, dy, outWeight, 1)
		p.JoinHeads(p.buf[laDAtt], dOut, device.Mat{}, l.Heads)
		return
	}
	p.ProjectGrad(p.buf[laDAtt], dy, outWeight, 1)
}

// backwardJoin takes a chunk of the gradient of what attention read back to the products.
func (l LatentAttention) backwardJoin(p *Pass) {
	dq, dRotatedQ := l.parts(l.queries(p, laDIn))
	dk, dv := l.parts(p.buf[laKV])
	_, _, dRotatedK := l.split(p.buf[laDIn])
	p.SplitHeads(dq, dRotatedQ, p.buf[laDQuery], l.Heads)
	p.SplitHeads(dk, dRotatedK, p.buf[laDKey], l.Heads)
	p.SplitHeads(dv, device.Mat{}, p.buf[laDValue], l.Heads)
	l.turn(p, dRotatedQ, l.Heads, true)
	l.turn(p, dRotatedK, 1, true)
}

// backwardIn takes it from there to x.
func (l LatentAttention) backwardIn(p *Pass, x, dx device.Mat) {
	q, kv, _ := l.split(p.buf[laIn])
	dIn := p.buf[laDIn]
	dq, dkv, _ := l.split(dIn)
	if l.QueryRank > 0 {
		l.backwardLatent(p, dq, p.buf[laQ], q, p.buf[laQLatent], p.buf[laQRstd], latentQuery, latentQueryNorm)
	}
	l.backwardLatent(p, dkv, p.buf[laKV], kv, p.buf[laKVLatent], p.buf[laKVRstd], latentKey, latentKeyNorm)
	p.Normalize(x)
	name, n := l.first()
	p.WeightGrad(name, n, dIn, p.norm)
	if l.InBias {
		bias, n, columns := l.biases(dIn)
		p.BiasGradient(bias, n, columns)
	}
	p.ProjectGrad(p.norm, dIn, name, n)
	p.NormalizeGrad(x, dx)
}

// backwardLatent computes the gradient of a latent from that of a product of it, after the norm.
func (l LatentAttention) backwardLatent(p *Pass, dLatent, dOut, latent, normed, rstd device.Mat, weight, norm string) {
	p.WeightGrad(weight, 2, dOut, normed)
	p.ProjectGrad(normed, dOut, weight, 2)
	p.RMSNormGrad(dLatent, p.g.named(norm, 1), normed, latent, p.w.named(norm, 1), rstd, device.Mat{}, l.norm())
}
