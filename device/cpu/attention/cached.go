package attention

import (
	"fmt"

	"github.com/millrace/millrace/device/cpu/kernels"
)

// Attention over a cache. A row of queries sees keys that passes before have computed, most often of one more position
// than the row before it. The bits of a row should not depend on the rows that it comes with: then a text is the same
// however its prompt was cut into passes, and in every batch. So blocks of keys begin at multiples of keyBlock
// from the row's first key, whichever rows share them, as they do from the start of a document in Forward, whose bits
// these are. Each row takes its blocks one after the other:
//
//	for each block of keys of the sequence:
//		scores = q k^T, for all rows of the tile that see a key of the block
//		weigh, and add p v, as Forward does
//
// A product's element depends on its row and column alone (package gemm), and keys that a row does not see have the
// weight 0. In a pass of one position the query heads of a key head are rows of one tile.

// cacheTile is some pairs of a row and a query head, in the order of rows, that read one key head of one sequence.
type cacheTile struct {
	row, kv     int // the first row of the sequence in the pass, and the key head
	first, last int // pairs [first, last), numbered from that row on
}

// Cached is the work of attention over a cache, cut into tasks: see [Spec.End].
type Cached struct {
	*Spec
	tiles []cacheTile
}

// NewCached cuts an attention over a cache into tasks. Rows of one sequence that follow each other share tiles.
func NewCached(s *Spec) (*Cached, error) {
	n, heads, kv, cached := s.rows(), s.Heads*s.HeadDim, s.KVHeads*s.HeadDim, s.K.Rows
	err := s.checkShapes([]named{{"Q", s.Q, n, heads}, {"K", s.K, cached, kv}, {"V", s.V, cached, kv},
		{"Out", s.Out, n, heads}})
	if err != nil {
		return nil, err
	}
	for r, start := range s.DocStart {
		if end := s.End[r]; start < 0 || end < start || int(end) > cached {
			return nil, fmt.Errorf("attention: row %d sees the rows [%d, %d) of a cache of %d", r, start, end, cached)
		}
	}
	most := min(queryBlock, queryBlock*keyBlock/s.HeadDim)
	if most == 0 {
		return nil, fmt.Errorf("attention: heads of %d columns are too wide", s.HeadDim)
	}
	c := &Cached{Spec: s}
	for row := 0; row < n; {
		end := row + 1
		for end < n && s.DocStart[end] == s.DocStart[row] {
			end++
		}
		pairs := (end - row) * s.group()
		for first := 0; first < pairs; first += most {
			for kv := range s.KVHeads {
				c.tiles = append(c.tiles, cacheTile{row, kv, first, min(first+most, pairs)})
			}
		}
		row = end
	}
	return c, nil
}

// Tasks is the number of tasks of Run.
func (c *Cached) Tasks() int { return len(c.tiles) }

// Run is one of the tasks, on a worker with scratch of ScratchBytes, aligned to 64 bytes.
func (c *Cached) Run(k *kernels.Table, mul Multiplier, worker, task int, scratch []byte) {
	tile, d := c.tiles[task], c.HeadDim
	n := tile.last - tile.first
	b := newBlock(c.Q.DType, d, scratch)
	b.begin(n, d)
	q := kernels.Mat{Data: b.ds.Data, DType: c.Q.DType, Rows: n, Cols: d, Stride: d} // only gradients use ds
	start := int(c.DocStart[tile.row])
	lo, hi := c.K.Rows, start
	for r := range n {
		t, h := c.pair(tile, r)
		k.Convert(row(q, r, 0, d), row(c.Q, t, h*d, (h+1)*d))
		first, end := c.sees(t)
		lo, hi = min(lo, first), max(hi, end)
	}
	columns := func(r, k0, k1 int) (c0, c1 int) {
		t, _ := c.pair(tile, r)
		first, end := c.sees(t)
		c0 = min(max(first, k0), k1) - k0
		return c0, max(min(end, k1)-k0, c0)
	}
	for k0 := start + (lo-start)/keyBlock*keyBlock; k0 < hi; k0 += keyBlock {
		k1 := min(k0+keyBlock, hi)
		r0, r1 := 0, n // rows outside see no key of the block
		for r0 < r1 && empty(columns(r0, k0, k1)) {
			r0++
		}
		for r0 < r1 && empty(columns(r1-1, k0, k1)) {
			r1--
		}
		if r0 == r1 {
			continue
		}
		mul.Multiply(worker, Product{C: part(kernels.MatF32(b.scores, keyBlock), r0, r1, 0, k1-k0),
			A: part(q, r0, r1, 0, d), B: part(c.K, k0, k1, tile.kv*d, (tile.kv+1)*d), TransposeB: true})
		b.weigh(k, c.Spec, r0, r1, k1-k0, func(r int) (c0, c1 int) { return columns(r, k0, k1) })
		mul.Multiply(worker, Product{C: part(kernels.MatF32(b.out, d), r0, r1, 0, d), A: part(b.p, r0, r1, 0, k1-k0),
			B: part(c.V, k0, k1, tile.kv*d, (tile.kv+1)*d), Accumulate: true})
	}
	for r := range n {
		t, h := c.pair(tile, r)
		if empty(c.sees(t)) {
			b.sum[r] = 1 // and the output is zero
		}
		b.end(k, c.Spec, r, t, h)
	}
}

// pair is the row of the pass and the query head of a row of a tile.
func (c *Cached) pair(tile cacheTile, r int) (t, h int) {
	at := tile.first + r
	return tile.row + at/c.group(), tile.kv*c.group() + at%c.group()
}

// sees is the range of keys that a row of the pass sees.
func (c *Cached) sees(t int) (first, end int) {
	first, end = int(c.DocStart[t]), int(c.End[t])
	if c.Window > 0 {
		first = max(first, end-c.Window)
	}
	return first, end
}

func empty(c0, c1 int) bool { return c0 >= c1 }
