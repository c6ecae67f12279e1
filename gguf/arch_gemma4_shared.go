package gguf

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/nn"
)

// What files say of Gemma 4 E2B and E4B: how many layers use keys and values of others, and how many columns of the
// second embedding a layer has. Of other models both are 0.
const (
	sharedKeys = "attention.shared_kv_layers"
	layerRows  = "embedding_length_per_layer_input"
)

// ownKeys counts the layers that have keys and values of their own, which come first.
func (m *decoder) ownKeys() (n int) {
	for _, b := range m.Blocks {
		if b.Mixer.(nn.Attention).KV.Role != nn.KVTaken {
			n++
		}
	}
	return n
}

// checkSharedKeys fails where layers from number own on have keys and values of one layer in llama.cpp and of another
// in transformers. In llama.cpp they are those of layer own-2 for layers that have a window, as slides says, and those
// of own-1 for the others; in transformers those of the last layer of the kind. Source: llama.cpp's src/llama-model.cpp
// (create_memory).
func checkSharedKeys(slides []bool, own int) error {
	if own < 2 {
		return errors.New("llama.cpp needs 2 layers or more that have keys and values of their own")
	}
	for l := own; l < len(slides); l++ {
		from := own - 1
		if slides[l] {
			from = own - 2
		}
		if slides[own-1] || slides[from] != slides[l] {
			return fmt.Errorf("in llama.cpp layer %d has the keys and values of layer %d, and in transformers those "+
				"of another one", l, from)
		}
	}
	return nil
}

// layersOfOthers reads the number of layers that use keys and values of others, whose feed-forwards may be wider, and
// the columns of the second embedding.
func (g *header) layersOfOthers(m *stated) error {
	arch := m.arch.name + "."
	for _, s := range []struct {
		key string
		to  *int
	}{{sharedKeys, &m.sharedKeys}, {layerRows, &m.layerRows}} {
		n, _, err := g.integer(arch + s.key)
		if err != nil {
			return err
		}
		if n < 0 || n > maxSize {
			return fmt.Errorf("metadata %s is %d: 0 or more is expected", arch+s.key, n)
		}
		*s.to = int(n)
	}
	own := m.layers - m.sharedKeys
	if err := checkSharedKeys(m.slides, own); err != nil {
		return fmt.Errorf("metadata %s is %d, of %d layers: %w", arch+sharedKeys, m.sharedKeys, m.layers, err)
	}
	for l, n := range m.inners {
		if l < own && n != m.inners[0] || l >= own && n != m.inners[own] {
			return fmt.Errorf("metadata %s differs in layers of one kind, such as layer %d", arch+feedForward, l)
		}
	}
	if last := m.inners[m.layers-1]; last != m.inners[0] {
		if last != 2*m.inners[0] {
			return fmt.Errorf("metadata %s is %d in layers that use keys of others: %d or twice that is expected",
				arch+feedForward, last, m.inners[0])
		}
		m.also["use_double_wide_mlp"] = true
	}
	return nil
}
