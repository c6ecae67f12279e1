// Package attention is exact causal attention on the CPU, forward and backward, in blocks: the matrix of scores is
// never whole (FlashAttention: Dao et al. 2022; online softmax: Milakov and Gimelshein 2018). [Cached] is that of rows
// whose keys and values are in a cache.
//
// A [Spec] names the memory and the mask of one micro-batch of packed documents. The work is cut into tasks, with a
// barrier between phases: [Packing] of keys and values, Forward, Backward and Reduce. Tasks may run in any order and on
// any worker, but those of Backward begin in order. Each sum has a fixed order, so the bits depend on the Spec only.
//
// Blocks of queries and of keys begin at multiples of their lengths from the first row of their document, and none has
// rows of two documents. So each sum is cut by places in the document, and the bits of a document are its own: they
// depend neither on its place nor on its neighbours.
//
// Scores, softmax and all sums are in fp32. In BF16 the probabilities and the gradients of the scores are rounded
// before they are multiplied, as FlashAttention does.
package attention

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// Rows of queries and of keys that one step of the loops takes, or less at the end of a document. They set the bits. gemm
// packs 192 rows at a time.
const (
	queryBlock = 192
	keyBlock   = 128
)

// Spec is attention over T positions, all matrices with T rows. Query head h reads key head h / (Heads/KVHeads).
// Position t sees the keys from max(DocStart[t], t-Window+1) to t.
type Spec struct {
	Q, K, V kernels.Mat // [T, Heads*HeadDim], [T, KVHeads*HeadDim] twice; one type, F32 or BF16
	Out     kernels.Mat // [T, Heads*HeadDim]: written by forward, read by backward
	LSE     []float32   // [T*Heads], log of each softmax's sum: written by forward, read by backward

	Heads, KVHeads, HeadDim int
	Scale                   float32 // multiplies the scores; positive
	Window                  int     // keys that a query sees at most, itself included; 0: all
	SoftCap                 float32 // SoftCap*tanh(score/SoftCap) takes the place of a scaled score; 0: none
	DocStart                []int32 // [T], the first position of t's document: t, or that of the position before

	// Of attention over a cache only (see Cached): one past the last key that each row sees. K and V then have any
	// number of rows, and DocStart has the first key of each row.
	End []int32
	// With a Table of blocks of TableRows rows, DocStart and End are of rows of sequences: row r of these is row
	// Table[r/TableRows]*TableRows + r%TableRows of K and V. Empty: it is row r.
	Table     []int32
	TableRows int

	Sinks kernels.Vec // [Heads], forward only: logits that the sums of the heads' softmaxes count; of length 0: none

	// Backward only.
	DOut       kernels.Mat // [T, Heads*HeadDim]
	Delta      []float32   // [T*Heads], written: row sums of DOut*Out
	DQ, DK, DV kernels.Mat // written; may be Q, K, V only if nothing reads those any more, so they must not be
	HeadGrads  []float32   // scratch that all tasks share, HeadGradsLen long

	blocks []queries // of all rows, in order: made by Check
	keys   []keys    // the same
}

// queries are the rows [first, end) of the document that begins at start: at most queryBlock.
type queries struct {
	start, first, end int
	key               int // the number of the document's first block of keys
}

// begins says whether they are the first ones of their document.
func (q queries) begins() bool { return q.first == q.start }

// keys are the rows [first, end) of a document: at most keyBlock.
type keys struct{ first, end int }

func (s *Spec) rows() int  { return len(s.DocStart) }
func (s *Spec) group() int { return s.Heads / s.KVHeads }

