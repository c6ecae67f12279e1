package gguf

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// decoder has the description of a model in a GGUF file.
type decoder struct {
	*model.Model
	arch *architecture
	// of the first block that is rotated and has no window, or else of the first that is rotated, or has attention
	nn.Attention
	latent  *nn.LatentAttention // of every block; nil: attention is not latent
	window  int                 // the smallest sliding window of blocks; 0: none has one
	sliding nn.RopeFrequencies  // of blocks with a window
	narrow  nn.Attention        // of the first block with a window
	experts *nn.Experts         // of every block that has any; nil: none has
	dense   int                 // blocks without experts
	config  *hf.Config
	form    *model.Form
	notes   []string // what the file cannot say
}

// maxExperts is the largest number of experts in llama.cpp (LLAMA_MAX_EXPERTS).
const maxExperts = 1024

// describe finds what a file says of a model, if llama.cpp knows its family.
func describe(c *hf.Config, m *model.Model) (d *decoder, err error) {
	r := c.Reader()
	d = &decoder{Model: m, config: c, arch: architectureOf(m.Architecture)}
	if d.arch == nil {
		r.Fail("model_type", "a GGUF file is written of %s only: use the Hugging Face directory", families())
		return nil, r.Err()
	}
	d.mixers()
	r = decoderKeys(c)
	for _, b := range m.Blocks {
		if f, ok := b.FeedForward.(nn.Mixture); ok {
			x := f.Mixture()
			d.experts = &x
		} else {
			d.dense++
		}
	}
	if d.arch.refuse != nil {
		d.arch.refuse(d, r)
	}
	if d.experts != nil && d.experts.Number > maxExperts {
		r.Fail("model_type", "a layer has %d experts, and llama.cpp has at most %d: use the Hugging Face directory",
			d.experts.Number, maxExperts)
	}
	d.refuseRope(r)
	if r.Err() != nil {
		return nil, r.Err()
	}
	saysWindow := slices.Contains(d.arch.keys, slidingWindow)
	if d.window > 0 && d.window < m.MaxPositions && !saysWindow {
		d.notes = append(d.notes, fmt.Sprintf("the model attends to its last %d positions only, which a GGUF file of "+
			"this kind cannot say: longer texts differ in llama.cpp", d.window))
	}
	d.form, err = m.GGUF()
	return d, err
}

// mixers finds what stands for the attention of all blocks.
func (m *decoder) mixers() {
	// One without a window stands for more than one with it, and one that is rotated for more than one that is not.
	rank := func(a nn.Attention) (n int) {
		if a.Rope != (nn.RopeFrequencies{}) {
			n = 1
			if a.Window == 0 {
				n = 2
			}
		}
		return n
	}
	for _, b := range m.Blocks {
		a, ok := b.Mixer.(nn.Attention)
		if l, isLatent := b.Mixer.(nn.LatentAttention); isLatent {
			// In llama.cpp all heads share one key, and values are a part of it.
			m.latent, ok = &l, true
			a = nn.Attention{Heads: l.Heads, KVHeads: 1, HeadDim: l.KeyRank + l.Rotated, Rope: l.Rope,
				QKVBias: l.InBias, OutBias: l.OutBias}
		}
		if !ok {
			continue
		}
		if m.Heads == 0 || rank(a) > rank(m.Attention) {
			m.Attention = a
		}
		if a.Window > 0 && m.narrow.Heads == 0 {
			m.narrow = a
		}
		if a.Window > 0 && (m.window == 0 || a.Window < m.window) {
			m.window, m.sliding = a.Window, a.Rope
		}
	}
}

// inners are the widths of the feed-forwards of blocks without experts, or of those next to experts. config.json may
// have a width also if there is no such feed-forward.
func (m *decoder) inners() (all []int) {
	for _, b := range m.Blocks {
		switch f := b.FeedForward.(type) {
		case nn.GLU:
			all = append(all, f.Inner)
		case nn.WithDense:
			all = append(all, f.Shared)
		}
	}
	if n := decoderKeys(m.config).SizeOr("intermediate_size", 0); all == nil && n > 0 {
		all = append(all, n)
	}
	return all
}

