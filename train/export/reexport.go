package export

import (
	"context"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// reexport writes a model directory again, in another format or shard size.
func reexport(ctx context.Context, e *session.Env, src *source.Source, dir string, as Format, write hf.WriteOptions,
	ask *blame.Asking) error {
	from, err := src.Model.OpenWeights(src.Dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := src.Model.Check(ctx, from); err != nil {
		return err
	}
	card, err := hf.ReadCard(src.Dir)
	if err != nil {
		return err
	}
	tensors := src.Model.Tensors()
	specs, err := specs(src, as)
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
	bar := e.Bar("writing " + dir)
	defer bar.End()
	fields := src.Model.Checkpoint().Fields(from)
	full, half := make([]float32, exportElems), make([]uint16, exportElems)
	for _, t := range tensors {
		elems := t.Shape.Elems()
		if as.packs(src.Model, t.Name) {
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
			switch as.DType {
			case tensor.F32:
				err, piece = from.ReadF32(t.Name, full[:n], at), hf.BytesOf(full[:n])
			case tensor.F16:
				if err = from.ReadF32(t.Name, full[:n], at); err == nil {
					err, piece = toF16(t.Name, half[:n], full[:n]), hf.BytesOf(half[:n])
				}
			default:
				err, piece = from.ReadBF16(t.Name, half[:n], at), hf.BytesOf(half[:n])
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
	if err := src.WriteCarried(ctx, to); err != nil {
		return err
	}
	return finishModel(to, src, as, card)
}
