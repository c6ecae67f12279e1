package reference

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl/reward"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// Scorers are the reward models of a loop. Between two evaluations they take memory for their tokenizers alone.
type Scorers struct {
	env    *session.Env
	dev    *session.Devices
	models map[string]*scorer // by the name in the run file
}

// scorer is one of them.
type scorer struct {
	src    *source.Source
	reader source.Reader
	plan   *plan.Plan
}

// OpenScorers opens the models that rewards name, and plans a forward pass of each within the memory that its entry has
// for it, on the first device. The numerics are those of the run: types, and the length of a row, beyond which a text
// has no score. Rows is the most that could be in a pass. Without such a reward it does nothing.
func OpenScorers(ctx context.Context, e *session.Env, dev *session.Devices, specs []runfile.Reward, n plan.Numerics,
	rows int) (*Scorers, error) {
	s := &Scorers{env: e.Alone(), dev: &session.Devices{Computes: dev.Computes[:1], Host: dev.Host},
		models: map[string]*scorer{}}
	s.env.Guest = "memory" // of the reward
	for i := range specs {
		of := &specs[i]
		if of.Model == "" || s.models[of.Model] != nil {
			continue
		}
		m, err := s.open(ctx, of, n, rows)
		if err != nil {
			return nil, fmt.Errorf("rl.reward[%d] (%s): %w", i, of.Name, err)
		}
		s.models[of.Model] = m
	}
	return s, nil
}

func (s *Scorers) open(ctx context.Context, of *runfile.Reward, n plan.Numerics, rows int) (m *scorer, err error) {
	m = &scorer{}
	if m.src, err = source.OpenTrained(ctx, s.env, of.Model); err != nil {
		return nil, err
	}
	if !m.src.Model.Scores() {
		return nil, fmt.Errorf("%s is a model of text, which gives no score: name one that objective: {type: reward} has "+
			"trained, or another whose architecture is ...ForSequenceClassification", m.src.Dir)
	}
	settings, err := m.src.Settings(s.env, "auto", "auto", nil)
	if err != nil {
		return nil, err
	}
	if m.reader, err = m.src.OpenReader(settings); err != nil {
		return nil, err
	}
	if err := m.src.CheckWeights(ctx); err != nil {
		return nil, err
	}
	if of.Memory.Device.N == 0 && !s.dev.Info().Unified {
		return nil, errors.New("memory.device is missing: say how much of the device's memory the model may take besides " +
			"the run, such as memory: {host: 8GiB, device: 4GiB}, and give the run's memory.device so much less")
	}
	n.SequenceLen = min(n.SequenceLen, m.src.Model.MaxPositions)
	m.plan, err = s.env.FitForward(ctx, m.src.Model.Frozen(), n, rows, s.dev, of.Memory.Budgets(),
		plan.Outputs{LogProbs: true})
	return m, err
}

// Score brings a model into memory, scores answers, and gives the memory back. A text that is longer than a row is NaN.
// It is [reward.Options].Model.
func (s *Scorers) Score(ctx context.Context, name string, answers []reward.Answer) (scores []float64, err error) {
	m := s.models[name]
	if m == nil {
		return nil, fmt.Errorf("model %s was not opened", name)
	}
	texts, left, err := m.texts(ctx, answers)
	if err != nil {
		return nil, err
	}
	opened, err := source.OpenModelSession(ctx, s.env, m.plan, s.dev, nil, m.src)
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, opened.Close()) }()
	scores = slices.Repeat([]float64{math.NaN()}, len(answers))
	bar := s.env.Bar("scoring with " + console.OneLine(errors.New(name)))
	defer bar.End()
	for all := int64(len(left)); len(left) > 0; {
		bar.Set(all-int64(len(left)), all)
		var now []placed
		now, left = fit(left, opened.Rows)
		for _, p := range now {
			micro := opened.Rows[p.micro].Micro
			micro.SetDocument(p.at, texts[p.document])
			data.SetScore(micro, p.at, p.length, m.src.Model.Scoring.Position)
		}
		b := session.BatchOf(opened.Rows)
		b.Targets = 1 // scores are no mean
		of, err := opened.Engine.LogProbs(ctx, b)
		if err != nil {
			return nil, err
		}
		for _, p := range now {
			scores[p.document] = float64(of[p.micro][p.at+m.src.Model.Scoring.Position(texts[p.document])])
		}
	}
	return scores, nil
}

// texts are the tokens of answers with their prompts, and those that a row has room for, the longest first.
func (m *scorer) texts(ctx context.Context, answers []reward.Answer) (texts [][]int32, fitting []placed, err error) {
	for i, a := range answers {
		p := data.Prompt{Text: a.Prompt}
		if a.Messages != nil {
			if err := budget.Unmarshal(a.Messages, &p); err != nil {
				return nil, nil, fmt.Errorf("answer %d: messages: %w", a.ID, err)
			}
		}
		ids, err := data.AnsweredTokens(ctx, m.reader.Tokenizer, m.reader.Renderer, p, a.Completion)
		if err != nil {
			return nil, nil, fmt.Errorf("answer %d: %w", a.ID, err)
		}
		if texts = append(texts, ids); len(ids) > 0 && len(ids) <= m.plan.Numerics.SequenceLen {
			fitting = append(fitting, placed{document: i, length: len(ids)})
		}
	}
	slices.SortStableFunc(fitting, func(a, b placed) int { return b.length - a.length })
	return texts, fitting, nil
}
