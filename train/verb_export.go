package train

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/rundir"
)

// ExportOptions say what to write as a Hugging Face directory.
type ExportOptions struct {
	// Model is a Hugging Face directory, or a hub id, that has the configuration. If Checkpoint is
	// "", the weights come from there as well, and it may be a run's output directory, or one of its checkpoints.
	Model      string
	Checkpoint string       // directory whose weights are written
	Dir        string       // must not exist
	DType      tensor.DType // BF16, F32 or F16; Invalid: bf16, or of a checkpoint the type in which its run writes its model
	// MXFP4 rounds the exact weights of tensors that the family can have in MXFP4, gpt-oss' experts, to that, and those
	// of the others to BF16.
	MXFP4      bool
	ShardBytes int64 // most tensor bytes in a file, unless one tensor alone has more; 0: hf.DefaultShardBytes
}

// Exported describes the model that Export wrote.
type Exported struct {
	Dir    string `json:"dir"`
	DType  string `json:"dtype"`
	Params int64  `json:"params"`
	Files  int    `json:"weight_files"`
}

// Export writes a model or a checkpoint as a Hugging Face directory, with the configuration of the model, and the
// tokenizer, the chat template and the ends of texts of the checkpoint's run. Of a checkpoint it reads weights and low halves only, a part at a time and the latter not for BF16 alone, and
// compares what it reads with its checksums. A model goes a piece of a tensor at a time, so that any fits; values round
// to nearest, ties to even, and tensors that the model does not use (a head next to tied embeddings) are left out.
func Export(ctx context.Context, env *Env, o ExportOptions) (done *Exported, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	var from *checkpoint.Checkpoint
	if o.Checkpoint != "" {
		if from, err = checkpoint.Open(env.files(), o.Checkpoint); err != nil {
			return nil, err
		}
	}
	src, err := openToExport(ctx, env, o.Model, o.Checkpoint)
	if err != nil {
		return nil, err
	}
	if from == nil {
		from = src.from
	}
	if from != nil {
		if err := env.takeHandover(src, from); err != nil {
			return nil, err
		}
	}
	if err := src.checkSidecars(); err != nil {
		return nil, err
	}
	if o.MXFP4 {
		if !src.model.HasMXFP4() {
			return nil, fmt.Errorf("dtype is \"mxfp4\", and models of kind %s have no tensors in MXFP4: use bf16, f32 or f16",
				src.model.Type)
		}
		o.DType = tensor.BF16
	}
	if o.DType == tensor.Invalid {
		o.DType = tensor.BF16
		if from != nil {
			o.DType = src.exportType()
		}
	}
	if from != nil {
		err = src.carryAs(ctx, env, from)
	} else {
		err = src.carry(ctx, env)
	}
	if err != nil {
		return nil, err
	}
	params, _ := src.model.Params()
	as := format{o.DType, o.MXFP4}
	specs, err := src.specs(as)
	if err != nil {
		return nil, err
	}
	var bytes int64
	for _, s := range specs {
		bytes += s.Bytes()
	}
	if err := env.hasRoom(filepath.Dir(o.Dir), bytes); err != nil {
		return nil, err
	}
	write := hf.WriteOptions{ShardBytes: o.ShardBytes}
	if from != nil {
		ask.IsOver = true
		runDir := filepath.Dir(filepath.Dir(runfile.Absolute(from.Dir())))
		err = env.exportCheckpoint(ctx, runDir, from, src, o.Dir, as, write)
	} else {
		err = env.reexport(ctx, src, o.Dir, as, write, &ask)
	}
	if err != nil {
		return nil, err
	}
	w, err := hf.OpenWeights(o.Dir)
	if err != nil {
		return nil, blame.NotRequest(err)
	}
	return &Exported{Dir: o.Dir, DType: as.String(), Params: params, Files: w.Files()}, w.Close()
}

// takeHandover has the source hand over what the run of a checkpoint decided.
func (e *Env) takeHandover(src *source, from *checkpoint.Checkpoint) error {
	if src.hands = handedOver(from); src.hands == nil {
		e.warn("%s does not say which tokenizer and chat template its run used, since an older version saved it: the model "+
			"gets those of %s", from.Dir(), src.dir)
		return nil
	}
	runDir := filepath.Dir(filepath.Dir(runfile.Absolute(from.Dir())))
	run, err := e.Runs().ReadResolved(runDir)
	if err == nil && run != nil {
		src.hands.Tokenizer = rundir.WhereRunStarted(runDir, run, src.hands.Tokenizer)
	}
	if err == nil {
		err = e.Runs().MayFollow(runDir, "tokenizer", src.hands.Tokenizer)
	}
	return err
}

// exportCheckpoint writes a checkpoint of the run whose output directory is runDir, wherever the checkpoint is.
func (e *Env) exportCheckpoint(ctx context.Context, runDir string, from *checkpoint.Checkpoint, src *source,
	outDir string, as format, o hf.WriteOptions) error {
	if err := src.readAs(from); err != nil {
		return blame.BadRequest(err)
	}
	if src.hands == nil {
		if err := e.takeHandover(src, from); err != nil {
			return err
		}
	}
	src.base = cmp.Or(from.Manifest.Base, src.base)
	c := e.cardOf(runDir, src, as, from.Manifest.Step, from.Manifest.Mathematics, from.Manifest.Base,
		from.Manifest.Plateau)
	c.unhealthy = from.Manifest.UnhealthySteps
	weights := from.Weights(src.model)
	return e.writeModel(ctx, src, outDir, as, c, o, func(part int) (model.Values, error) {
		return weights.Part(part, as.dtype != tensor.BF16 || as.mxfp4)
	})
}

// readAs has the model laid out as in a checkpoint, which may have frozen tensors, and refuses a checkpoint of another
// model.
func (s *source) readAs(from *checkpoint.Checkpoint) error {
	m, err := from.Manifest.Model.With(s.model)
	if err != nil {
		return fmt.Errorf("%s: %w", from.Dir(), err)
	}
	s.model = m
	return s.checkIsOf(from)
}

// checkIsOf refuses a checkpoint of another model.
func (s *source) checkIsOf(from *checkpoint.Checkpoint) error {
	saved := from.Manifest.Model
	is := checkpoint.Identify(s.model, s.config.Raw(), saved.CarriedSHA256)
	if is.Is(saved) {
		return nil
	}
	if is.ConfigSHA256 == saved.ConfigSHA256 && !slices.Equal(is.Frozen, saved.Frozen) {
		return fmt.Errorf("%s has other frozen tensors; restore groups and train_only, or begin from the model that it exports",
			from.Dir())
	}
	return fmt.Errorf("%s is not of model %s; name the directory that its run started from", from.Dir(), s.dir)
}
