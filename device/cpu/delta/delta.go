// Package delta is the recurrence of gated delta nets on the CPU, forward and backward, in chunks.
//
// The problem. A head has a state S [KeyDim, ValueDim] and changes it in each row, with a decay a = exp(decay):
//
//	S = a*S;   delta = beta*(v - S^T k);   S = S + k delta^T;   o = S^T q
//
// The obvious answer does that, row by row. It goes through the state four times in a row, for two operations on each
// number that it reads; each row waits for the row before it; and backward needs the state of each row, of 64 KiB with
// 128 columns, where the row's q, k, v and o have 1 KiB in bf16.
//
// The answer here: the recurrence is unrolled over the n rows of a piece: Chunk rows of a document, counted from its first
// one, or what is left of it. With
// g_i the sum of the decays of the piece's rows up to i, c_i = exp(g_i), M_ij = exp(g_i - g_j) for j <= i and zero
// above, and S the state before the piece, the state that row i leaves is
//
//	c_i S + sum over j <= i of M_ij k_j delta_j^T
//
// so that the rows' delta D [n, ValueDim], outputs O and the state S' after the piece are
//
//	(I + L) D = beta*(V - c*(K S))      L_ij = beta_i M_ij (k_i·k_j) for j < i
//	O  = c*(Q S) + P D                  P_ij = M_ij (q_i·k_j) for j <= i
//	S' = c_n S + (m*K)^T D              m_i = exp(g_n - g_i)
//
// where a vector times a matrix scales rows. These are products of matrices, and one triangular system of n equations:
// the form of Yang et al. ("Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024), with
// the decays of Yang et al. ("Gated Delta Networks", 2024). All exponents are sums of decays over rows in
// between, so no number exceeds 1, and nothing is divided by a decay. Their papers and kernels invert I + L, to have
// what does not need S for all chunks at once; here a worker goes through the chunks of its head in order, and solves
// for the right-hand side with S in it: a product less.
//
// Backward. Given dO and the gradient dS' of S', the transposed system gives the gradient Y of the right-hand side:
//
//	(I + L)^T Y = P^T dO + m*(K dS')
//	dV = beta*Y         dbeta_i = Y_i·(V - c*(K S))_i - sum over j of (Y D^T)_ij M_ij (k_i·k_j)
//	dX = [c*dO; -c*dV]  the gradient of [Q; K] S
//	dA = M*(dO D^T)     the gradient of Q K^T, on and below the diagonal
//	dG = -beta*M*(Y D^T)  the gradient of K K^T, below the diagonal
//	dQ = dX_q S^T + dA K
//	dK = dX_k S^T + dA^T Q + dG K + dG^T K + (m*D) dS'^T
//	dS = c_n dS' + [Q; K]^T dX
//
// A decay is in g of its own row and of all rows after it: with E = P*(dO D^T) - L*(Y D^T), which is the gradient of
// log M,
//
//	dg_i = sum over j < i of E_ij - sum over j > i of E_ji + c_i (dO_i·(Q S)_i - dV_i·(K S)_i) - m_i D_i·(K dS')_i
//	dg_n gets, besides, sum over i of m_i D_i·(K dS')_i + c_n <dS', S>
//
// and the gradient of a decay is the sum of dg over the rows from its own on. A worker computes the
// matrices of the forward pass again, from the S that it wrote.
//
// Queries and keys serve several heads. A task has all of them: Q K^T and K K^T are computed once, and dQ and dK are
// summed in the order of heads, in fp32. The pieces of one document are in one task, in order; tasks share nothing. So
// the bits depend on the operands only. All arithmetic is in fp32, but sums of decays: those of rows that forget
// everything are large, and the differences between them and the next ones would have few digits.
package delta

