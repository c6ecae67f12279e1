package device

// Conventions: T is the number of positions of a micro-batch, all its sequences flattened into rows; H the hidden
// size. "A" is the activation type, F32 or BF16, the same for all activations and weights of one call. All arithmetic
// is in fp32 and results are rounded once, to nearest even. I32 vectors are plain Mem. Statistics (rstd, lse, delta,
// stat) and the tables of RoPE are dense; other matrices may have any stride. [Operands] has these rules as code.

// MatMulFlags say how a matrix product reads its operands and what it does with its output.
type MatMulFlags struct {
	TransA, TransB bool
	// Accumulate adds to C instead of overwriting it.
	Accumulate bool
	// The product is added to Onto, if that is given, of C's type and shape. C then receives the sum, and
	// Accumulate has no meaning. Onto does not overlap C.
	Onto Mat
	// Of, if it is not 0, is the inner dimension of a product of which this one has the first terms, since the others are
	// zeros. The sums have its order, and so its bits. Only devices that say Info.CutsRows are given it.
	Of int
}

// Base returns the matrix that the product is added to: Onto, or C itself to accumulate; else false.
func (f MatMulFlags) Base(c Mat) (Mat, bool) {
	if !f.Onto.IsZero() {
		return f.Onto, true
	}
	return c, f.Accumulate
}

// Product is a matrix product that a stream will be asked for.
type Product struct {
	C, A, B Mat
	MatMulFlags
}

// LinearOps are matrix products and biases.
type LinearOps interface {
	// MatMul is C = op(A)·op(B), C += with Accumulate, or C = Onto + op(A)·op(B). A and B have one type, F32 or BF16;
	// C is F32 or BF16. Products are summed in fp32 over the whole inner dimension and rounded once.
	MatMul(c, a, b Mat, f MatMulFlags)
	// AddBias adds the vector to every row: y[r] += bias.
	AddBias(y, bias Mat)
	// BiasGrad adds the sum of the rows: db[1, n] (F32) += sum over r of dy[r].
	BiasGrad(db, dy Mat)
}

// ElementOps work element by element.
type ElementOps interface {
	// Add is y = a + b, for one type; y may be a or b.
	Add(y, a, b Mat)
	// Scale is y = by*x, for one type; y may be x.
	Scale(y, x Mat, by float32)
	// Cast converts between F32 and BF16, to nearest even.
	Cast(dst, src Mat)
}

// NormSpec is a root-mean-square norm of each of the equal groups of columns that a row is cut into: 1 for the whole
// row, in QK-norm one for each head.
type NormSpec struct {
	Groups int
	Eps    float32
	// Offset is added to the weight, in fp32, before it multiplies. Gemma's norms have 1, and their weights begin at 0.
	Offset float32
}

// NormOps are norms of rows. Root-mean-square norms multiply by W = w + Offset, or by 1 without a w; Offset is then 0.
type NormOps interface {
	// RMSNorm is y = W * x * rstd with rstd = 1/sqrt(mean(x^2) + Eps). x and y are [T, Groups*d], w is [1, d],
	// rstd (F32, [T, Groups]) is kept for the gradient.
	// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
	RMSNorm(y, rstd, x, w Mat, spec NormSpec)
	// RMSNormGrad is dx = rstd*(W*dy - xhat*mean(W*dy*xhat)) with xhat = x*rstd, plus resid if that is given (the
	// gradient that went around the norm), and dw (F32, [1, d]) += sum over rows and groups of dy*xhat, unless dw is
	// none. dx may be dy or resid.
	RMSNormGrad(dx, dw, dy, x, w, rstd, resid Mat, spec NormSpec)
	// LayerNorm is y = w*xhat + b with xhat = (x - mean)*rstd and rstd = 1/sqrt(mean((x - mean)^2) + eps); means are
	// over the columns of a row. x and y are [T, n], w and b are [1, n]; b may be none. stat (F32, [T, 2]) keeps each
	// row's mean and rstd for the gradient. Source: Ba et al., "Layer Normalization" (2016).
	LayerNorm(y, stat, x, w, b Mat, eps float32)
	// LayerNormGrad is dx = rstd*(w*dy - mean(w*dy) - xhat*mean(w*dy*xhat)), plus resid if that is given, and dw (F32,
	// [1, n]) += sum over rows of dy*xhat, unless dw is the zero Mat. dx may be dy or resid. The gradient of b is
	// BiasGrad of dy.
	LayerNormGrad(dx, dw, dy, x, w, stat, resid Mat)
}

