package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/vfs"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
)

// saver keeps the checkpoints of a run.
type saver struct {
	dir   *checkpoint.Directory
	specs map[store.ID]store.Spec
	best  *checkpoint.Best

	// A save that goes on: its state is handed over by the next schedule.
	writer   *checkpoint.Writer
	manifest checkpoint.Manifest
	stall    time.Duration // time that steps waited for commits
	written  int64         // bytes that ended saves have written
}

// open takes hold of the run's checkpoints, once.
func (s *saver) open(c *Config) (err error) {
	if s.dir == nil {
		s.dir, err = checkpoint.Acquire(vfs.OS{}, checkpointsDir(c))
	}
	return Request(err)
}

func (s *saver) close() {
	if s.dir != nil {
		s.dir.Close()
	}
}

// place is where a run is in its data.
type place struct {
	Cursor      data.Cursor `json:"cursor"`
	Fingerprint string      `json:"fingerprint"`
}

// checkpointsDir is where a run's checkpoints lie.
func checkpointsDir(c *Config) string { return filepath.Join(c.OutputDir, "checkpoints") }

// startSave captures what there is to say of this boundary. The state follows with the next schedule that passes it.
func (t *trainer) startSave(step int, evalLoss *float64) error {
	if t.saves.writer != nil {
		return nil // this boundary's save has been started: an evaluation may follow a due save
	}
	types := t.plan.Numerics.Scheme().Types()
	w, err := t.saves.dir.Create(step, checkpoint.Specs(t.plan.Model, t.plan.Extents(), types))
	if err != nil {
		return err
	}
	numerics, err := json.Marshal(t.plan.Numerics)
	if err != nil {
		return err
	}
	where, err := json.Marshal(place{t.loader.Cursor(), t.data.Fingerprint()})
	if err != nil {
		return err
	}
	t.saves.writer = w
	t.saves.manifest = checkpoint.Manifest{
		Updates: int64(step - t.summary.Skipped), SkippedUpdates: int64(t.summary.Skipped),
		Model:    checkpoint.Identify(t.plan.Model, t.src.config.Raw()),
		Numerics: numerics, ComputedOn: t.plan.ComputedOn, Mathematics: t.mathematics(), Data: where, EvalLoss: evalLoss, Best: t.saves.best,
	}
	t.engine.Save(t.saveExtent)
	return w.Attach("config.json", t.src.config.Raw())
}

// saveExtent takes an extent to the checkpoint: from memory by a copy, from disk by a second name for its files.
func (t *trainer) saveExtent(ctx context.Context, id store.ID, version uint64) error {
	w, to := t.saves.writer, checkpoint.IDOf(t.plan.Model, id)
	if t.plan.OnDisk(id) {
		piece := -1
		return t.disk.Files(ctx, id, func(f store.PieceFile) error {
			piece++
			if f.Path == "" { // never written: zeros
				return w.Add(to, piece, make([]byte, f.Bytes))
			}
			return w.Link(to, piece, f.Path, f.XXH3)
		})
	}
	piece := 0
	for off, n := range t.saves.specs[id].Pieces() {
		l, err := t.store.Borrow(ctx, trace.Disk, id, off, n, store.Read, version)
		if err != nil {
			return err
		}
		err = w.Add(to, piece, l.Bytes())
		l.Release()
		if err != nil {
			return err
		}
		piece++
	}
	return nil
}

// endSave makes the checkpoint appear, once its state has been handed over.
func (t *trainer) endSave() error {
	w := t.saves.writer
	if w == nil || t.engine.Saving() {
		return nil
	}
	t.saves.writer = nil
	begin := time.Now()
	if err := t.metrics.Sync(); err != nil {
		w.Abort()
		return err
	}
	dir, err := w.Commit(t.saves.manifest)
	if err != nil {
		return err
	}
	t.saves.stall += time.Since(begin)
	t.saves.written += w.Written()
	t.summary.Checkpoint = dir
	best := -1
	if t.config.Save.Best && t.saves.best != nil {
		best = t.saves.best.Step
	}
	if _, err := t.saves.dir.Prune(t.config.Save.Keep, best); err != nil {
		t.env.say("%v", err) // the run is safe; the disk fills sooner
	}
	return nil
}

// improved notes an evaluation, and reports whether it is the best so far.
func (t *trainer) improved(step int, loss float64) bool {
	if math.IsNaN(loss) || math.IsInf(loss, 0) || t.saves.best != nil && loss >= t.saves.best.EvalLoss {
		return false
	}
	t.saves.best = &checkpoint.Best{Step: step, EvalLoss: loss}
	return true
}