import (
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/attention"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// Chunk is the number of rows of a chunk.
const Chunk = device.DeltaChunk

// Spec is the recurrence over T positions of packed documents. Head h reads key head h / (Heads/KeyHeads).
type Spec struct {
	KeyHeads, Heads, KeyDim, ValueDim int
	Start                             []int32 // [T], the first row of t's document

	QKV         kernels.Mat // [T, 2*KeyHeads*KeyDim + Heads*ValueDim], F32 or BF16, as Out, DOut and DQKV
	Out         kernels.Mat // [T, Heads*ValueDim], written by forward
	Decay, Beta []float32   // [T, Heads]
	// [chunks, Heads, KeyDim, ValueDim], written by forward, read by backward: those before the pieces that begin in
	// each chunk of rows. That is one piece at most, all but the first pieces of documents, which have none before them:
	// the next such piece begins Chunk rows after it or later. Zeros where there is no such piece.
	States []float32

	// Backward only.
	DOut, DQKV             kernels.Mat
	DDecay, DBeta, DStates []float32
}

func (s *Spec) rows() int  { return len(s.Start) }
func (s *Spec) group() int { return s.Heads / s.KeyHeads }

// state returns a head's state before a chunk, from States, or its gradient, from DStates.
func (s *Spec) state(of []float32, chunk, head int) kernels.Mat {
	n := s.KeyDim * s.ValueDim
	return kernels.MatF32(of[(chunk*s.Heads+head)*n:][:n], s.ValueDim)
}

// query and key are the first columns of a key head in QKV, value that of a head.
func (s *Spec) query(keyHead int) int { return keyHead * s.KeyDim }
func (s *Spec) key(keyHead int) int   { return (s.KeyHeads + keyHead) * s.KeyDim }
func (s *Spec) value(head int) int    { return 2*s.KeyHeads*s.KeyDim + head*s.ValueDim }

// Documents are runs of whole documents: the rows of tasks.
type Documents []struct{ First, End int }

// runRows is the number of rows that a run of short documents has at least.
const runRows = 256

// Documents cuts the rows of a spec into runs of documents.
func (s *Spec) Documents() (all Documents) {
	first := 0
	for end := 1; end <= s.rows(); end++ {
		if s.ends(end) && (end-first >= runRows || end == s.rows()) {
			all = append(all, struct{ First, End int }{first, end})
			first = end
		}
	}
	return all
}

// Tasks is the number of tasks of Forward, and of Backward: one for each run of documents and key head.
func (d Documents) Tasks(s *Spec) int { return len(d) * s.KeyHeads }

// piece is the rows [first, end) of one document: at most Chunk. So pieces are cut by places in the document, and the
// bits of a document do not depend on its place in the rows.
type piece struct{ first, end int }

func (p piece) rows() int { return p.end - p.first }

// chunk returns the number of the chunk in States that holds the state before a piece.
func (p piece) chunk() int { return p.first / Chunk }

// ends says whether a document ends before row t.
func (s *Spec) ends(t int) bool { return t == s.rows() || int(s.Start[t]) == t }

// pieceFrom is the piece that begins at row t.
func (s *Spec) pieceFrom(t int) piece {
	p := piece{t, t + 1}
	for p.rows() < Chunk && !s.ends(p.end) {
		p.end++
	}
	return p
}

// pieceTo is the piece that ends before row t.
func (s *Spec) pieceTo(t int) piece {
	start := int(s.Start[t-1])
	return piece{start + (t-1-start)/Chunk*Chunk, t}
}

// clearUnused empties the states of the chunk whose first row is in a piece, if no piece finds its state there.
func (w *worker) clearUnused(of []float32, p piece, head int) {
	chunk := (p.first + Chunk - 1) / Chunk
	row := chunk * Chunk
	if row == p.first && w.begins(p) || p.first < row && row < p.end && w.ends(p.end) {
		clear(numbers(w.state(of, chunk, head)))
	}
}

// begins says whether the piece has the first row of its document.
func (s *Spec) begins(p piece) bool { return int(s.Start[p.first]) == p.first }

// scratch is the memory of a worker. Matrices have n rows of a piece; those of 2n have one of queries on one of keys.
type scratch struct {
	n int

	qk         []float32 // [2n, KeyDim], normalized
	scales     []float32 // [2n]: what they were multiplied by
	products   []float32 // [2n, n]: Q K^T and K K^T
	read       []float32 // [2n, ValueDim]: Q S and K S
	v          []float32 // [n, ValueDim]: values, then what is wrong in them: V - c*(K S)
	delta      []float32 // [n, ValueDim]: D
	decays     []float32 // [n, n]: M
	near, past []float32 // [n, n]: P and -L
	c, m, beta []float32 // [n]

	// Backward only.
	dout      []float32 // [2n, ValueDim]: dO and Y
	dread     []float32 // [2n, ValueDim]: dX
	dnear     []float32 // [2n, n]: dO D^T and Y D^T
	dproducts []float32 // [2n, n]: dA and dG
	dqk       []float32 // [2n, KeyDim]
	written   []float32 // [n, ValueDim]: K dS'
	dg, dbeta []float32 // [n]
}

// ScratchBytes is the scratch memory of each worker.
func ScratchBytes(keyDim, valueDim int) int {
	var s scratch
	return 4 * s.cut(keyDim, valueDim, nil)
}

// cut divides memory, and returns how many numbers of it there are. Everything begins a cache line.
func (s *scratch) cut(keyDim, valueDim int, memory []float32) (used int) {
	take := func(to *[]float32, n int) {
		if memory != nil {
			*to = memory[used : used+n : used+n]
		}
		used += (n + 15) / 16 * 16
	}
	const n = Chunk
	for _, of := range []struct {
		to []*[]float32
		n  int
	}{
		{[]*[]float32{&s.qk, &s.dqk}, 2 * n * keyDim},
		{[]*[]float32{&s.read, &s.dout, &s.dread}, 2 * n * valueDim},
		{[]*[]float32{&s.v, &s.delta, &s.written}, n * valueDim},
		{[]*[]float32{&s.products, &s.dnear, &s.dproducts}, 2 * n * n},
		{[]*[]float32{&s.decays, &s.near, &s.past}, n * n},
		{[]*[]float32{&s.scales}, 2 * n},
		{[]*[]float32{&s.c, &s.m, &s.beta, &s.dg, &s.dbeta}, n},
	} {
		for _, to := range of.to {
			take(to, of.n)
		}
	}
	return used
}

// worker has what a task computes with.
type worker struct {
	*kernels.Table
	*Spec
	scratch
	mul attention.Multiplier
	id  int
	g   [Chunk]float64
}

func newWorker(k *kernels.Table, mul attention.Multiplier, id int, s *Spec, memory []byte) (w worker) {
	if len(memory) < ScratchBytes(s.KeyDim, s.ValueDim) || uintptr(unsafe.Pointer(&memory[0]))%64 != 0 {
		panic("delta: scratch is too small or not aligned to 64 bytes")
	}
	w = worker{Table: k, Spec: s, mul: mul, id: id}
	w.cut(s.KeyDim, s.ValueDim, unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), len(memory)/4))
	return w
}

// multiply is C = op(A) op(B), or C += with add.
func (w *worker) multiply(c, a, b kernels.Mat, transA, transB, add bool) {
	w.mul.Multiply(w.id, attention.Product{C: c, A: a, B: b, TransposeA: transA, TransposeB: transB, Accumulate: add})
}

// rowsOf is rows [first, first+n) of a matrix that has cols columns without gaps.
func rowsOf(x []float32, first, n, cols int) kernels.Mat {
	return kernels.MatF32(x[first*cols:(first+n)*cols], cols)
}

// line is row r of a matrix that has cols columns without gaps.
func line(x []float32, r, cols int) []float32 { return x[r*cols : (r+1)*cols] }

// part is n elements of row r of m, from column c on.
func part(m kernels.Mat, r, c, n int) kernels.Vec {
	return kernels.Vec{Data: unsafe.Add(m.Data, (r*m.Stride+c)*int(m.DType.Bytes())), DType: m.DType, Len: n}
}

// numbers is a dense matrix of F32 as a slice.
func numbers(m kernels.Mat) []float32 {
	if m.DType != tensor.F32 || m.Stride != m.Cols {
		panic("delta: a state is not dense")
	}
	return unsafe.Slice((*float32)(m.Data), m.Rows*m.Cols)
}