// Docs are the documents that are packed in a micro-batch. Each is an I32 vector of T entries.
type Docs struct {
	Positions  Mem // rows in the tables of RoPE: most often the place in the document, from 0
	Start, End Mem // first row of the position's document, and one past its last
}

// AttentionSpec is the shape of an attention: exact, causal, inside documents, grouped queries.
type AttentionSpec struct {
	Heads, KVHeads, HeadDim int
	Scale                   float32 // of the scores, usually 1/sqrt(HeadDim)
	Window                  int     // a query sees this many latest keys, itself included; 0: all
	// SoftCap bounds the scores: SoftCap*tanh(score/SoftCap) takes the place of a scaled score. 0: none.
	// Source: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size" (2024).
	SoftCap float32
	// Sinks [1, Heads] (A) has a logit for each query head that every softmax counts in its sum, and that takes no
	// value: it is neither scaled nor capped. The zero Mat: none. Source: OpenAI, "gpt-oss-120b & gpt-oss-20b Model
	// Card" (2025).
	Sinks  Mat
	Docs   Docs
	Blocks CacheBlocks // of AttendCache alone
}

// CacheBlocks say where the rows of sequences are in a cache that is cut into blocks of some rows. The sequences have
// Each rows each, and follow each other: row r of all of them is row Table[r/Rows]*Rows + r%Rows of the cache. So
// sequences can share blocks, and have no more of them than they use. The zero value: row r is row r of the cache.
type CacheBlocks struct {
	Table Mem // I32, for each block of Rows rows of the sequences
	Rows  int // of a block
	Each  int // rows of a sequence, which are in whole blocks
}

// None reports whether the rows of sequences are the cache's own.
func (b CacheBlocks) None() bool { return b.Table.IsZero() }

// Entries is the number of blocks that the table has a place for.
func (b CacheBlocks) Entries() int { return int(b.Table.Len / 4) }

// CacheFLOPs counts the arithmetic of AttendCache for n rows and a cache of cached rows: two products for each pair of
// a query and a key, as if each row saw all rows of the cache, or of its sequence where that is known, or as many as
// the window has. How many it sees is not known before the operation runs.
func (s *AttentionSpec) CacheFLOPs(n, cached int) int64 {
	return 2 * 2 * int64(n) * int64(s.SeenRows(cached)) * int64(s.Heads) * int64(s.HeadDim)
}

// SeenRows is the number of rows of a cache of cached rows that a row of AttendCache sees, as CacheFLOPs counts them.
func (s *AttentionSpec) SeenRows(cached int) int {
	if s.Blocks.Each > 0 {
		cached = min(cached, s.Blocks.Each)
	}
	if s.Window > 0 {
		cached = min(cached, s.Window)
	}
	return cached
}

