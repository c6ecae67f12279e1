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
	"github.com/millrace/millrace/train/rundir"
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
	warned  bool               // that the server's log-probabilities are far from the trainer's
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
	m.Bytes += r.rounds.loop.HeldBytes()
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
		l.Sampler = &generate.Own{Session: r.session.Texts, Tokenizer: r.rounds.tok,
			Positions: min(c.SequenceLen, r.src.Model.MaxPositions)}
	} else {
		probe, err := l.Prompts.Short()
		if err != nil {
			return err
		}
		s, err := r.ServerSampler(ctx, probe, func(h server.Handover) {
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
		data.Options{Tokenizer: s.tok, Vocab: r.src.Model.Vocab, Accounts: r.env.Accounts})
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
		waiting, end := r.env.UntilStopped(ctx) // it has an engine of its own
		defer end()
		s.said, err = s.reference.Open(waiting, filepath.Join(s.loop.Dir, rl.ReferenceName(m.Round)), s.data.Parts()[0])
		if err != nil && waiting.Err() != nil {
			err = context.Cause(waiting)
		}
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
	if err := s.openOld(ctx, r, m); err != nil {
		return err
	}
	if s.place.Taken > 0 {
		s.figures = nil
		return s.loader.Seek(s.place.Rows)
	}
	if s.steps > r.config.RL.Iterations && !s.noted {
		s.noted = true
		why := fmt.Sprintf("round %d takes %s, since batch_tokens (%d) have no room for all of its answers at once", m.Round,
			spelling.Count(s.steps, "step"), r.config.BatchTokens)
		if needs := r.aim.objective.Needs(); !needs.Old && !needs.Sampler {
			r.env.Warn("%s: those after the first take answers of an older model for the model's own (objective.old: now); "+
				"raise batch_tokens, or leave objective.old out", why)
		} else {
			r.env.Note("%s", why)
		}
	}
	return nil
}

// openOld evaluates what the model makes of a round before its first update with it, or finds that in the output
// directory, if the objective asks for it. A round of one step needs none: its first step is the only one.
func (s *rounds) openOld(ctx context.Context, r *Run, m *rl.Manifest) error {
	if r.aim.old != nil { // of the round before
		err := r.aim.old.Close()
		if r.aim.old = nil; err != nil {
			return err
		}
	}
	if s.steps == 1 {
		return nil
	}
	weights := fmt.Sprintf("%s before round %d, after step %d", m.Run, m.Round, m.Step)
	return r.openOld(ctx, s.data, filepath.Join(r.config.OutputDir, rundir.OldName), weights, s.place.Taken > 0)
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
	t.warnOfServer(m.Objective)
	m.Objective["planned_bytes"] = float64(t.summary.PlannedBytes)
	s := &t.summary
	s.RolloutBytes = max(s.RolloutBytes, int64(figures["rollout_resident_bytes"]))
	if now, err := hostmem.RSS(); err == nil {
		m.Objective["train_resident_bytes"] = float64(now)
		s.TrainBytes = max(s.TrainBytes, now)
	}
}

// grossDifference is a mean difference of log-probabilities, in nats, that neither rounding nor weights in 4 bits make.
const grossDifference = 0.5

// warnOfServer warns once of a server whose log-probabilities of a round are far from the trainer's, where both are of
// the whole distribution as it is. The first step of a round compares all of them.
func (t *trainer) warnOfServer(of map[string]float64) {
	s, p := t.rounds, &t.config.RL
	if d := of["sampling/sampling_logp_difference/mean"]; d > grossDifference && s.served != nil && !s.warned &&
		p.Temperature == 1 && p.TopP == 1 && p.TopK == 0 {
		s.warned = true
		t.env.Warn("%s: its log-probabilities of a round are %.3g nats from the trainer's on average: it has old weights, "+
			"or another model; look at its log", s.served.Name(), d)
	}
}
