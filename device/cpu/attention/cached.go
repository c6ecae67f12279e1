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
	if err := s.checkCache(); err != nil {
		return nil, err
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

// checkCache refuses rows that leave the cache, and blocks of the table that do where rows see some of them.
func (s *Spec) checkCache() error {
	rows, blocks := s.K.Rows, 0
	if len(s.Table) > 0 {
		blocks = s.K.Rows / max(s.TableRows, 1)
		rows = len(s.Table) * s.TableRows
	}
	for r, start := range s.DocStart {
		end := s.End[r]
		if start < 0 || end < start || int(end) > rows {
			return fmt.Errorf("attention: row %d sees the rows [%d, %d) of a cache of %d", r, start, end, rows)
		}
		if len(s.Table) == 0 || end == start {
			continue
		}
		for b := int(start) / s.TableRows; b*s.TableRows < int(end); b++ {
			if at := s.Table[b]; at < 0 || int(at) >= blocks {
				return fmt.Errorf("attention: row %d sees block %d of a cache of %d", r, at, blocks)
			}
		}
	}
	return nil
}

// cached finds the rows [first, end) of sequences in the cache: the first n of them follow each other there, from row
// at on.
func (s *Spec) cached(first, end int) (at, n int) {
	if len(s.Table) == 0 {
		return first, end - first
	}
	n = min(end, (first/s.TableRows+1)*s.TableRows) - first
	return int(s.Table[first/s.TableRows])*s.TableRows + first%s.TableRows, n
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
		for first := k0; first < k1; {
			at, n := c.cached(first, k1)
			mul.Multiply(worker, Product{C: part(kernels.MatF32(b.scores, keyBlock), r0, r1, first-k0, first-k0+n),
				A: part(q, r0, r1, 0, d), B: part(c.K, at, at+n, tile.kv*d, (tile.kv+1)*d), TransposeB: true})
			first += n
		}
		b.weigh(k, c.Spec, r0, r1, k1-k0, func(r int) (c0, c1 int) { return columns(r, k0, k1) })
		c.addValues(k, mul, worker, b, tile.kv, r0, r1, k0, k1)
	}
	for r := range n {
		t, h := c.pair(tile, r)
		if empty(c.sees(t)) {
			b.sum[r] = 1 // and the output is zero
		}
		b.end(k, c.Spec, r, t, h)
	}
}

// addValues adds to the rows [r0, r1) of a tile the values of the keys [k0, k1), which weigh has given weights. A
// product's sums are of all its keys, so where these do not follow each other in the cache they are gathered first, as
// many columns at a time as there is memory for; a product's element does not depend on the columns that it comes with.
func (c *Cached) addValues(k *kernels.Table, mul Multiplier, worker int, b block, kv, r0, r1, k0, k1 int) {
	d := c.HeadDim
	multiply := func(v kernels.Mat, c0, c1 int) {
		mul.Multiply(worker, Product{C: part(kernels.MatF32(b.out, d), r0, r1, c0, c1),
			A: part(b.p, r0, r1, 0, k1-k0), B: v, Accumulate: true})
	}
	if at, n := c.cached(k0, k1); n == k1-k0 {
		multiply(part(c.V, at, at+n, kv*d, (kv+1)*d), 0, d)
		return
	}
	const most = queryBlock // columns: the memory that is free has keyBlock rows of as many, in either type
	for c0 := 0; c0 < d; c0 += most {
		c1 := min(c0+most, d)
		v := kernels.Mat{Data: b.free, DType: c.V.DType, Rows: k1 - k0, Cols: c1 - c0, Stride: most}
		for first := k0; first < k1; {
			at, n := c.cached(first, k1)
			for i := range n {
				k.Convert(row(v, first-k0+i, 0, c1-c0), row(c.V, at+i, kv*d+c0, kv*d+c1))
			}
			first += n
		}
		multiply(v, c0, c1)
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