// AttentionOps are rotary positions and attention.
type AttentionOps interface {
	// RoPE turns each head of x [T, heads*headDim] by its position: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for
	// the two halves of a head; inverse turns back. cos and sin are F32 tables [positions, headDim/2]. y may be x. A bias
	// [1, heads*headDim] is added to x first, to the bits of AddBias; none is the zero Mat, as it must be with inverse.
	// Source: Su et al., "RoFormer" (2021), in the half-split form of transformers.
	RoPE(y, x, bias Mat, heads int, cos, sin Mat, positions Mem, inverse bool)
	// Attention computes out [T, Heads*HeadDim] and lse (F32, [T, Heads]: log of the sum of exponentials of the scaled
	// scores and the sink) from q [T, Heads*HeadDim], k and v [T, KVHeads*HeadDim]. It never holds a T x T matrix.
	// Source: Dao et al., "FlashAttention" (2022).
	Attention(out, lse, q, k, v Mat, spec AttentionSpec)
	// AttentionGrad computes dq, dk, dv from dout and from the operands of Attention, except the sinks: they are part
	// of lse. It leaves in delta (F32, [T, Heads]) the sum over each head of out*dout.
	AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta Mat, spec AttentionSpec)
	// AttendCache is Attention of rows whose keys and values are rows of a cache: k and v are [C, KVHeads*HeadDim].
	// Row r of q and out, [n, Heads*HeadDim], sees the rows [Docs.Start[r], Docs.End[r]) of the cache, its own among
	// them, or the last Window of these; a row that sees none gets zeros. All rows of the range hold finite numbers,
	// and rows in no range are not read. With Blocks the range is of rows of sequences, which have the cache's rows that
	// the table names; entries of blocks that are in no range have no meaning. Docs.Positions has none either.
	AttendCache(out, q, k, v Mat, spec AttentionSpec)
	// SinkGrad is the sinks' gradient: dsinks (F32, [1, heads]) -= sum over rows of exp(sinks - lse)*delta, from the
	// sinks [1, heads] (A) and lse of Attention and the delta of AttentionGrad.
	SinkGrad(dsinks, sinks, lse, delta Mat)
	// JoinHeads puts two matrices side by side, head by head: a head of y [T, heads*d] is the n columns of the same
	// head of a [T, heads*n], and after them those of b. b is [T, heads*(d-n)], or [T, d-n] if all heads share it;
	// without a b, which n < d allows, the other columns are zeros.
	JoinHeads(y, a, b Mat, heads int)
	// SplitHeads takes apart what JoinHeads makes, and is its gradient: each head of a becomes the first n columns of
	// the same head of y, and that of b the others. Where all heads share b, it is their sum, in fp32 and in the order
	// of heads. Without a b the other columns are not read.
	SplitHeads(a, b, y Mat, heads int)
}

// Activation is the function that a gated unit applies to its gate.
type Activation uint8

// The activations. Sources: Elfwing et al., "Sigmoid-Weighted Linear Units" (2017); Hendrycks and Gimpel, "Gaussian
// Error Linear Units" (2016).
const (
	SiLU     Activation = iota // x*sigmoid(x)
	GELU                       // x*(1 + erf(x/sqrt(2)))/2
	GELUTanh                   // x*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x^3)))/2
)

// GLUSpec is a gated unit act(gate, up) of the columns of gate and of up: Gate(gate)*up. The zero value is SwiGLU. With
// Limit > 0, which needs SiLU, it is (clamp(up, -Limit, Limit) + 1)*g*sigmoid(Alpha*g) with g = min(gate, Limit).
// Ungated, which has no Limit, there is no up, and the unit is Gate(gate): the bits of an up of ones.
// Sources: Shazeer, "GLU Variants Improve Transformer" (2020); OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025).
type GLUSpec struct {
	Gate         Activation
	Alpha, Limit float32
	Ungated      bool
}

// Inputs is the number of columns that one of the unit's outputs comes from: 2, or 1 if it is ungated.
func (s GLUSpec) Inputs() int {
	if s.Ungated {
		return 1
	}
	return 2
}

// MLPOps are the gated unit.
type MLPOps interface {
	// GLU is y = act(gate, up); gateUp is [T, Inputs*I], gate first; y is [T, I].
	GLU(y, gateUp Mat, spec GLUSpec)
	// GLUGrad writes dGateUp [T, Inputs*I] from dy [T, I], and to act [T, I] the bits of GLU. dGateUp may be gateUp,
	// act may be dy.
	GLUGrad(dGateUp, act, dy, gateUp Mat, spec GLUSpec)
}

// HeadStats and TokenFigures are the numbers that HeadOps keep of a position, and those that come of it.
const (
	HeadStats    = 4
	TokenFigures = 3
)

