package model

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf"
)

// OpenWeights opens the weights of a model directory. Where the files leave out what the names of the model's tensors
// begin with, as transformers saves a model without its head, the tensors have it all the same. Where they have a tensor
// for each expert that could be stacked, the tensors are stacked.
func (m *Model) OpenWeights(dir string) (*hf.Weights, error) {
	w, err := hf.OpenWeights(dir)
	hasBase := func(name string) bool { return strings.HasPrefix(name, m.base) }
	if err == nil && !slices.ContainsFunc(w.Names(), hasBase) {
		w.Under(m.base, m.HeadName())
	}
	if err == nil {
		m.stackExperts(w)
	}
	return w, err
}

// stackExperts joins the tensors that files have for each expert to those of the model, which have them one after the
// other. Exports are of the latter form.
func (m *Model) stackExperts(w *hf.Weights) {
	if !slices.ContainsFunc(m.names, func(n Name) bool { return n.EachHF != "" }) {
		return
	}
	for _, t := range m.checkpoint.Tensors {
		var parts []string
		for _, piece := range t.Pieces {
			p := &m.Parts[piece.Part]
			role, expert := m.role(p, p.Layout.Fields[piece.Field].Name)
			if line, word, ok := m.names.find(role); ok && m.names[line].EachHF != "" {
				parts = append(parts, strings.NewReplacer("{layer}", strconv.Itoa(m.inChain(p.Layer)), "{expert}",
					strconv.Itoa(expert), "*", word).Replace(m.names[line].EachHF))
			}
		}
		w.Join(t.Name, t.Shape, parts)
	}
}

// Check fails unless a checkpoint has every tensor of the model in its shape and in a type that can be read, and no
// other: each tensor of its files is one of the model, is carried (Family.Carried), changes nothing (harmless), or is an
// error. Of a model whose head is the embedding, a head in the files has to be equal to it; both are then read once, through
// little memory.
func (m *Model) Check(ctx context.Context, w *hf.Weights) error {
	known := m.known()
	if err := m.checkNames(w, known); err != nil {
		return err
	}
	for i := range m.Parts {
		for _, src := range m.Parts[i].Tensors {
			if m.Draws(&m.Parts[i]) {
				continue
			}
			if err := w.Expect(src.Name, src.Shape); err != nil {
				return err
			}
		}
	}
	for _, c := range m.ConstantTensors() {
		if err := w.Expect(c.Name, c.Shape); err != nil {
			return err
		}
	}
	if err := m.checkRest(w, known); err != nil {
		return err
	}
	return m.checkTied(ctx, w)
}

// HeadName returns the name of the head's weight in files, also where embeddings are tied and files need none; "" if the family
// has no name for it.
func (m *Model) HeadName() string {
	return m.names.nameOf("lm_head.weight")
}

// known are the names of the model's own tensors.
func (m *Model) known() map[string]bool {
	names := map[string]bool{}
	for i := range m.Parts {
		for _, src := range m.Parts[i].Tensors {
			names[src.Name] = true
		}
	}
	if m.drawsScore {
		names[m.replaced] = true
	}
	return names
}

// ConstantTensors are the tensors of checkpoints that have the constants of blocks, without pieces.
func (m *Model) ConstantTensors() []Tensor { return m.checkpoint.Constants }

// InitialConstants returns the values of ConstantTensors in a model without weights, in their order.
func (m *Model) InitialConstants() (all [][]float32) {
	for _, b := range m.Blocks {
		if n := b.Constants(); n > 0 {
			all = append(all, slices.Repeat([]float32{b.InitialConstant()}, n))
		}
	}
	return all
}

// Scalar is the number that a block's output is multiplied by; 1 for a block without one, and without a checkpoint.
func (m *Model) Scalar(block int) float32 {
	if m.Constants == nil || !m.Blocks[block].Scalar {
		return 1
	}
	return m.Constants[block][m.Blocks[block].FeedConstants()]
}

// ReadConstants reads the constants of all blocks from a checkpoint. A reader that leaves some alone gets those of a
// model without weights.
func (m *Model) ReadConstants(w TensorReader) error {
	var all [][]float32
	tensors := m.ConstantTensors()
	for i, b := range m.Blocks {
		if b.Constants() == 0 {
			continue
		}
		if all == nil {
			all = make([][]float32, len(m.Blocks))
		}
		t := tensors[0]
		tensors = tensors[1:]
		if err := w.Expect(t.Name, t.Shape); err != nil {
			return err
		}
		all[i] = slices.Repeat([]float32{b.InitialConstant()}, int(t.Shape.Elems()))
		if err := w.ReadF32(t.Name, all[i], 0); err != nil {
			return err
		}
	}
	m.Constants = all
	return nil
}