// keyHeads are the key/value heads of each layer.
func (m *decoder) keyHeads() []int {
	if !m.arch.ownHeads {
		return []int{m.KVHeads}
	}
	all := make([]int, len(m.Blocks))
	for l, b := range m.Blocks {
		all[l] = b.Mixer.(nn.Attention).KVHeads
	}
	return all
}

// oneOrList is a number where all are equal, or else the list: metadata of what layers may differ in.
func oneOrList(all []int) any {
	list := make([]int32, len(all))
	for i, n := range all {
		list[i] = int32(n)
	}
	if slices.Max(list) == slices.Min(list) {
		return uint32(list[0])
	}
	return list
}

// metadata reads the keys of the architecture. The source of the keys, and of which are left out, is llama.cpp's
// converter (conversion/base.py, TextModel.set_gguf_parameters, and the classes of the families).
func (m *decoder) metadata() []metaEntry {
	var all []metaEntry
	add := func(key string, value any) { all = append(all, metaEntry{m.arch.name + "." + key, value}) }
	size := func(key string, n int) { add(key, uint32(n)) }
	size("block_count", len(m.Blocks))
	size("context_length", m.MaxPositions)
	size("embedding_length", m.Hidden)
	if inners := m.inners(); inners != nil {
		add(feedForward, oneOrList(inners))
	}
	size("attention.head_count", m.Heads)
	add(keyHeads, oneOrList(m.keyHeads()))
	if m.Rope != (nn.RopeFrequencies{}) {
		add("rope.freq_base", float32(m.Rope.Theta))
	}
	add(m.arch.eps(), m.Head.Norm.Eps)
	if m.HeadDim*m.Heads != m.Hidden || m.latent != nil || decoderKeys(m.config).Has("head_dim") {
		value := m.HeadDim
		if m.latent != nil {
			value = m.latent.KeyRank
		}
		size("attention.key_length", m.HeadDim)
		size("attention.value_length", value)
	}
	if m.experts != nil {
		size("expert_count", m.experts.Number)
		size("expert_used_count", m.experts.Route.TopK)
	}
	m.ropeScaling(add)
	if m.arch.write != nil {
		m.arch.write(m, add)
	}
	return all
}

// sizeLabel is general.size_label: of a mixture the experts, and the parameters that one expert has with what is
// shared, such as 8x7.2B.
func (m *decoder) sizeLabel() string {
	params, _ := m.Params()
	if m.experts == nil {
		return SizeLabel(params)
	}
	var each int64 // of one expert in all layers
	for _, parts := range m.GroupParts {
		for _, part := range parts {
			n, _ := m.Parts[part].Layout.Params()
			each += n
		}
	}
	for _, t := range m.form.Constants {
		params += t.Shape.Elems()
	}
	each /= int64(m.experts.Number)
	return fmt.Sprintf("%dx%s", m.experts.Number, SizeLabel(params-int64(m.experts.Number-1)*each))
}

// SizeLabel says how many parameters a model has as llama.cpp does: two digits at least, such as 135M, 1.2B or 70B.
func SizeLabel(params int64) string {
	scaled, suffix := float64(params)/1e3, "K"
	switch {
	case params > 1e12:
		scaled, suffix = float64(params)/1e12, "T"
	case params > 1e9:
		scaled, suffix = float64(params)/1e9, "B"
	case params > 1e6:
		scaled, suffix = float64(params)/1e6, "M"
	}
	whole := strconv.FormatFloat(scaled, 'f', 0, 64)
	digits := max(0, 2-len(whole))
	if whole == "0" {
		digits = 2
	}
	return strconv.FormatFloat(scaled, 'f', digits, 64) + suffix
}
