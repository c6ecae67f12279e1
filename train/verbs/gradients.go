package verbs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// GradOptions say of which sequences the gradients are wanted.
type GradOptions struct {
	Model   string // a Hugging Face directory, or a hub id
	Tokens  string // file with {"input_ids": [[...]], "labels": [[...]]}
	Out     string // safetensors file to write
	Compute string // f32 (default) or bf16
	Logits  bool   // write logits.<i> as well
	Memory  runfile.Memory
	Device  string // auto (default), or cpu
}

// GradSummary describes the file that Gradients wrote.
type GradSummary struct {
	Loss         float64 `json:"loss"` // nats per target token
	GradNorm     float64 `json:"grad_norm"`
	Sequences    int     `json:"sequences"`
	TargetTokens int64   `json:"target_tokens"`
	Tensors      int     `json:"tensors"`    // gradients in the file
	Parameters   int64   `json:"parameters"` // elements of these
}

// Gradients writes the loss and every gradient of a batch of sequences, computed by the same engine and schedule as a
// training step. The tokens file has one list per sequence under input_ids and under labels; labels are not shifted,
// and -100 does not count, as in transformers. Each sequence is a document of its own: nothing is packed.
//
// The output has `loss` (F32, []), the mean over the labels that count; one F32 gradient per parameter under its
// Hugging Face name; and, if asked for, `logits.<i>` (F32, [length of sequence i, vocabulary]). With compute bf16 the
// gradients are rounded to bf16, as an update would use them. How many sequences are computed together depends on the
// memory budgets, and the last bits on that.
func Gradients(ctx context.Context, env *session.Env, o GradOptions) (sum *GradSummary, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	src, err := source.OpenModel(ctx, env, o.Model)
	if err != nil {
		return nil, err
	}
	if err := src.CheckWrites(); err != nil {
		return nil, err
	}
	n, err := runfile.NumericsOf(o.Compute, "f32")
	if err != nil {
		return nil, err
	}
	examples, err := readTokens(o.Tokens, src.Model.Vocab)
	if err != nil {
		return nil, err
	}
	for i, e := range examples {
		if len(e.InputIDs) > src.Model.MaxPositions {
			return nil, fmt.Errorf("tokens %s: sequence %d has %d tokens, and the model was made for %d positions; shorten it",
				o.Tokens, i, len(e.InputIDs), src.Model.MaxPositions)
		}
		n.SequenceLen = max(n.SequenceLen, len(e.InputIDs))
	}
	dev, err := env.OpenFirst(o.Device)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	p, err := env.FitPlan(ctx, src.Model, n, len(examples), runfile.Sizes{}, dev.Info(), o.Memory,
		func(n plan.Numerics) plan.Outputs {
			w := plan.Outputs{NoUpdates: true}
			if o.Logits {
				w.LogitRows = n.Positions()
			}
			return w
		})
	if err != nil {
		return nil, err
	}
	batch, err := session.Unpacked(examples, p.Numerics)
	if err != nil {
		return nil, err
	}
	out := gradFile{model: src.Model, examples: examples, withLogits: o.Logits}
	if out.FileWriter, err = hf.CreateFile(o.Out, out.specs()); err != nil {
		return nil, fmt.Errorf("out: %w", err)
	}
	defer out.Abort() // does nothing after Commit
	ask.IsOver = true
	s, err := source.OpenModelSession(ctx, env, p, dev, o.Memory.Path, src)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var logits [][]float32
	if o.Logits {
		if logits, err = s.Engine.Logits(ctx, batch, 0); err != nil {
			return nil, err
		}
	}
	res, err := s.Engine.Step(ctx, batch, stream.Update{Step: 1})
	if err != nil {
		return nil, err
	}
	sum = &GradSummary{Loss: res.Loss(), GradNorm: res.GradNorm, Sequences: len(examples),
		TargetTokens: int64(batch.Targets)}
	if err := out.write("loss", []float32{float32(sum.Loss)}); err != nil {
		return nil, err
	}
	if err := out.gradients(ctx, s, sum); err != nil {
		return nil, err
	}
	if err := out.logits(logits, p.Numerics); err != nil {
		return nil, err
	}
	return sum, out.Commit()
}

