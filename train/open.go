package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// OpenOptions add to a configuration what Open needs.
type OpenOptions struct {
	Env *session.Env // nil in package millrace: millrace.NewEnv(nil)
	// From is the path of the checkpoint that the run continues from. If it is empty, the run starts from the model's
	// weights, or from random weights with init: random.
	From string
	// LogitRows is the number of positions of each micro-batch whose logits Logits can return at once; 0: none. A
	// number larger than a micro-batch means all of its positions. Logits take 4 bytes of host memory for each position
	// and each token of the vocabulary.
	LogitRows int
	// LogProbs lets LogProbs return the log-probability of every target. They take 4 bytes a position of a step, on the
	// device and in host memory.
	LogProbs bool
	// Gradients lets Gradient return the gradient of every tensor after a step. All gradients then have a place in host
	// memory, or on disk, from one step to the next.
	Gradients bool
	// Objective is what steps train for in place of the key objective. Step and Evaluate report its losses and metrics.
	Objective objective.Objective
	// ModelConfig is the text of a config.json, for a model without a directory: it is in place of the key model, and
	// goes with init: random, and with a tokenizer of its own or bytes. The run has it in a temporary directory until
	// Close.
	ModelConfig []byte
}

// Open reads a model, plans its steps and brings its state to the planned places, as Train does for the same
// configuration. It ignores the keys that a loop decides: the number of steps, the schedule of the learning rate,
// eval.every, samples, save, stop and resume. datasets may be missing; Next then returns io.EOF.
//
// Until Close the plan limits the Go heap, as in Train, unless GOMEMLIMIT is set.
func Open(ctx context.Context, c *runfile.Config, o OpenOptions) (*Run, error) {
	switch {
	case o.Env == nil:
		return nil, session.ErrNoEnv
	case o.Env.Cluster != nil:
		return nil, blame.BadRequest(errors.New("a run that the caller steps is for one process: leave Env.Cluster " +
			"out, or call Train"))
	}
	own := *c
	r := &Run{env: o.Env, config: &own, runID: checkpoint.NewRunID()}
	err := r.open(ctx, o)
	if err != nil {
		_ = r.Close() // err is the one to report
		return nil, err
	}
	return r, nil
}

func (r *Run) open(ctx context.Context, o OpenOptions) (err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	c := r.config
	if len(o.ModelConfig) > 0 {
		if c.Model, err = r.writeConfig(o.ModelConfig); err != nil {
			return err
		}
	}
	if err := c.CheckWithoutData(); err != nil {
		return err
	}
	if o.LogitRows < 0 {
		return fmt.Errorf("LogitRows is %d: it must not be negative", o.LogitRows)
	}
	if o.From != "" {
		if r.from, err = checkpoint.Open(r.env.Files(), o.From); err != nil {
			return err
		}
	}
	if err := r.setAim(o.Objective); err != nil {
		return err
	}
	if err := r.openModel(ctx); err != nil {
		return err
	}
	if o.LogitRows > 0 && r.src.Model.Scores() {
		return errors.New("LogitRows is given, and a reward model has no logits: LogProbs returns its scores")
	}
	if r.from != nil {
		if err := r.src.CheckIsOf(r.from); err != nil {
			return err
		}
		if err := rundir.AdoptCuts(c, r.from); err != nil {
			return err
		}
		r.takeOver(r.from.Manifest)
	}
	if err := r.src.FindBase(ctx, c, r.from); err != nil {
		return err
	}
	if c.RL.Asked() {
		return errors.New("rl: the caller's loop takes the steps of this run, which samples no answers: call Train, or " +
			"leave rl out")
	}
	if len(c.Datasets) > 0 {
		if err := r.openData(ctx, 0); err != nil {
			return err
		}
		if err := r.openReference(ctx); err != nil {
			return err
		}
	}
	again, err := r.findPlace(r.from)
	if err != nil {
		return err
	}
	if !again {
		if err := r.checkSeed(); err != nil {
			return err
		}
	}
	if err := r.seek(); err != nil {
		return err
	}
	if err := r.makePlan(ctx, 0, plan.Outputs{LogitRows: o.LogitRows, LogProbs: o.LogProbs,
		Gradients: o.Gradients}, session.SampleMemory{}, r.from != nil); err != nil {
		return err
	}
	ask.IsOver = true
	if err := r.openState(ctx, func() error { return nil }); err != nil {
		return err
	}
	return r.openOldOfData(ctx, "", r.runID, r.steps)
}

