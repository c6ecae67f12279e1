package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// operator has a run, and makes moves: between its starts, while it works, and with its settings. Other runs share
// save.fallback and memory.path with it.
type operator struct {
	*testing.T
	pool     *pool
	random   *rand.Rand
	ways     []*way
	root     string // of all that runs write
	fallback string
	states   []string // directories for state on disk
	dirs     int
	ops      int            // of the longest start so far, on files
	counts   map[string]int // of what operators have done, and how starts have ended
	story    []string
}

// life is a run as its operator knows it.
type life struct {
	config runfile.Config
	good   runfile.Config // of the latest start that was not refused
	way    *way           // that it has gone; nil before it has begun
	// lostRecords is that something may have cost records of metrics, and keepsBest that nothing may have cost the best
	// checkpoint.
	lostRecords, keepsBest bool
	origin                 *way // of the checkpoint from which the run begins; nil: it begins with a model
}

// begin is the life of a run that begins in a directory.
func (l *life) begin(dir string) {
	l.config.OutputDir, l.way, l.lostRecords, l.keepsBest = dir, l.origin, false, l.origin == nil
}

// saying holds what a start has said.
type saying struct {
	resumed int // after which step; -1: it has not
	begun   bool
	over    *way // of one that was left alone, where the run had ended before, and its results are in place
	lines   []string
}

func (h *saying) hasSaid(part string) bool {
	return slices.ContainsFunc(h.lines, func(line string) bool { return strings.Contains(line, part) })
}

func (h *saying) hear(e session.Event) {
	switch e := e.(type) {
	case Resumed:
		h.resumed = e.Step
	case StepDone, Evaluated, Saved, ModelWritten, Sampled:
		h.begun = true
	}
	if line := e.String(); line != "" {
		h.lines = append(h.lines, line)
	}
}

// disturbance is a start in which something happens.
type disturbance struct {
	env    *session.Env
	files  *vfs.Faulty
	ctx    context.Context
	onStep func(trace.Metrics) error
	// taken are the files of another run that now has the output directory; nil: none has.
	taken map[string]uint64
}

// start starts a run, and finds out which way it has gone.
func (o *operator) start(l *life, run *runfile.Config, d *disturbance) (*Summary, *saying, error) {
	o.Helper()
	h := &saying{resumed: -1}
	d.env.Events = h.hear
	own := *run
	sum, err := Train(d.ctx, &own, Options{Env: d.env, OnStep: d.onStep})
	l.keepsBest = l.keepsBest && run.Save.Best
	if h.begun || err == nil {
		l.good = l.config
	}
	switch {
	case h.resumed >= 0 && err != nil && !h.begun: // it was cut off before it went any way
	case h.resumed >= 0:
		l.way = o.wayOn(l.way, h.resumed, run)
	case h.begun:
		l.way = o.wayOn(nil, 0, run)
	case err == nil && l.way == nil:
		o.Error("the run says that it has ended, and it has never begun")
	case err == nil: // it takes no step, so it stays on its way; one that was left alone would take none either
		h.over = o.wayOn(l.way, sum.Steps, run)
		if h.over.err == nil && h.over.end != sum.Steps && len(o.checkpoints(run)) == 0 {
			h.over = l.way // it has nothing to take the further steps from
		}
		if h.over.err != nil || h.over.end != sum.Steps {
			o.Errorf("the run has ended after step %d, and one that was left alone after %d, error %v", sum.Steps, h.over.end, h.over.err)
		}
	}
	return sum, h, err
}

// newDir is an output directory that is not there, with the name that all have.
func (o *operator) newDir() string {
	o.dirs++
	return filepath.Join(o.root, fmt.Sprint("project", o.dirs), "run")
}

// halfWritten are files that the next start removes, whatever comes of it. A lock says who has held it last.
var halfWritten = regexp.MustCompile(`\.tmp|\.(old|del)/`)

// snapshot returns the checksums of all files below a directory, by path.
func (o *operator) snapshot(dir string, but ...string) map[string]uint64 {
	o.Helper()
	all := map[string]uint64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case slices.Contains(but, path):
			return fs.SkipDir
		case d.IsDir() || d.Name() == ".lock" || halfWritten.MatchString(path):
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = xxh3.Hash(text)
		return err
	})
	o.must(err)
	return all
}