// mathematics are the keys of the configuration that change the numbers of a run.
func (t *trainer) mathematics() map[string]string {
	c := t.config
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	keys := map[string]string{
		"sequence_len": strconv.Itoa(c.SequenceLen), "batch_tokens": strconv.Itoa(c.BatchTokens),
		"steps": strconv.Itoa(t.rates.Steps), "learning_rate": number(c.LearningRate), "lr_scheduler": string(c.LRScheduler),
		"warmup_steps": strconv.Itoa(t.rates.WarmupSteps), "weight_decay": number(c.WeightDecay),
		"adam_betas": number(c.AdamBetas[0]) + " " + number(c.AdamBetas[1]), "adam_eps": number(c.AdamEps),
		"max_grad_norm": number(c.MaxGradNorm), "seed": strconv.FormatUint(c.Seed, 10),
		"precision": fmt.Sprintf("%s %s %s", c.Precision.Compute, c.Precision.Master, c.Precision.Moments),
		"data":      t.data.Fingerprint(),
	}
	if c.Overlong != "" && c.Overlong != string(data.SplitLong) {
		keys["overlong"] = c.Overlong
	}
	return keys
}

// findCheckpoint is the checkpoint that a run goes on from, or nil.
func findCheckpoint(c *Config, env *Env) (*checkpoint.Checkpoint, error) {
	switch c.Resume {
	case "never":
		return nil, nil
	case "auto":
		last, broken, err := checkpoint.Latest(vfs.OS{}, checkpointsDir(c))
		for _, b := range broken {
			env.say("%v", b.Err)
		}
		return last, err
	}
	last, err := checkpoint.Open(vfs.OS{}, c.Resume)
	if err != nil {
		return nil, Request(fmt.Errorf("resume: %w", err))
	}
	return last, nil
}

// resume fills the store from a checkpoint and goes to its place in the data.
func (t *trainer) resume(ctx context.Context, from *checkpoint.Checkpoint) error {
	if before, now := from.Manifest.ComputedOn, t.plan.ComputedOn; before != "" && now != before {
		t.env.say("resume: the checkpoint was computed on %s, and this run computes on %s: it goes on, with other last bits than without the change", before, now)
	}
	b := t.env.bar("resuming")
	defer b.end()
	done := int64(0)
	for _, spec := range t.plan.Extents() {
		if spec.Kind == store.Grad || spec.Kind == store.GradSum {
			continue
		}
		if err := t.restore(ctx, from, spec); err != nil {
			return err
		}
		done += spec.Bytes
		b.set(done, from.Manifest.Bytes())
	}
	return nil
}

// restore fills one extent, by a second name for the checkpoint's files where that will do.
func (t *trainer) restore(ctx context.Context, from *checkpoint.Checkpoint, spec store.Spec) error {
	id := checkpoint.IDOf(t.plan.Model, spec.ID)
	if e, ok := from.Extent(id); !ok || e.Bytes != spec.Bytes {
		return Request(fmt.Errorf("resume: %s has no %v of %d bytes; it is of another model or precision", from.Dir(), id, spec.Bytes))
	}
	if t.plan.OnDisk(spec.ID) {
		if files, ok := from.PieceFiles(id, 1); ok {
			if err := t.disk.Adopt(ctx, spec.ID, files); err == nil || ctx.Err() != nil {
				return err
			}
		}
	}
	version := t.store.Version(spec.ID)
	for off, n := range spec.Pieces() {
		l, err := t.store.Borrow(ctx, trace.Update, spec.ID, off, n, store.Write, version)
		if err != nil {
			return err
		}
		err = from.Read(id, off, l.Bytes())
		l.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// checkResume refuses a checkpoint of another model, of other data, or of a run with other mathematics, and shows the
// difference.
func (t *trainer) checkResume(p *plan.Plan, from *checkpoint.Checkpoint) (place, error) {
	var at place
	if got := checkpoint.Identify(p.Model, t.src.config.Raw()); got != from.Manifest.Model {
		return at, Request(fmt.Errorf("resume: %s is of another model; set resume: never and another output_dir, or go back to its model", from.Dir()))
	}
	if d := checkpoint.Compare(from.Manifest, t.mathematics()); len(d) > 0 {
		return at, Request(fmt.Errorf("resume: %s is of a run with other mathematics (%s); go back to its settings, or start anew in another output_dir", from.Dir(), d.Line()))
	}
	if err := json.Unmarshal(from.Manifest.Data, &at); err != nil {
		return at, fmt.Errorf("resume: %s: %w", from.Dir(), err)
	}
	return at, nil
}

// keepNumerics makes the sizes that set bits those of the checkpoint. One that run.yaml sets otherwise is an error.
func (c *Config) keepNumerics(doc json.RawMessage) error {
	var n plan.Numerics
	if err := json.Unmarshal(doc, &n); err != nil {
		return Request(fmt.Errorf("resume: the checkpoint's numerics are not those of this version of millrace (%w); go on with the version that wrote it, or start anew in another output_dir", err))
	}
	keep := func(name string, now *Auto, saved, most int) error {
		if *now > 0 && min(int(*now), most) != saved {
			return Request(fmt.Errorf("resume: numerics.%s is %d, and %d in the checkpoint; go back to that, or start anew in another output_dir", name, *now, saved))
		}
		*now = Auto(saved)
		return nil
	}
	if err := keep("micro_batch", &c.Numerics.MicroBatch, n.MicroBatch, math.MaxInt); err != nil {
		return err
	}
	if err := keep("head_chunk", &c.Numerics.HeadChunk, n.HeadChunk, n.Positions()); err != nil {
		return err
	}
	return keep("block_chunk", &c.Numerics.BlockChunk, n.BlockRows(), n.Positions())
}
