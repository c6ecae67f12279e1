package gguf

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// The tensors of longrope: what frequencies are divided by in contexts longer than the original one, and in others.
const (
	ropeLong  = "rope_factors_long.weight"
	ropeShort = "rope_factors_short.weight"
)

// refusePhi3 refuses what llama.cpp has not, and notes what it computes otherwise. Source: its src/models/phi3.cpp,
// where heads share the hidden size and windows are turned off, and llama-model.cpp (get_rope_factors).
func refusePhi3(m *decoder, r *hf.ConfigReader) {
	m.refuseOwnWidth(r)
	if m.window > 0 && m.window < m.MaxPositions {
		m.notes = append(m.notes, fmt.Sprintf("the model attends to its last %d positions only, and llama.cpp attends "+
			"to all: longer texts differ there", m.window))
	}
	if m.Rope.Kind == nn.RopeLong {
		m.notes = append(m.notes, fmt.Sprintf("llama.cpp chooses the frequencies of longrope by the size of the "+
			"context: open the file with at most %d positions for texts up to that length", m.Rope.OriginalPositions))
	}
}

func writePhi3(m *decoder, add func(key string, value any)) {
	writeRotated(m, add)
	add(slidingWindow, uint32(m.window)) // 0: none
}

func readPhi3(g *header, m *stated) error {
	key := m.arch.name + "." + slidingWindow
	n, _, err := g.integer(key)
	if err == nil && (n < 0 || n > maxSize) {
		err = fmt.Errorf("metadata %s is %d: 0 or more is expected", key, n)
	}
	m.window = int(n)
	return err
}

func configPhi3(m *stated) map[string]any {
	keys := map[string]any{"head_dim": nil, "original_max_position_embeddings": m.positions,
		"partial_rotary_factor": rotaryFactor(m.rope.Rotated, m.headDim)}
	if m.rope.Kind == nn.RopeLong {
		keys["original_max_position_embeddings"] = m.rope.OriginalPositions
	}
	if m.window > 0 {
		keys["sliding_window"] = m.window
	}
	return keys
}

// ropeTensor is a tensor of divisors of frequencies.
type ropeTensor struct {
	name     string
	divisors []float32
}

// ropeTensors lists the tensors of the model's rotation.
func (m *decoder) ropeTensors() []ropeTensor {
	if m.arch.ownHeads {
		return []ropeTensor{{ropeFreqs, m.proportional()}}
	}
	switch m.Rope.Kind {
	case nn.RopeLlama3:
		return []ropeTensor{{ropeFreqs, m.Rope.Divisors()}}
	case nn.RopeLong:
		return []ropeTensor{{ropeLong, inF32(m.Rope.Long)}, {ropeShort, inF32(m.Rope.Short)}}
	}
	return nil
}

func inF32(factors nn.Factors) (all []float32) {
	for _, x := range factors.Numbers() {
		all = append(all, float32(x))
	}
	return all
}

// longRope reads longrope, if the file has it.
func (g *header) longRope(f *tensorReader, m *stated) (err error) {
	if !g.hasTensor(ropeLong) && !g.hasTensor(ropeShort) {
		return nil
	}
	p := &m.rope
	if m.arch.name != "phi3" || p.Kind != nn.RopeDefault {
		return fmt.Errorf("tensor %s does not belong to a %s model: this kind of model cannot be imported", ropeLong,
			m.arch.name)
	}
	read := func(name string) (nn.Factors, error) {
		if err := g.checkTensor(name, tensor.Shape{p.Width() / 2}); err != nil {
			return "", err
		}
		t := g.tensors[name]
		values, numbers := make([]float32, t.elems), make([]float64, t.elems)
		if err := f.read(t, values, 0); err != nil {
			return "", err
		}
		for i, x := range values {
			if !(x > 0) || math.IsInf(float64(x), 0) {
				return "", fmt.Errorf("tensor %s has the number %g: positive ones are expected", name, x)
			}
			numbers[i], _ = shortestF32(float64(x)).Float64()
		}
		return nn.NewFactors(numbers), nil
	}
	if p.Long, err = read(ropeLong); err != nil {
		return err
	}
	if p.Short, err = read(ropeShort); err != nil {
		return err
	}
	if p.OriginalPositions, err = g.size(m.arch.name + "." + scalingOriginal); err != nil {
		return err
	}
	p.Kind = nn.RopeLong
	p.Magnitude, err = g.positive(m.arch.name+"."+scalingAttn, 1)
	return err
}

// longConfig is rope_scaling of longrope. transformers 4 takes these keys alone for phi3.
func (m *stated) longConfig() map[string]any {
	list := func(factors nn.Factors) (all []json.Number) {
		for _, x := range factors.Numbers() {
			all = append(all, floatF32(x))
		}
		return all
	}
	c := map[string]any{"type": m.rope.Kind.String(), "long_factor": list(m.rope.Long),
		"short_factor": list(m.rope.Short)}
	original := m.rope.OriginalPositions
	usual := nn.LongRopeMagnitude(float64(m.positions)/float64(original), original)
	if float32(m.rope.Magnitude) != float32(usual) {
		c["attention_factor"] = floatF32(m.rope.Magnitude)
	}
	return c
}
