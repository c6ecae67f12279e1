package train

import (
	"context"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/tensor"
)

// Reexport writes a model directory in another type, BF16 or F32, with its configuration and tokenizer: a piece of a tensor
// at a time, so that any model fits. Values round to nearest, ties to even. Tensors that the model does not use (the
// head of a model with tied embeddings) are left out. outDir must not exist.
func Reexport(ctx context.Context, env *Env, modelDir, outDir string, dtype tensor.DType) (err error) {
	var ask blame.Asking
	defer ask.Judge(&err)
	src, err := openModel(ctx, env, modelDir)
	if err != nil {
		return err
	}
	from, err := hf.OpenWeights(src.dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := src.model.Check(from); err != nil {
		return err
	}
	if err := src.carry(ctx, env); err != nil {
		return err
	}
	tensors := src.model.Tensors()
	specs := make([]hf.TensorSpec, len(tensors))
	var done, total int64
	for i, t := range tensors {
		specs[i] = hf.TensorSpec{Name: t.Name, DType: dtype, Shape: t.Shape}
		total += t.Shape.Elems()
	}
	specs = append(specs, src.carried.tensors...)
	to, err := hf.CreateModel(outDir, specs, hf.WriteOptions{})
	if err != nil {
		return err
	}
	ask.IsOver = true
	defer to.Abort() // does nothing after Commit
	bar := env.bar("writing " + outDir)
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
			if dtype == tensor.F32 {
				err, piece = from.ReadF32(t.Name, full[:n], at), bytesOf(full[:n])
			} else {
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
	return finishModel(to, src, dtype)
}
