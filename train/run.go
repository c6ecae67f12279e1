package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// Run is a model in training, for a loop that the caller writes. One goroutine may use it. [Train] is such a loop.
//
// Next and Batch make batches. Step trains on one, Eval and Logits compute with one. Evaluate computes the loss over
// the data sets of the key eval. Tensor and SetTensor read and write weights, and Gradient reads what Gradients
// computed. Save writes a checkpoint, and Export writes a Hugging Face directory.
type Run struct {
	env      *session.Env
	config   *runfile.Config // the run's own: sizes that are auto are decided here
	src      *source.Source
	ownModel string // the directory of a model that has none, until Close; empty: it has one
	dev      *session.Devices
	plan     *plan.Plan
	session  *session.Session // its state and engine; nil before they are open, and after Close

	from       *checkpoint.Checkpoint // that the run continues from; nil: it starts from the model
	data       *data.Dataset          // nil: the configuration names none
	held       *data.Dataset          // to evaluate on; nil: none
	otherHeld  bool                   // the checkpoint was evaluated on other data
	endsNote   string                 // on tokens that end trained texts; empty where the model knows them
	rendering  string                 // whether pairs have the chat template, in a line; empty where that is no question
	tokenizing string                 // whether other programs make other tokens of the texts, in a line; or ""
	loader     *data.Loader
	rounds     *rounds   // of a loop of reinforcement learning, in place of loader; nil: the run has none
	eval       evalSets  // of held
	at         dataPlace // in the data, after the latest batch that a step was taken on
	aim        aim
	batch      stream.Batch // the latest of Next
	after      data.Cursor  // of batch

	runID      checkpoint.RunID // that of the checkpoint that it continues from
	steps      int              // done, since the model's own weights
	skipped    int              // of them, whose gradient norm was not finite
	untargeted int              // of them, in which no token counted in the loss
	updated    stream.Update    // of the latest step; Step 0: it updated nothing, or this process did no step
	bad        int64            // number of weights that became infinite or NaN

	gradients func(context.Context) model.Fields // those of the latest batch; nil: the store has none
}

// Plan returns the plan: the place and the size of everything, and the predicted time of a step.
func (r *Run) Plan() *plan.Plan { return r.plan }

// Model returns the model: its tensors, shapes and parts.
func (r *Run) Model() *model.Model { return r.plan.Model }

// Steps returns the number of steps since the model's own weights, also those before [OpenOptions.From] was saved.
func (r *Run) Steps() int { return r.steps }

// Tokenizer opens the tokenizer that the configuration names.
func (r *Run) Tokenizer() (tokenizer.Tokenizer, error) {
	return r.src.OpenTokenizer(r.config.Tokenizer)
}

// errClosed is the error of a run that is used after Close.
var errClosed = errors.New("the run is closed")

// computes fails if the run is closed. The next computation carries out a pending update, after which the gradients are
// gone.
func (r *Run) computes() error {
	if r.isClosed() {
		return errClosed
	}
	r.gradients = nil
	return nil
}

func (r *Run) isClosed() bool { return r.session == nil || r.session.Engine == nil }

// Next returns the next batch of the data sets, packed and in the order of a training run. After the last document they
// begin again in another order. The next call overwrites the batch. Without data sets the error is io.EOF.
//
// A run that continues from a checkpoint has the batches again that were not stepped on before it was saved, beginning
// with the first one after the latest that was.
func (r *Run) Next(ctx context.Context) (*stream.Batch, error) {
	switch {
	case r.isClosed():
		return nil, errClosed
	case r.loader == nil && r.rounds == nil:
		return nil, io.EOF
	}
	r.batch = stream.Batch{} // it shares memory with the next one
	loader, of := r.loader, r.data
	if r.rounds != nil {
		if err := r.rounds.ready(ctx, r); err != nil {
			return nil, err
		}
		loader, of = r.rounds.loader, r.rounds.data
	}
	if err := loader.Next(ctx, r.session.Rows); err != nil {
		return nil, err
	}
	b := session.BatchOf(r.session.Rows)
	if r.aim.objective != nil {
		var err error
		if b.Documents, err = r.compared(loader.Documents(), of, 0); err != nil {
			return nil, err
		}
	}
	r.batch, r.after = *b, loader.Cursor()
	return &r.batch, nil
}

