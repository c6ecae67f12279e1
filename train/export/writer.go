package export

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// Format describes the form of an export's weights.
type Format struct {
	DType tensor.DType // F32, F16, or BF16
	MXFP4 bool         // tensors that the family can have in MXFP4 are in that, and others in dtype
}

func (f Format) String() string {
	if f.MXFP4 {
		return "mxfp4"
	}
	return f.DType.String()
}

// packs reports whether a tensor of the model is written in MXFP4.
func (f Format) packs(m *model.Model, name string) bool { return f.MXFP4 && m.InMXFP4(name) }

// specs declares the tensors of an export, those that are carried last.
func specs(s *source.Source, as Format) (specs []hf.TensorSpec, err error) {
	for _, t := range s.Model.Tensors() {
		if !as.packs(s.Model, t.Name) {
			specs = append(specs, hf.TensorSpec{Name: t.Name, DType: as.DType, Shape: t.Shape})
			continue
		}
		pair, err := hf.MXFP4Specs(t.Name, t.Shape)
		if err != nil {
			return nil, err
		}
		specs = append(specs, pair[:]...)
	}
	return append(specs, s.Carried.Tensors...), nil
}

// Write writes weights as a Hugging Face directory, with the configuration of the model that the run started from
// and with what the source hands over. In BF16
// they are the very weights that the forward pass used; in F32 the exact master, which F16 and MXFP4 round. Tensors
// that the model carries are copied, and frozen ones come from there. A card says what is trained, unless that is nil.
func Write(ctx context.Context, e *session.Env, src *source.Source, dir string, as Format, of *Trained,
	o hf.WriteOptions,
	view View) error {
	c := cardOf(e, src, as, of)
	cardText, err := c.textFor(src.Dir)
	if err != nil {
		return err
	}
	m, dtype := src.Model, as.DType
	tensors := m.Tensors()
	specs, err := specs(src, as)
	if err != nil {
		return blame.BadRequest(err)
	}
	constants, initial := src.InitialConstants()
	specs = append(specs, constants...)
	o.FS = e.Files()
	w, err := hf.CreateModel(dir, specs, o)
	if err != nil {
		if !o.Replace { // the user has named it
			err = blame.BadRequest(err)
		}
		return err
	}
	defer w.Abort() // does nothing after Commit
	bar := e.Bar("writing " + dir)
	defer bar.End()
	from := &heldPart{model: m, read: func(part int) (model.Values, error) { return view(ctx, part) }, part: -1}
	var frozen *source.FrozenBase
	why := ""
	if as.DType != tensor.BF16 || as.MXFP4 {
		if frozen, why, err = src.OpenFrozen(ctx, from.values); err != nil {
			return err
		}
	}
	defer frozen.Close()
	slabs := model.Slabs(tensors)
	for i, s := range slabs {
		t := &tensors[s.Tensor]
		switch {
		case as.packs(m, t.Name):
			err = writeMXFP4(ctx, w, t, s.First, s.Elems, frozen.Over(from.fields(true)))
		case t.InOrder() && s.Elems == t.Shape.Elems() && !frozen.Has(t):
			err = from.write(ctx, w, t, dtype)
		default:
			err = writeElems(w, t.Name, s.Elems, dtype, func(dst []float32, at int64) error {
				return t.Read(dst, s.First+at, frozen.Over(from.fields(dtype != tensor.BF16)))
			})
		}
		if err != nil {
			return err
		}
		bar.Set(int64(i+1), int64(len(slabs)))
	}
	if err := src.WriteCarried(ctx, w); err != nil {
		return err
	}
	for i, t := range constants {
		err := writeElems(w, t.Name, t.Shape.Elems(), t.DType, func(dst []float32, at int64) error {
			copy(dst, initial[i][at:])
			return nil
		})
		if err != nil {
			return err
		}
	}
	if why = cmp.Or(why, frozen.WhyNot()); why != "" {
		source.WarnOfFrozen(e, why)
		if c != nil {
			c.frozenIn = tensor.BF16
			cardText = c.text()
		}
	}
	return finishModel(w, src, as, cardText)
}

// heldPart has the weights of one part at a time: neighbouring tensors are often of one.
type heldPart struct {
	model *model.Model
	read  func(part int) (model.Values, error)
	part  int // -1: none
	of    model.Values
}

func (h *heldPart) values(part int) (model.Values, error) {
	if part == h.part {
		return h.of, nil
	}
	v, err := h.read(part)
	if h.part, h.of = part, v; err != nil {
		h.part = -1
	}
	return v, err
}

// fields reads the exact weights, or those that the forward pass used.
func (h *heldPart) fields(exact bool) model.Fields {
	return func(part, field int, dst []float32, first int64) error {
		v, err := h.values(part)
		if err != nil {
			return err
		}
		if !exact && v.High != nil {
			v.Low, v.Low8 = nil, nil
		}
		v.Elems(&h.model.Parts[part].Layout.Fields[field], first, dst)
		return nil
	}
}