// copied makes copies of a run's directory, and then starts each of them. None changes what another run has.
func (o *operator) copied(l *life, n int) {
	o.Helper()
	copies := make([]life, n)
	for i := range copies {
		copies[i] = *l
		copies[i].config.OutputDir, copies[i].keepsBest = o.newDir(), false
		copyTree(o.T, l.config.OutputDir, copies[i].config.OutputDir)
	}
	for i := range copies {
		c := &copies[i]
		before := o.snapshot(o.root, c.config.OutputDir)
		sum, h, err := o.start(c, &c.config, &disturbance{env: patchworkEnv(o), ctx: o.Context()})
		if err == nil {
			o.right(c, sum, h, false)
		} else if !isRefusal(err, "already has|is whole|of 2 runs|says that the run has ended|in none of them did|is not the model") &&
			!strings.Contains(err.Error(), "there is no earlier checkpoint in that directory") {
			o.Errorf("the copy: %v", err)
		}
		o.unchanged("the copy", before, o.snapshot(o.root, c.config.OutputDir), o.ownDirs(&c.config))
		of, _ := newEnv(o).Runs().IdentityOf(c.config.OutputDir, nil)
		if first, _ := newEnv(o).Runs().IdentityOf(l.config.OutputDir, nil); of.Run == first.Run {
			o.Errorf("%s is the run that it is a copy of", c.config.OutputDir)
		}
	}
}

func (o *operator) pick(from []string) string { return from[o.random.IntN(len(from))] }

// The moves of an operator: with a run's files, with settings that must not change, and with those that may.
var (
	fileMoves = []string{"nothing", "touch", "damage", "remove", "move", "move and copy twice", "copy", "no run.json", "bad run.json",
		"foreign checkpoint", "remove results", "remove results", "remove results", "export", "from a checkpoint", "from a checkpoint"}
	wrongMoves = []string{"another model", "another rate", "another seed", "another precision", "another freezing", "without resume_with"}
	rightMoves = []string{"longer", "longer", "shorter", "shorter", "listed", "listed", "saving", "saving", "evaluation", "evaluation",
		"patience", "samples", "nothing"}
	duringStarts = []string{"nothing", "nothing", "stop", "stop anywhere", "stop anywhere", "end the context", "end the context anywhere", "cancel",
		"kill", "kill", "kill", "full", "remove", "remove checkpoints", "remove the lock", "another run", "ErrStop"}
)

// anyMove is a move between two starts.
func (o *operator) anyMove() string {
	return o.pick([][]string{fileMoves, wrongMoves, rightMoves, rightMoves}[o.random.IntN(4)])
}

// allow has the run file list keys in resume_with.
func allow(c *runfile.Config, keys ...string) {
	c.ResumeWith = slices.Clone(c.ResumeWith)
	for _, key := range keys {
		if !slices.Contains(c.ResumeWith, key) {
			c.ResumeWith = append(c.ResumeWith, key)
		}
	}
}

