package train

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
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

// ExportGGUF writes a model or a checkpoint as one GGUF file, a piece of a tensor at a time. The report names
// what the file says of the model, and what it cannot say.
func ExportGGUF(ctx context.Context, env *Env, o GGUFOptions) (report *gguf.Report, err error) {
	var ask blame.Asking
	defer ask.Judge(&err)
	src, err := openToExport(ctx, env, o.Model, o.Checkpoint)
	if err != nil {
		return nil, err
	}
	c := src.from
	if o.Checkpoint != "" {
		if c, err = checkpoint.Open(env.files(), o.Checkpoint); err != nil {
			return nil, err
		}
		if err := src.checkIsOf(c); err != nil {
			return nil, blame.BadRequest(err)
		}
	}
	var from gguf.F32Reader
	if c != nil {
		if o.Type == "" && src.exportType() == tensor.F32 {
			o.Type = gguf.F32
		}
		// In BF16 it is the weights that the forward pass used; what is quantized comes from the masters.
		weights, lowHalves := c.Weights(src.model), o.Type != gguf.BF16 && o.Type != ""
		from = newPartTensors(src.model, func(part int) (model.Values, error) { return weights.Part(part, lowHalves) })
	} else {
		w, err := hf.OpenWeights(src.dir)
		if err != nil {
			return nil, err
		}
		defer w.Close()
		if err := src.model.Check(w); err != nil {
			return nil, err
		}
		from = named{w}
	}
	if o.Type == "" {
		o.Type = gguf.BF16
	}
	bar := env.bar("writing " + o.File)
	defer bar.End()
	report, err = gguf.Export(ctx, o.File, src.dir, from, gguf.ExportOptions{Type: o.Type, Name: modelName(o.Model),
		Pre: o.Pre, Progress: bar.Set,
		Room: func(bytes int64) error {
			ask.IsOver = true // later errors are not the request's, except those of the weights
			return env.hasRoom(filepath.Dir(o.File), bytes)
		}})
	if err != nil {
		return nil, err
	}
	if window := shortestWindow(src.model); window > 0 && window < src.model.MaxPositions {
		report.Notes = append(report.Notes,
			fmt.Sprintf("the model attends to its last %d positions only, which a GGUF file of this kind cannot say: "+
				"longer texts differ in llama.cpp", window))
	}
	return report, nil
}

// named are the weights of a model that the user has named.
type named struct{ gguf.F32Reader }

// ReadF32 implements [gguf.F32Reader].
func (n named) ReadF32(name string, dst []float32, first int64) error {
	return blame.BadRequest(n.F32Reader.ReadF32(name, dst, first))
}

// modelName is what people call a model: the last part of its path or id.
func modelName(pathOrID string) string {
	if repo, ok := hub.Parse(hub.Model, pathOrID); ok {
		pathOrID = repo.ID
	}
	if full, err := filepath.Abs(pathOrID); err == nil {
		pathOrID = full // "." has a name, too
	}
	return filepath.Base(pathOrID)
}

// shortestWindow is the smallest sliding window of a model's blocks; 0 if they have none.
func shortestWindow(m *model.Model) int {
	shortest := 0
	for _, b := range m.Blocks {
		if a, ok := b.Mixer.(nn.Attention); ok && a.Window > 0 && (shortest == 0 || a.Window < shortest) {
			shortest = a.Window
		}
	}
	return shortest
}

// partTensors reads a checkpoint's weights by the names of tensors, with one part in memory at a time.
type partTensors struct {
	model   *model.Model
	read    func(part int) (model.Values, error)
	tensors map[string]model.Tensor
	held    int // the part that is in memory; -1: none
	values  model.Values
}

func newPartTensors(m *model.Model, read func(part int) (model.Values, error)) *partTensors {
	p := &partTensors{model: m, read: read, tensors: map[string]model.Tensor{}, held: -1}
	for _, t := range m.Tensors() {
		p.tensors[t.Name] = t
	}
	return p
}

// ReadF32 implements [gguf.F32Reader].
func (p *partTensors) ReadF32(name string, dst []float32, first int64) error {
	t, ok := p.tensors[name]
	if !ok {
		return fmt.Errorf("the model has no tensor %s", name)
	}
	for _, piece := range t.Pieces {
		f := &p.model.Parts[piece.Part].Layout.Fields[piece.Field]
		if first >= f.Elems {
			first -= f.Elems
			continue
		}
		if p.held != piece.Part {
			values, err := p.read(piece.Part)
			if err != nil {
				return err
			}
			p.values, p.held = values, piece.Part
		}
		n := min(int64(len(dst)), f.Elems-first)
		if p.values.F32 == nil && p.values.Low == nil {
			for i, h := range p.values.High[f.First+first:][:n] {
				dst[i] = tensor.F32FromBF16(h)
			}
		} else {
			p.values.Elems(f, first, dst[:n])
		}
		if dst, first = dst[n:], 0; len(dst) == 0 {
			return nil
		}
	}
	return nil
}