// Carried are tensors of a checkpoint that the model has no place for, and that an export copies: those of one
// pattern of the family's.
type Carried struct {
	Pattern string
	Names   []string // sorted
	Bytes   int64
}

// Carried finds them in a checkpoint, by pattern; a pattern without a tensor is left out. Names are those in the files.
func (m *Model) Carried(w *hf.Weights) []Carried {
	known := m.known()
	all := make([]Carried, len(m.carried))
	for _, name := range w.Names() {
		if i := slices.Index(m.carried, m.carriedAs(name)); i >= 0 && !known[name] {
			stored := w.Stored(name)
			all[i].Pattern, all[i].Names = m.carried[i], append(all[i].Names, stored...)
			for _, name := range stored {
				info, _ := w.Info(name)
				all[i].Bytes += info.Bytes
			}
		}
	}
	return slices.DeleteFunc(all, func(c Carried) bool { return c.Names == nil })
}

// Carries reports whether checkpoints of the model may have tensors that are carried.
func (m *Model) Carries() bool { return len(m.carried) > 0 }

// InMXFP4 reports whether an export can have a tensor in MXFP4.
func (m *Model) InMXFP4(name string) bool { return match(m.mxfp4, name) != "" }

// HasMXFP4 reports whether an export can have any tensor in MXFP4.
func (m *Model) HasMXFP4() bool { return len(m.mxfp4) > 0 }

// carriedAs returns the first pattern that a name matches; "" if no pattern does.
func (m *Model) carriedAs(name string) string { return match(m.carried, name) }

func match(patterns []string, name string) string {
	for _, pattern := range patterns {
		if ok, _ := path.Match(pattern, name); ok {
			return pattern
		}
	}
	return ""
}

// readElems is the number of elements that are converted at a time: 256 KiB of fp32. Of a transposed tensor it is more,
// since each of its rows is then read in runs that are longer.
const (
	readElems       = 64 << 10
	transposedElems = 4 << 20
)

// ReadPart fills values of a part, padding included, from a checkpoint: all of them, or those of a piece, of which
// nothing else is read. Split master weights hold an F32 checkpoint exactly, and BF16 and F16 ones too. A missing
// tensor, a wrong shape, and a value that is not finite (as bf16, for split master weights) are errors that name the
// tensor.
func (m *Model) ReadPart(w TensorReader, p *Part, dst Values) error {
	dst.clearUnread(p)
	var buf []float32
	if dst.F32 == nil {
		buf = make([]float32, readElems)
	}
	for i := range p.Tensors {
		src := &p.Tensors[i]
		if err := w.Expect(src.Name, src.Shape); err != nil {
			return err
		}
		f := &p.Layout.Fields[src.Field]
		begin, end := dst.of(f)
		row := int64(src.Row) * int64(src.Cols)
		begin, end = max(begin, row), min(end, row+int64(src.Rows)*int64(src.Cols))
		if dst.F32 != nil && begin < end {
			if err := src.read(w, dst.F32[f.First+begin-dst.First:][:end-begin], begin); err != nil {
				return err
			}
			continue
		}
		if src.ColStep != 1 && dst.F32 == nil && len(buf) < transposedElems && transposedIn(w, src.Name) == nil {
			buf = make([]float32, transposedElems)
		}
		for at := begin; at < end; at += int64(len(buf)) {
			vals := buf[:min(int64(len(buf)), end-at)]
			if err := src.read(w, vals, at); err != nil {
				return err
			}
			if i := dst.setElems(f, at, vals); i >= 0 {
				return fmt.Errorf("tensor %.200q: element %d is %g, too large for bf16: the model had diverged, or train it with "+
					"master: f32", src.Name, src.element(at+int64(i)), vals[i])
			}
		}
	}
	return nil
}

// element returns which element of the tensor an element of the field is.
func (s *Source) element(of int64) int64 {
	cols := int64(s.Cols)
	return s.At + (of/cols-int64(s.Row))*int64(s.RowStep) + of%cols*int64(s.ColStep)
}