// isNext reports whether a batch has the tokens of the one that Next has returned: it is that one, or a copy.
func (r *Run) isNext(b *stream.Batch) bool {
	return len(b.Micro) > 0 && slices.EqualFunc(b.Micro, r.batch.Micro, func(x, y batch.Micro) bool {
		return slices.Equal(x.IDs, y.IDs)
	})
}

// Batch makes a batch of examples, one in each row. There may be as many as a step has rows (batch_tokens /
// sequence_len), of at most sequence_len tokens each. A label is at the position of its own token, not shifted, as in
// transformers; labels that are [data.Ignore] do not count in the loss. Where the objective compares pairs, examples
// follow each other in pairs, the chosen one first, and the caller gives Documents of the batch their Reference, or
// their TopIDs and TopLogProbs, or their Rollout, if the objective needs them. A reward model reads all tokens, and no
// labels.
func (r *Run) Batch(examples ...data.Example) (*stream.Batch, error) {
	n := r.plan.Whole
	if rows := n.MicroBatches * n.MicroBatch; len(examples) > rows || len(examples) == 0 {
		return nil, fmt.Errorf("%d examples: a step has %d rows; give 1 to %[2]d examples", len(examples), rows)
	}
	documents, err := r.documentsOf(examples)
	if err != nil {
		return nil, err
	}
	examples = slices.Clone(examples)
	for len(examples) < n.MicroBatches*n.MicroBatch {
		examples = append(examples, data.Example{InputIDs: []int32{0}, Labels: []int32{data.Ignore}})
	}
	b, err := session.Unpacked(examples, n)
	if err != nil {
		return nil, err
	}
	b.Documents = documents
	if at := r.scoreAt(); at != nil {
		b.Targets = len(documents)
		for _, d := range documents {
			data.SetScore(b.Micro[d.Micro], d.First, d.Length, at)
		}
	}
	return b, nil
}

// Update returns an update with a learning rate, and with the configuration's settings of AdamW and clipping. The
// caller may change it before Step.
func (r *Run) Update(learningRate float64) stream.Update {
	return stream.Update{LR: learningRate, AdamW: r.config.AdamW(), MaxGradNorm: r.config.MaxGradNorm,
		Groups: r.config.GroupRates(learningRate)}
}

// Step trains on a batch. It sets the update's Step, Idle and Seed. The update happens during the next call, so a
// result counts the weights that became infinite or NaN in the update before it ([stream.Result.BadWeights]).
//
// A step whose gradient norm is not finite changes no weights (Skipped); without clipping, the error is
// [stream.ErrNotFinite]. After an error, except one that refuses the batch or the update, the run can only be closed.
func (r *Run) Step(ctx context.Context, b *stream.Batch, u stream.Update) (stream.Result, error) {
	switch {
	case r.isClosed():
		return stream.Result{}, errClosed
	case !(u.LR >= 0) || math.IsInf(u.LR, 0):
		return stream.Result{}, fmt.Errorf("the learning rate is %v: it must be finite and not negative", u.LR)
	case !(u.MaxGradNorm >= 0) || math.IsInf(u.MaxGradNorm, 0):
		return stream.Result{}, fmt.Errorf("MaxGradNorm is %v: it must be finite and not negative; 0 does not clip",
			u.MaxGradNorm)
	case b.Targets == 0:
		return stream.Result{}, errors.New("no position of the batch counts in the loss")
	case u.MaxGradNorm != 0 && r.plan.Outputs.NoClip:
		return stream.Result{}, errors.New("max_grad_norm is 0 in the configuration, by which the plan was made: " +
			"a step cannot clip")
	}
	if err := u.AdamW.Check(); err != nil {
		return stream.Result{}, err
	}
	for i, rates := range u.Groups {
		if err := rates.Check(); err != nil {
			return stream.Result{}, fmt.Errorf("Groups[%d]: %w", i, err)
		}
	}
	u.Step, u.Idle, u.Seed = r.steps+1, r.idle(), r.config.Seed
	res, err := r.session.Engine.Step(ctx, b, u)
	if err != nil {
		return res, fmt.Errorf("step %d: %w", r.steps+1, err)
	}
	if err := r.took(b); err != nil {
		return res, err
	}
	r.bad, r.gradients = r.bad+res.BadWeights, stream.GradFields(r.plan, r.session.Store)
	if r.updated = u; res.Skipped {
		r.updated = stream.Update{}
		r.skipped++
	}
	return res, nil
}

