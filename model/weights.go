package model

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/millrace/millrace/hf"
)

// Check fails unless a checkpoint has every tensor of the model in its shape and in a type that can be read. It also
// fails for a tensor that the model has no place for and does not carry: such a tensor means that config.json describes
// another model. As in transformers, lm_head.weight is ignored where embeddings are tied, and so are the frequencies
// that old checkpoints carry.
func (m *Model) Check(w *hf.Weights) error {
	known := m.known()
	for i := range m.Parts {
		for _, src := range m.Parts[i].Tensors {
			if err := w.Expect(src.HFName, src.HFShape); err != nil {
				return err
			}
		}
	}
	for _, name := range w.Names() {
		if known[name] || m.carriedAs(name) != "" || m.Tied && name == headName ||
			strings.HasSuffix(name, "rotary_emb.inv_freq") {
			continue
		}
		info, _ := w.Info(name)
		return fmt.Errorf("%s: tensor %.200q has no place in the %s that config.json describes: the weights and config.json are not of one model", info.File, name, m.Type)
	}
	return nil
}

// known are the names of the model's own tensors.
func (m *Model) known() map[string]bool {
	names := map[string]bool{}
	for i := range m.Parts {
		for _, src := range m.Parts[i].Tensors {
			names[src.HFName] = true
		}
	}
	return names
}

// Carried are tensors of a checkpoint that the model has no place for, and that an export copies: those of one
// pattern of the family's.
type Carried struct {
	Pattern string
	Names   []string // sorted
	Bytes   int64
}

// Carried finds them in a checkpoint, by pattern; a pattern without a tensor is left out.
func (m *Model) Carried(w *hf.Weights) []Carried {
	known := m.known()
	all := make([]Carried, len(m.carried))
	for _, name := range w.Names() {
		if i := slices.Index(m.carried, m.carriedAs(name)); i >= 0 && !known[name] {
			info, _ := w.Info(name)
			all[i].Pattern, all[i].Names, all[i].Bytes = m.carried[i], append(all[i].Names, name), all[i].Bytes+info.Bytes
		}
	}
	return slices.DeleteFunc(all, func(c Carried) bool { return c.Names == nil })
}

// Carries reports whether checkpoints of the model may have tensors that are carried.
func (m *Model) Carries() bool { return len(m.carried) > 0 }

// carriedAs returns the first pattern that a name matches; "" if no pattern does.
func (m *Model) carriedAs(name string) string {
	for _, pattern := range m.carried {
		if ok, _ := path.Match(pattern, name); ok {
			return pattern
		}
	}
	return ""
}

// readElems is how many elements are converted at a time: 256 KiB of fp32.
const readElems = 64 << 10

// ReadPart fills values of a part, padding included, from a checkpoint: all of them, or those of a piece, of which
// nothing else is read. Split master weights hold an F32 checkpoint exactly, and BF16 and F16 ones too. A missing
// tensor, a wrong shape, and a value that is not finite (as bf16, for split master weights) are errors that name the
// tensor.
func (m *Model) ReadPart(w *hf.Weights, p *Part, dst Values) error {
	dst.clearPadding(p.Layout)
	var buf []float32
	if dst.F32 == nil {
		buf = make([]float32, readElems)
	}
	for _, src := range p.Tensors {
		if err := w.Expect(src.HFName, src.HFShape); err != nil {
			return err
		}
		f := &p.Layout.Fields[src.Field]
		begin := src.begin()
		first, end := dst.of(f)
		if dst.F32 != nil {
			if first < end {
				if err := w.ReadF32(src.HFName, dst.F32[f.First+first-dst.First:][:end-first], begin+first); err != nil {
					return err
				}
			}
			continue
		}
		for at := first; at < end; at += readElems {
			vals := buf[:min(readElems, end-at)]
			if err := w.ReadF32(src.HFName, vals, begin+at); err != nil {
				return err
			}
			if i := dst.setElems(f, at, vals); i >= 0 {
				return fmt.Errorf("tensor %.200q: element %d is %g, too large for bf16: the model had diverged, or train it with master: f32", src.HFName, begin+at+int64(i), vals[i])
			}
		}
	}
	return nil
}

// begin is the first element of the tensor that the field has.
func (s *Source) begin() int64 {
	n := int64(s.FirstRow)
	for _, d := range s.HFShape[1:] {
		n *= int64(d)
	}
	return n
}
