package device

// The problem. A gated delta net is a mixer whose layers remember a document in a matrix of a fixed size for each head,
// the state, instead of in keys and values of every position. Its work is a recurrence: each row changes the state that
// the row before it left. Backward needs those states again, from the last row to the first.
//
// The obvious answer keeps the state of every row. With 128 columns of keys and values, a state takes 64 KiB, where a
// row's query, key, value and output take 1 KiB in bf16. To compute states backward from the last one divides by
// decays, which may be so small that nothing of the state is left.
//
// The answer here: one state in every [DeltaChunk] rows is an output of the forward operation, so that the plan knows
// their memory, and backward computes what is between two of them again. Their gradients are an output of the backward
// operation in the same form: a device may find them first, chunk by chunk, and then compute all chunks at once. Of which
// rows they are is the device's choice: the rows of a micro-batch may be cut into chunks wherever documents begin, or
// each document by itself.

// DeltaChunk is the number of rows from a state that a gated delta net writes to the next one.
const DeltaChunk = 64

// MostTaps is the greatest number of taps that a convolution may have.
const MostTaps = 8

// GateKind is the activation of a gate.
type GateKind uint8

// The activations that gates have.
const (
	SigmoidGate GateKind = iota // 1/(1 + exp(-gate))
	SiLUGate                    // gate/(1 + exp(-gate))
	gateKinds
)

// ConvOps are short causal convolutions of each column by itself. C is the number of columns, K the number of taps.
type ConvOps interface {
	// CausalConv is y[t,c] = silu(sum over j < K of w[c,j]*x[t-K+1+j,c]), where rows before the first one of t's
	// document count as zeros. x and y are [T, C], w is [C, K], all of A.
	// Source: Yang et al., "Gated Delta Networks" (2024), in the form of transformers: no bias, SiLU.
	CausalConv(y, x, w Mat, docs Docs)
	// CausalConvGrad writes dx [T, C] from dy and from the operands of CausalConv, and adds the gradient of the taps to
	// dw (F32, [C, K]) if that is given. dx may not be dy: a row of dx needs the rows of dy after it.
	CausalConvGrad(dx, dw, dy, x, w Mat, docs Docs)
	// ContinueConv is CausalConv of rows that continue sequences, as [Continued] says; K is 2 at least. tail
	// [sequences*(K-1), C] (A) keeps the latest K-1 rows of x of each sequence: that of position p is row p mod (K-1)
	// of its sequence's. The rows of sequences that have none in x are neither read nor written.
	ContinueConv(y, tail, x, w Mat, of Continued)
}

// Continued says which positions of sequences the rows of an operation are. As in AttendCache, sequences are
// documents in the rows of a cache, Each rows for each sequence: row r is the position Docs.End[r]-1-Docs.Start[r] of
// the sequence Docs.Start[r]/Each. The rows of a sequence are in order and leave out no position, those of other
// sequences may be between them. The first one has position 0, and then nothing of the sequence is remembered, or else
// it follows the last row of the sequence in an earlier operation. Docs.Positions has no meaning.
type Continued struct {
	Docs Docs
	Each int
}

// GateOps multiply by the activation of a gate.
type GateOps interface {
	// Gate is y = x*act(gate); x and y are [T, n]. gate is [T, n/k], and each of its columns serves k neighbours in x:
	// k = 1 gates element by element, k = the width of a head gates heads, k = n gates rows. y may be x.
	Gate(y, x, gate Mat, kind GateKind)
	// GateGrad writes dx = dy*act(gate), and dgate: the sum of dy*x over the columns that a gate serves, times act's
	// derivative. dx may be dy, dgate may be gate.
	GateGrad(dx, dgate, dy, x, gate Mat, kind GateKind)
}

// DeltaSpec is the shape of a gated delta net. Each of KeyHeads keys and queries serves Heads/KeyHeads heads that
// are neighbours.
type DeltaSpec struct {
	KeyHeads, Heads  int
	KeyDim, ValueDim int // columns of a head's queries and keys, and of its values and outputs
	Docs             Docs
}

// QKVCols is the width of queries, keys and values together, in that order.
func (s DeltaSpec) QKVCols() int { return 2*s.KeyHeads*s.KeyDim + s.Heads*s.ValueDim }

// Values is the width of all values, and of all outputs.
func (s DeltaSpec) Values() int { return s.Heads * s.ValueDim }

// States is the shape of the states of that many rows: one row for each chunk.
func (s DeltaSpec) States(rows int) (chunks, cols int) {
	return (rows + DeltaChunk - 1) / DeltaChunk, s.Heads * s.KeyDim * s.ValueDim
}

// FLOPs counts what the products of the chunked form take for that many rows: those with a state, and those of
// DeltaChunk rows with each other. Backward computes the forward products that it needs again.
func (s DeltaSpec) FLOPs(rows int) (forward, backward int64) {
	k, v, c := int64(s.KeyDim), int64(s.ValueDim), int64(DeltaChunk)
	each := 2 * int64(rows) * int64(s.Heads)
	return each * (3*k*v + c*(2*k+2*v)), each * (8*k*v + c*(6*k+5*v))
}

// StepFLOPs counts what the recurrence takes for that many rows, row by row: three products of a vector with a state.
func (s DeltaSpec) StepFLOPs(rows int) int64 {
	return 2 * 3 * int64(rows) * int64(s.Heads) * int64(s.KeyDim) * int64(s.ValueDim)
}

// DeltaOps are the operations of a gated delta net.
// Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule" (2024), in the form of transformers.
type DeltaOps interface {
	// DeltaGates writes decay = -exp(aLog)*softplus(a + dtBias), the logarithm of what a state is multiplied by, and
	// beta = sigmoid(b), the share of a value that is replaced. decay and beta (F32) are [T, Heads]; a and b are [T,
	// Heads], aLog and dtBias [1, Heads], all of A.
	DeltaGates(decay, beta, a, b, aLog, dtBias Mat)
	// DeltaGatesGrad writes da and db, and adds to daLog and ddtBias (F32, [1, Heads]) if both are
	// given; from ddecay and dbeta and from what DeltaGates read.
	DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias Mat)
	// GatedDelta computes out [T, Heads*ValueDim] from qkv [T, 2*KeyHeads*KeyDim + Heads*ValueDim]: all queries, all
	// keys, all values. Of each head, with q, k and v of its row, q and k divided by sqrt(sum of squares + 1e-6), q
	// also by sqrt(KeyDim), and a state S [KeyDim, ValueDim] that is zero before the first row of a document:
	//
	//	S = exp(decay)*S; S += k (beta*(v - S^T k))^T; out = S^T q
	//
	// states (F32, [chunks, Heads*KeyDim*ValueDim]) receives the states that GatedDeltaGrad begins at. decay is not
	// positive.
	GatedDelta(out, states, qkv, decay, beta Mat, spec DeltaSpec)
	// GatedDeltaGrad writes dqkv, and ddecay and dbeta (F32, [T, Heads]), from dout and from what GatedDelta read and
	// wrote to states. It also writes the gradients of those to dstates.
	GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states Mat, spec DeltaSpec)
	// ContinueDelta is GatedDelta of rows that continue sequences, as [Continued] says of spec.Docs and each, row by
	// row. states (F32, [sequences, Heads*KeyDim*ValueDim]) keeps the state that the last row of each sequence leaves;
	// those of sequences that have no rows are neither read nor written. The bits of a row depend on its sequence
	// alone, not on the operations that its rows were cut into.
	ContinueDelta(out, states, qkv, decay, beta Mat, spec DeltaSpec, each int)
}
