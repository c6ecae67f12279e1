package train

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// way has the numbers of a run whose settings have changed after a step: those of an undisturbed run that has gone the
// same way. It saves each step, evaluates as the disturbed one does, and is started once for each change of the
// settings.
type way struct {
	before *way // nil: from the beginning
	after  int  // the step after which the settings are those of this way
	key    string
	config runfile.Config
	err    error // of the undisturbed start

	end     int // its last step
	model   map[string]string
	best    int // the step of model-best; 0: it has no such model
	records map[int]trace.Metrics
	sums    map[int]map[checkpoint.ID][]checkpoint.Sum
	tensors map[int]map[string]uint64 // their sums, of models of steps
}

// leftAlone is a configuration as an undisturbed run of the same numbers has it, in another directory.
func leftAlone(c *runfile.Config) runfile.Config {
	n := *c
	n.Memory, n.Device, n.OutputDir, n.Samples = runfile.Memory{}, runfile.Defaults().Device, "", runfile.Defaults().Samples
	n.Resume = "auto"
	n.Save = runfile.Save{Every: 1, AtEnd: true, Best: hasEval(c)}
	return n
}

// wayOn is the way of a run that has gone another one up to a step, and then has had these settings.
func (o *operator) wayOn(before *way, after int, c *runfile.Config) *way {
	o.Helper()
	n := leftAlone(c)
	if had, err := newEnv(o).Runs().ReadResolved(c.OutputDir); err == nil && had != nil &&
		had.SequenceLen == c.SequenceLen && had.BatchTokens == c.BatchTokens {
		exchange := n.Numerics.Exchange
		n.Numerics = had.Numerics
		n.Numerics.Exchange = exchange
	}
	doc, err := n.YAML()
	o.must(err)
	key := string(doc)
	for before != nil && before.after >= after {
		before = before.before
	}
	if after == 0 {
		before = nil
	}
	if before != nil && before.key == key {
		return before
	}
	for _, w := range o.ways {
		if w.before == before && w.after == after && w.key == key {
			return w
		}
	}
	w := &way{before: before, after: after, key: key, config: n, records: map[int]trace.Metrics{},
		sums: map[int]map[checkpoint.ID][]checkpoint.Sum{}, tensors: map[int]map[string]uint64{}}
	o.ways = append(o.ways, w)
	w.config.OutputDir = filepath.Join(o.TempDir(), "way")
	if before != nil {
		o.copyUpTo(before.config.OutputDir, after, w.config.OutputDir)
	}
	sum, err := Train(o.Context(), &w.config, Options{Env: patchworkEnv(o)})
	if w.err = err; err != nil {
		return w
	}
	w.end = sum.Steps
	w.model = modelFiles(o, sum.Model)
	if sum.BestModel != "" {
		w.best, _ = rundir.StepOfCard(sum.BestModel)
	}
	for _, m := range metricsOf(o.T, w.config.OutputDir) {
		w.records[int(m.Step)] = m
	}
	saved, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(&w.config))
	o.must(err)
	for _, s := range saved {
		c, err := checkpoint.Open(vfs.OS{}, s.Dir)
		o.must(err)
		w.sums[s.Step] = sumsIn(c.Manifest)
	}
	return w
}

// copyUpTo copies what a run has up to a step, as a run of its own that is to continue from there.
func (o *operator) copyUpTo(from string, step int, to string) {
	o.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		var of int
		switch n, _ := fmt.Sscanf(d.Name(), "step-%d", &of); {
		case d.IsDir() && (rel == rundir.LastModel || rel == rundir.BestModel || n == 1 && of > step):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case rel == rundir.IdentityName || d.Name() == ".lock":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, 0o644)
	})
	o.must(err)
}

// tensorsAt returns the tensors of the model after a step of the way, in the type in which its run writes its model;
// nil if the way has no such step.
func (o *operator) tensorsAt(w *way, step int) map[string]uint64 {
	o.Helper()
	from := filepath.Join(rundir.CheckpointsDir(&w.config), checkpoint.DirName(step))
	if w.err != nil || !vfs.Exists(from) {
		return nil
	}
	if w.tensors[step] == nil {
		out := filepath.Join(o.TempDir(), "model")
		_, err := export.HuggingFace(o.Context(), patchworkEnv(o), export.Options{Checkpoint: from, Model: w.config.Model,
			Dir: out})
		o.must(err)
		w.tensors[step] = tensorSums(o, out)
	}
	return w.tensors[step]
}

// tensorSums are checksums of a model's tensors with their types and shapes, by name.
func tensorSums(t testing.TB, dir string) map[string]uint64 {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	must(t, err)
	defer w.Close()
	all := map[string]uint64{}
	for _, tensorName := range w.Names() {
		for _, name := range w.Stored(tensorName) {
			info, _ := w.Info(name)
			b := make([]byte, info.Bytes)
			must(t, w.ReadAt(name, b, 0))
			all[name] = xxh3.Hash(fmt.Append(b, info.Type, info.Shape))
		}
	}
	return all
}

// isOfAWay reports whether a model is that of a step of any way that a run of this trial has gone.
func (o *operator) isOfAWay(dir string, step int) bool {
	o.Helper()
	got := tensorSums(o, dir)
	return slices.ContainsFunc(o.ways, func(w *way) bool {
		want := o.tensorsAt(w, step)
		return want != nil && maps.Equal(got, want)
	})
}

