package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// The caches of samples are in the plan of a run, so that its budgets hold while the model writes. The sizes of steps
// are chosen as if there were no samples, since they set bits, and samples are to change none.

// SampleMemory asks a plan for room for the samples of a run. The zero value is a run without them.
type SampleMemory struct {
	For    string      // the key of the run file that asks for them; empty: samples
	Caches nn.Caches   // of all texts that grow together
	Draws  bool        // the device chooses the tokens: plan.Outputs.Draws
	Bytes  int64       // of host memory, besides
	Round  *plan.Round // of a loop, to be predicted; nil: no loop
}

// blockPositions is the number of positions whose caches a text is given at a time. A CPU takes that many keys of a
// sequence at once (device/cpu/attention), and where a block has them all it reads them where they are. A text holds
// half a block on average that it does not use; one of 129 positions holds two.
const blockPositions = 128

// TextCaches are caches for texts that grow together, of as many positions at most, with blocks for all of them.
func TextCaches(texts, positions int) nn.Caches {
	c := nn.Caches{Sequences: texts, Positions: positions, BlockRows: min(blockPositions, max(positions, 1))}
	c.Blocks = texts * c.BlocksEach()
	return c
}

// With takes room for others, at other times.
func (m SampleMemory) With(other SampleMemory) SampleMemory {
	switch {
	case other.Caches.Sequences == 0 && other.Bytes == 0:
		return m
	case m.Caches.Sequences == 0:
		m.Draws = other.Draws
	case other.Caches.Sequences > 0:
		m.Draws = m.Draws && other.Draws
	}
	m.Caches.Sequences = max(m.Caches.Sequences, other.Caches.Sequences)
	m.Caches.Positions = max(m.Caches.Positions, other.Caches.Positions)
	m.Bytes += other.Bytes
	m.Round = cmp.Or(m.Round, other.Round)
	m.For = cmp.Or(m.For, other.For)
	return m
}

// Fit plans the steps of a plan again, with caches for as many texts as there is room for, and predicts the rounds of a
// loop.
func (m SampleMemory) Fit(ctx context.Context, f plan.Fitting, p *plan.Plan) (_ *plan.Plan, err error) {
	f.Cuts.MicroBatch, f.Cuts.HeadChunk = p.Numerics.MicroBatch, p.Numerics.HeadChunk
	switch own := m.Caches.Sequences > 0; {
	case own && m.apart(f) && !p.Bound():
		p, err = m.fitApart(ctx, f)
	case own:
		p, err = m.with(f, m.texts(ctx, f, p.Numerics.Positions())).Fit(ctx)
		err = m.lacks(ctx, f, err)
	case m.Bytes > 0: // others sample
		p, err = m.fitSteps(ctx, f)
	}
	if err == nil && m.Round != nil {
		p.Round = p.ForecastRound(f.Machine, f.Device, *m.Round)
	}
	return p, err
}

// texts is the largest number of texts whose caches fit, at most as many as a pass has rows; 1 if not even that.
func (m SampleMemory) texts(ctx context.Context, f plan.Fitting, rows int) int {
	most := min(m.Caches.Sequences, rows)
	if most <= 1 || m.with(f, most).Fits(ctx) == nil {
		return max(most, 1)
	}
	fits := 1
	for most-fits > 1 { // most does not fit
		if middle := (fits + most) / 2; m.with(f, middle).Fits(ctx) == nil {
			fits = middle
		} else {
			most = middle
		}
	}
	return fits
}

// check refuses samples that no sizes of a step have room for.
func (m SampleMemory) check(ctx context.Context, f plan.Fitting) error {
	own, mayBind := m.Caches.Sequences > 0, f.Device.Unified && f.DeviceBytes == 0
	switch {
	case !own && m.Bytes == 0:
		return nil
	case own && !(m.apart(f) && !mayBind):
		return m.lacks(ctx, f, m.with(f, 1).Check(ctx))
	}
	f.ProgramBytes += m.Bytes // what a text needs follows from the plan of the steps, if it has one of its own
	return m.lacksRows(ctx, f.Check(ctx))
}

