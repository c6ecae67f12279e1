package export

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// Options say what to write as a Hugging Face directory.
type Options struct {
	// Model is a Hugging Face directory, or a hub id, that has the configuration. If Checkpoint is
	// "", the weights come from there as well, and it may be a run's output directory, or one of its checkpoints.
	Model      string
	Checkpoint string // directory whose weights are written
	Dir        string // must not exist
	// DType is BF16, F32 or F16; Invalid: bf16, or of a checkpoint the type in which its run writes its model
	DType tensor.DType
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

// HuggingFace writes a model or a checkpoint as a Hugging Face directory, with the configuration of the model, and the
// tokenizer, the chat template and the ends of texts of the checkpoint's run. Of a checkpoint it reads weights and low
// halves only, a part at a time and the latter not for BF16 alone, and compares what it reads with its checksums. A
// model goes a piece of a tensor at a time, so that any fits; values round to nearest, ties to even, and tensors that
// the model does not use (a head next to tied embeddings) are left out.
func HuggingFace(ctx context.Context, env *session.Env, o Options) (done *Exported, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	var from *checkpoint.Checkpoint
	if o.Checkpoint != "" {
		if from, err = checkpoint.Open(env.Files(), o.Checkpoint); err != nil {
			return nil, err
		}
	}
	src, err := source.OpenToExport(ctx, env, o.Model, o.Checkpoint)
	if err != nil {
		return nil, err
	}
	if from == nil {
		from = src.From
	}
	if from != nil {
		if err := src.ScoreAs(from); err != nil {
			return nil, err
		}
		if err := takeHandover(env, src, from); err != nil {
			return nil, err
		}
	}
	if err := src.CheckSidecars(); err != nil {
		return nil, err
	}
	if o.MXFP4 {
		if !src.Model.HasMXFP4() {
			return nil, fmt.Errorf("dtype is \"mxfp4\", and models of kind %s have no tensors in MXFP4: use bf16, f32 or f16",
				src.Model.Type)
		}
		o.DType = tensor.BF16
	}
	if o.DType == tensor.Invalid {
		o.DType = tensor.BF16
		if from != nil {
			o.DType = src.ExportType()
		}
	}
	if from != nil {
		err = src.CarryAs(ctx, env, from)
	} else {
		err = src.Carry(ctx, env)
	}
	if err != nil {
		return nil, err
	}
	params, _ := src.Model.Params()
	as := Format{o.DType, o.MXFP4}
	specs, err := specs(src, as)
	if err != nil {
		return nil, err
	}
	var bytes int64
	for _, s := range specs {
		bytes += s.Bytes()
	}
	if err := env.HasRoom(filepath.Dir(o.Dir), bytes); err != nil {
		return nil, err
	}
	write := hf.WriteOptions{ShardBytes: o.ShardBytes}
	if from != nil {
		ask.IsOver = true
		runDir := filepath.Dir(filepath.Dir(runfile.Absolute(from.Dir())))
		err = Checkpoint(ctx, env, runDir, from, src, o.Dir, as, write)
	} else {
		err = reexport(ctx, env, src, o.Dir, as, write, &ask)
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
func takeHandover(e *session.Env, src *source.Source, from *checkpoint.Checkpoint) error {
	if src.Hands = source.HandedOver(from); src.Hands == nil {
		e.Warn("%s does not say which tokenizer and chat template its run used, since an older version saved it: the model "+
			"gets those of %s", from.Dir(), src.Dir)
		return nil
	}
	runDir := filepath.Dir(filepath.Dir(runfile.Absolute(from.Dir())))
	run, err := e.Runs().ReadResolved(runDir)
	if err == nil && run != nil {
		src.Hands.Tokenizer = rundir.WhereRunStarted(runDir, run, src.Hands.Tokenizer)
	}
	if err == nil {
		err = e.Runs().MayFollow(runDir, "tokenizer", src.Hands.Tokenizer)
	}
	return err
}

// Checkpoint writes a checkpoint of the run whose output directory is runDir, wherever the checkpoint is.
func Checkpoint(ctx context.Context, e *session.Env, runDir string, from *checkpoint.Checkpoint, src *source.Source,
	outDir string, as Format, o hf.WriteOptions) error {
	if err := src.ReadAs(from); err != nil {
		return blame.BadRequest(err)
	}
	if src.Hands == nil {
		if err := takeHandover(e, src, from); err != nil {
			return err
		}
	}
	src.Base = cmp.Or(from.Manifest.Base, src.Base)
	m := from.Manifest
	of := &Trained{RunDir: runDir, Step: m.Step, Unhealthy: m.UnhealthySteps, Settings: m.Mathematics, Base: m.Base,
		Plateau: m.Plateau}
	weights := from.Weights(src.Model)
	return Write(ctx, e, src, outDir, as, of, o, func(_ context.Context, part int) (model.Values, error) {
		return weights.Part(part, as.DType != tensor.BF16 || as.MXFP4)
	})
}
