package model

import (
	"fmt"

	"github.com/millrace/millrace/nn"
)

// The problem. The blocks of a decoder are a line: each has the output of the one before. Some models have a second
// line of another width, such as a tower for images, the output of which becomes rows of the text.
//
// The obvious answer numbers the layers of the second line by themselves. Then all that visits, deals, saves or counts
// layers has a second loop, and so have a third and a fourth line.
//
// The answer here: all blocks have one numbering, chain after chain, in the order in which a step goes up. Tables by
// block have rows for those of all chains, and rules about places need not know the chain. A chain says where it begins
// and ends, and has two edges. Its input is rows of a table. Its output is the head's input, or a side (Side) that
// later chains read. A side has its way in all placements, on several devices and hosts: up to each reader, and down as
// a sum of their gradients. So a chain ends in something that blocks have already.
//
// Rows of all chains are for the positions of the text. Chains with rows of their own need arrays of their own in a
// batch.

// Chain is a row of blocks, of which each has the output of the one before.
type Chain struct {
	Name        string // begins the names of its parts and the roles of its tensors; "": the text
	First, Last int    // its layers
	Hidden      int    // columns of the output of each layer
	Out         int    // the side that is the output of the last layer; -1: that is the input of the head
}

// ChainSpec describes a chain that comes before the text, as a family reads it from a config.json.
type ChainSpec struct {
	Name   string // "tower"
	Hidden int
	Blocks []nn.Block
	Scale  Multiplier // of the rows of its table
	Side   int        // that is the output of the last block
}

// place tells of a layer where it is in a chain.
type place struct {
	chain        int
	begins, ends bool
}

// checkChains refuses chains before the text that lack what makes them one.
func (s *Spec) checkChains() error {
	for _, c := range s.Chains {
		if c.Name == "" || len(c.Blocks) == 0 || c.Hidden < 1 {
			return fmt.Errorf("chain %q has no name, no blocks or no columns", c.Name)
		}
	}
	return nil
}

// allBlocks are the blocks of all chains in the order of layers.
func (s *Spec) allBlocks() (all []*nn.Block) {
	for i := range s.Chains {
		for b := range s.Chains[i].Blocks {
			all = append(all, &s.Chains[i].Blocks[b])
		}
	}
	for b := range s.Blocks {
		all = append(all, &s.Blocks[b])
	}
	return all
}

// addChains numbers the layers, and gives each chain before the text a table of its own.
func (m *Model) addChains(s *Spec, tileRows int) error {
	m.places = []place{{chain: len(s.Chains)}}
	add := func(c Chain, blocks int) {
		c.First, c.Last = len(m.places), len(m.places)+blocks-1
		for layer := c.First; layer <= c.Last; layer++ {
			m.places = append(m.places, place{len(m.Chains), layer == c.First, layer == c.Last && c.Out >= 0})
		}
		m.Chains = append(m.Chains, c)
	}
	for _, c := range s.Chains {
		add(Chain{Name: c.Name, Hidden: c.Hidden, Out: c.Side}, len(c.Blocks))
		l := Lookup{Cols: c.Hidden, Side: -1, Layer: m.Chains[len(m.Chains)-1].First, scale: c.Scale}
		var err error
		if l.Tiles, err = m.addTiles(ChainEmbed, 0, m.Vocab, tileRows, c.Hidden); err != nil {
			return err
		}
		for i, tile := range l.Tiles {
			m.Parts[tile].Name = fmt.Sprintf("%s.%v.%d", c.Name, Embed, i)
		}
		m.Lookups = append(m.Lookups, l)
	}
	add(Chain{Hidden: m.Hidden, Out: -1}, len(s.Blocks))
	m.Lookups[0].Layer = m.Text().First
	m.places = append(m.places, place{chain: len(s.Chains)})
	return nil
}

// ChainOf is the chain of a layer; the embedding and the head are the text's.
func (m *Model) ChainOf(layer int) *Chain { return &m.Chains[m.places[layer].chain] }

// Text is the chain that ends in the head.
func (m *Model) Text() *Chain { return &m.Chains[len(m.Chains)-1] }

// Begins reports whether the input of a layer are rows of a table, and not what the layer before has made.
func (m *Model) Begins(layer int) bool { return m.places[layer].begins }

// Ends reports whether the output of a layer is a side, and not the input of the layer after it.
func (m *Model) Ends(layer int) bool { return m.places[layer].ends }

// Width is the number of columns of a layer's input.
func (m *Model) Width(layer int) int { return m.ChainOf(layer).Hidden }

// TableOf is the table whose rows are the input of a layer that begins a chain.
func (m *Model) TableOf(layer int) *Lookup {
	for i := range m.Lookups {
		if l := &m.Lookups[i]; l.Side < 0 && l.Layer == layer {
			return l
		}
	}
	return nil
}

// FirstOf is the layer that has rows of a table first.
func (m *Model) FirstOf(l *Lookup) int {
	if l.Side >= 0 {
		return m.Sides[l.Side].Layers[0]
	}
	return l.Layer
}

// inChain is the number of a block in its chain, from 0, as files count them.
func (m *Model) inChain(layer int) int { return layer - m.ChainOf(layer).First }

// prefix begins the name of a layer's parts.
func (m *Model) prefix(layer int) string {
	if name := m.ChainOf(layer).Name; name != "" {
		return name + "."
	}
	return ""
}
