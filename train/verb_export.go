package train

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
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
	weights := from.Weights(src.model)
	return e.writeModel(ctx, src, outDir, dtype, o, func(part int) (model.Values, error) {
		return weights.Part(part, dtype == tensor.F32)
	})
}

// checkIsOf refuses a checkpoint of another model.
func (s *source) checkIsOf(from *checkpoint.Checkpoint) error {
	if checkpoint.Identify(s.model, s.config.Raw(), from.Manifest.Model.CarriedSHA256) != from.Manifest.Model {
		return fmt.Errorf("%s is not of model %s; name the directory that its run started from", from.Dir(), s.dir)
	}
	return nil
}
