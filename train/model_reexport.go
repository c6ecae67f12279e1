package train

import (
	"context"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/tensor"
)

// reexport writes a model directory again, in the type and the shard size of the options.
func (e *Env) reexport(ctx context.Context, src *source, o ExportOptions, write hf.WriteOptions,
	ask *blame.Asking) error {
	from, err := hf.OpenWeights(src.dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := src.model.Check(from); err != nil {
		return err
	}
	card, err := hf.ReadCard(src.dir)
	if err != nil {
		return err
	}
	tensors := src.model.Tensors()
	specs := make([]hf.TensorSpec, len(tensors))
	var done, total int64
	for i, t := range tensors {
		specs[i] = hf.TensorSpec{Name: t.Name, DType: o.DType, Shape: t.Shape}
		total += t.Shape.Elems()
	}
	specs = append(specs, src.carried.tensors...)
	to, err := hf.CreateModel(o.Dir, specs, write)
	if err != nil {
		return err
	}
	ask.IsOver = true
	defer to.Abort() // does nothing after Commit
	bar := e.bar("writing " + o.Dir)
	defer bar.End()
	full, half := make([]float32, exportElems), make([]uint16, exportElems)
	for _, t := range tensors {
		elems := t.Shape.Elems()
		for at := int64(0); at < elems; at += exportElems {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(exportElems, elems-at)
			var piece []byte
			switch o.DType {
			case tensor.F32:
				err, piece = from.ReadF32(t.Name, full[:n], at), bytesOf(full[:n])
			case tensor.F16:
				if err = from.ReadF32(t.Name, full[:n], at); err == nil {
					err, piece = toF16(t.Name, half[:n], full[:n]), bytesOf(half[:n])
				}
			default:
				err, piece = from.ReadBF16(t.Name, half[:n], at), bytesOf(half[:n])
			}
			if err != nil {
				return blame.BadRequest(err) // of the model, which the user has named
			}
			if err := to.Write(t.Name, piece); err != nil {
				return err
			}
			done += n
			bar.Set(done, total)
		}
	}
	if err := src.writeCarried(ctx, to); err != nil {
		return err
	}
	return finishModel(to, src, o.DType, card)
}
