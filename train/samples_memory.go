package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
)

// The caches of samples are in the plan of a run, so that its budgets hold while the model writes. The sizes of steps
// are chosen as if there were no samples, since they set bits, and samples are to change none.

// sampleMemory asks a plan for room for the samples of a run. The zero value is a run without them.
type sampleMemory struct {
	caches nn.Caches // of all texts that grow together
	bytes  int64     // of host memory, besides
}

// memory returns the needs of a run for its samples.
func (s *sampling) memory() (m sampleMemory) {
	if s == nil {
		return m
	}
	m.caches.Sequences, m.bytes = min(len(s.asked), mostTexts), s.decoderBytes
	for _, a := range s.asked {
		m.caches.Positions = max(m.caches.Positions, positionsOf(a.ids, s.MaxTokens, s.most))
	}
	return m
}

// samplesToPlan returns the needs of samples for the plan of a configuration. Of a named shape there is no tokenizer:
// then each byte is taken for a token, which is the most that they can be.
func samplesToPlan(ctx context.Context, env *Env, c *runfile.Config, shape string) (m sampleMemory, err error) {
	if !c.Samples.Asked() {
		return m, nil
	}
	if shape == "" {
		src, err := openModel(ctx, env, c.Model)
		if err != nil {
			return m, err
		}
		s, err := src.openSampling(ctx, c)
		return s.memory(), err
	}
	prompts, _, err := readSamples(c.Samples)
	m.caches.Sequences = min(len(prompts), mostTexts)
	for _, p := range prompts {
		n := len(p.Text)
		for _, turn := range p.Messages {
			n += len(turn.Content)
		}
		m.caches.Positions = max(m.caches.Positions, n+c.Samples.MaxTokens)
	}
	return m, err
}

// fit plans the steps of a plan again, with caches for as many texts as there is room for.
func (m sampleMemory) fit(ctx context.Context, f plan.Fitting, p *plan.Plan) (*plan.Plan, error) {
	if m.caches.Sequences == 0 {
		return p, nil
	}
	f.Cuts.MicroBatch, f.Cuts.HeadChunk = p.Numerics.MicroBatch, p.Numerics.HeadChunk
	for texts := min(m.caches.Sequences, p.Numerics.Positions()); ; texts /= 2 {
		with := m.with(f, texts)
		if texts > 1 && with.Fits(ctx) != nil {
			continue
		}
		p, err := with.Fit(ctx)
		if err != nil && ctx.Err() == nil {
			err = m.lacks(f, err)
		}
		return p, err
	}
}

// check refuses samples that no sizes of a step have room for.
func (m sampleMemory) check(ctx context.Context, f plan.Fitting) error {
	if m.caches.Sequences == 0 {
		return nil
	}
	err := m.with(f, 1).Check(ctx)
	if err != nil && ctx.Err() == nil {
		err = m.lacks(f, err)
	}
	return err
}

// with asks for the same steps, with caches for a number of texts.
func (m sampleMemory) with(f plan.Fitting, texts int) plan.Fitting {
	steps := f.OutputsOf
	f.ProgramBytes += m.bytes
	caches := nn.Caches{Sequences: texts, Positions: min(m.caches.Positions, f.Model.MaxPositions)}
	f.OutputsOf = func(n plan.Numerics) plan.Outputs {
		out := steps(n)
		out.LogitRows, out.Caches = texts, caches
		return out
	}
	return f
}

// lacks says why there can be no samples.
func (m sampleMemory) lacks(f plan.Fitting, err error) error {
	if !plan.CanContinue(f.Model) {
		return errors.New("samples: the model has blocks that keep nothing of a text from pass to pass; leave " +
			"samples out, and run millrace generate on checkpoints")
	}
	return fmt.Errorf("samples: the steps fit without them, and with the caches of a text of %s they do not: %w; or "+
		"lower samples.max_tokens, shorten the prompts, or leave samples out",
		spelling.Count(m.caches.Positions, "position"), err)
}