// idle returns the number of steps that updated nothing. AdamW's bias correction does not count them.
func (r *Run) idle() int { return r.skipped + r.untargeted }

// took counts a step on a batch.
func (r *Run) took(b *stream.Batch) (err error) {
	switch {
	case r.isNext(b) && r.rounds != nil:
		err = r.rounds.took(r.after)
		r.at.Loop = &r.rounds.place
	case r.isNext(b):
		r.at.Cursor = r.after
	}
	r.steps++
	return err
}

// pass counts a step on a batch in which no position counts in the loss. It changes nothing.
func (r *Run) pass(b *stream.Batch) error {
	r.untargeted++
	r.updated = stream.Update{}
	return r.took(b)
}

// Eval returns the mean loss of a batch in nats, after the updates of all steps. It does not train.
func (r *Run) Eval(ctx context.Context, b *stream.Batch) (loss float64, err error) {
	if err := r.computes(); err != nil {
		return 0, err
	}
	if b.Targets == 0 {
		return 0, errors.New("no position of the batch counts in the loss")
	}
	if r.Model().Scores() {
		return 0, errors.New("a reward model has no loss of positions: LogProbs returns its scores, and Evaluate the " +
			"objective's loss")
	}
	sum, err := r.session.Engine.Eval(ctx, b)
	return sum / float64(b.Targets), err
}

// Evaluate returns the mean loss over the data sets of the key eval, or over the part of the data that val_size holds
// out, after the updates of all steps, and that of each set that has a label. It does not train. The latest batch of
// Next is used up: the evaluation has its memory. Without such data the error is io.EOF.
func (r *Run) Evaluate(ctx context.Context) (session.Loss, error) {
	if err := r.computes(); err != nil {
		return session.Loss{}, err
	}
	if !r.evaluates() {
		return session.Loss{}, io.EOF
	}
	r.batch = stream.Batch{}
	return r.evaluate(ctx, "the held-out data")
}

// Logits returns the logits of OpenOptions.LogitRows positions of each micro-batch, beginning with position first,
// after the updates of all steps. For each micro-batch there is one slice: a row for each position, with a logit for
// each token of the vocabulary. They are valid until the next call.
func (r *Run) Logits(ctx context.Context, b *stream.Batch, first int) ([][]float32, error) {
	if err := r.computes(); err != nil {
		return nil, err
	}
	return r.session.Engine.Logits(ctx, b, first)
}

// LogProbs returns, for each micro-batch, the log-probability of each position's target after the updates of all steps,
// in nats, or of a reward model the score; 0 where there is no target. They are valid until the next call of any
// method.
func (r *Run) LogProbs(ctx context.Context, b *stream.Batch) ([][]float32, error) {
	if err := r.computes(); err != nil {
		return nil, err
	}
	return r.session.Engine.LogProbs(ctx, b)
}

// flush carries out the updates of all steps, and writes all of the state back to the store.
func (r *Run) flush(ctx context.Context) error {
	if err := r.computes(); err != nil {
		return err
	}
	bad, err := r.session.Engine.Flush(ctx)
	r.bad += bad
	return err
}

// flushFinite is flush before the state is written. Weights that are not finite are an error.
func (r *Run) flushFinite(ctx context.Context) error {
	if err := r.flush(ctx); err != nil {
		return err
	}
	if r.bad > 0 {
		return fmt.Errorf("%d weights are infinite or NaN and are not written; lower the learning rate", r.bad)
	}
	return nil
}

