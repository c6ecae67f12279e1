package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/reference"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rl/reward"
	"github.com/millrace/millrace/train/rl/server"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// rounds is the loop of reinforcement learning of a run. It has the data of its steps: the answers of one round after
// the other.
type rounds struct {
	loop  *rl.Loop
	tok   tokenizer.Tokenizer
	place rl.Place // after the latest step

	reference *reference.Rounds // that the objective compares with; nil: with none

	served *Served // by which server answers are sampled; nil: the run samples

	// The round that steps are taken of; loader is nil between rounds.
	end     data.Cursor // of its prompts
	data    *data.Dataset
	loader  *data.Loader
	steps   int                // of the round
	said    *reference.Set     // what the reference says of its answers
	figures map[string]float64 // for the record of its next step
	noted   bool               // that a round takes several steps
}

// openRounds opens the loop of a run file that has one. The prompts are the run's data.
func (r *Run) openRounds(ctx context.Context, reader *source.Reader) error {
	c := r.config
	positions := min(c.SequenceLen, r.src.Model.MaxPositions)
	prompts, err := rl.OpenPrompts(r.data, positions, c.Seed, r.env.Accounts)
	if err != nil {
		return err
	}
	loop := &rl.Loop{Env: r.env, FS: r.env.Files(), Dir: filepath.Join(c.OutputDir, rl.Dir), Config: c.RL, Seed: c.Seed,
		Positions: positions,
		Prompts:   prompts, Reached: r.env.Tests.Reached,
		Decode: func(ids []int32, skipSpecial bool) string { return reader.Tokenizer.Decode(ids, skipSpecial) }}
	r.rounds = &rounds{loop: loop, tok: reader.Tokenizer}
	if n := prompts.LeftOut(); n > 0 {
		r.env.Note("%s left out, which leave no room for an answer in sequence_len (%d)", spelling.Count(n, "prompt"),
			positions)
	}
	loop.EndsOfText, loop.EndsOfMessages, err = generate.AnswerEnds(ctx, r.src, reader, c)
	if err != nil {
		return err
	}
	longest := min(prompts.Longest()+c.RL.MaxTokens, positions)
	share := c.BatchTokens / c.SequenceLen / max(int(c.Numerics.Groups), 1)
	if room := share * (c.SequenceLen / longest); room < c.RL.Samples {
		return fmt.Errorf("batch_tokens is %d: a group of %d answers (rl.samples) of up to %d tokens may not fit into a "+
			"step, or into a share of it (numerics.groups): raise it to %d, or lower rl.max_tokens", c.BatchTokens, c.RL.Samples,
			longest,
			c.SequenceLen*max(int(c.Numerics.Groups), 1)*ceilDiv(c.RL.Samples, c.SequenceLen/longest))
	}
	return nil
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// answersMemory returns what sampling takes of a run's memory, with the round to predict.
func (r *Run) answersMemory() session.SampleMemory {
	if r.rounds == nil {
		return session.SampleMemory{}
	}
	m := generate.AnswersMemory(r.config, r.rounds.loop.Prompts.Longest(), r.src.Model.MaxPositions)
	if most := r.env.Tests.Answers; most > 0 {
		m.Caches.Sequences = min(m.Caches.Sequences, most)
	}
	return m
}

// startRounds starts what samples and what judges, once the run has its state. ids are those whose files of rounds are
// the run's, and settings identify its numbers up to here.
func (r *Run) startRounds(ctx context.Context, ids []string, settings string) error {
	l, c := r.rounds.loop, r.config
	l.Runs, l.Settings = ids, settings
	if c.RL.Sampler.IsOwn() {
		l.Sampler = &generate.Own{Session: r.session, Tokenizer: r.rounds.tok,
			Positions: min(c.SequenceLen, r.src.Model.MaxPositions)}
	} else {
		s, err := r.ServerSampler(ctx, nil, func(h server.Handover) {
			r.env.Note("weights %d: %s", h.Version, h.Checked())
		})
		if err != nil {
			return err
		}
		l.Sampler, r.rounds.served = s, s
	}
	n, err := c.Types()
	if err != nil {
		return err
	}
	n.SequenceLen = c.SequenceLen
	models, err := reference.OpenScorers(ctx, r.env, r.dev, c.RL.Reward, n, c.RL.PromptsPerStep*c.RL.Samples)
	if err != nil {
		return err
	}
	l.Panel, err = reward.Open(ctx, c.RL.Reward, reward.Options{MaxTokens: c.RL.MaxTokens, Model: models.Score})
	return err
}

// ready makes sure that there is a round to take the next step of.
func (s *rounds) ready(ctx context.Context, r *Run) error {
	if s.loader != nil {
		return nil
	}
	m, err := s.loop.Round(ctx, s.place, r.steps-s.place.Taken)
	if err != nil {
		return err
	}
	path := filepath.Join(s.loop.Dir, rl.RowsName(m.Round))
	s.data, err = data.Prepare(ctx, []data.Source{{Path: path, Type: data.Rollouts}},
		data.Options{Tokenizer: s.tok, Accounts: r.env.Accounts})
	if err != nil {
		return blame.NotRequest(err)
	}
	if s.place.Taken == 0 {
		if err := r.checkRollouts(s.data); err != nil {
			return err
		}
	}
	figures := maps.Clone(m.Figures)
	if s.reference != nil {
		began := time.Now()
		s.said, err = s.reference.Open(ctx, filepath.Join(s.loop.Dir, rl.ReferenceName(m.Round)), s.data.Parts()[0])
		if err != nil {
			return fmt.Errorf("round %d: %w", m.Round, err)
		}
		if r.aim.reference = s.said; figures == nil { // the manifest has none
			figures = map[string]float64{}
		}
		figures["reference_sec"] = time.Since(began).Seconds()
	}
	if s.loader, err = data.NewLoader(s.data, r.loading(r.config.RL.Iterations)); err != nil {
		return fmt.Errorf("round %d: %w", m.Round, err)
	}
	s.end, s.steps, s.figures = m.End, s.loader.Steps(), figures
	if s.place.Taken > 0 {
		s.figures = nil
		return s.loader.Seek(s.place.Rows)
	}
	if s.steps > r.config.RL.Iterations && !s.noted {
		s.noted = true
		r.env.Note("round %d takes %s, since batch_tokens (%d) have no room for all of its answers at once: those after the "+
			"first are of answers that an older model gave; raise batch_tokens, or set objective.old to sampler", m.Round,
			spelling.Count(s.steps, "step"), r.config.BatchTokens)
	}
	return nil
}

// took counts a step on the latest batch, after which the round's file continues at a cursor.
func (s *rounds) took(rows data.Cursor) error {
	s.figures = nil
	if s.place = s.place.After(rows, s.steps, s.end); s.place.Taken > 0 {
		return nil
	}
	return s.closeRound()
}

// closeRound gives back the memory of the round.
func (s *rounds) closeRound() (err error) {
	if s.loader != nil {
		err = s.loader.Close()
	}
	if s.data != nil {
		err = errors.Join(err, s.data.Close())
	}
	if s.said != nil {
		err = errors.Join(err, s.said.Close())
	}
	s.loader, s.data, s.said = nil, nil, nil
	return err
}

// closeRounds ends the judges, and gives back the memory of the loop.
func (r *Run) closeRounds() error {
	if r.rounds == nil {
		return nil
	}
	if p := r.rounds.loop.Panel; p != nil {
		p.Close()
	}
	err := errors.Join(r.rounds.closeRound(), r.rounds.loop.Prompts.Close())
	if s := r.rounds.served; s != nil {
		err = errors.Join(err, s.Close())
	}
	r.rounds = nil
	return err
}

// beginRounds starts the loop of a run that has one: it is the trainer's, which knows the run and its settings.
func (t *trainer) beginRounds(ctx context.Context) error {
	if t.rounds == nil {
		return nil
	}
	ids := []string{string(t.home.ID.Run)}
	if t.from != nil {
		ids = append(ids, string(t.from.Manifest.Run))
	}
	settings := t.mathematics()
	settings["history"] = fmt.Sprint(t.history)
	return t.startRounds(ctx, ids, settingsSum(settings))
}

// sampled notes what a round took that was sampled before this step, and returns what the step's record has of it; nil:
// the step is not the first one of a round.
func (t *trainer) sampled() map[string]float64 {
	if t.rounds == nil {
		return nil
	}
	t.leaveOut()
	figures := t.rounds.figures
	t.summary.RolloutSec += figures["rollout_sec"] + figures["score_sec"] + figures["reference_sec"]
	return figures
}

// recordRound completes the record of the first step of a round: with figures of its sampling, and the process's memory
// in each phase next to what is planned for both.
func (t *trainer) recordRound(m *trace.Metrics, figures map[string]float64) {
	if figures == nil || m.Objective == nil {
		return
	}
	maps.Copy(m.Objective, figures)
	m.Objective["train_sec"] = m.StepSec
	m.Objective["planned_bytes"] = float64(t.summary.PlannedBytes)
	s := &t.summary
	s.RolloutBytes = max(s.RolloutBytes, int64(figures["rollout_resident_bytes"]))
	if now, err := hostmem.RSS(); err == nil {
		m.Objective["train_resident_bytes"] = float64(now)
		s.TrainBytes = max(s.TrainBytes, now)
	}
}
