package train

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// ExportCheckpoint writes the weights of a checkpoint as a Hugging Face directory, with the configuration and tokenizer of
// the model that its run started from. It reads weights and low halves only, a part at a time and in F32 only the latter,
// and compares what it reads with its checksums. outDir must not exist. A dtype of tensor.Invalid is the type in which the
// run itself would have written its model.
func ExportCheckpoint(ctx context.Context, env *Env, checkpointDir, modelName, outDir string, dtype tensor.DType) (err error) {
	var ask blame.Asking
	defer ask.Judge(&err)
	from, err := checkpoint.Open(env.files(), checkpointDir)
	if err != nil {
		return err
	}
	src, err := openModel(ctx, env, modelName)
	if err != nil {
		return err
	}
	if dtype == tensor.Invalid {
		dtype = src.exportType()
	}
	if err := src.carryAs(ctx, env, from); err != nil {
		return err
	}
	ask.IsOver = true
	return env.exportCheckpoint(ctx, from, src, outDir, dtype, hf.WriteOptions{})
}

func (e *Env) exportCheckpoint(ctx context.Context, from *checkpoint.Checkpoint, src *source, outDir string, dtype tensor.DType,
	o hf.WriteOptions) error {
	if err := src.checkIsOf(from); err != nil {
		return blame.BadRequest(err)
	}
	r := partReader{from: from, model: src.model, low: dtype == tensor.F32}
	return e.writeModel(ctx, src, outDir, dtype, o, r.read)
}

// checkIsOf refuses a checkpoint of another model.
func (s *source) checkIsOf(from *checkpoint.Checkpoint) error {
	if checkpoint.Identify(s.model, s.config.Raw(), from.Manifest.Model.CarriedSHA256) != from.Manifest.Model {
		return fmt.Errorf("%s is not of model %s; name the directory that its run started from", from.Dir(), s.dir)
	}
	return nil
}

// partReader reads the weights of parts from a checkpoint, one at a time, into memory that it uses again.
type partReader struct {
	from  *checkpoint.Checkpoint
	model *model.Model
	low   bool // the low halves are wanted, too

	f32  []float32
	high []uint16
	half []int16
}

func (r *partReader) read(part int) (v model.Values, err error) {
	p := &r.model.Parts[part]
	id := checkpoint.ID{Part: p.Name, Kind: store.Weights}
	weights, ok := r.from.Extent(id)
	switch {
	case ok && weights.DType == tensor.F32:
		v.F32, err = readExtent(r.from, id, &r.f32, p.Layout.WeightElems)
		return v, err
	case ok && weights.DType == tensor.BF16:
		v.High, err = readExtent(r.from, id, &r.high, p.Layout.WeightElems)
	default:
		err = fmt.Errorf("%s has no %v in a type that is known; it was not saved by this program", r.from.Dir(), id)
	}
	if err != nil || !r.low || p.Layout.StateElems == 0 {
		return v, err
	}
	id.Kind = store.Low
	v.Low, err = readExtent(r.from, id, &r.half, p.Layout.StateElems)
	return v, err
}

// readExtent reads an extent of n elements into *mem, which grows if need be.
func readExtent[T float32 | uint16 | int16](from *checkpoint.Checkpoint, id checkpoint.ID, mem *[]T, n int64) ([]T, error) {
	if int64(cap(*mem)) < n {
		*mem = make([]T, n)
	}
	dst := (*mem)[:n]
	if e, ok := from.Extent(id); !ok || e.Bytes != int64(len(bytesOf(dst))) {
		return nil, fmt.Errorf("%s has no %v of %d bytes; it is of another model", from.Dir(), id, len(bytesOf(dst)))
	}
	return dst, from.Read(id, 0, bytesOf(dst))
}