// Check says what is wrong with a Spec, and cuts its rows into blocks. The tasks, which need them, do not check again.
func (s *Spec) Check(backward bool) error {
	t, heads, kv := s.rows(), s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	mats := []named{{"Q", s.Q, t, heads}, {"K", s.K, t, kv}, {"V", s.V, t, kv}, {"Out", s.Out, t, heads}}
	if backward {
		mats = append(mats, named{"DOut", s.DOut, t, heads}, named{"DQ", s.DQ, t, heads}, named{"DK", s.DK, t, kv},
			named{"DV", s.DV, t, kv})
		if len(s.HeadGrads) < s.HeadGradsLen() {
			return fmt.Errorf("attention: HeadGrads has %d elements, needs %d", len(s.HeadGrads), s.HeadGradsLen())
		}
	}
	if err := s.checkShapes(mats); err != nil {
		return err
	}
	if backward && len(s.Delta) != t*s.Heads {
		return fmt.Errorf("attention: Delta has %d elements, needs %d", len(s.Delta), t*s.Heads)
	}
	if len(s.LSE) != t*s.Heads {
		return fmt.Errorf("attention: LSE has %d elements, needs %d", len(s.LSE), t*s.Heads)
	}
	for i, start := range s.DocStart {
		if int(start) != i && (i == 0 || start != s.DocStart[i-1]) {
			return fmt.Errorf("attention: DocStart[%d] is %d, and neither that row nor the one before begins its document there",
				i, start)
		}
	}
	s.cut()
	return nil
}

// cut makes the blocks.
func (s *Spec) cut() {
	s.blocks, s.keys = s.blocks[:0], s.keys[:0]
	for start := 0; start < s.rows(); {
		end := start + 1
		for end < s.rows() && int(s.DocStart[end]) == start {
			end++
		}
		for first := start; first < end; first += queryBlock {
			s.blocks = append(s.blocks, queries{start, first, min(first+queryBlock, end), len(s.keys)})
		}
		for first := start; first < end; first += keyBlock {
			s.keys = append(s.keys, keys{first, min(first+keyBlock, end)})
		}
		start = end
	}
}

// named is a matrix and the shape that it should have.
type named struct {
	name       string
	mat        kernels.Mat
	rows, cols int
}

// checkShapes says what is wrong with the heads, the sinks, or the shape of a matrix.
func (s *Spec) checkShapes(mats []named) error {
	if s.KVHeads < 1 || s.HeadDim < 1 || s.Heads%max(s.KVHeads, 1) != 0 {
		return fmt.Errorf("attention: %d query heads are no multiple of %d key heads", s.Heads, s.KVHeads)
	}
	for _, m := range mats {
		if m.mat.Rows != m.rows || m.mat.Cols != m.cols || m.mat.Stride < m.cols || m.mat.DType != s.Q.DType {
			return fmt.Errorf("attention: %s is %s [%d, %d], expected %s [%d, %d]", m.name, m.mat.DType, m.mat.Rows,
				m.mat.Cols, s.Q.DType, m.rows, m.cols)
		}
	}
	if s.Sinks.Len != 0 && s.Sinks.Len != s.Heads {
		return fmt.Errorf("attention: Sinks has %d elements, needs %d", s.Sinks.Len, s.Heads)
	}
	return nil
}

// first is the first key that query t sees; the last is t.
func (s *Spec) first(t int) int {
	lo := int(s.DocStart[t])
	if s.Window > 0 {
		lo = max(lo, t-s.Window+1)
	}
	return lo
}

// ForwardTasks is the tasks of Forward: one for each head and block of queries.
func (s *Spec) ForwardTasks() int { return s.Heads * len(s.blocks) }

// BackwardTasks is the tasks of Backward: one for each head and block of queries.
func (s *Spec) BackwardTasks() int { return s.Heads * len(s.blocks) }

// reduced is the number of rows that a task of Reduce takes.
const reduced = 192

// ReduceTasks is the tasks of Reduce: one for each key head and some rows.
func (s *Spec) ReduceTasks() int { return s.KVHeads * s.reduceBlocks() }

func (s *Spec) reduceBlocks() int { return (s.rows() + reduced - 1) / reduced }

// HeadGradsLen is the elements of HeadGrads: the gradients of K and V that each query head contributes.
func (s *Spec) HeadGradsLen() int { return HeadGradsLen(s.rows(), s.Heads, s.HeadDim) }

// HeadGradsLen is Spec.HeadGradsLen before there is a Spec: 2*rows*heads*headDim.
func HeadGradsLen(rows, heads, headDim int) int { return 2 * rows * heads * headDim }

// headGrads is head h's part of HeadGrads: the gradients of K and V, [T, HeadDim] each.
func (s *Spec) headGrads(h int) (dk, dv []float32) {
	n := s.rows() * s.HeadDim
	both := s.HeadGrads[2*n*h : 2*n*(h+1)]
	return both[:n], both[n:]
}