// HeadOps are the loss over a vocabulary that is visited in tiles of columns, in a fixed order.
//
// stat (F32, [T, HeadStats]) holds per position, of the logits x so far: their maximum m, the sum of exp(x-m), the
// target's logit, and the sum of exp(x-m)*(x-m). When the maximum grows to m', the last sum becomes
//
//	exp(m-m')*(sum of exp(x-m)*(x-m) + (m-m')*sum of exp(x-m))
//
// With a softCap > 0 all of this is of capped logits, softCap*tanh(logit/softCap), and what operations read and write
// remain the logits as a product gives them and their gradients. 0: none. Source: as of AttentionSpec.SoftCap.
type HeadOps interface {
	// LSEInit makes stat empty.
	LSEInit(stat Mat)
	// LSEUpdate takes in the tile logits (F32, [T, n]), which are the columns [first, first+n) of the vocabulary.
	LSEUpdate(stat, logits Mat, targets Mem, first int, softCap float32)
	// TokenLoss writes figures (F32, [TokenFigures, T]) of each position, 0 where the target is negative: the loss, m +
	// log of the sum of exponentials - target's logit; the entropy of the softmax in nats, log of the sum of exponentials
	// - the last sum of stat / the sum of exponentials; and 1 where the target's logit is the maximum. Both addends of the
	// entropy are positive, so its relative error is that of the sums, however large logits are. A sum of exp(x-m)*x would
	// cancel against m.
	TokenLoss(figures, stat Mat, targets Mem)
	// CrossEntropyGrad is dlogits (A, [T, n]) = (softmax - onehot)*weight of the tile, times 1 - (capped
	// logit/softCap)^2 if they are capped; a zero row where the target is negative. weights (F32[T]) has a weight for
	// each position, of any sign. entropySlopes (F32[T]) say how what is minimized moves with the entropy H of each
	// position, and add slope*dH/dx = -slope*softmax*(x - m - the last sum of stat/the sum of exponentials) before the
	// derivative of the cap; the zero Mem: nothing moves with entropies.
	CrossEntropyGrad(dlogits, logits, stat Mat, targets, weights, entropySlopes Mem, first int, softCap float32)
	// PickLogits writes picked[t, i] = logits[t, ids[t, i]-first], capped, for the ids in range, and leaves the other
	// places of picked alone. ids (I32 [T, n], dense) and picked (F32, [T, n], dense) have n tokens for each position;
	// logits (F32) are a tile as in LSEUpdate.
	PickLogits(picked, logits Mat, ids Mem, first int, softCap float32)
	// PutLogitGrads writes dlogits[t, ids[t, i]-first] (A) = values[t, i] for the ids in range, times the derivative of
	// the cap as in CrossEntropyGrad, and leaves the other columns alone. values (F32) and ids are as in PickLogits. No id
	// in range is twice in a row of ids.
	PutLogitGrads(dlogits, logits, values Mat, ids Mem, first int, softCap float32)
	// DrawTokens takes in the tile logits (F32, [T, n]), which are the columns [first, first+n) of the vocabulary, and
	// draws a token for each row, of the ids below vocab: those from there on are padding. Tiles come in order, and the
	// first one, where first is 0, begins rows. draws (I32 [T, DrawWords], dense) has a TokenDraw for each row. Let x be a
	// logit, capped, times Inverse, and w its token's random word. The token with the greatest score is drawn,
	//
	//	x + Gumbel(w),  Gumbel(w) = -log(-log((w + 0.5)/2^32))
	//
	// in fp32, and of equal ones the lowest id: a token by the probability softmax(x). Where Inverse is 0, x is the logit,
	// capped, and so is its score. stat (F32, [T, HeadStats]) holds the maximum m of x so far, the sum of exp(x-m), and of
	// the token that is drawn so far x and the id.
	//
	// drawn (F32, [T, DrawnFigures], dense), if that is given, receives the id, and its log-probability x - m - log of the
	// sum; and where a logit below vocab is NaN or +Inf, or all are -Inf, -1 and 0. Operations of two devices may draw
	// different tokens where scores differ by no more than roundings. Sources: as of rng.Gumbel.
	DrawTokens(drawn, stat, logits Mat, draws Mem, first, vocab int, softCap float32)
	// Sum adds up an F32 vector: dst (one F64) = sum of x, in the fixed order of SumSquares.
	Sum(dst Mem, x Mat)
}