// change changes settings that may change, and reports whether it has.
func (o *operator) change(c *runfile.Config, how string) {
	r := o.random
	switch how {
	case "longer":
		if c.MaxSteps > 0 {
			c.MaxSteps += 1 + r.IntN(4)
			allow(c, "max_steps")
		} else {
			c.Epochs *= 1.5
			allow(c, "epochs")
		}
	case "shorter":
		if c.MaxSteps > 0 {
			c.MaxSteps = 1 + r.IntN(c.MaxSteps)
			allow(c, "max_steps")
		} else {
			c.Epochs /= 1.5
			allow(c, "epochs")
		}
	case "listed":
		switch key := []string{"learning_rate", "lr_scheduler", "weight_decay", "max_grad_norm", "warmup_steps", "batch_tokens", "datasets",
			"train_on_prompt", "overlong", "max_steps", "adam_betas", "router_aux_loss_coef"}[r.IntN(12)]; key {
		case "learning_rate":
			c.LearningRate *= 0.5 + r.Float64()
			allow(c, key)
		case "lr_scheduler":
			c.LRScheduler, c.MinRate = []optim.Shape{optim.Linear, optim.Cosine, optim.WSD}[r.IntN(3)], float64(r.IntN(2))*1e-4
			allow(c, key, "min_learning_rate")
		case "weight_decay":
			c.WeightDecay = r.Float64()
			allow(c, key)
		case "max_grad_norm":
			c.MaxGradNorm = []float64{0, 0.2, 1}[r.IntN(3)]
			allow(c, key)
		case "warmup_steps":
			c.WarmupSteps = r.IntN(4)
			allow(c, key)
		case "batch_tokens":
			c.BatchTokens *= 2
			allow(c, key)
		case "datasets":
			c.Datasets = o.pool.sources[c.Datasets[0].Type][:1]
			c.Datasets = []data.Source{c.Datasets[0]}
			c.Datasets[0].MaxSamples = 3 + r.IntN(6)
			allow(c, key)
		case "train_on_prompt":
			c.TrainOnPrompt = !c.TrainOnPrompt
			allow(c, key)
		case "overlong":
			c.Overlong = []string{"split", "truncate"}[r.IntN(2)]
			allow(c, key)
		case "max_steps": // from epochs, or to them
			if c.MaxSteps > 0 {
				c.MaxSteps, c.Epochs = 0, 1
			} else {
				c.MaxSteps, c.Epochs = 3+r.IntN(4), 0
			}
			allow(c, key, "epochs")
		case "adam_betas":
			c.AdamBetas[0] = 0.8
			allow(c, key)
		case "router_aux_loss_coef":
			c.RouterAuxLossCoef = float64(r.IntN(2)) * 0.02
			allow(c, key)
		}
	case "saving":
		c.Save = o.anySaving(c)
	case "evaluation":
		switch {
		case c.ValSize > 0 || r.IntN(2) == 0 && len(c.Eval.Datasets) > 0:
			if c.Eval.Every = r.IntN(4); c.Eval.Every == 0 {
				c.Stop.Patience = 0
			}
		case len(c.Eval.Datasets) > 0 && r.IntN(2) == 0:
			held := o.pool.held
			held.MaxSamples = 1 // the first of two documents: a better loss on these is no better loss
			c.Eval.Datasets = []data.Source{held}
		case len(c.Eval.Datasets) > 0:
			c.Eval, c.Stop.Patience, c.Save.Best = runfile.Eval{}, 0, false
		default:
			c.Eval = runfile.Eval{Datasets: []data.Source{o.pool.held}, Every: r.IntN(3)}
		}
	case "patience":
		if hasEval(c) && c.Eval.Every > 0 {
			c.Stop.Patience = r.IntN(4)
		}
	case "samples":
		if c.ChatTemplate == "auto" {
			c.Samples = someSamples(1 + r.IntN(3))
			c.Samples.MaxTokens = 2
		}
	}
}

// anySaving says at random when a run saves, and what it keeps.
func (o *operator) anySaving(c *runfile.Config) runfile.Save {
	r := o.random
	s := runfile.Save{Every: r.IntN(4), Keep: r.IntN(4), AtEnd: r.IntN(2) == 0, Best: hasEval(c) && r.IntN(2) == 0}
	if r.IntN(3) > 0 {
		s.Fallback = o.fallback
	}
	return s
}

