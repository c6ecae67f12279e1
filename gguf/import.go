package gguf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/tensor"
)

// ImportOptions say what Import writes.
type ImportOptions struct {
	DType      tensor.DType                      // BF16 or F32; the zero value stands for BF16
	ShardBytes int64                             // see [hf.WriteOptions]
	Replace    bool                              // see [hf.WriteOptions]
	Progress   func(doneBytes, totalBytes int64) // of weights written; called often, may be nil
}

// Import turns a GGUF file of a family that is known into a model directory: weights dequantized, config.json,
// generation_config.json, tokenizer.json and tokenizer_config.json. It refuses features that such a directory cannot
// express. On any error, ctx's included, no file is left.
func Import(ctx context.Context, file, dir string, opts ImportOptions) error {
	if opts.DType == tensor.Invalid {
		opts.DType = tensor.BF16
	}
	if opts.DType != tensor.BF16 && opts.DType != tensor.F32 {
		return fmt.Errorf("a model is imported as bf16 or f32, not as %v", opts.DType)
	}
	g, f, err := open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	imp, err := g.prepare(f, opts.DType)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var specs []hf.TensorSpec
	for _, t := range imp.model.Tensors() {
		specs = append(specs, hf.TensorSpec{Name: t.Name, DType: opts.DType, Shape: t.Shape})
	}
	for _, t := range imp.model.ConstantTensors() { // exactly, whatever the weights are
		specs = append(specs, hf.TensorSpec{Name: t.Name, DType: tensor.F32, Shape: t.Shape})
	}
	for _, s := range specs {
		imp.totalBytes += s.Bytes()
	}
	w, err := hf.CreateModel(dir, specs, hf.WriteOptions{ShardBytes: opts.ShardBytes, Replace: opts.Replace})
	if err != nil {
		return err
	}
	defer w.Abort()
	for _, side := range imp.files {
		if err := w.AddFile(side.name, side.data); err != nil {
			return err
		}
	}
	if err := w.AddParts("tokenizer.json", func(out io.Writer) error { return imp.tokens.writeJSON(ctx, out) }); err != nil {
		return err
	}
	imp.path, imp.progress = file, opts.Progress
	for _, t := range imp.model.Tensors() {
		if err := imp.copyTensor(ctx, w, &t, opts.DType); err != nil {
			return err
		}
	}
	for i, t := range imp.model.ConstantTensors() {
		read := func(dst []float32, first int64) error {
			return imp.file.ReadF32(imp.form.Constants[i].Name, dst, first)
		}
		if err := imp.copyElems(ctx, w, &t, imp.form.Constants[i].Name, tensor.F32, read); err != nil {
			return err
		}
	}
	return w.Commit()
}

// importer is an import that has been checked as far as is possible without reading weights.
type importer struct {
	path   string
	model  *model.Model
	file   *tensorReader
	form   *model.Form
	from   model.Fields
	tokens *tokens
	files  []struct {
		name string
		data []byte
	}
	doneBytes, totalBytes int64
	progress              func(doneBytes, totalBytes int64)
}

func (g *header) prepare(f io.ReaderAt, d tensor.DType) (*importer, error) {
	r := &tensorReader{f: f, header: g}
	m, err := g.stated(r)
	if err != nil {
		return nil, err
	}
	t, err := g.tokens(m.arch, m.vocab)
	if err != nil {
		return nil, err
	}
	doc, err := m.config(t, d)
	if err != nil {
		return nil, err
	}
	c, err := hf.ParseConfig("config.json", doc)
	if err != nil {
		return nil, err
	}
	imp := &importer{file: r, tokens: t}
	if imp.model, err = model.New(c); err != nil {
		return nil, err
	}
	form := imp.model.GGUF
	if m.unstacked {
		form = imp.model.UnstackedGGUF
	}
	if imp.form, err = form(); err != nil {
		return nil, err
	}
	if err := g.checkTensors(imp.model, imp.form, m); err != nil {
		return nil, err
	}
	imp.from = imp.form.Fields(r)
	add := func(name string, data []byte, e error) {
		if err == nil {
			err = e
		}
		imp.files = append(imp.files, struct {
			name string
			data []byte
		}{name, data})
	}
	add("config.json", doc, nil)
	data, e := t.generationConfig()
	add("generation_config.json", data, e)
	data, e = t.tokenizerConfig(m.positions)
	add("tokenizer_config.json", data, e)
	return imp, err
}