// EmbeddingOps look up rows of a table and write rows of one. A table of an embedding holds the rows
// [first, first+table.Rows) of the vocabulary.
type EmbeddingOps interface {
	// Gather writes y[t] = table[ids[t]-first] for the ids in range and leaves the other rows alone.
	Gather(y, table Mat, ids Mem, first int)
	// Put writes cache[at[r]] = x[r], for one type, and leaves the other rows of cache alone. No two rows have one
	// place, and a row whose place is negative is not written.
	Put(cache, x Mat, at Mem)
	// ScatterAdd adds dtable[ids[t]-first] (F32) += by*dy[t] for the ids in range, in the order of t. Products and sums
	// are rounded to fp32, each by itself.
	ScatterAdd(dtable, dy Mat, ids Mem, first int, by float32)
}

// AdamWScalars are the numbers of one AdamW step, computed in fp64 by package optim and rounded once.
type AdamWScalars struct {
	ClipScale     float32 // c
	Decay         float32 // 1 - lr*wd
	OneMinusBeta1 float32
	Beta2         float32
	OneMinusBeta2 float32
	StepSize      float32 // lr/bc1
	SqrtBC2       float32
	Eps           float32
}

// AdamWArgs are the state of one run of parameters. Vectors all have the same number of elements.
type AdamWArgs struct {
	Weights Mat  // BF16 (the high halves) or F32
	Low     Mat  // with BF16 weights low halves in I16 (tensor.SplitF32) or I8 (tensor.SplitF24); none with F32
	Grad    Mat  // F32, or BF16 with BF16 weights
	M, V    Mat  // F32
	Draw    Draw // rounds weights with low halves in I8
	AdamWScalars
}

// AdamW8Args are the state of one run of parameters whose moments are kept in codes of at most 8 bits: of 8 in blocks
// of tensor.MomentBlock elements with a scale, or of 4, two to a byte, in blocks of tensor.MomentBlock4. Second moments
// have 4 bits wherever first ones have. The number of parameters is a multiple of tensor.MomentBlock.
type AdamW8Args struct {
	Weights        Mat  // BF16 (the high halves) or F32
	Low            Mat  // as in AdamWArgs
	Grad           Mat  // F32, or BF16 with BF16 weights
	M, V           Mat  // U8: codes with sign, and without; half as many bytes as parameters where they have 4 bits
	MScale, VScale Mat  // F32, one for each block
	Draw           Draw // rounds moments, and weights with low halves in I8; First is a multiple of tensor.MomentBlock
	AdamWScalars
}

// First4 and Second4 report whether these moments have 4 bits.
func (a *AdamW8Args) First4() bool  { return a.M.Cols < a.Weights.Cols }
func (a *AdamW8Args) Second4() bool { return a.V.Cols < a.Weights.Cols }

// Draw names the random words of consecutive parameters. Parameter i has word (First+i) mod 4 of Philox4x32-10 under Key,
// at the counter whose low 64 bits are (First+i)/4 and whose high ones are Part. So a word depends on the parameter and
// on what the key is of, such as a step, and not on how updates are cut, where or when they run. Bits 0 to 7 of a word
// round the weight, bits 8 to 15 the first moment, bits 16 to 31 the second one.
type Draw struct {
	Key   [2]uint32
	Part  uint64 // the number of the part in the model
	First uint64 // where the parameters begin in the part's state, a multiple of DrawTogether
}

// DrawTogether is the number of neighbouring parameters whose random words are made at once.
const DrawTogether = 4

// At is the name for the parameters from the i-th one on.
func (d Draw) At(i int) Draw {
	d.First += uint64(i)
	return d
}