// startDisturbed makes a move, starts the run, does something while it works, and checks what came of it. It reports
// whether the run has ended.
func (o *operator) startDisturbed(l *life, between, during string, at place) (ended bool) {
	has := o.checkpoints(&l.config)
	id, _ := newEnv(o).Runs().ReadIdentity(l.config.OutputDir)
	isThere := id != nil && id.Begun || id == nil && vfs.Exists(filepath.Join(l.config.OutputDir, rundir.IdentityName))
	if !isThere && !slices.Contains(rightMoves, between) {
		between = "nothing" // there is no run yet
	}
	if _, err := os.Stat(filepath.Join(l.config.OutputDir, rundir.ResolvedName)); err != nil && len(has) == 0 &&
		slices.Contains(wrongMoves, between) {
		between = "nothing" // a run that was killed before it wrote its run file may become any other
	}
	if slices.Contains(rightMoves, between) {
		if o.missesEvaluation(l, has) {
			between = "nothing" // with other settings the run need not make up for it, as one that was left alone has done
		}
		o.change(&l.config, between)
		has = o.checkpoints(&l.config) // without save.fallback those there are not found
	}
	run := l.config
	refused := "" // what a refusal has to say; empty: a start must not be refused
	isWrong := slices.Contains(wrongMoves, between)
	undo := func() {}
	switch between {
	case "touch":
		for path := range o.snapshot(run.OutputDir) {
			at := time.Unix(int64(o.random.IntN(1<<31)), 0)
			o.must(os.Chtimes(path, at, at))
		}
	case "another model":
		if isWrong = run.Init != "random"; isWrong {
			run.Model, refused = o.pool.anotherModel(o.T, run.Model), "other weights|already has|tensors that the run carries have changed"
		}
	case "another rate":
		run.LearningRate, refused = 3.3e-3, "learning_rate was|already has"
		run.ResumeWith = slices.DeleteFunc(slices.Clone(run.ResumeWith), func(key string) bool { return key == "learning_rate" })
	case "another seed":
		run.Seed, refused = run.Seed+1, "seed was|already has"
	case "another precision":
		run.Precision.Moments = map[string]string{"f32": "8bit", "8bit": "8+4", "8+4": "4bit",
			"4bit": "f32"}[run.Precision.Moments]
		refused = "precision was|already has"
	case "another freezing":
		if refused = "groups was|train_only was|already has"; len(run.Groups)+len(run.TrainOnly) > 0 {
			run.Groups, run.TrainOnly = nil, nil
		} else if o.random.IntN(2) == 0 {
			run.TrainOnly = []string{"*.0.*"}
		} else {
			run.Groups = []optim.Group{{Match: "*embed*", Freeze: true}, {Match: "*wte*", Freeze: true}}
			if o.random.IntN(2) == 0 {
				run.Groups = []optim.Group{{Match: "*norm*", Freeze: true}}
			}
		}
	case "without resume_with":
		run.ResumeWith, refused, isWrong = nil, " was |resume_with", false
	case "damage":
		if len(has) > 0 {
			found, err := filepath.Glob(filepath.Join(has[0], "*.weights*"))
			o.must(err)
			damage(o.T, has[0], filepath.Base(found[o.random.IntN(len(found))]))
			has, l.keepsBest = has[1:], false
			refused = "is whole" // where it was the last one
		}
	case "remove":
		o.must(os.RemoveAll(run.OutputDir))
		has = nil
		l.begin(run.OutputDir)
	case "move", "move and copy twice":
		to := o.newDir()
		mkdir(o.T, filepath.Dir(to))
		o.must(os.Rename(run.OutputDir, to))
		l.config.OutputDir, run.OutputDir = to, to
		if between == "move and copy twice" {
			o.copied(l, 2)
		}
	case "copy":
		o.copied(l, 1)
	case "no run.json", "bad run.json":
		name := filepath.Join(run.OutputDir, rundir.IdentityName)
		if between == "no run.json" {
			o.must(os.RemoveAll(name))
		} else {
			write(o.T, name, "{")
		}
		// Checkpoints in save.fallback are then of another run.
		has = slices.DeleteFunc(has, func(dir string) bool { return !strings.HasPrefix(dir, run.OutputDir) })
		refused, l.keepsBest = "already has|of 2 runs|says that the run has ended", false
	case "foreign checkpoint":
		step := checkpoint.DirName(1 + o.random.IntN(4))
		if to := filepath.Join(rundir.CheckpointsDir(&run), step); !vfs.Exists(to) {
			copyTree(o.T, filepath.Join(o.pool.other, rundir.CheckpointsName, step), to)
			undo = func() { o.must(os.RemoveAll(to)) }
			refused, l.keepsBest = "already has checkpoints|of 2 runs", false // where nothing was saved, or run.json is damaged
		}
	case "remove results":
		for _, name := range [][]string{{rundir.LastModel}, {rundir.BestModel}, {rundir.LastModel, rundir.BestModel},
			{rundir.LastModel + "/model.safetensors"},
			{rundir.BestModel + "/config.json"}}[o.random.IntN(5)] {
			o.must(os.RemoveAll(filepath.Join(run.OutputDir, name)))
		}
	case "export":
		if len(has) > 0 {
			o.exported(l, has[0])
		}
	case "from a checkpoint": // another run begins with it, and continues from there
		if len(has) > 0 {
			l.origin, l.config.Resume = l.way, has[o.random.IntN(len(has))]
			l.begin(o.newDir())
			run, has = l.config, nil
		}
	}
	defer undo()
	o.counts["between: "+between]++
	if at.isTight {
		refused = strings.TrimPrefix(refused+"|memory", "|")
	}

	own := o.ownDirs(&run)
	before, mine := o.snapshot(o.root, append(own, run.OutputDir)...), o.snapshot(run.OutputDir)
	run.Memory = at.memory
	if run.MaxGradNorm == 0 { // a move may have made it that; gradients are then not computed twice
		run.Memory.Gradients = ""
	}
	if run.Memory.Path = o.states[:max(at.drives, 1)]; at.isHere {
		run.Memory.Path = nil
	}
	d := o.disturb(l, &run, during, at)
	sum, h, err := o.start(l, &run, d)
	o.ops = max(o.ops, d.files.Ops())
	o.counts["during: "+during]++
	o.counts["place: "+at.name]++
	if slices.Contains([]string{"full", "remove", "remove checkpoints", "remove the lock", "another run"}, during) {
		l.lostRecords, l.keepsBest = true, false
	}
	if l.origin != nil {
		l.lostRecords = true // those of the first run are elsewhere
	}
	own = append(own, o.ownDirs(&run)...)
	if during != "another run" {
		o.unchanged(between+", then "+during, before, o.snapshot(o.root, append(own, run.OutputDir)...), own)
	}
	what := fmt.Sprintf("%s with %d checkpoints: %s, then %s", at, len(has), between, during)
	o.story = append(o.story, fmt.Sprintf("%s: steps %d epochs %g best %v every %d keep %d at_end %v eval %d patience %d resume_with %v: "+
		"resumed %d, %+v, %v", what, run.MaxSteps, run.Epochs, run.Save.Best, run.Save.Every, run.Save.Keep, run.Save.AtEnd, run.Eval.Every, run.Stop.Patience,
		run.ResumeWith, h.resumed, shortly(sum), err))
	var isTaken *rundir.TakenError
	switch {
	case err != nil && strings.Contains(err.Error(), "\n") && !errors.Is(err, context.Canceled): // for which the program has a line
		o.Errorf("%s: not one line: %v", what, err)
	case d.taken != nil && errors.As(err, &isTaken):
		o.unchanged("the run that has lost its directory", d.taken, o.snapshot(run.OutputDir), nil)
		l.begin(o.newDir())
		o.counts["taken"]++
		return false
	case err == nil && d.taken == nil:
		if isWrong {
			o.Errorf("%s: the run was not refused", between)
		}
		early := during == "ErrStop" && h.hasSaid("as the program asks")
		o.right(l, sum, h, early)
		o.counts["ended"]++
		if !early && !o.Failed() && o.random.IntN(3) == 0 {
			o.nothingToDo(l, &run, at)
		}
		return !early
	case len(has) == 0 && strings.Contains(err.Error(), "there is no earlier checkpoint in that directory"):
		if now := o.snapshot(run.OutputDir); !maps.Equal(now, mine) && during != "kill" {
			o.Errorf("%s: a start without a whole checkpoint has changed the directory: %v", between, err)
		}
		o.counts["refused"]++
		o.must(os.RemoveAll(run.OutputDir)) // start again
		l.begin(run.OutputDir)
		return false
	case errors.Is(err, blame.ErrRequest):
		if refused == "" || !isRefusal(err, refused) {
			from := 0
			if len(has) > 0 {
				fmt.Sscanf(filepath.Base(has[0]), "step-%d", &from)
			}
			if w := o.wayOn(l.way, from, &run); w.err == nil || !errors.Is(w.err, blame.ErrRequest) {
				o.Errorf("%s: refused: %v", what, err)
			} else {
				o.counts["refused, as the run that was left alone"]++
				dir := l.config.OutputDir
				l.config = l.good
				l.config.OutputDir = dir
			}
		}
		if now := o.snapshot(run.OutputDir); !maps.Equal(now, mine) && !h.begun && h.resumed < 0 {
			o.Errorf("%s: a refused start has changed the directory: %v", between, err)
		}
		o.counts["refused"]++
		isMixed := strings.Contains(err.Error(), "of 2 runs") && between != "foreign checkpoint"
		if isMixed || !isWrong && len(has) == 0 && !strings.Contains(err.Error(), "memory") { // start again
			o.must(os.RemoveAll(run.OutputDir))
			l.begin(run.OutputDir)
		}
		return false
	case during == "nothing" || strings.HasPrefix(during, "remove") && !at.isHere:
		o.Errorf("%s: %v", what, err)
	}
	o.counts["ended early"]++
	left := o.checkpoints(&run)
	if len(left) == 0 && len(has) > 0 && during != "another run" && between != "another model" {
		o.Errorf("%s: the run had %v, and has nothing: %v", what, has, err)
	}
	for _, dir := range left {
		o.same(l.way, dir)
	}
	if d.taken == nil && l.way != nil && l.way.err == nil {
		o.sameRecords(l, 0)
		o.knownResults(l)
	}
	return false
}

