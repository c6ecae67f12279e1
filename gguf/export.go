package gguf

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/model"
)

// ExportOptions say what Export writes.
type ExportOptions struct {
	Type Type
	Name string // general.name: what people call the model
	Pre  string // tokenizer.ggml.pre; "" finds it, or fails
	// is asked before anything is written whether a file of that size fits; may be nil
	Room     func(bytes int64) error
	Progress func(doneBytes, totalBytes int64) // of the file; called often, may be nil
}

// Report describes the file that Export wrote.
type Report struct {
	File         string         `json:"file"`
	Type         Type           `json:"type"`
	Architecture string         `json:"architecture"`
	PreTokenizer string         `json:"pre_tokenizer"`
	Params       int64          `json:"params"`
	Bytes        int64          `json:"bytes"`
	Tensors      map[string]int `json:"tensors"` // how many there are of each type
	Notes        []string       `json:"notes"`   // what the file cannot say of the model
}

// Export writes a model as one GGUF file, for llama.cpp and what is built on it: the weights that are read from, and the
// tokenizer and the chat templates of a model directory, whose config.json is the model's. Rows change places where
// llama.cpp has them in another order, as those of Q and K of a llama. [Import] reads the file back, and F32, BF16 and
// F16 to the bit. Constants of blocks are those of the model, which reads them (model.Model.ReadConstants).
//
// It goes a piece of a tensor at a time. The file becomes visible by one rename, after it was synced and read back; on
// any error, ctx's included, nothing is left. A file that exists is not replaced.
func Export(ctx context.Context, file, dir string, of *model.Model, from model.Fields, opts ExportOptions) (*Report,
	error) {
	c, err := hf.ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	m, err := describe(c, of)
	if err != nil {
		return nil, err
	}
	if opts.Type == MXFP4 && m.experts == nil {
		return nil, fmt.Errorf("dtype is \"mxfp4\", which is for the experts of mixtures, and a %s has none: "+
			"use another one", m.Type)
	}
	vocab, err := readVocab(c, dir, m.Type, m.Vocab, opts.Pre)
	if err != nil {
		return nil, err
	}
	params, _ := m.Params()
	meta := []metaEntry{{"general.architecture", m.Architecture}, {"general.type", "model"},
		{"general.name", cmp.Or(opts.Name, "model")}, {"general.size_label", m.sizeLabel()},
		{"general.file_type", opts.Type.fileType()}, {"general.quantization_version", uint32(2)}}
	meta = slices.Concat(meta, m.metadata(), vocab.meta)
	var specs []tensorSpec
	for _, t := range m.form.Tensors {
		specs = append(specs, tensorSpec{t.Name, t.Shape, m.typeOf(opts.Type, t)})
	}
	for _, t := range m.form.Constants {
		specs = append(specs, tensorSpec{t.Name, t.Shape, ggmlF32})
	}
	for _, t := range m.ropeTensors() {
		specs = append(specs, tensorSpec{t.name, []int{len(t.divisors)}, ggmlF32})
	}
	if len(specs) > maxEntries {
		return nil, fmt.Errorf("%d tensors are more than a GGUF file has", len(specs))
	}
	w, err := create(file, meta, specs, opts.Room)
	if err != nil {
		return nil, err
	}
	defer w.abort() // does nothing after commit
	e := &exporter{to: w, from: from, progress: opts.Progress}
	for _, slab := range model.Slabs(m.form.Tensors) {
		t := &m.form.Tensors[slab.Tensor]
		if err := e.copySlab(ctx, slab, t, m.Checkpoint().NameOf(t.Pieces[0])); err != nil {
			return nil, err
		}
	}
	next := len(m.form.Tensors)
	for _, values := range m.constants() {
		if err := w.write(next, values); err != nil {
			return nil, err
		}
		next++
	}
	for _, t := range m.ropeTensors() {
		divisors := make([]byte, 4*len(t.divisors))
		quantizeF32(divisors, t.divisors)
		if err := w.write(next, divisors); err != nil {
			return nil, err
		}
		next++
	}
	report := &Report{File: file, Type: opts.Type, Architecture: m.Architecture, Params: params, Bytes: w.bytes,
		Tensors: map[string]int{}, Notes: slices.Concat(m.notes, vocab.notes)}
	for _, s := range specs {
		report.Tensors[s.typ.String()]++
	}
	for _, entry := range vocab.meta {
		if entry.key == "tokenizer.ggml.pre" {
			report.PreTokenizer = entry.value.(string)
		}
	}
	return report, w.commit()
}

// constants are the bytes of the constants of blocks, in their order.
func (m *decoder) constants() (all [][]byte) {
	for i, b := range m.Blocks {
		n := b.Constants()
		if n == 0 {
			continue
		}
		values := make([]byte, 4*n)
		if m.Constants != nil {
			quantizeF32(values, m.Constants[i])
		}
		all = append(all, values)
	}
	return all
}

// Summary names the types of a report's tensors, the most frequent first: "201 Q4_K, 61 F32".
func (r *Report) Summary() string {
	types := slices.SortedFunc(maps.Keys(r.Tensors), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Tensors[b], r.Tensors[a]), cmp.Compare(a, b))
	})
	text := ""
	for i, t := range types {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d %s", r.Tensors[t], t)
	}
	return text
}

// exporter converts tensors, with scratch that all of them use.
type exporter struct {
	to       *fileWriter
	from     model.Fields
	progress func(doneBytes, totalBytes int64)

	vals []float32
	out  []byte
}

// exportPiece is about how many elements are read at a time, whole rows, and exportShare how many of them one worker
// converts. exportShare is a multiple of every block, and so is a row of more than one element in a block.
const (
	exportPiece = 1 << 20
	exportShare = 1 << 15
)

// copySlab converts what a slab has of a tensor, whole rows, piece by piece. Errors call the tensor by the name.
func (e *exporter) copySlab(ctx context.Context, slab model.Slab, t *model.Tensor, name string) error {
	q, _ := e.to.specs[slab.Tensor].typ.quant()
	row, end := int64(t.Shape[len(t.Shape)-1]), slab.First+slab.Elems
	piece := min(max(exportPiece/row, 1)*row, slab.Elems)
	e.vals = grown(e.vals, piece)
	e.out = grown(e.out, piece/q.elems*q.bytes)
	for first := slab.First; first < end; first += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		vals := e.vals[:min(piece, end-first)]
		if err := t.Read(vals, first, e.from); err != nil {
			return err
		}
		out := e.out[:int64(len(vals))/q.elems*q.bytes]
		shares := (len(vals) + exportShare - 1) / exportShare
		if err := fault.Share(ctx, shares, runtime.GOMAXPROCS(0), func(i int) error {
			from, to := i*exportShare, min((i+1)*exportShare, len(vals))
			blocks := out[int64(from)/q.elems*q.bytes : int64(to)/q.elems*q.bytes]
			isRight := allFinite(vals[from:to])
			if isRight {
				q.quantize(blocks, vals[from:to])
				isRight = q.finite(blocks) < 0
			}
			if !isRight {
				return fmt.Errorf("tensor %s has a number that is not finite, or too large for %s: "+
					"write f32 or bf16, or use a checkpoint from before the run diverged", terminal.Quote(name), q.name)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := e.to.write(slab.Tensor, out); err != nil {
			return err
		}
		if e.progress != nil {
			e.progress(e.to.done, e.to.bytes)
		}
	}
	return nil
}

// grown is a slice of n elements, in the same memory where there is enough.
func grown[T any](s []T, n int64) []T {
	if int64(cap(s)) < n {
		return make([]T, n)
	}
	return s[:n]
}
