package stream

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/nn"
)

// cacheBlocks say which blocks of caches have the positions of sequences.
type cacheBlocks struct {
	of    nn.Caches
	table []int32 // by sequence and block of its positions, BlocksEach for each; -1: no block has these
	uses  []int   // by block: places in the table that name it
}

// newCacheBlocks gives each sequence blocks of its own, where there are enough for all positions of all of them.
func newCacheBlocks(of nn.Caches) cacheBlocks {
	c := cacheBlocks{of: of, table: make([]int32, of.Sequences*of.BlocksEach()), uses: make([]int, of.Blocks)}
	for i := range c.table {
		if c.table[i] = -1; len(c.table) <= of.Blocks {
			c.table[i] = int32(i)
			c.uses[i]++
		}
	}
	return c
}

// set gives a sequence some blocks, in the order of its positions.
func (c *cacheBlocks) set(sequence int, blocks []int32) error {
	each := c.of.BlocksEach()
	if sequence < 0 || sequence >= c.of.Sequences || len(blocks) > each {
		return fmt.Errorf("%d blocks for sequence %d, and the plan is for %d sequences of %d blocks", len(blocks),
			sequence, c.of.Sequences, each)
	}
	for _, b := range blocks {
		if b < 0 || int(b) >= c.of.Blocks {
			return fmt.Errorf("block %d for sequence %d, of %d blocks", b, sequence, c.of.Blocks)
		}
	}
	own := c.table[sequence*each:][:each]
	for i, had := range own {
		if had >= 0 {
			c.uses[had]--
		}
		if own[i] = -1; i < len(blocks) {
			own[i] = blocks[i]
			c.uses[blocks[i]]++
		}
	}
	return nil
}

// row is the row of caches that a position of a sequence is written to. Positions that several sequences have are not
// written.
func (c *cacheBlocks) row(sequence, at int) (int, error) {
	if c.of.BlockRows == 0 {
		return sequence*c.of.Positions + at, nil
	}
	switch b := c.table[sequence*c.of.BlocksEach()+at/c.of.BlockRows]; {
	case b < 0:
		return 0, fmt.Errorf("continue: position %d of sequence %d has no block; see SetBlocks", at, sequence)
	case c.uses[b] > 1:
		return 0, fmt.Errorf("continue: position %d of sequence %d is in block %d, which another sequence has too; give "+
			"it a copy", at, sequence, b)
	default:
		return int(b)*c.of.BlockRows + at%c.of.BlockRows, nil
	}
}

// SetBlocks says which blocks of the caches have the positions of a sequence, from its first one on: each has
// Caches.BlockRows of them. Sequences may have blocks together, of positions that agree in their tokens and all before
// them, and only read those: a pass that computes one of these positions is refused. A new engine has given each
// sequence its own, where there are enough for all. The plan's caches are in blocks.
func (e *Engine) SetBlocks(sequence int, blocks []int32) error {
	if err := e.blocks.set(sequence, blocks); err != nil {
		return fmt.Errorf("caches: %w", err)
	}
	return nil
}

// TakeOver has sequences take over what others have left in caches, before the next pass: first rows of blocks, and
// where the model cannot go back what the latest position of a sequence has left. All takeovers since the latest
// pass are carried out in the order in which they came; a pass that fails forgets them.
func (e *Engine) TakeOver(t nn.Takeover) error {
	of := e.Plan.Outputs.Caches
	for _, b := range t.Blocks {
		if min(b.From, b.To) < 0 || max(b.From, b.To) >= of.Blocks || b.Rows < 0 || b.Rows > of.BlockRows {
			return fmt.Errorf("caches: %d rows of block %d for block %d, of %d blocks of %d", b.Rows, b.From, b.To,
				of.Blocks, of.BlockRows)
		}
		if b.From == b.To {
			return errors.New("caches: a block takes over its own rows")
		}
	}
	for _, l := range t.Latest {
		if min(l[0], l[1]) < 0 || max(l[0], l[1]) >= of.Sequences || l[0] == l[1] {
			return fmt.Errorf("caches: sequence %d takes over from %d, of %d sequences", l[1], l[0], of.Sequences)
		}
	}
	for _, l := range t.Latest {
		e.reached[l[1]] = e.reached[l[0]]
	}
	e.takeover.Blocks = append(e.takeover.Blocks, t.Blocks...)
	e.takeover.Latest = append(e.takeover.Latest, t.Latest...)
	return nil
}