// missesEvaluation reports whether the run was stopped in the evaluation of its newest checkpoint.
func (o *operator) missesEvaluation(l *life, has []string) bool {
	o.Helper()
	if l.way == nil || len(has) == 0 {
		return false
	}
	from, err := checkpoint.Open(vfs.OS{}, has[0])
	o.must(err)
	return from.Manifest.EvalLoss == nil && l.way.records[from.Manifest.Step].EvalLoss != nil
}

// shortly says what a summary has of a run's end.
func shortly(s *Summary) string {
	if s == nil {
		return "no summary"
	}
	return fmt.Sprintf("%d steps, since %d, %q, %q", s.Steps, s.ResumedAfter, filepath.Base(s.Model), filepath.Base(s.BestModel))
}

// right checks what a run has left after a start that ended with status 0. Early is that a program ended it.
func (o *operator) right(l *life, sum *Summary, h *saying, early bool) {
	o.Helper()
	if o.Failed() {
		return
	}
	o.rightResults(l, sum, h, early)
	if l.way.err != nil {
		return
	}
	o.sameRecords(l, sum.Steps)
	if sum.Checkpoint != "" {
		o.same(l.way, sum.Checkpoint)
	}
	for _, dir := range o.checkpoints(&l.config) {
		o.same(l.way, dir)
	}
	if len(l.config.Samples.Prompts) > 0 && vfs.Exists(filepath.Join(l.config.OutputDir, rundir.SamplesName)) {
		seen := map[string]bool{}
		for _, s := range samplesOf(o.T, l.config.OutputDir) {
			if key := fmt.Sprint(s.Step, " ", s.Number); seen[key] {
				o.Errorf("samples.jsonl has sample %s twice", key)
			} else {
				seen[key] = true
			}
		}
	}
}