// sameRecords compares what metrics.jsonl says of the steps with what the way has. A run that has ended has that many
// steps; 0: it has not.
func (o *operator) sameRecords(l *life, steps int) {
	o.Helper()
	ended := steps > 0
	if !vfs.Exists(filepath.Join(l.config.OutputDir, rundir.MetricsName)) {
		if ended {
			o.Error("there is no metrics.jsonl")
		}
		return
	}
	last, n := int64(-1), 0
	for _, m := range metricsOf(o.T, l.config.OutputDir) {
		if m.Step <= last {
			o.Errorf("metrics.jsonl has step %d after step %d", m.Step, last)
		}
		last = m.Step
		want, has := l.way.records[int(m.Step)]
		if !has {
			o.Errorf("metrics.jsonl has step %d, which the run left alone has not", m.Step)
			continue
		}
		if m.Step > 0 {
			n++
		}
		for _, x := range []struct {
			what      string
			got, want any
		}{
			{"loss", bitsOf(&m.Loss), bitsOf(&want.Loss)}, {"norm", bitsOf(&m.GradNorm), bitsOf(&want.GradNorm)},
			{"clipping", bitsOf(&m.ClipScale), bitsOf(&want.ClipScale)}, {"rate", bitsOf(&m.LearningRate), bitsOf(&want.LearningRate)},
			{"targets", m.TargetTokens, want.TargetTokens}, {"tokens", m.Tokens, want.Tokens},
			{"auxiliary loss", bitsOf(m.AuxLoss), bitsOf(want.AuxLoss)}, {"eval loss", bitsOf(m.EvalLoss), bitsOf(want.EvalLoss)},
		} {
			isLate := x.what == "eval loss" && m.EvalLoss == nil && !ended // it was stopped in the evaluation
			if x.got != x.want && !isLate {
				o.Errorf("the %s of step %d is %v, want %v", x.what, m.Step, x.got, x.want)
			}
		}
	}
	if n < steps && !l.lostRecords {
		o.Errorf("metrics.jsonl has %d steps of %d", n, steps)
	}
}

// bitsOf is a number that compares as its bits do.
func bitsOf(x *float64) string {
	if x == nil {
		return "none"
	}
	return fmt.Sprintf("%v (%x)", *x, math.Float64bits(*x))
}

// same checks that a checkpoint has the bits of its step.
func (o *operator) same(w *way, dir string) {
	o.Helper()
	c, err := checkpoint.Open(vfs.OS{}, dir)
	o.must(err)
	if w == nil || !reflect.DeepEqual(sumsIn(c.Manifest), w.sums[c.Manifest.Step]) {
		o.Errorf("%s is not what step %d was", dir, c.Manifest.Step)
	}
}

// rightResults checks the models of a run that has come to the end of a start with status 0 after a step, which may be
// before its last one.
func (o *operator) rightResults(l *life, sum *Summary, h *saying, early bool) {
	o.Helper()
	w := l.way
	if w.err != nil {
		o.Errorf("the run has ended, and the one that was left alone has the error: %v", w.err)
		return
	}
	if sum.Steps != w.end && !early && h.over == nil {
		o.Errorf("the run has ended after step %d, and the one that was left alone after %d", sum.Steps, w.end)
		return
	}
	if step, ok := rundir.StepOfCard(sum.Model); !ok || step != sum.Steps {
		o.Errorf("the card of %s is of step %d, and the run has done %d", sum.Model, step, sum.Steps)
	}
	if sum.Steps == w.end {
		if model := modelFiles(o, sum.Model); !maps.Equal(model, w.model) {
			o.Errorf("%s is another model than that of the run that was left alone", sum.Model)
		}
	} else if !maps.Equal(tensorSums(o, sum.Model), o.tensorsAt(w, sum.Steps)) {
		o.Errorf("%s is another model than that of step %d", sum.Model, sum.Steps)
	}
	frozenBytes(o.T, &l.config, sum.Model)
	best := filepath.Join(l.config.OutputDir, rundir.BestModel)
	if !l.config.Save.Best {
		return
	}
	wantBest := w.best
	if h.over != nil {
		wantBest = h.over.best
	}
	if !vfs.Exists(best) {
		if wantBest > 0 && l.keepsBest && !early {
			o.Errorf("there is no %s, and the one of the run that was left alone is of step %d", rundir.BestModel, wantBest)
		} else if wantBest > 0 && !early && !h.hasSaid("is not here") && !h.hasSaid("no checkpoint of a best evaluation") {
			o.Errorf("there is no %s, and no line says so", rundir.BestModel)
		}
		return
	}
	step, ok := rundir.StepOfCard(best)
	switch {
	case !ok || !maps.Equal(tensorSums(o, best), o.tensorsAt(w, step)):
		if !h.hasSaid("stays") { // of an earlier end, and a line says so
			o.Errorf("%s is another model than that of step %d, of which it says it is", best, step)
		}
	case h.over != nil && step == w.best: // the run had ended, and stays as it was, also where other data are held out now
	case l.keepsBest && !early && step != wantBest:
		o.Errorf("%s is of step %d, and that of the run that was left alone of step %d", best, step, wantBest)
	case w.records[step].EvalLoss == nil && !early:
		o.Errorf("%s is of step %d, after which there was no evaluation", best, step)
	}
	frozenBytes(o.T, &l.config, best)
}

// knownResults checks that each result is a model of the step that its card says.
func (o *operator) knownResults(l *life) {
	o.Helper()
	for _, name := range []string{rundir.LastModel, rundir.BestModel} {
		dir := filepath.Join(l.config.OutputDir, name)
		if !vfs.Exists(dir) || !vfs.Exists(filepath.Join(dir, "config.json")) ||
			!vfs.Exists(filepath.Join(dir, "model.safetensors")) {
			continue
		}
		if step, ok := rundir.StepOfCard(dir); !ok || !o.isOfAWay(dir, step) {
			o.Errorf("%s is of no step %d", dir, step)
		}
	}
}
