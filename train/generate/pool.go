package generate

import (
	"slices"

	"github.com/millrace/millrace/nn"
)

// pool deals out the blocks of caches to sequences. Blocks of positions that sequences have together are only read: the
// sequence that writes to one gets a copy.
type pool struct {
	of     nn.Caches
	tables [][]int32 // by sequence: the blocks of its positions, from the first one on
	uses   []int     // by block: tables that name it
	free   []int32   // that no table names; the last one is dealt out next
}

func newPool(of nn.Caches) *pool {
	p := &pool{of: of, tables: make([][]int32, of.Sequences), uses: make([]int, of.Blocks)}
	for b := of.Blocks - 1; b >= 0; b-- {
		p.free = append(p.free, int32(b))
	}
	return p
}

// blocksOf is the number of blocks that some positions take.
func (p *pool) blocksOf(positions int) int { return (positions + p.of.BlockRows - 1) / p.of.BlockRows }

// lacks counts the blocks that a sequence has to get, so that it can write the positions [from, to).
func (p *pool) lacks(sequence, from, to int) int {
	table := p.tables[sequence]
	n := max(p.blocksOf(to)-len(table), 0)
	for b := from / p.of.BlockRows; b < min(p.blocksOf(to), len(table)); b++ {
		if p.uses[table[b]] > 1 {
			n++
		}
	}
	return n
}

// fit has a sequence have blocks of its own for the positions [from, to). It returns what has to be copied of those
// before, in order; ok is false if there are not enough blocks, and then nothing has changed.
func (p *pool) fit(sequence, from, to int) (copies []nn.BlockCopy, ok bool) {
	if p.lacks(sequence, from, to) > len(p.free) {
		return nil, false
	}
	for b := from / p.of.BlockRows; b < p.blocksOf(to); b++ {
		if b == len(p.tables[sequence]) {
			p.tables[sequence] = append(p.tables[sequence], p.take())
			continue
		}
		had := p.tables[sequence][b]
		if p.uses[had] == 1 {
			continue
		}
		own := p.take()
		p.tables[sequence][b] = own
		p.uses[had]--
		if n := from - b*p.of.BlockRows; n > 0 {
			copies = append(copies, nn.BlockCopy{From: int(had), To: int(own), Rows: n})
		}
	}
	return copies, true
}

func (p *pool) take() int32 {
	b := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.uses[b] = 1
	return b
}

// share gives a sequence that has no blocks those of the first positions of another one.
func (p *pool) share(sequence, of, positions int) {
	p.tables[sequence] = slices.Clone(p.tables[of][:p.blocksOf(positions)])
	for _, b := range p.tables[sequence] {
		p.uses[b]++
	}
}

// keep takes from a sequence the blocks in which none of its first positions are.
func (p *pool) keep(sequence, positions int) {
	table := p.tables[sequence]
	n := min(p.blocksOf(positions), len(table))
	for _, b := range slices.Backward(table[n:]) {
		if p.uses[b]--; p.uses[b] == 0 {
			p.free = append(p.free, b)
		}
	}
	p.tables[sequence] = table[:n]
}

// frees counts the blocks that would be free if these sequences gave theirs back.
func (p *pool) frees(sequences []int) int {
	uses, n := slices.Clone(p.uses), len(p.free)
	for _, s := range sequences {
		for _, b := range p.tables[s] {
			if uses[b]--; uses[b] == 0 {
				n++
			}
		}
	}
	return n
}