// nothingToDo starts a run again that has ended: that says so, and writes nothing.
func (o *operator) nothingToDo(l *life, run *runfile.Config, at place) {
	o.Helper()
	before := o.snapshot(o.root)
	_, h, err := o.start(l, run, &disturbance{env: at.env(o), ctx: o.Context()})
	if err != nil || !h.hasSaid("this run has ended") {
		o.Errorf("a run that has ended was started again: %v; it says\n%s", err, strings.Join(h.lines, "\n"))
	}
	if now := o.snapshot(o.root); !maps.Equal(now, before) {
		o.Error("a run that has ended was started again, and has changed files")
	}
	o.counts["nothing to do"]++
}

// exported exports a checkpoint, and compares it with that of the way.
func (o *operator) exported(l *life, from string) {
	o.Helper()
	var step int
	fmt.Sscanf(filepath.Base(from), "step-%d", &step)
	out := filepath.Join(o.TempDir(), "export")
	_, err := export.HuggingFace(o.Context(), patchworkEnv(o), export.Options{Checkpoint: from, Model: l.config.Model,
		Dir: out})
	o.must(err)
	if !maps.Equal(tensorSums(o, out), o.tensorsAt(l.way, step)) {
		o.Errorf("the export of %s is another model", from)
	}
}

// disturb is a start in which something happens at a random moment.
func (o *operator) disturb(l *life, c *runfile.Config, during string, at place) *disturbance {
	stop := make(chan struct{})
	d := &disturbance{env: at.env(o), files: vfs.NewFaulty(vfs.OS{}), ctx: o.Context()}
	d.env.FS, d.env.Stop = d.files, stop
	most := 8
	if l.way != nil && l.way.end > 0 {
		most = l.way.end
	}
	when := int64(1 + o.random.IntN(most))
	fails := func(vfs.Op) vfs.Outcome { return vfs.Outcome{Err: syscall.EIO} }
	var act func() error
	switch during {
	case "stop":
		act = func() error { close(stop); return nil }
	case "ErrStop":
		act = func() error { return ErrStop }
	case "end the context":
		d.ctx = newEndsAt(o.T, 1+int64(o.random.ExpFloat64()*40))
	case "cancel":
		// A second signal: nothing is written any more, and the process ends.
		act = func() error { d.files.Intercept(fails); return nil }
	case "stop anywhere", "end the context anywhere":
		last, end, once := 1+o.random.IntN(max(o.ops, 200)), func() { close(stop) }, sync.Once{}
		if during != "stop anywhere" {
			d.ctx, end = context.WithCancel(d.ctx)
			o.Cleanup(end)
		}
		d.files.Intercept(func(op vfs.Op) vfs.Outcome {
			if op.N > last {
				once.Do(end)
			}
			return vfs.Outcome{}
		})
	case "kill":
		last := 1 + o.random.IntN(max(o.ops, 200))
		d.files.Intercept(func(op vfs.Op) vfs.Outcome {
			if op.N <= last {
				return vfs.Outcome{}
			}
			return fails(op)
		})
	case "full":
		left := 1 + o.random.IntN(60)
		act = func() error {
			d.files.Intercept(func(op vfs.Op) vfs.Outcome {
				if left == 0 || !strings.HasPrefix(op.Name, c.OutputDir) || !mishaps[2].strikes(op) {
					return vfs.Outcome{}
				}
				left--
				return vfs.Outcome{Err: syscall.ENOSPC}
			})
			return nil
		}
	case "remove":
		act = func() error { return os.RemoveAll(c.OutputDir) }
	case "remove checkpoints":
		act = func() error { return os.RemoveAll(rundir.CheckpointsDir(c)) }
	case "remove the lock":
		act = func() error { return os.Remove(filepath.Join(rundir.CheckpointsDir(c), ".lock")) }
	case "another run":
		act = func() error {
			o.must(os.RemoveAll(c.OutputDir))
			other := leftAlone(c)
			other.Seed, other.OutputDir, other.Memory.Path = 1_000_077, c.OutputDir, runfile.Paths{filepath.Join(o.root,
				"state of another")}
			if _, err := Train(o.Context(), &other, Options{Env: patchworkEnv(o)}); err != nil {
				o.Error(err)
			}
			d.taken = o.snapshot(c.OutputDir)
			return nil
		}
	}
	d.onStep = func(m trace.Metrics) error {
		if act != nil && m.Step == when {
			return act()
		}
		return nil
	}
	return d
}

