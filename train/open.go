package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
)

// Run is a model in training, for a loop that the caller writes. One goroutine may use it.
//
// Next and Batch make batches. Step trains on one, Eval and Logits compute with one, Save writes a checkpoint, and
// Export writes a Hugging Face directory. For anything else the Session has the engine and the store.
type Run struct {
	*Session
	config *runfile.Config
	src    *source
	dev    *Devices

	data   *data.Dataset // nil: the configuration names none
	loader *data.Loader
	at     place // in the data, after the latest batch that a step was taken on
	batch  stream.Batch
	after  data.Cursor // of batch

	id             checkpoint.RunID // that of the checkpoint that it continues from
	steps, skipped int
	bad            int64 // number of weights that became infinite or NaN
}

// OpenOptions are what Open needs in addition to a configuration.
type OpenOptions struct {
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
}

// Open reads a model, plans its steps and brings its state to the planned places, as Train does for the same
// configuration. It ignores the keys that a loop decides: the number of steps, the schedule of the learning rate, eval,
// save, stop and resume. datasets may be missing; Next then returns io.EOF.
//
// Until Close the plan limits the Go heap, as in Train, unless GOMEMLIMIT is set.
func Open(ctx context.Context, c *runfile.Config, env *Env, o OpenOptions) (*Run, error) {
	own := *c
	r := &Run{config: &own, id: checkpoint.NewRunID()}
	err := r.open(ctx, env, o)
	if err != nil {
		_ = r.Close() // err is the one to report
		return nil, err
	}
	return r, nil
}

func (r *Run) open(ctx context.Context, env *Env, o OpenOptions) (err error) {
	var ask blame.Asking
	defer ask.Judge(&err)
	c := r.config
	if err := c.CheckWithoutData(); err != nil {
		return err
	}
	if o.LogitRows < 0 {
		return fmt.Errorf("LogitRows is %d: it must not be negative", o.LogitRows)
	}
	if r.src, err = openModel(ctx, env, c.Model); err != nil {
		return err
	}
	if err := r.src.group(c.TensorGroups()); err != nil {
		return err
	}
	if err := r.src.checkSidecars(); err != nil {
		return err
	}
	var from *checkpoint.Checkpoint
	if o.From != "" {
		if from, err = r.continueFrom(ctx, env, o.From); err != nil {
			return err
		}
	} else if c.Init == "pretrained" {
		if err := r.src.checkWeights(); err != nil {
			return err
		}
		if err := r.src.carry(ctx, env); err != nil {
			return err
		}
	}
	if err := r.src.findBase(ctx, c, from); err != nil {
		return err
	}
	if r.dev, err = env.OpenDevices(c.Device); err != nil {
		return err
	}
	if len(c.Datasets) > 0 {
		if err := r.openData(ctx, env, from); err != nil {
			return err
		}
	}
	p, err := env.makePlan(ctx, c, r.src.model, r.src.exportType(), 0,
		plan.Outputs{LogitRows: o.LogitRows, LogProbs: o.LogProbs}, from != nil, r.dev.Computes.Info())
	if err != nil {
		return err
	}
	ask.IsOver = true
	fill := func(s *Session) error {
		if from != nil {
			return s.resume(ctx, from)
		}
		return s.fill(ctx, r.src, c.Init, c.Seed)
	}
	r.Session, err = env.OpenSession(ctx, p, r.dev, SessionOptions{StateDir: c.Budgets().Path, Fill: fill})
	return err
}

// continueFrom opens the checkpoint that the run continues from, and takes over its place in the data and its sizes.
func (r *Run) continueFrom(ctx context.Context, env *Env, dir string) (*checkpoint.Checkpoint, error) {
	from, err := checkpoint.Open(env.files(), dir)
	if err != nil {
		return nil, err
	}
	if err := r.src.carryAs(ctx, env, from); err != nil {
		return nil, err
	}
	if err := r.src.checkIsOf(from); err != nil {
		return nil, err
	}
	m := from.Manifest
	if err := adoptCuts(r.config, from); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(m.Data, &r.at); err != nil {
		return nil, blame.NotRequest(fmt.Errorf("%s: %w", dir, err)) // its checksum is right: a run wrote this
	}
	if m.Run != "" {
		r.id = m.Run
	}
	r.steps, r.skipped = m.Step, int(m.SkippedUpdates+m.UntargetedSteps)
	return from, nil
}