// writeConfig writes the config.json of a model without a directory, and returns the directory that it has until Close.
func (r *Run) writeConfig(text []byte) (dir string, err error) {
	if c := r.config; c.Model != "" || c.Init != "random" {
		return "", fmt.Errorf("ModelConfig is given, and model is %q and init %s: leave model empty, and set init to random",
			c.Model, c.Init)
	}
	if r.ownModel, err = os.MkdirTemp("", "millrace-model-"); err != nil {
		return "", blame.NotRequest(err)
	}
	return r.ownModel, blame.NotRequest(os.WriteFile(filepath.Join(r.ownModel, "config.json"), text, 0o600))
}

// checkSeed refuses another order of the data than that of the checkpoint, where the run continues in the middle of
// them.
func (r *Run) checkSeed() error {
	if r.loader == nil || r.from == nil {
		return nil
	}
	c, was := r.config, r.from.Manifest.Mathematics["seed"]
	if was == "" || was == rundir.SeedSetting(c) {
		return nil
	}
	return fmt.Errorf("seed is %d, and %s in %s: its place in the data means nothing in another order; restore the seed",
		c.Seed, was, r.from.Dir())
}

// openModel opens the model, with what belongs to it, and the devices. Without a checkpoint to continue from it makes
// sure that the weights are there.
func (r *Run) openModel(ctx context.Context) (err error) {
	c := r.config
	if r.src, err = source.OpenModel(ctx, r.env, c.Model); err != nil {
		return err
	}
	if of := r.aim.objective; of != nil && of.Needs().Scores {
		err = r.src.EndInScore(c.Tokenizer)
	} else {
		err = source.CheckScores(r.src.Model, c.Model, c.Objective.Type)
	}
	if err != nil {
		return err
	}
	if of := r.aim.objective; of != nil && of.Needs().Values { // that of the options, too
		if r.src.Model, err = r.src.Model.WithValues(); err != nil {
			return err
		}
	}
	if err := r.src.Configure(c); err != nil {
		return err
	}
	if err := r.src.CheckSidecars(); err != nil {
		return err
	}
	if r.dev, err = r.env.OpenDevices(string(c.Device)); err != nil {
		return err
	}
	if r.from == nil && c.Init == "pretrained" {
		if err := r.src.CheckWeights(ctx); err != nil {
			return err
		}
	}
	return r.carry(ctx)
}

// carry finds the tensors that the run carries. A model that begins at random may have no weights, and then carries
// nothing.
func (r *Run) carry(ctx context.Context) error {
	if r.from != nil {
		return r.src.CarryAs(ctx, r.env, r.from)
	}
	err := r.src.Carry(ctx, r.env)
	if r.config.Init == "random" && errors.Is(blame.BadRequest(err), blame.ErrRequest) { // it is the model's
		r.src.Carried = source.Carried{}
		r.env.Note("nothing is carried to the export: %s", console.OneLine(err))
		err = nil
	}
	return err
}

// openData reads, tokenizes and packs the data sets, those to evaluate on first. The training data end after a number
// of epochs; 0: never. All that the order of the data takes for the whole run is reserved before the run is planned.
func (r *Run) openData(ctx context.Context, epochs int) error {
	c := r.config
	source.ShareReading(r.env, c.Memory.Host.N)
	reader, err := r.src.OpenReader(c)
	if err != nil {
		return err
	}
	if of := r.aim.objective; of != nil {
		reader.Check = r.checkTypes
		if c.RL.Asked() {
			reader.Check = nil // the run file was checked
		}
		reader.InTwos = of.Needs().Mismatched
	}
	if r.data, r.held, err = source.PrepareRun(ctx, r.env, c, reader); err != nil {
		return err
	}
	if r.from == nil && !c.RL.Asked() { // a run that has begun continues
		if err := r.data.CheckEnds(); err != nil {
			return err
		}
	}
	r.rendering, r.tokenizing = templateUse(r.data.Sources(), reader.Renderer, c.ChatTemplate),
		source.TokenizerNote(reader.Tokenizer)
	if r.src.Hands, err = r.src.HandOver(c, reader, r.data); err != nil {
		return err
	}
	if err := r.src.CheckSidecars(); err != nil {
		return err
	}
	if r.endsNote, err = r.src.EndsNote(); err != nil {
		return err
	}
	if r.held != nil { // first, since it gives back what only packing needs
		if err := r.openEvalSets(); err != nil {
			return err
		}
	}
	if c.RL.Asked() {
		return r.openRounds(ctx, &reader)
	}
	r.loader, err = data.NewLoader(r.data, r.loading(epochs))
	return err
}