// write writes a tensor that is whole fields, one after the other.
func (h *heldPart) write(ctx context.Context, w *hf.ModelWriter, t *model.Tensor, dtype tensor.DType) error {
	for _, p := range t.Pieces {
		if err := ctx.Err(); err != nil {
			return err
		}
		v, err := h.values(p.Part)
		if err == nil {
			err = writeField(w, t.Name, v, &h.model.Parts[p.Part].Layout.Fields[p.Field], dtype)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finishModel adds what goes with the weights, a card unless it is nil, and makes the directory visible.
func finishModel(w *hf.ModelWriter, src *source.Source, as Format, cardText []byte) error {
	config, err := src.Config.WithDType(as.DType)
	if as.MXFP4 {
		config, err = src.Config.WithMXFP4()
	}
	if err != nil {
		return err
	}
	files, err := src.TextFiles(config)
	if err != nil {
		return err
	}
	if err := files.AddTo(w); err != nil {
		return err
	}
	if cardText != nil {
		if err := w.AddFile(hf.CardName, cardText); err != nil {
			return err
		}
	}
	return w.Commit()
}

// exportElems bounds the elements that are converted at a time.
const exportElems = 256 << 10

func writeField(w *hf.ModelWriter, name string, v model.Values, f *tensor.Placed, dtype tensor.DType) error {
	if dtype == tensor.BF16 && v.High != nil {
		return w.Write(name, hf.BytesOf(v.High[f.First:f.First+f.Elems]))
	}
	return writeElems(w, name, f.Elems, dtype, func(dst []float32, at int64) error {
		v.Elems(f, at, dst)
		return nil
	})
}

// packElems bounds the elements that are packed at a time. They are more than exportElems, since for each range all
// pieces of a tensor are asked, and one of experts has thousands of rows in pieces of their own.
const packElems = 4 << 20

// writeMXFP4 writes n elements of a tensor, from element first on, as blocks and scales: whole matrices.
func writeMXFP4(ctx context.Context, w *hf.ModelWriter, t *model.Tensor, first, n int64, from model.Fields) error {
	pair, err := hf.MXFP4Specs(t.Name, t.Shape)
	if err != nil {
		return err
	}
	blocks, scales := pair[0], pair[1]
	each, stored := t.Shape.Elems()/scales.Bytes(), t.Transposed() // of a block
	vals := make([]float32, min(packElems, n))
	packed, all := make([]byte, len(vals)/2), make([]byte, int64(len(vals))/each)
	for at := int64(0); at < n; at += packElems {
		if err := ctx.Err(); err != nil {
			return err
		}
		vals := vals[:min(packElems, n-at)]
		if err := stored.Read(vals, first+at, from); err != nil {
			return err
		}
		packed, all := packed[:len(vals)/2], all[:int64(len(vals))/each]
		if err := hf.PackMXFP4(packed, all, vals); err != nil {
			return blame.BadRequest(fmt.Errorf("tensor %s: %w", t.Name, err))
		}
		if err := w.Write(blocks.Name, packed); err != nil {
			return err
		}
		if err := w.Write(scales.Name, all); err != nil {
			return err
		}
	}
	return nil
}

// writeElems appends n elements to a tensor.
func writeElems(w *hf.ModelWriter, name string, n int64, dtype tensor.DType, read func(dst []float32, at int64) error,
) error {
	buf := make([]float32, min(exportElems, n))
	half := make([]uint16, len(buf))
	for at := int64(0); at < n; at += exportElems {
		vals := buf[:min(exportElems, n-at)]
		if err := read(vals, at); err != nil {
			return err
		}
		out := hf.BytesOf(vals)
		switch dtype {
		case tensor.BF16:
			for i, x := range vals {
				half[i] = tensor.BF16FromF32(x)
			}
			out = hf.BytesOf(half[:len(vals)])
		case tensor.F16:
			if err := toF16(name, half[:len(vals)], vals); err != nil {
				return err
			}
			out = hf.BytesOf(half[:len(vals)])
		}
		if err := w.Write(name, out); err != nil {
			return err
		}
	}
	return nil
}

// toF16 rounds the numbers of a tensor to float16, ties to even. What that type cannot hold is an error.
func toF16(name string, dst []uint16, src []float32) error {
	for i, x := range src {
		dst[i] = tensor.F16FromF32(x)
		if dst[i]&0x7c00 == 0x7c00 {
			return blame.BadRequest(fmt.Errorf("tensor %s has the number %g, and float16 ends at 65504: use bf16 or f32",
				name, x))
		}
	}
	return nil
}

// FormatOf is the format in which a run writes its model.
func FormatOf(s *source.Source) Format { return Format{DType: s.ExportType()} }

// ParseType reads a type that a model can be exported in.
func ParseType(s string) (tensor.DType, error) {
	d, err := tensor.ParseDType(strings.ToLower(s))
	if err != nil || d != tensor.F32 && d != tensor.BF16 && d != tensor.F16 {
		return tensor.Invalid, fmt.Errorf("dtype is %q: use bf16, f32 or f16, or mxfp4 for gpt-oss", s)
	}
	return d, nil
}
