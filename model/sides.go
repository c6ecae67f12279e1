package model

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/tensor"
)

// Lookup is a table with a row for each token of the vocabulary, of which the host looks up those that a step needs.
type Lookup struct {
	Tiles []int // the parts that hold it, by row
	Cols  int
	// Side is the side that begins with its rows (Model.Sides); -1: they are the input of Layer.
	Side, Layer int
	scale       Multiplier
}

// Scale is the number that rows are multiplied by, where activations have a type.
func (l *Lookup) Scale(t tensor.DType) float32 {
	by := float32(l.scale.By)
	if l.scale.Rounded && t == tensor.BF16 {
		by = tensor.F32FromBF16(tensor.BF16FromF32(by))
	}
	return by
}

// LookedUp reports whether parts of the kind are tiles of a table that the host looks up.
func (k PartKind) LookedUp() bool { return k == Embed || k == LayerEmbed || k == ChainEmbed }

// LookupOf is the table that a part is a tile of.
func (m *Model) LookupOf(part int) *Lookup {
	for i := range m.Lookups {
		if slices.Contains(m.Lookups[i].Tiles, part) {
			return &m.Lookups[i]
		}
	}
	return nil
}

// Side is a matrix of rows that crosses blocks besides the residual stream: [T, Cols] for each micro-batch (nn.Side).
type Side struct {
	Cols   int  // of all blocks
	Sliced bool // each block has columns of its own
	// Layers have it, from 1 on and rising: its maker first, unless that is a table. Readers are those that read it. The
	// maker is a block that states it, or the last one of a chain, of which it is the output.
	Layers, Readers []int
	Lookup          *Lookup
}

// Last is the last layer that reads the side: the first one that writes its gradient.
func (s *Side) Last() int { return s.Readers[len(s.Readers)-1] }

// addSides finds the sides of the blocks, and which of them begin with rows of a table.
func (m *Model) addSides() error {
	made := map[int]bool{}
	for i := range m.Lookups {
		if n := m.Lookups[i].Side; n >= 0 {
			made[n] = true
		}
	}
	for b, block := range m.Blocks {
		for _, s := range block.Sides() {
			for s.Number >= len(m.Sides) {
				m.Sides = append(m.Sides, Side{})
			}
			side := &m.Sides[s.Number]
			cols := s.Cols
			if chain := m.ChainOf(1 + b); s.Sliced && !s.Makes {
				cols *= chain.Last + 1 - chain.First
			}
			switch known := side.Cols > 0; {
			case known && (side.Cols != cols || side.Sliced != s.Sliced):
				return fmt.Errorf("layer %d has %d columns of side %d, other layers %d", b, cols, s.Number, side.Cols)
			case s.Makes && made[s.Number] && !s.Sliced:
				return fmt.Errorf("layer %d makes side %d again", b, s.Number)
			case !s.Makes && !made[s.Number]:
				return fmt.Errorf("layer %d reads side %d, which no layer before it makes", b, s.Number)
			}
			side.Cols, side.Sliced = cols, s.Sliced
			if !slices.Contains(side.Layers, 1+b) {
				side.Layers = append(side.Layers, 1+b)
			}
			if s.Makes {
				made[s.Number] = true
			} else {
				side.Readers = append(side.Readers, 1+b)
			}
		}
		if chain := m.ChainOf(1 + b); m.Ends(1 + b) {
			if made[chain.Out] {
				return fmt.Errorf("the end of chain %s makes side %d again", chain.Name, chain.Out)
			}
			for chain.Out >= len(m.Sides) {
				m.Sides = append(m.Sides, Side{})
			}
			m.Sides[chain.Out], made[chain.Out] = Side{Cols: chain.Hidden, Layers: []int{1 + b}}, true
		}
	}
	for i := range m.Lookups {
		switch l := &m.Lookups[i]; {
		case l.Side < 0:
		case l.Side >= len(m.Sides) || m.Sides[l.Side].Cols != l.Cols || !m.Sides[l.Side].Sliced:
			return fmt.Errorf("no layer reads the table of %d columns", l.Cols)
		default:
			m.Sides[l.Side].Lookup = l
		}
	}
	for n, side := range m.Sides {
		if len(side.Readers) == 0 {
			return fmt.Errorf("no layer reads side %d", n)
		}
	}
	return nil
}