// openData reads and tokenizes the data sets, and moves to the checkpoint's place if that is of the same data.
func (r *Run) openData(ctx context.Context, env *Env, from *checkpoint.Checkpoint) error {
	c := r.config
	reader, err := r.src.openReader(c)
	if err != nil {
		return err
	}
	if r.data, err = env.prepare(ctx, "the training data", c.Datasets, reader); err != nil {
		return err
	}
	r.loader, err = data.NewLoader(r.data, loaderOptions(c, env, 0))
	if err != nil {
		return err
	}
	if from == nil || restarts(c, from.Manifest, r.at, r.data.Fingerprint()) {
		r.at = place{Fingerprint: r.data.Fingerprint(), Sources: r.data.SourceSums()}
		return nil
	}
	if was := from.Manifest.Mathematics["seed"]; was != "" && was != seedSetting(c) {
		return fmt.Errorf("seed is %d, and %s in %s: its place in the data means nothing in another order; restore the seed",
			c.Seed, was, from.Dir())
	}
	return r.loader.Seek(r.at.Cursor)
}

// Plan returns the plan: the place and the size of everything, and the predicted time of a step.
func (r *Run) Plan() *plan.Plan { return r.plan }

// Model returns the model: its tensors, shapes and parts.
func (r *Run) Model() *model.Model { return r.plan.Model }

// Steps returns the number of steps since the model's own weights, also those before [OpenOptions.From] was saved.
func (r *Run) Steps() int { return r.steps }

// Tokenizer opens the tokenizer that the configuration names.
func (r *Run) Tokenizer() (tokenizer.Tokenizer, error) {
	return r.src.openTokenizer(r.config.Tokenizer)
}

// errClosed is the error of a run that is used after Close.
var errClosed = errors.New("the run is closed")

func (r *Run) isClosed() bool { return r.Engine == nil }

// Next returns the next batch of the data sets, packed and in the order of a training run. After the last document they
// begin again in another order. The next call overwrites the batch. Without data sets the error is io.EOF.
//
// A run that continues from a checkpoint has the batches again that were not stepped on before it was saved, beginning
// with the first one after the latest that was.
func (r *Run) Next(ctx context.Context) (*stream.Batch, error) {
	switch {
	case r.isClosed():
		return nil, errClosed
	case r.loader == nil:
		return nil, io.EOF
	}
	r.batch = stream.Batch{} // it shares memory with the next one
	if err := r.loader.Next(ctx, r.rows); err != nil {
		return nil, err
	}
	r.batch, r.after = *batchOf(r.rows), r.loader.Cursor()
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
// transformers; labels that are [data.Ignore] do not count in the loss.
func (r *Run) Batch(examples ...data.Example) (*stream.Batch, error) {
	n := r.plan.Numerics
	if rows := n.MicroBatches * n.MicroBatch; len(examples) > rows || len(examples) == 0 {
		return nil, fmt.Errorf("%d examples: a step has %d rows; give 1 to %[2]d examples", len(examples), rows)
	}
	examples = slices.Clone(examples)
	for len(examples) < n.MicroBatches*n.MicroBatch {
		examples = append(examples, data.Example{InputIDs: []int32{0}, Labels: []int32{data.Ignore}})
	}
	return unpacked(examples, n)
}

// Update returns an update with a learning rate, and with the configuration's settings of AdamW and clipping. The
// caller may change it before Step.
func (r *Run) Update(learningRate float64) stream.Update {
	return stream.Update{LR: learningRate, AdamW: r.config.AdamW(), MaxGradNorm: r.config.MaxGradNorm,
		Groups: r.config.GroupRates(learningRate)}
}

// Step trains on a batch. It sets the update's Step and Idle. The update happens during the next call, so a result
// counts the weights that became infinite or NaN in the update before it ([stream.Result.BadWeights]).
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
	u.Step, u.Idle = r.steps+1, r.skipped
	res, err := r.Engine.Step(ctx, b, u)
	if err != nil {
		return res, fmt.Errorf("step %d: %w", r.steps+1, err)
	}
	if r.isNext(b) {
		r.at.Cursor = r.after
	}
	r.steps++
	r.bad += res.BadWeights
	if res.Skipped {
		r.skipped++
	}
	return res, nil
}