// ownDirs are a run's directories elsewhere.
func (o *operator) ownDirs(c *runfile.Config) []string {
	id, err := newEnv(o).Runs().ReadIdentity(c.OutputDir)
	if err != nil || id == nil {
		return nil
	}
	own := *c
	own.Save.Fallback, own.Memory.Path = o.fallback, o.states
	return append(id.StateDirs(&own), filepath.Dir(id.FallbackDir(&own)))
}

// checkpoints are the run's whole ones, newest first.
func (o *operator) checkpoints(c *runfile.Config) (dirs []string) {
	id, err := newEnv(o).Runs().IdentityOf(c.OutputDir, nil)
	if err != nil {
		return nil // of two runs: the next start is refused
	}
	own := id.Owner()
	for _, at := range []string{rundir.CheckpointsDir(c), id.FallbackDir(c)} {
		saved, err := checkpoint.List(vfs.OS{}, at)
		if at == "" || err != nil {
			continue
		}
		for _, s := range saved {
			from, err := checkpoint.Open(vfs.OS{}, s.Dir)
			if err == nil && own.Has(from.Manifest.Run) && from.Verify(context.Background(), nil) == nil {
				dirs = append(dirs, s.Dir)
			}
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return strings.Compare(filepath.Base(b), filepath.Base(a)) })
	return dirs
}

// unchanged checks that no file of other runs has changed.
func (o *operator) unchanged(after string, before, now map[string]uint64, own []string) {
	o.Helper()
	for path, sum := range before {
		if slices.ContainsFunc(own, func(dir string) bool { return strings.HasPrefix(path, dir+"/") }) {
			continue
		}
		if got, is := now[path]; !is || got != sum {
			o.Errorf("after %s: %s of another run is there: %v, changed: %v", after, path, is, got != sum)
			return
		}
	}
}

func isRefusal(err error, parts string) bool {
	return errors.Is(err, blame.ErrRequest) && !strings.Contains(err.Error(), "\n") &&
		slices.ContainsFunc(strings.Split(parts, "|"), func(part string) bool { return strings.Contains(err.Error(), part) })
}

func (o *operator) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}