// Save writes a checkpoint of all state after the latest step to a new directory in dir, and returns its path. Batches
// that Next returned since that step count as not taken. The checkpoint appears as a whole, and replaces one of the
// same step and run; one of another run is an error: a run that begins from the model saves to a directory of its
// own. [OpenOptions.From], [Export] and package checkpoint read it. Weights that are not finite are an error.
func (r *Run) Save(ctx context.Context, dir string) (path string, err error) {
	if err := r.flushFinite(ctx); err != nil {
		return "", err
	}
	m, err := r.manifest()
	if err != nil {
		return "", err
	}
	m.Mathematics = rundir.SizeSettings(r.config)
	if r.loader != nil {
		m.Mathematics["seed"] = rundir.SeedSetting(r.config)
	}
	to, err := checkpoint.Acquire(r.env.Files(), dir, checkpoint.Owner{Run: r.runID})
	if err != nil {
		return "", err
	}
	defer to.Close()
	w, err := r.createCheckpoint(to)
	if err != nil {
		return "", err
	}
	for spec := range r.session.State() {
		failed, err := r.session.CopyExtent(ctx, w, spec, r.session.Store.Version(spec.ID))
		if err = errors.Join(failed, err); err != nil {
			w.Abort()
			return "", err
		}
	}
	if path, err = w.Commit(m); err != nil {
		w.Abort()
	}
	return path, err
}

// Export writes the model after the latest step as a Hugging Face directory, which must not exist. The number format is
// that of the original model if it is F32 or BF16, and BF16 if it is another one. Weights that are not finite are an
// error.
func (r *Run) Export(ctx context.Context, dir string) error {
	if err := r.flushFinite(ctx); err != nil {
		return err
	}
	return export.Write(ctx, r.env, r.src, dir, export.FormatOf(r.src), nil, hf.WriteOptions{},
		stream.Viewer(r.plan, r.session.Store))
}

// Close releases everything. State that was not saved is lost. Methods that return an error return one from then on.
func (r *Run) Close() error {
	var err error
	if r.session != nil {
		err = r.session.Close()
	}
	if r.loader != nil {
		err = errors.Join(err, r.loader.Close())
	}
	err = errors.Join(err, r.closeRounds(), r.closeEvalSets(), r.closeAim())
	if r.held != nil {
		err = errors.Join(err, r.held.Close())
	}
	if r.data != nil {
		err = errors.Join(err, r.data.Close())
	}
	if r.dev != nil {
		err = errors.Join(err, r.dev.Close())
	}
	if r.ownModel != "" {
		err = errors.Join(err, os.RemoveAll(r.ownModel))
	}
	r.session, r.loader, r.held, r.data, r.dev, r.batch = nil, nil, nil, nil, nil, stream.Batch{}
	return err
}

// checkpointSpecs are the extents of a checkpoint, of all hosts.
func (r *Run) checkpointSpecs() []checkpoint.Spec {
	var extents []store.Spec
	for part := range r.plan.Model.Parts {
		extents = append(extents, r.plan.StateExtents(part)...)
	}
	return checkpoint.Specs(r.plan.Model, extents, r.plan.Whole.Scheme().Forms())
}

// createCheckpoint begins the checkpoint of the latest step, and attaches the config.json of its model.
func (r *Run) createCheckpoint(to *checkpoint.Directory) (*checkpoint.Writer, error) {
	w, err := to.Create(r.steps, r.checkpointSpecs())
	if err != nil {
		return nil, err
	}
	if err := w.Attach(checkpoint.ConfigName, r.src.Config.Raw()); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// manifest describes the state after the latest step: the model, the device that computed, and what the steps came to.
func (r *Run) manifest() (m checkpoint.Manifest, err error) {
	m = checkpoint.Manifest{Model: checkpoint.Identify(r.plan.Model, r.src.Config.Raw(), r.src.Carried.SHA256),
		Base: r.src.Base, ComputedOn: r.plan.ComputedOn, MomentCodes: r.plan.Whole.Moments.Codes(),
		Algorithms: r.session.Algorithms(),
		Updates:    int64(r.steps - r.idle()), SkippedUpdates: int64(r.skipped), UntargetedSteps: int64(r.untargeted)}
	if m.Numerics, err = json.Marshal(r.plan.Whole); err != nil {
		return m, err
	}
	m.Data, err = json.Marshal(r.at)
	return m, err
}