// importElems is about how many elements are converted at a time: whole rows. Of a tensor that is in another order in
// the file it is more, since each row of the file is then read in runs that are longer.
const (
	importElems    = 64 << 10
	reorderedElems = 4 << 20
)

// copyTensor dequantizes a tensor of the model.
func (imp *importer) copyTensor(ctx context.Context, w *hf.ModelWriter, t *model.Tensor, d tensor.DType) error {
	return imp.copyElems(ctx, w, t, imp.form.NameOf(t.Pieces[0]), d, func(dst []float32, first int64) error {
		return t.Read(dst, first, imp.from)
	})
}

// copyElems writes a tensor piece by piece. Errors call it by the name that it has in the file.
func (imp *importer) copyElems(ctx context.Context, w *hf.ModelWriter, t *model.Tensor, name string, d tensor.DType,
	read func(dst []float32, first int64) error) error {
	elems, row := t.Shape.Elems(), int64(t.Shape[len(t.Shape)-1])
	atOnce := int64(importElems)
	if !t.InOrder() {
		atOnce = reorderedElems
	}
	piece := min(max(atOnce/row, 1)*row, elems)
	vals, out := make([]float32, piece), make([]byte, piece*d.Bytes())
	for first := int64(0); first < elems; first += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		vals := vals[:min(piece, elems-first)]
		if err := read(vals, first); err != nil {
			return fmt.Errorf("%s: %w", imp.path, err)
		}
		bytes := out[:int64(len(vals))*d.Bytes()]
		if bad := encode(bytes, vals, d); bad >= 0 {
			return fmt.Errorf("%s: tensor %s has a number that is not finite (as %v): the file is damaged, download it again",
				imp.path, terminal.Quote(name), d)
		}
		if err := w.Write(t.Name, bytes); err != nil {
			return err
		}
		imp.doneBytes += int64(len(bytes))
		if imp.progress != nil {
			imp.progress(imp.doneBytes, imp.totalBytes)
		}
	}
	return nil
}

// encode converts to the little-endian bytes of d and returns the index of the first number that is not finite in d,
// or -1.
func encode(dst []byte, src []float32, d tensor.DType) (bad int) {
	bad = -1
	for i, x := range src {
		b := math.Float32bits(x)
		if d == tensor.BF16 {
			h := tensor.BF16FromF32(x)
			binary.LittleEndian.PutUint16(dst[2*i:], h)
			b = uint32(h) << 16
		} else {
			binary.LittleEndian.PutUint32(dst[4*i:], b)
		}
		if b&0x7f800000 == 0x7f800000 && bad < 0 {
			bad = i
		}
	}
	return bad
}

// tensorReader reads and dequantizes ranges of tensors.
type tensorReader struct {
	f      io.ReaderAt
	header *header
	buf    []byte
	vals   []float32
}

// ReadF32 implements [model.F32Reader].
func (r *tensorReader) ReadF32(name string, dst []float32, first int64) error {
	t := r.header.tensors[name]
	q, _ := t.typ.quant() // known since it was parsed
	// Whole blocks are read, of which the range may begin and end within one.
	begin, end := first/q.elems*q.elems, (first+int64(len(dst))+q.elems-1)/q.elems*q.elems
	if begin == first && end == first+int64(len(dst)) {
		return r.read(t, dst, first)
	}
	r.vals = grown(r.vals, end-begin)
	err := r.read(t, r.vals, begin)
	copy(dst, r.vals[first-begin:])
	return err
}

// read dequantizes len(dst) elements from element first on; both are whole blocks.
func (r *tensorReader) read(t tensorEntry, dst []float32, first int64) error {
	q, _ := t.typ.quant()
	n := int64(len(dst)) / q.elems * q.bytes
	if int64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	buf := r.buf[:n]
	if got, err := r.f.ReadAt(buf, t.begin+first/q.elems*q.bytes); int64(got) < n {
		if err == io.EOF {
			err = errors.New("the file became shorter while it was read")
		}
		return fmt.Errorf("tensor %s: %w", terminal.Quote(t.name), err)
	}
	q.dequantize(dst, buf)
	return nil
}