// TallyBytes is the size of what updates tell: two I64, the weights that became infinite or NaN, and the bits of the
// longest move.
const TallyBytes = 16

// OptimizerOps run on streams of the host for state in host memory, and on streams of a GPU for state in its memory.
type OptimizerOps interface {
	// AdamW updates weights and moments in place:
	//
	//	g = c*g; p *= Decay; m += (g-m)*(1-b1); v = b2*v + ((1-b2)*g)*g; p -= (StepSize*m) / (sqrt(v)/SqrtBC2 + Eps)
	//
	// with IEEE operations in this order, nothing contracted; a denormal m or v becomes zero. The same bits on every
	// device. Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), in PyTorch's order.
	//
	// Where low halves are in I8, the new p is then rounded to 24 bits by bits 0 to 7 of the parameter's random word, as
	// tensor.SplitF24 does; see Draw.
	//
	// tally (two I64, see TallyBytes) tells of the update. tally[0] += the number of new weights that are infinite or NaN,
	// or in 24 bits have a high half that is. tally[1] becomes the greater of itself and the fp32 bits of the longest
	// move: the greatest magnitude that is subtracted from a p, divided by StepSize, rounded once; infinite if one is a
	// NaN, 0 if StepSize is 0. Fp32 numbers that are not negative are in the order of their bits.
	AdamW(args AdamWArgs, tally Mem)
	// AdamW8 is AdamW with moments in codes of 8 or 4 bits. A code stands for its value times the scale of its block,
	// rounded once; AdamW's step changes the moments in fp32 and uses them before they are encoded again. The new scale is
	// the greatest magnitude in the block (NaNs are ignored). Where it is 0, the codes are zero; zero bytes are moments of
	// zero.
	//
	// Codes of 8 bits have the values of bitsandbytes' dynamic map. The first moment times 1/scale is encoded as the
	// nearest code: the border between two codes is their mean in fp32, and a number on it gets the even code. A NaN
	// becomes zero.
	//
	// The second moment times 1/scale is rounded to one of the codes around it at random, so that its mean is the moment.
	// Its place among the codes, in 1/65536 of a code, plus the high 16 bits of the parameter's random word (see Draw)
	// gives the code in the bits from 16 on. The place is on straight lines between the codes (package kernels has their
	// numbers, and their arithmetic in fp32). There is no code below 1, also for a NaN, so no step divides by Eps alone.
	//
	// Codes of 4 bits are those of 2i in the low bits of byte i, and of 2i+1 in the high ones. A first moment has a sign
	// in bit 3 and one of 8 magnitudes, (j/7)^2.5; of a second moment the root has a code, one of 16, 1.3^(k-15), and the
	// moment is the square of code times scale, where a denormal square is 0. Package kernels has the values as fp32. A
	// magnitude times 1/scale, y, gets the greatest code c that it reaches (the least one if it reaches none, or is a
	// NaN), or the next one, d, if y-c > t*(d-c), each operation rounded to fp32. For first moments t is (b+0.5)/256 with
	// b from bits 8 to 15 of the parameter's random word, for second ones (b+0.5)/65536 with bits 16 to 31. A first moment
	// of magnitude 0 has no sign.
	//
	// The bits are the same on every device. Source of the codes of 8 bits: Dettmers et al., "8-bit Optimizers via
	// Block-wise Quantization" (2022), in the form of bitsandbytes (csrc/kernels.cu, kOptimizerStatic8bit2StateBlockwise),
	// which rounds both moments to the nearest code, has second moments of zero, gives no negative moment the code of
	// zero, and orders AdamW's arithmetic in another way.
	AdamW8(args AdamW8Args, tally Mem)
	// SumSquares is dst (one F64) = sum of x[i]^2 over a vector, F32 or BF16. The order is fixed: chunks of 65536
	// elements; in a chunk 16 lanes in fp64, lane j taking the elements j, j+16, ...; lanes folded 8+8, 4+4, 2+2, 1+1;
	// chunks added in order.
	SumSquares(dst Mem, x Mat)
}