// with asks for the same steps, with caches for a number of texts.
func (m SampleMemory) with(f plan.Fitting, texts int) plan.Fitting {
	steps := f.OutputsOf
	f.ProgramBytes += m.Bytes
	caches := TextCaches(texts, min(m.Caches.Positions, f.Model.MaxPositions))
	f.OutputsOf = func(n plan.Numerics) plan.Outputs {
		out := steps(n)
		out.LogitRows, out.Draws, out.Caches = texts, m.Draws, caches
		return out
	}
	return f
}

// apart reports whether the texts have a plan of their own, over that of the steps (plan.Request.Over), if that
// streams weights: a loop's do, which a run writes for much of its time.
func (m SampleMemory) apart(f plan.Fitting) bool {
	return m.Round != nil && !f.Cluster.Several() && plan.CanContinue(f.Model)
}

// fitApart plans the steps, and over them the texts. Where the steps leave no host memory for these, they leave what
// one text needs.
func (m SampleMemory) fitApart(ctx context.Context, f plan.Fitting) (*plan.Plan, error) {
	steps, err := m.fitSteps(ctx, f)
	if err != nil {
		return nil, err
	}
	f.ProgramBytes += m.Bytes
	texts, err := m.over(ctx, f, steps, m.Caches.Sequences)
	if err != nil && ctx.Err() == nil {
		without := f
		without.HostBytes = 0
		if one, errOne := m.over(ctx, without, steps, 1); errOne == nil {
			f.SamplerBytes = steps.WithSampler(one, f.Device).SamplerBytes()
			if steps, err = f.Fit(ctx); err == nil {
				texts, err = m.over(ctx, f, steps, m.Caches.Sequences)
			}
		}
	}
	if err != nil {
		return nil, m.lacks(ctx, f, err)
	}
	return steps.WithSampler(texts, f.Device), nil
}

// fitSteps plans the steps with what is held of texts, without caches.
func (m SampleMemory) fitSteps(ctx context.Context, f plan.Fitting) (*plan.Plan, error) {
	f.ProgramBytes += m.Bytes
	p, err := f.Fit(ctx)
	return p, m.lacksRows(ctx, err)
}

// over plans for texts that grow together, between the steps of a plan.
func (m SampleMemory) over(ctx context.Context, f plan.Fitting, steps *plan.Plan, texts int) (*plan.Plan, error) {
	r := f.Request
	r.Model, r.Over, r.Devices, r.Gradients = f.Model.Frozen(), steps, steps.Ranks(), plan.GradientsAuto
	r.Outputs = plan.Outputs{Draws: m.Draws}
	r.Numerics.Cohorts, r.Numerics.Exchange, r.Numerics.SequenceLen = 0, 0, m.Round.PromptPositions
	return FitTexts(ctx, plan.Fitting{Request: r, Rows: 1}, texts, min(m.Caches.Positions, f.Model.MaxPositions))
}

// lacksRows says of an error why there can be no round, whatever samples its answers.
func (m SampleMemory) lacksRows(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%s: the steps fit without the prompts and answers of a round, and with their %s they do not: %w; "+
		"or lower rl.prompts_per_step, rl.samples or rl.max_tokens", m.For, plan.FormatBytes(m.Bytes), err)
}

// lacks says of an error why there can be no samples.
func (m SampleMemory) lacks(ctx context.Context, f plan.Fitting, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if !plan.CanContinue(f.Model) {
		if m.For != "" {
			return fmt.Errorf("%s: the model has blocks that keep nothing of a text from pass to pass, so that the run cannot "+
				"sample: name a server in rl.sampler", m.For)
		}
		return errors.New("samples: the model has blocks that keep nothing of a text from pass to pass; leave " +
			"samples out, and run millrace generate on checkpoints")
	}
	if m.For != "" {
		return fmt.Errorf("%s: the steps fit without a sampler, and with the caches of a text of %s they do not: %w; or "+
			"lower rl.max_tokens, or shorten the prompts", m.For, spelling.Count(m.Caches.Positions, "position"), err)
	}
	return fmt.Errorf("samples: the steps fit without them, and with the caches of a text of %s they do not: %w; or "+
		"lower samples.max_tokens, shorten the prompts, or leave samples out",
		spelling.Count(m.Caches.Positions, "position"), err)
}