// block is a worker's scratch, cut up.
type block struct {
	scores, dscores []float32   // [queryBlock, keyBlock]
	p, ds           kernels.Mat // [queryBlock, keyBlock], the type of Q; the memory of scores and dscores if that is F32
	out             []float32   // [queryBlock, HeadDim]: the output, or the gradient of Q
	max, sum        []float32   // [queryBlock]; backward keeps delta in max
	next, fade      []float32   // [queryBlock]: max with the scores of one more block, and what changes the sums to it
	// [keyBlock, queryBlock] of the type of Q, which has no other use where neither gradients nor dscores are computed.
	free unsafe.Pointer
}

// ScratchBytes returns the scratch memory of each worker for tasks with heads of headDim, in any type.
func ScratchBytes(headDim int) int {
	return 4*(2*queryBlock*keyBlock+queryBlock*headDim+4*queryBlock) + 2*2*queryBlock*keyBlock
}

func newBlock(d tensor.DType, headDim int, scratch []byte) block {
	if len(scratch) < ScratchBytes(headDim) || uintptr(unsafe.Pointer(&scratch[0]))%64 != 0 {
		panic("attention: scratch is too small or not aligned to 64 bytes")
	}
	take := func(n int) []float32 {
		s := unsafe.Slice((*float32)(unsafe.Pointer(&scratch[0])), n)
		scratch = scratch[4*n:]
		return s
	}
	const n = queryBlock * keyBlock
	b := block{scores: take(n), dscores: take(n), out: take(queryBlock * headDim),
		max: take(queryBlock), sum: take(queryBlock), next: take(queryBlock), fade: take(queryBlock)}
	if d == tensor.F32 {
		b.p, b.ds = kernels.MatF32(b.scores, keyBlock), kernels.MatF32(b.dscores, keyBlock)
		b.free = unsafe.Pointer(&scratch[0]) // of the halves
		return b
	}
	b.free = unsafe.Pointer(&b.dscores[0])
	halves := unsafe.Slice((*uint16)(unsafe.Pointer(&scratch[0])), 2*n)
	b.p, b.ds = kernels.MatBF16(halves[:n], keyBlock), kernels.MatBF16(halves[n:], keyBlock)
	return b
}

// seen is the blocks of keys that any query of a block sees, from the number lo to hi-1.
func (s *Spec) seen(q queries) (lo, hi int) {
	return q.key + (s.first(q.first)-q.start)/keyBlock, q.key + (q.end-1-q.start)/keyBlock + 1
}

// within returns the keys of a block that a block of queries can see.
func (s *Spec) within(q queries, block int) keys {
	k := s.keys[block]
	k.end = min(k.end, q.end)
	return k
}

// rowsOf is the rows [r0, r1) of a block of queries that see any key of a block, of which they see at least one.
func (s *Spec) rowsOf(q queries, k keys) (r0, r1 int) {
	r0, r1 = max(k.first-q.first, 0), q.end-q.first
	if s.Window > 0 {
		r1 = min(r1, k.end-q.first+min(s.Window, s.rows())-1)
	}
	return r0, r1
}

// columns is the columns [lo, hi) of a block of keys that query t sees; lo <= hi.
func (s *Spec) columns(t int, k keys) (lo, hi int) {
	lo = min(max(s.first(t), k.first), k.end)
	hi = min(max(t+1, lo), k.end)
	return lo - k.first, hi - k.first
}

// part is rows [r0, r1) and columns [c0, c1) of m.
func part(m kernels.Mat, r0, r1, c0, c1 int) kernels.Mat {
	m.Data = unsafe.Add(m.Data, (r0*m.Stride+c0)*int(m.DType.Bytes()))
	m.Rows, m.Cols = r1-r0, c1-c0
	return m
}

// row is columns [c0, c1) of row r.
func row(m kernels.Mat, r, c0, c1 int) kernels.Vec {
	return kernels.Vec{Data: unsafe.Add(m.Data, (r*m.Stride+c0)*int(m.DType.Bytes())), DType: m.DType, Len: c1 - c0}
}
