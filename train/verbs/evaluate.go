package verbs

import (
	"context"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// EvalOptions say what to evaluate on what.
type EvalOptions struct {
	Model         string // a Hugging Face directory, a hub id, a run's output directory, or a checkpoint
	Data          []data.Source
	Tokenizer     string      // auto (the model's; the default), bytes, or a path
	ChatTemplate  string      // auto (default), model, conversations, or a file, as in a run file
	Kwargs        data.Kwargs // variables of the template
	TrainOnPrompt bool
	SequenceLen   int    // packed positions of a row; 0: 1024, or what the model can do if that is less
	Compute       string // bf16 (default) or f32
	Memory        runfile.Memory
	Device        string // auto (default), or cpu
}

// evalSequenceLen is the length of rows for an evaluation by default.
const evalSequenceLen = 1024

// Evaluate is the mean token loss of a model over data sets, packed as in training, and that of each evaluation set
// that sources name; of a reward model it is the loss of objective reward over pairs. It takes memory for the weights
// and for one micro-batch, none for gradients.
func Evaluate(ctx context.Context, env *session.Env, o EvalOptions) (loss *session.Loss, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	src, err := source.OpenTrained(ctx, env, o.Model)
	if err != nil {
		return nil, err
	}
	n, err := runfile.NumericsOf(o.Compute, "bf16")
	if err != nil {
		return nil, err
	}
	n.SequenceLen = o.SequenceLen
	if n.SequenceLen == 0 {
		n.SequenceLen = min(evalSequenceLen, src.Model.MaxPositions)
	}
	c, err := src.Settings(env, o.Tokenizer, o.ChatTemplate, o.Kwargs)
	if err != nil {
		return nil, err
	}
	c.TrainOnPrompt = o.TrainOnPrompt
	source.ShareReading(env, c.Memory.Host.N)
	r, err := src.OpenReader(c)
	if err != nil {
		return nil, err
	}
	options, outputs := data.EvalOptions{SequenceLen: n.SequenceLen, Accounts: env.Accounts}, plan.Outputs{}
	var of objective.Objective
	if src.Model.Scores() {
		if of, err = objective.New(objective.Settings{Type: "reward"}); err != nil {
			return nil, err
		}
		r.Check = func(types []data.Type) error { return data.CheckObjective(types, of.Name(), of.Needs()) }
		options.LongDocuments, options.ScoreAt = data.DropLong, src.Model.Scoring.Position
		outputs.LogProbs = true
	}
	if err := src.CheckWeights(ctx); err != nil {
		return nil, err
	}
	dev, err := env.OpenFirst(o.Device)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	d, err := source.Prepare(ctx, env, "the data", o.Data, r)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	sets, err := d.Sets()
	if err != nil {
		return nil, err
	}
	defer d.CloseSets(sets)
	var measured []session.EvalSet
	most := 0
	for _, set := range sets {
		rows, err := data.NewEvalLoader(set.Dataset, options)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		m := session.EvalSet{Label: set.Label, Rows: rows}
		if of != nil {
			m.Documents = func() ([]stream.Document, error) { return compared(rows.Documents(), set.Dataset), nil }
		}
		measured, most = append(measured, m), max(most, rows.Rows())
	}
	// All rows of a set could be one micro-batch; the planner tries the largest first that the device likes.
	p, err := env.FitForward(ctx, src.Model.Frozen(), n, most, dev, o.Memory, outputs)
	if err != nil {
		return nil, err
	}
	ask.IsOver = true
	s, err := source.OpenModelSession(ctx, env, p, dev, o.Memory.Path, src)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if s.Objective = of; of != nil {
		for i := range measured {
			m := &measured[i]
			if m.Counts, err = s.Count(ctx, m.Rows, m.Documents); err != nil {
				return nil, err
			}
			if left := m.Rows.Packing().LeftOut(n.SequenceLen); left != "" {
				env.Note("%s", left)
			}
		}
	}
	l, err := s.Evaluate(ctx, measured, "the data")
	if err != nil {
		return nil, err
	}
	return &l, nil
}

// compared are documents as an objective that needs no reference sees them.
func compared(placed []data.Placed, d *data.Dataset) (all []stream.Document) {
	for _, p := range placed {
		all = append(all, stream.Document{Micro: p.Micro, First: p.First, Length: p.Length, Group: p.Group, Side: p.Side,
			Margin: d.Margin(p.Document)})
	}
	return all
}
