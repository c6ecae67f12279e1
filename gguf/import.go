package gguf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
)

// ImportOptions say what Import writes.
type ImportOptions struct {
	DType      tensor.DType                      // BF16 or F32; the zero value stands for BF16
	ShardBytes int64                             // see [hf.WriteOptions]
	Replace    bool                              // see [hf.WriteOptions]
	Progress   func(doneBytes, totalBytes int64) // of weights written; called often, may be nil
}

// Import turns a GGUF file of a llama, qwen2 or qwen3 model into a model directory: weights dequantized,
// config.json, generation_config.json, tokenizer.json and tokenizer_config.json. It refuses features that such a
// directory cannot express. On any error, ctx's included, no file is left.
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
	specs := make([]hf.TensorSpec, len(imp.tensors))
	for i, t := range imp.tensors {
		specs[i] = t.spec
		imp.totalBytes += t.spec.Bytes()
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
	imp.progress = opts.Progress
	for _, t := range imp.tensors {
		if err := imp.copyTensor(ctx, w, t); err != nil {
			return err
		}
	}
	return w.Commit()
}

// importer is an import that has been checked as far as is possible without reading weights.
type importer struct {
	src     *tensorReader
	tensors []importTensor
	files   []struct {
		name string
		data []byte
	}
	doneBytes, totalBytes int64
	progress              func(doneBytes, totalBytes int64)
}

func (g *header) prepare(f *os.File, d tensor.DType) (*importer, error) {
	imp := &importer{src: &tensorReader{f: f, path: f.Name()}}
	m, err := g.model(imp.src)
	if err != nil {
		return nil, err
	}
	if imp.tensors, err = m.tensors(g, d); err != nil {
		return nil, err
	}
	t, err := g.tokens(m.vocab)
	if err != nil {
		return nil, err
	}
	add := func(name string, data []byte, e error) {
		if err == nil {
			err = e
		}
		imp.files = append(imp.files, struct {
			name string
			data []byte
		}{name, data})
	}
	data, e := m.config(t, d)
	add("config.json", data, e)
	data, e = t.generationConfig()
	add("generation_config.json", data, e)
	add("tokenizer.json", t.tokenizerJSON(), nil)
	data, e = t.tokenizerConfig(m.positions)
	add("tokenizer_config.json", data, e)
	return imp, err
}

// importElems is how many elements are converted at a time where rows keep their order. It is a multiple of every
// block.
const importElems = 64 << 10

// copyTensor dequantizes a tensor piece by piece: a head at a time where its rows change places.
func (imp *importer) copyTensor(ctx context.Context, w *hf.ModelWriter, t importTensor) error {
	piece, rowElems := int64(importElems), int64(0)
	if t.headRows > 0 {
		rowElems = t.src.elems / int64(t.src.dims[0])
		piece = rowElems * int64(t.headRows)
	}
	vals, head, out := make([]float32, piece), []float32(nil), make([]byte, piece*t.spec.DType.Bytes())
	if t.headRows > 0 {
		head = make([]float32, piece)
	}
	for first := int64(0); first < t.src.elems; first += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		vals := vals[:min(piece, t.src.elems-first)]
		if err := imp.src.read(t.src, vals, first); err != nil {
			return fmt.Errorf("%s: %w", imp.src.path, err)
		}
		if head != nil {
			unpermute(head, vals, int(rowElems))
			vals = head
		}
		bytes := out[:int64(len(vals))*t.spec.DType.Bytes()]
		if bad := encode(bytes, vals, t.spec.DType); bad >= 0 {
			return fmt.Errorf("%s: tensor %s has a number that is not finite (as %v): the file is damaged, download it again", imp.src.path, terminal.Quote(t.src.name), t.spec.DType)
		}
		if err := w.Write(t.spec.Name, bytes); err != nil {
			return err
		}
		imp.doneBytes += int64(len(bytes))
		if imp.progress != nil {
			imp.progress(imp.doneBytes, imp.totalBytes)
		}
	}
	return nil
}

// unpermute puts the rows of one head back into transformers' order. llama.cpp's converter has put row i of the first
// half in place 2i and row i of the second half in place 2i+1 (convert_hf_to_gguf.py: LlamaModel.permute), so that
// its rotary embedding finds each pair side by side.
func unpermute(dst, src []float32, rowElems int) {
	rows := len(src) / rowElems
	for r := range rows {
		from := 2 * r
		if r >= rows/2 {
			from = 2*(r-rows/2) + 1
		}
		copy(dst[r*rowElems:(r+1)*rowElems], src[from*rowElems:])
	}
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
	f    io.ReaderAt
	path string
	buf  []byte
}

// read dequantizes len(dst) elements from element first on; both must be whole blocks.
func (r *tensorReader) read(t tensorEntry, dst []float32, first int64) error {
	q, _ := t.typ.quant() // known since it was parsed
	if first%q.elems != 0 || int64(len(dst))%q.elems != 0 {
		return fmt.Errorf("tensor %s: %v cannot be cut at element %d", terminal.Quote(t.name), t.typ, first)
	}
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