// readTokens reads and checks a tokens file.
func readTokens(path string, vocab int) ([]data.Example, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	var file struct {
		InputIDs [][]int32 `json:"input_ids"`
		Labels   [][]int32 `json:"labels"`
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	err = d.Decode(&file)
	if err == nil && d.More() {
		err = fmt.Errorf("there is something after the object")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ends too early")
	}
	if err != nil {
		return nil, fmt.Errorf("tokens %s: %w; write {\"input_ids\": [[...]], \"labels\": [[...]]} with one list per sequence", path, err)
	}
	if len(file.InputIDs) == 0 || len(file.Labels) != len(file.InputIDs) {
		return nil, fmt.Errorf("tokens %s: %d lists in input_ids and %d in labels: there must be as many of both, at least 1", path, len(file.InputIDs), len(file.Labels))
	}
	examples := make([]data.Example, len(file.InputIDs))
	targets := 0
	for i := range examples {
		ids, labels := file.InputIDs[i], file.Labels[i]
		if len(ids) == 0 || len(labels) != len(ids) {
			return nil, fmt.Errorf("tokens %s: sequence %d has %d tokens and %d labels: there must be as many of both, at least 1", path, i, len(ids), len(labels))
		}
		for t, id := range ids {
			switch l := labels[t]; {
			case id < 0:
				return nil, fmt.Errorf("tokens %s: sequence %d, position %d: token %d is negative; only labels may be, and only as %d: correct it", path, i, t, id, data.Ignore)
			case l < 0 && l != data.Ignore:
				return nil, fmt.Errorf("tokens %s: sequence %d, position %d: label %d is negative; use %d for what does not count", path, i, t, l, data.Ignore)
			case int(id) >= vocab || int(l) >= vocab:
				return nil, fmt.Errorf("tokens %s: sequence %d, position %d: token %d with label %d: they must be below %d, the size of the vocabulary",
					path, i, t, id, l, vocab)
			case t > 0 && l != data.Ignore:
				targets++
			}
		}
		examples[i] = data.Example{InputIDs: ids, Labels: labels}
	}
	if targets == 0 {
		return nil, fmt.Errorf("tokens %s: no label counts: a sequence must have two tokens, and a label other than %d after the first", path, data.Ignore)
	}
	return examples, nil
}

// gradFile is the output while it is written.
type gradFile struct {
	*hf.FileWriter
	model      *model.Model
	examples   []data.Example
	withLogits bool
}

func logitsName(i int) string { return fmt.Sprintf("logits.%d", i) }

func (f *gradFile) specs() []hf.TensorSpec {
	specs := []hf.TensorSpec{{Name: "loss", DType: tensor.F32}}
	for _, t := range f.model.Tensors() {
		specs = append(specs, hf.TensorSpec{Name: t.Name, DType: tensor.F32, Shape: t.Shape})
	}
	if f.withLogits {
		for i, e := range f.examples {
			specs = append(specs, hf.TensorSpec{Name: logitsName(i), DType: tensor.F32, Shape: tensor.Shape{len(e.InputIDs), f.model.Vocab}})
		}
	}
	return specs
}

func (f *gradFile) write(name string, x []float32) error { return f.Write(name, hf.BytesOf(x)) }

// gradElems bounds the elements that are read at a time.
const gradElems = 256 << 10

// gradients writes those of all parameters, a part at a time.
func (f *gradFile) gradients(ctx context.Context, s *session.Session, sum *GradSummary) error {
	fields := stream.GradFields(s.Plan, s.Store)(ctx)
	buf := make([]float32, gradElems)
	for _, t := range f.model.Tensors() {
		sum.Tensors++
		elems := t.Shape.Elems()
		for at := int64(0); at < elems; at += gradElems {
			vals := buf[:min(gradElems, elems-at)]
			if err := t.Read(vals, at, fields); err != nil {
				return err
			}
			if err := f.write(t.Name, vals); err != nil {
				return err
			}
		}
		sum.Parameters += elems
	}
	if math.IsNaN(sum.GradNorm) || math.IsInf(sum.GradNorm, 0) {
		s.Env.Note("the gradient norm is not finite")
	}
	return nil
}

// logits writes those of each sequence, without the padding of its row.
func (f *gradFile) logits(of [][]float32, n plan.Numerics) error {
	if !f.withLogits {
		return nil
	}
	row := n.SequenceLen * f.model.Vocab
	for i, e := range f.examples {
		rows := of[i/n.MicroBatch][i%n.MicroBatch*row:]
		if err := f.write(logitsName(i), rows[:len(e.InputIDs)*f.model.Vocab]); err != nil {
			return err
		}
	}
	return nil
}
