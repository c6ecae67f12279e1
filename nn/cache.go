package nn

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Text is generated a position at a time. A position reads nothing of those before it but what mixers look at, so a
// pass over new positions alone suffices if a block remembers that: its cache. It is the same forward pass, with the
// same operations on fewer rows ([Args.First]). The difference is in the mixer: where a pass has a cache, the mixer
// puts into it what later positions will look at, and looks at what positions before have left there.

// Cached is a mixer whose positions can follow those of passes before: Forward with [Pass.Cached].
type Cached interface {
	Mixer
	// CacheValues are the matrices that the mixer keeps from pass to pass, with a row for each position of each
	// sequence (see Caches.Rows), or with Rows: as many for each sequence. One that has Rows remembers of a sequence what
	// its latest position has left: then the sequence can continue after that position, and nowhere else. Of a Value
	// they have Cols, DType and Rows alone.
	CacheValues(hidden int, of Caches) []Value
}

// Caches says of which positions blocks of the model keep what later ones look at. Sequences have rows for all of
// their positions, one after the other; or with BlockRows they share rows, a group of BlockRows at a time, and a table
// says which group has which positions ([device.CacheBlocks]). Then a short sequence does not hold the rows of a long
// one, and sequences that begin with the same tokens can have the groups of these together.
type Caches struct {
	Sequences int `json:"sequences"`
	Positions int `json:"positions"` // of each sequence, at most
	// BlockRows is the number of rows that are given to a sequence at a time, and Blocks the number of such groups, of all
	// sequences together; both are 0, or neither is.
	BlockRows int `json:"block_rows,omitempty"`
	Blocks    int `json:"blocks,omitempty"`
}

// Rows is the number of rows of a cache's matrices.
func (c Caches) Rows() int {
	if c.BlockRows > 0 {
		return c.Blocks * c.BlockRows
	}
	return c.Sequences * c.Positions
}

// BlocksEach is the number of blocks that a sequence of all its positions has; 0 without blocks.
func (c Caches) BlocksEach() int {
	if c.BlockRows == 0 {
		return 0
	}
	return (c.Positions + c.BlockRows - 1) / c.BlockRows
}

// Each is the number of rows from the first one of a sequence to that of the next in Docs.Start of a pass: its
// positions, in whole blocks.
func (c Caches) Each() int {
	if c.BlockRows == 0 {
		return c.Positions
	}
	return c.BlocksEach() * c.BlockRows
}

// Cache holds a block's rows from pass to pass.
type Cache struct {
	own    []device.Mat // the mixer's
	latest []bool       // by matrix: it has what the latest position of each sequence has left
	of     Caches
}

// Takeover lists the rows that some sequences take over from others before a pass.
type Takeover struct {
	Blocks []BlockCopy
	Latest [][2]int // sequences: what the first one's latest position has left, the second one has as well
}

// BlockCopy copies the first rows of a block to another one.
type BlockCopy struct{ From, To, Rows int }

// CanContinue reports whether the block's mixer has a cache.
func (d *Block) CanContinue() bool {
	_, ok := d.Mixer.(Cached)
	return ok
}

// CanGoBack reports whether a sequence can be taken up again at any of its positions: whether the block's cache has
// rows of all of them.
func (d *Block) CanGoBack() bool {
	mixer, ok := d.Mixer.(Cached)
	if !ok {
		return false
	}
	values := mixer.CacheValues(d.Hidden, Caches{Sequences: 1, Positions: 1})
	return !slices.ContainsFunc(values, func(v Value) bool { return v.Rows > 0 })
}

// NewCache places the block's cache. The mixer has one.
func (d *Block) NewCache(a *device.Arena, dtype tensor.DType, of Caches) *Cache {
	values := d.Mixer.(Cached).CacheValues(d.Hidden, of)
	c := &Cache{own: make([]device.Mat, len(values)), latest: make([]bool, len(values)), of: of}
	for i, v := range values {
		c.latest[i] = v.Rows > 0
	}
	take(a, dtype, of.Rows(), c.own, values, func(Value) bool { return true })
	return c
}

// TakeOver copies rows between sequences.
func (c *Cache) TakeOver(s device.Stream, t Takeover) {
	for i, m := range c.own {
		if c.latest[i] {
			n := m.Rows / c.of.Sequences
			for _, of := range t.Latest {
				s.Copy(m.RowRange(of[1]*n, n).Mem, m.RowRange(of[0]*n, n).Mem)
			}
			continue
		}
		for _, b := range t.Blocks {
			s.Copy(m.RowRange(b.To*c.of.BlockRows, b.Rows).Mem, m.RowRange(b.From*c.of.BlockRows, b.Rows).Mem)
		}
	}
}

// Cached is one of the values that the mixer keeps from pass to pass, by its index; ok is false in a pass without a
// cache. MicroBatch.Places says which of its rows the positions of the pass have.
func (p *Pass) Cached(i int) (m device.Mat, ok bool) {
	if p.cache == nil {
		return device.Mat{}, false
	}
	return p.cache.own[i], true
}

// Continued says which positions of sequences the rows of a pass with a cache are.
func (p *Pass) Continued() device.Continued {
	return device.Continued{Docs: p.b.Docs, Each: p.cache.of.Each()}
}

// AttendCached is AttendCache over the rows that the pass's sequences have in cached keys and values.
func (p *Pass) AttendCached(out, q, keys, values device.Mat, spec device.AttentionSpec) {
	of := p.cache.of
	spec.Blocks = device.CacheBlocks{Table: p.b.Table, Rows: of.BlockRows, Each: of.Each()}
	p.AttendCache(out, q, keys, values, spec)
}
