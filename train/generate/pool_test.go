package generate

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/nn"
)

// Sequences that write, share, go back and end in any order have what they wrote, and each block is free or named as
// often as it says; where there are not enough blocks nothing changes.
func TestPoolOfBlocks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(what string, from, to int) int { return rapid.IntRange(from, to).Draw(rt, what) }
		of := nn.Caches{Sequences: draw("sequences", 1, 5), Positions: draw("positions", 1, 20)}
		of.BlockRows = draw("block", 1, 6)
		of.Blocks = draw("blocks", of.BlocksEach(), of.Sequences*of.BlocksEach()+1)
		p := newPool(of)
		rows := make([]int, of.Rows()) // what has been written to each row
		wrote := make([][]int, of.Sequences)
		stamp := 0
		for range draw("steps", 1, 40) {
			seq := draw("sequence", 0, of.Sequences-1)
			switch draw("do", 0, 4) {
			case 0:
				p.keep(seq, 0)
				wrote[seq] = nil
			case 1:
				n := draw("kept", 0, len(wrote[seq]))
				p.keep(seq, n)
				wrote[seq] = wrote[seq][:n]
			case 2:
				other := draw("source", 0, of.Sequences-1)
				if other == seq {
					continue
				}
				n := draw("shared", 0, len(wrote[other]))
				p.keep(seq, 0)
				p.share(seq, other, n)
				wrote[seq] = slices.Clone(wrote[other][:n])
			default:
				from := draw("from", 0, len(wrote[seq]))
				to := draw("to", from, of.Positions)
				p.keep(seq, from)
				before, lacks := slices.Clone(p.tables[seq]), p.lacks(seq, from, to)
				copies, ok := p.fit(seq, from, to)
				wrote[seq] = wrote[seq][:from]
				if !ok {
					if lacks <= len(p.free) || len(copies) > 0 || !slices.Equal(p.tables[seq], before) {
						rt.Fatalf("no room for %d blocks with %d free; %v became %v", lacks, len(p.free), before, p.tables[seq])
					}
					continue
				}
				for _, c := range copies {
					copy(rows[c.To*of.BlockRows:][:c.Rows], rows[c.From*of.BlockRows:])
				}
				for at := from; at < to; at++ {
					b := p.tables[seq][at/of.BlockRows]
					if p.uses[b] != 1 {
						rt.Fatalf("position %d of sequence %d is written in a block of %d", at, seq, p.uses[b])
					}
					stamp++
					rows[int(b)*of.BlockRows+at%of.BlockRows] = stamp
					wrote[seq] = append(wrote[seq], stamp)
				}
			}
			uses := make([]int, of.Blocks)
			for s, table := range p.tables {
				for _, b := range table {
					uses[b]++
				}
				for at, want := range wrote[s] {
					if got := rows[int(table[at/of.BlockRows])*of.BlockRows+at%of.BlockRows]; got != want {
						rt.Fatalf("position %d of sequence %d has what %d wrote, not %d", at, s, got, want)
					}
				}
			}
			for _, b := range p.free {
				if uses[b]--; uses[b] != -1 {
					rt.Fatalf("block %d is free, and %d tables name it", b, uses[b]+1)
				}
				uses[b] = 0
			}
			if !slices.Equal(uses, p.uses) {
				rt.Fatalf("blocks have the uses %v, and count %v", uses, p.uses)
			}
			if n := p.frees([]int{seq}); n < len(p.free) || n > len(p.free)+len(p.tables[seq]) {
				rt.Fatalf("%d blocks would be free without sequence %d", n, seq)
			}
		}
		for seq := range of.Sequences {
			p.keep(seq, 0)
		}
		if len(p.free) != of.Blocks {
			rt.Fatalf("%d of %d blocks are free at the end", len(p.free), of.Blocks)
		}
	})
}
