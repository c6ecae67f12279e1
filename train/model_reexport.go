package train

import (
	"context"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/tensor"
)

// reexport writes a model directory again, in another format or shard size.
func (e *Env) reexport(ctx context.Context, src *source, dir string, as format, write hf.WriteOptions,
	ask *blame.Asking) error {
	from, err := src.model.OpenWeights(src.dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := src.model.Check(ctx, from); err != nil {
		return err
	}
	card, err := hf.ReadCard(src.dir)
	if err != nil {
		return err
	}
	tensors := src.model.Tensors()
	specs, err := src.specs(as)
	if err != nil {
		return err
	}
	var done, total int64
	for _, t := range tensors {
		total += t.Shape.Elems()
	}
	to, err := hf.CreateModel(dir, specs, write)
	if err != nil {
		return err
	}
	ask.IsOver = true
	defer to.Abort() // does nothing after Commit
	bar := e.bar("writing " + dir)
	defer bar.End()
	fields := src.model.Checkpoint().Fields(from)
	full, half := make([]float32, exportElems), make([]uint16, exportElems)
	for _, t := range tensors {
		elems := t.Shape.Elems()
		if as.packs(src.model, t.Name) {
			if err := writeMXFP4(ctx, to, &t, 0, elems, func(part, field int, dst []float32, first int64) error {
				return blame.BadRequest(fields(part, field, dst, first)) // as below
			}); err != nil {
				return err
			}
			done += elems
			bar.Set(done, total)
			continue
		}
		if from.IsTransposed(t.Name) && len(full) < packElems { // fewer ranges, for each of which all columns are read
			full, half = make([]float32, packElems), make([]uint16, packElems)
		}
		for at := int64(0); at < elems; at += int64(len(full)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(int64(len(full)), elems-at)
			var piece []byte
			switch as.dtype {
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
	return finishModel(to, src, as, card)
}