// findPlace finds the place in the data where a checkpoint is, nil for the beginning of a run. The data begin again
// where they, or how they are cut, are not the checkpoint's: again reports that. Without data sets the run keeps the
// place for its own checkpoints.
func (r *Run) findPlace(from *checkpoint.Checkpoint) (again bool, err error) {
	var at dataPlace
	if from != nil {
		if err := json.Unmarshal(from.Manifest.Data, &at); err != nil {
			return false, blame.NotRequest(fmt.Errorf("resume: %s: %w", from.Dir(), err)) // its checksum is right: a run wrote this
		}
	}
	if r.data == nil {
		r.at, r.src.Hands = at, at.Handover
		return false, nil
	}
	r.at = dataPlace{Cursor: at.Cursor, Since: at.Since, Fingerprint: r.data.Fingerprint(), Sources: r.data.SourceSums()}
	r.src.Hands.With(at.Handover)
	r.at.Handover = r.src.Hands
	r.at.Held = r.heldFingerprint()
	r.otherHeld = at.Held != "" && at.Held != r.at.Held
	if again = from != nil && restarts(r.config, from.Manifest, at, r.at.Fingerprint); again {
		r.at.Cursor, r.at.Since = data.Cursor{}, from.Manifest.Step
	}
	if r.rounds != nil {
		r.rounds.place = rl.Place{}
		if at.Loop != nil {
			r.rounds.place = *at.Loop
		}
		if again {
			r.rounds.place = r.rounds.place.Again()
		}
		r.at.Loop = &r.rounds.place
	}
	return again, nil
}

// seek has the loader continue from the run's place in the data.
func (r *Run) seek() error {
	if r.loader == nil {
		return nil
	}
	if err := r.loader.Seek(r.at.Cursor); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}

// makePlan plans the run for a number of steps, 0 if it is not known. begun is plan.Request.Begun.
func (r *Run) makePlan(ctx context.Context, steps int, also plan.Outputs, samples session.SampleMemory,
	begun bool) (err error) {
	if also.Objective = r.aim.objective != nil; also.Objective {
		also.TopK, also.Entropies = r.aim.objective.Needs().TopK, r.aim.objective.Needs().Entropies
	}
	also.LogProbs = also.LogProbs || also.Objective && (r.evaluates() || r.aim.objective.Needs().OldOfStart) ||
		r.rounds != nil && !r.config.RL.Sampler.IsOwn() // to compare the server's
	r.plan, err = r.env.MakePlan(ctx, r.config, r.src.Model, r.src.ExportType(), steps, also, samples, begun, false,
		r.dev.Info(), len(r.dev.Computes))
	return err
}

// takeOver continues the counts of a checkpoint.
func (r *Run) takeOver(m *checkpoint.Manifest) {
	r.steps, r.skipped, r.untargeted = m.Step, int(m.SkippedUpdates), int(m.UntargetedSteps)
	if m.Run != "" {
		r.runID = m.Run
	}
}

// openState reserves everything that steps take, and fills the state: from the checkpoint that the run continues from,
// from the model, or at random. check runs in between.
func (r *Run) openState(ctx context.Context, check func() error) (err error) {
	c := r.config
	r.session, err = r.env.OpenSession(ctx, r.plan, r.dev, session.SessionOptions{StateDirs: c.Budgets().Path,
		Objective: r.aim.objective,
		Fill: func(ctx context.Context, s *session.Session) error {
			r.session = s
			if err := check(); err != nil {
				return err
			}
			if r.from != nil {
				if err := source.ReadConstants(s, r.src); err != nil {
					return err
				}
				return s.Resume(ctx, r.from)
			}
			return source.Fill(ctx, s, r.src, c.Init, c.Seed)
		}})
	if err != nil {
		r.session = nil // OpenSession has closed it
	}
	return err
}