// Eval returns the mean loss of a batch in nats, after the updates of all steps. It does not train.
func (r *Run) Eval(ctx context.Context, b *stream.Batch) (loss float64, err error) {
	switch {
	case r.isClosed():
		return 0, errClosed
	case b.Targets == 0:
		return 0, errors.New("no position of the batch counts in the loss")
	}
	sum, err := r.Engine.Eval(ctx, b)
	return sum / float64(b.Targets), err
}

// Logits returns the logits of OpenOptions.LogitRows positions of each micro-batch, beginning with position first,
// after the updates of all steps. For each micro-batch there is one slice: a row for each position, with a logit for
// each token of the vocabulary. They are valid until the next call.
func (r *Run) Logits(ctx context.Context, b *stream.Batch, first int) ([][]float32, error) {
	if r.isClosed() {
		return nil, errClosed
	}
	return r.Engine.Logits(ctx, b, first)
}

// LogProbs returns, for each micro-batch, the log-probability of each position's target after the updates of all steps,
// in nats; 0 where there is no target. They are valid until the next call of any method.
func (r *Run) LogProbs(ctx context.Context, b *stream.Batch) ([][]float32, error) {
	if r.isClosed() {
		return nil, errClosed
	}
	return r.Engine.LogProbs(ctx, b)
}

// Tensor returns the exact fp32 values of a tensor after the updates of all steps, row by row. The name is that of
// Hugging Face, as [model.Model.Tensors] lists it.
func (r *Run) Tensor(ctx context.Context, name string) ([]float32, error) {
	if err := r.flush(ctx); err != nil {
		return nil, err
	}
	view := stream.Viewer(r.plan, r.Store)
	return r.plan.Model.ReadTensor(name, func(part int) (model.Values, error) { return view(ctx, part) })
}

// flush carries out the updates of all steps, and writes all of the state back to the store.
func (r *Run) flush(ctx context.Context) error {
	if r.isClosed() {
		return errClosed
	}
	bad, err := r.Engine.Flush(ctx)
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
	m, err := r.manifest(r.src)
	if err != nil {
		return "", err
	}
	m.Updates, m.SkippedUpdates = int64(r.steps-r.skipped), int64(r.skipped)
	m.Mathematics = sizeSettings(r.config)
	if r.loader != nil {
		m.Mathematics["seed"] = seedSetting(r.config)
	}
	if m.Data, err = json.Marshal(r.at); err != nil {
		return "", err
	}
	to, err := checkpoint.Acquire(r.env.files(), dir, checkpoint.Owner{Run: r.id})
	if err != nil {
		return "", err
	}
	defer to.Close()
	w, err := r.createCheckpoint(to, r.steps, r.src)
	if err != nil {
		return "", err
	}
	for spec := range r.state() {
		failed, err := r.copyExtent(ctx, w, dir, spec, r.Store.Version(spec.ID))
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
	view := stream.Viewer(r.plan, r.Store)
	return r.env.writeModel(ctx, r.src, dir, r.src.exportType(), nil, hf.WriteOptions{},
		func(part int) (model.Values, error) { return view(ctx, part) })
}

// Close releases everything. State that was not saved is lost. Methods that return an error return one from then on.
func (r *Run) Close() error {
	var err error
	if r.Session != nil {
		err = r.Session.Close()
	}
	if r.loader != nil {
		err = errors.Join(err, r.loader.Close())
	}
	if r.data != nil {
		err = errors.Join(err, r.data.Close())
	}
	if r.dev != nil {
		err = errors.Join(err, r.dev.Close())
	}
	r.loader, r.data, r.dev, r.batch = nil, nil, nil, stream.Batch{}
	return err
}
