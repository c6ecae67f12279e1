package gguf

import (
	"fmt"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
)

// Sliding windows in metadata. Some architectures list the layers that have one; in others llama.cpp knows them
// (llama_model_base::load_swa_pattern), and reads such a list if there is one.
const (
	slidingWindow  = "attention.sliding_window"
	slidingPattern = "attention.sliding_window_pattern"
	slidingBase    = "rope.freq_base_swa"
)

var windowKeys = []string{slidingWindow, slidingPattern, slidingBase}

// refuseWindows refuses windows in other layers than llama.cpp has them.
func (m *decoder) refuseWindows(r *hf.ConfigReader) {
	for l, b := range m.Blocks {
		if has := b.Mixer.(nn.Attention).Window > 0; has != m.arch.slides(l) {
			r.Fail("layer_types", "llama.cpp has windows in other layers of %s, and layer %d differs: "+
				"use the Hugging Face directory", m.arch.name, l)
			return
		}
	}
}

// refuseSlidingRope refuses rotary positions of layers with a window that llama.cpp has not: it scales those of the
// others only.
func (m *decoder) refuseSlidingRope(r *hf.ConfigReader, ownBase bool) {
	if m.window > 0 && (m.sliding.Kind != nn.RopeDefault || m.sliding.Theta != m.Rope.Theta && !ownBase) {
		r.Fail("rope_parameters", "llama.cpp has other rotary positions in layers of %s with a window: "+
			"use the Hugging Face directory", m.arch.name)
	}
}

// writeWindow adds the window, if layers have one.
func (m *decoder) writeWindow(add func(key string, value any)) {
	if m.window > 0 {
		add(slidingWindow, uint32(m.window))
	}
}

// writeWindows adds which layers have it, too.
func (m *decoder) writeWindows(add func(key string, value any)) {
	m.writeWindow(add)
	if m.window > 0 {
		slides := make([]bool, len(m.Blocks))
		for l, b := range m.Blocks {
			slides[l] = b.Mixer.(nn.Attention).Window > 0
		}
		add(slidingPattern, slides)
	}
}

// slides reports whether a layer has the window where a file does not say it.
func (a *architecture) slides(layer int) bool { return (layer+1)%a.fullEvery != 0 }

// windows reads the window, and which layers have it. def stands for an absent one; 0: none.
func (g *header) windows(m *stated, def int) error {
	arch := m.arch.name + "."
	n, ok, err := g.integer(arch + slidingWindow)
	if err != nil {
		return err
	}
	if !ok {
		n = int64(def)
	}
	if n < 0 || n > maxSize {
		return fmt.Errorf("metadata %s is %d: 0 or more is expected", arch+slidingWindow, n)
	}
	m.window, m.slides = int(n), make([]bool, m.layers)
	if n == 0 {
		return nil
	}
	if v := g.meta[arch+slidingPattern]; v.typ == typeArray {
		m.slides, err = g.flags(arch+slidingPattern, m.layers)
		return err
	}
	every, ok, err := g.integer(arch + slidingPattern)
	if err != nil {
		return err
	}
	if !ok {
		every = int64(m.arch.fullEvery)
	}
	for l := range m.slides {
		m.slides[l] = every == 0 || int64(l+1)%every != 0
	}
	return nil
}

// flags reads a list of that many booleans.
func (g *header) flags(key string, n int) ([]bool, error) {
	v := g.meta[key]
	if v.typ != typeArray || v.elem != typeBool || v.n != int64(n) {
		return nil, fmt.Errorf("metadata %s is not a list of %d booleans", key, n)
	}
	flags := make([]bool, n)
	for i := range flags {
		flags[i] = v.raw[i] != 0
	}
	return flags, nil
}

// layerTypes is the key of config.json.
func (m *stated) layerTypes() []string {
	types := make([]string, m.layers)
	for l := range types {
		types[l] = "full_attention"
		if m.slides[l] {
			types[l] = "sliding_attention"
		}
	}
	return types
}
