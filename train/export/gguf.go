package export

import (
	"cmp"
	"context"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// GGUFOptions say what to write as GGUF.
type GGUFOptions struct {
	// a Hugging Face directory, or a hub id: the configuration and the tokenizer. If Checkpoint is "", the weights as
	// well; it may then be a run's output directory, or one of its checkpoints.
	Model      string
	Checkpoint string // directory whose weights are written
	File       string
	Type       gguf.Type // "": bf16, or of a checkpoint the type in which its run writes its model
	Pre        string    // how llama.cpp calls the way in which the tokenizer cuts text; "" finds it
}

// GGUF writes a model or a checkpoint as one GGUF file, a piece of a tensor at a time. The report names
// what the file says of the model, and what it cannot say.
func GGUF(ctx context.Context, env *session.Env, o GGUFOptions) (report *gguf.Report, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	src, err := source.OpenToExport(ctx, env, o.Model, o.Checkpoint)
	if err != nil {
		return nil, err
	}
	c := src.From
	if o.Checkpoint != "" {
		if c, err = checkpoint.Open(env.Files(), o.Checkpoint); err != nil {
			return nil, err
		}
		if err := src.ReadAs(c); err != nil {
			return nil, blame.BadRequest(err)
		}
	}
	var from model.Fields
	dir := src.Dir // of the tokenizer and the templates
	if c != nil {
		if err := takeHandover(env, src, c); err != nil {
			return nil, err
		}
		if dir, err = os.MkdirTemp("", "millrace-export-"); err != nil {
			return nil, blame.NotRequest(err)
		}
		defer os.RemoveAll(dir)
		files, err := src.TextFiles(src.Config.Raw())
		if err != nil {
			return nil, err
		}
		if err := files.WriteTo(dir); err != nil {
			return nil, err
		}
		if err := src.FindAs(ctx, c, func() error { _, err := src.FindCarried(ctx); return err }); err != nil {
			return nil, err
		}
		if err := src.ReadConstants(src.Model); err != nil {
			return nil, err
		}
		if o.Type == "" && src.ExportType() == tensor.F32 {
			o.Type = gguf.F32
		}
		// In BF16 it is the weights that the forward pass used; what is quantized comes from the masters.
		weights, lowHalves := c.Weights(src.Model), o.Type != gguf.BF16 && o.Type != ""
		from = src.Model.FieldsOf(func(part int) (model.Values, error) { return weights.Part(part, lowHalves) })
		if lowHalves {
			src.Base = c.Manifest.Base
			frozen, why, errBase := src.OpenFrozen(ctx, func(part int) (model.Values, error) {
				return weights.Part(part, false)
			})
			if errBase != nil {
				return nil, errBase
			}
			defer frozen.Close()
			from = frozen.Over(from)
			defer func() {
				if why = cmp.Or(why, frozen.WhyNot()); why != "" && err == nil {
					source.WarnOfFrozen(env, why)
				}
			}()
		}
	} else {
		w, err := src.Model.OpenWeights(src.Dir)
		if err != nil {
			return nil, err
		}
		defer w.Close()
		if err := src.Model.Check(ctx, w); err != nil {
			return nil, err
		}
		if err := src.Model.ReadConstants(w); err != nil {
			return nil, err
		}
		read := src.Model.Checkpoint().Fields(w)
		from = func(part, field int, dst []float32, first int64) error {
			return blame.BadRequest(read(part, field, dst, first)) // of the model, which the user has named
		}
	}
	if o.Type == "" {
		o.Type = gguf.BF16
	}
	bar := env.Bar("writing " + o.File)
	defer bar.End()
	report, err = gguf.Export(ctx, o.File, dir, src.Model, from, gguf.ExportOptions{Type: o.Type, Name: modelName(o.Model),
		Pre: o.Pre, Progress: bar.Set,
		Room: func(bytes int64) error {
			ask.IsOver = true // later errors are not the request's, except those of the weights
			return env.HasRoom(filepath.Dir(o.File), bytes)
		}})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// modelName names a model for people: by the last part of its path or id.
func modelName(pathOrID string) string {
	if repo, ok := hub.Parse(hub.Model, pathOrID); ok {
		pathOrID = repo.ID
	}
	if full, err := filepath.Abs(pathOrID); err == nil {
		pathOrID = full // "." has a name, too
	}
	return filepath.Base(pathOrID)
}
