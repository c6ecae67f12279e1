package train

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

var (
	weeks    = flag.Int("weeks", 8, "how many runs TestWeeksOfAnOperator disturbs; 500 for a long run")
	weekSeed = flag.Uint64("week-seed", 0, "how it disturbs them; 0: in another way each time, which is logged")
)

// undisturbed is a run that was left alone.
type undisturbed struct {
	config runfile.Config
	sums   map[int]map[checkpoint.ID][]checkpoint.Sum // of the state after each step
	model  map[string]string
	losses []float64
	saved  string // the directory with a checkpoint of each step
}

// operator has runs that all have the same name, share save.fallback and memory.path, and are disturbed.
type operator struct {
	*testing.T
	random   *rand.Rand
	projects []undisturbed
	otherOne string // another model with the same config.json
	root     string // of everything
	fallback string
	state    string
	dirs     int
	// lostRecords is that something of the week may have cost records of metrics.
	lostRecords bool
	counts      map[string]int // of what the operator has done, and how starts have ended
	story       []string       // of the weeks that share the directories
}

// An operator runs several projects, and errs: stops and kills runs at any time, fills the disk, removes, moves and
// copies their directories, also below a running one, starts another run there, names another model, edits the run
// file, damages and touches files, and mixes checkpoints of two runs. Each start ends in the bits of a run that was
// left alone, or with one line, and a refused one has changed nothing. No run loses what it has saved unless the
// operator has removed or damaged it, and no file of another run ever changes.
func TestWeeksOfAnOperator(t *testing.T) {
	seed, n := *weekSeed, *weeks
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-week-seed=%d", seed)
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 1, HeadChunk: 32}
	base.BatchTokens, base.MaxSteps = base.SequenceLen, 8
	o := &operator{T: t, random: rand.New(rand.NewPCG(seed, 3)), counts: map[string]int{}}
	for _, p := range placementsOf(t, base) {
		if p.name == "on disk" || p.name == "in memory" {
			for seed := range uint64(2) {
				c := *base
				c.Memory, c.Seed = p.memory, 40+seed
				o.projects = append(o.projects, o.leaveAlone(c))
			}
		}
	}
	o.otherOne = filepath.Join(o.TempDir(), "model")
	copyTree(t, base.Model, o.otherOne)
	for name, text := range o.projects[0].model {
		if strings.HasSuffix(name, ".safetensors") {
			write(t, filepath.Join(o.otherOne, name), text)
		}
	}
	for week := range n {
		if week%8 == 0 { // what is left in the shared directories is looked at after each start
			o.root, o.story = o.TempDir(), nil
			o.fallback, o.state = filepath.Join(o.root, "fallback"), filepath.Join(o.root, "state")
			mkdir(t, o.fallback)
			mkdir(t, o.state)
		}
		o.week()
		if t.Failed() {
			t.Fatalf("in week %d:\n%s", week+1, strings.Join(o.story, "\n"))
		}
	}
	t.Logf("%d weeks: %v", n, o.counts)
}

// leaveAlone runs a project to its end.
func (o *operator) leaveAlone(c runfile.Config) undisturbed {
	o.Helper()
	c.OutputDir, c.Memory.Path = filepath.Join(o.TempDir(), "run"), filepath.Join(o.TempDir(), "state")
	c.Save = runfile.Save{Every: 1}
	sum, err := o.start(&c, newEnv(o))
	if err != nil {
		o.Fatal(err)
	}
	u := undisturbed{config: c, sums: map[int]map[checkpoint.ID][]checkpoint.Sum{}, saved: checkpointsDir(&c)}
	for step := 1; step <= c.MaxSteps; step++ {
		u.sums[step] = sumsOf(o.T, filepath.Join(u.saved, checkpoint.DirName(step)))
	}
	u.model, u.losses = modelFiles(o, sum.Model), losses(o.T, c.OutputDir)
	return u
}

func (o *operator) start(c *runfile.Config, env *Env) (*Summary, error) {
	env.program = 1
	run := *c
	return Train(context.Background(), &run, Options{Env: env})
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
	if err != nil {
		o.Fatal(err)
	}
	return all
}

// week is the life of one run.
func (o *operator) week() {
	p := o.projects[o.random.IntN(len(o.projects))]
	c := p.config
	c.OutputDir, c.Memory.Path, o.lostRecords = o.newDir(), o.state, false
	c.Save = runfile.Save{Every: 1 + o.random.IntN(2), Keep: 1 + o.random.IntN(3), AtEnd: o.random.IntN(2) == 0}
	if o.random.IntN(3) > 0 {
		c.Save.Fallback = o.fallback
	}
	for starts, events := 0, 2+o.random.IntN(4); ; starts++ {
		if starts > events+4 {
			o.Errorf("the run has not ended after %d starts", starts)
			return
		}
		between, during := "nothing", "nothing"
		if starts < events {
			between, during = o.pick(betweenStarts), o.pick(duringStarts)
		}
		if ended := o.startDisturbed(&p, &c, between, during); ended && starts >= events || o.Failed() {
			return
		}
	}
}

// copied makes copies of a run's directory, and then starts each of them. None changes what another run has.
func (o *operator) copied(p *undisturbed, c *runfile.Config, n int) {
	o.Helper()
	copies := make([]runfile.Config, n)
	for i := range copies {
		copies[i] = *c
		copies[i].OutputDir = o.newDir()
		copyTree(o.T, c.OutputDir, copies[i].OutputDir)
	}
	for i := range copies {
		copied := &copies[i]
		before := o.snapshot(o.root, copied.OutputDir)
		sum, err := o.start(copied, newEnv(o))
		if err == nil {
			o.right(p, copied, sum)
		} else if !o.isRefusal(err, "already has|is whole|of 2 runs|says that the run has ended") {
			o.Errorf("the copy: %v", err)
		}
		o.unchanged("the copy", before, o.snapshot(o.root, copied.OutputDir), o.ownDirs(copied))
		of, _ := newEnv(o).identityOf(copied.OutputDir, nil)
		if first, _ := newEnv(o).identityOf(c.OutputDir, nil); of.Run == first.Run {
			o.Errorf("%s is the run that it is a copy of", copied.OutputDir)
		}
	}
}

func (o *operator) pick(from []string) string { return from[o.random.IntN(len(from))] }

var betweenStarts = []string{"nothing", "nothing", "touch", "another model", "another rate", "damage", "remove", "move",
	"move and copy twice", "copy", "no run.json", "bad run.json", "foreign checkpoint"}

var duringStarts = []string{"nothing", "stop", "stop", "cancel", "kill", "kill", "full", "remove",
	"remove checkpoints", "remove the lock", "another run"}

// startDisturbed does something to a run, starts it, does something while it runs, and checks what came of it. It
// reports whether the run has ended.
func (o *operator) startDisturbed(p *undisturbed, c *runfile.Config, between, during string) (ended bool) {
	run := *c
	refused := "" // what a refusal has to say; empty: a start must not be refused
	has := o.checkpoints(c)
	id, _ := newEnv(o).readIdentity(c.OutputDir)
	if id == nil && !exists(filepath.Join(c.OutputDir, identityName)) || id != nil && !id.Begun {
		between = "nothing" // there is no run yet
	}
	if _, err := os.Stat(filepath.Join(c.OutputDir, resolvedName)); err != nil && len(has) == 0 &&
		(between == "another model" || between == "another rate") {
		between = "nothing" // a run that was killed before it wrote its run file may become any other
	}
	undo := func() {}
	switch between {
	case "touch":
		for path := range o.snapshot(c.OutputDir) {
			at := time.Unix(int64(o.random.IntN(1<<31)), 0)
			o.must(os.Chtimes(path, at, at))
		}
	case "another model":
		run.Model, refused = o.otherOne, "other weights|already has"
	case "another rate":
		run.LearningRate, refused = 3e-3, "learning_rate was|already has"
	case "damage":
		if len(has) > 0 {
			damage(o.T, has[0], "block.1.weights")
			has = has[1:]
			refused = "is whole" // where it was the last one
		}
	case "remove":
		o.must(os.RemoveAll(c.OutputDir))
		has = nil
	case "move", "move and copy twice":
		to := o.newDir()
		mkdir(o.T, filepath.Dir(to))
		o.must(os.Rename(c.OutputDir, to))
		c.OutputDir, run.OutputDir = to, to
		if between == "move and copy twice" {
			o.copied(p, c, 2)
		}
	case "copy":
		o.copied(p, c, 1)
	case "no run.json", "bad run.json":
		name := filepath.Join(c.OutputDir, identityName)
		if between == "no run.json" {
			o.must(os.Remove(name))
		} else {
			write(o.T, name, "{")
		}
		// Checkpoints in save.fallback are then of another run.
		has = slices.DeleteFunc(has, func(dir string) bool { return !strings.HasPrefix(dir, c.OutputDir) })
		refused = "already has|of 2 runs|says that the run has ended"
	case "foreign checkpoint":
		other := o.projects[o.random.IntN(len(o.projects))]
		step := checkpoint.DirName(1 + o.random.IntN(8))
		to := filepath.Join(checkpointsDir(c), step)
		if other.config.Seed != p.config.Seed && !exists(to) {
			copyTree(o.T, filepath.Join(other.saved, step), to)
			undo = func() { o.must(os.RemoveAll(to)) }
			refused = "already has checkpoints|of 2 runs" // where nothing was saved, or run.json is damaged
		}
	}
	defer undo()
	o.counts["between: "+between]++

	own := o.ownDirs(&run)
	before, mine := o.snapshot(o.root, append(own, run.OutputDir)...), o.snapshot(run.OutputDir)
	env, takenBy := o.disturb(p, &run, during)
	sum, err := o.start(&run, env)
	taken := takenBy()
	o.counts["during: "+during]++
	o.lostRecords = o.lostRecords || slices.Contains([]string{"full", "kill", "cancel"}, during)
	own = append(own, o.ownDirs(&run)...)
	if during != "another run" {
		o.unchanged(between+", then "+during, before, o.snapshot(o.root, append(own, run.OutputDir)...), own)
	}
	o.story = append(o.story, fmt.Sprintf("%s, with %d checkpoints: %s, then %s: %+v, %v", run.OutputDir, len(has), between,
		during, sum, err))
	var isTaken *takenError
	switch {
	case err != nil && strings.Contains(err.Error(), "\n"):
		o.Errorf("%s, then %s: not one line: %v", between, during, err)
	case taken != nil && errors.As(err, &isTaken):
		o.unchanged("the run that has lost its directory", taken, o.snapshot(run.OutputDir), nil)
		c.OutputDir = o.newDir()
		o.counts["taken"]++
		return false
	case err == nil && taken == nil:
		if between == "another model" || between == "another rate" {
			o.Errorf("%s: the run was not refused", between)
		}
		o.right(p, &run, sum)
		o.counts["ended"]++
		return true
	case len(has) == 0 && strings.Contains(err.Error(), "there is no earlier checkpoint in that directory"):
		if now := o.snapshot(run.OutputDir); !maps.Equal(now, mine) {
			o.Errorf("%s: a start without a whole checkpoint has changed the directory: %v", between, err)
		}
		o.counts["refused"]++
		o.must(os.RemoveAll(run.OutputDir)) // start again
		return false
	case errors.Is(err, blame.ErrRequest):
		if refused == "" || !o.isRefusal(err, refused) {
			o.Errorf("%s, then %s: refused: %v", between, during, err)
		}
		if now := o.snapshot(run.OutputDir); !maps.Equal(now, mine) {
			o.Errorf("%s: a refused start has changed the directory: %v", between, err)
		}
		o.counts["refused"]++
		isMixed := strings.Contains(err.Error(), "of 2 runs") && between != "foreign checkpoint"
		if isMixed || between != "another model" && between != "another rate" && len(has) == 0 { // start again
			o.must(os.RemoveAll(run.OutputDir))
		}
		return false
	case during == "nothing" || strings.HasPrefix(during, "remove"):
		o.Errorf("%s, then %s: %v", between, during, err)
	}
	o.counts["ended early"]++
	left := o.checkpoints(&run)
	if len(left) == 0 && len(has) > 0 && during != "another run" && between != "another model" {
		o.Errorf("%s, then %s: the run had %v, and has nothing: %v", between, during, has, err)
	}
	for _, dir := range left {
		o.same(p, dir)
	}
	return false
}

// disturb is the environment of a start in which something happens at a random moment. Taken is the contents of the
// output directory once another run has it; nil before.
func (o *operator) disturb(p *undisturbed, c *runfile.Config, during string) (*Env, func() map[string]uint64) {
	env, taken := newEnv(o), map[string]uint64(nil)
	files, stop := vfs.NewFaulty(vfs.OS{}), make(chan struct{})
	env.FS, env.Stop = files, stop
	at := fmt.Sprintf("step %d/8", 1+o.random.IntN(8))
	var onStep func()
	switch during {
	case "stop":
		onStep = func() { close(stop) }
	case "cancel":
		// A second signal: nothing is written any more, and the process ends.
		onStep = func() { files.Intercept(func(vfs.Op) vfs.Outcome { return vfs.Outcome{Err: syscall.EIO} }) }
	case "kill":
		last := 1 + o.random.IntN(600)
		files.Intercept(func(op vfs.Op) vfs.Outcome {
			if op.N <= last {
				return vfs.Outcome{}
			}
			return vfs.Outcome{Err: syscall.EIO}
		})
	case "full":
		left := 1 + o.random.IntN(60)
		onStep = func() {
			files.Intercept(func(op vfs.Op) vfs.Outcome {
				if left == 0 || !strings.HasPrefix(op.Name, c.OutputDir) || !mishaps[2].strikes(op) {
					return vfs.Outcome{}
				}
				left--
				return vfs.Outcome{Err: syscall.ENOSPC}
			})
		}
	case "remove":
		onStep = func() { o.must(os.RemoveAll(c.OutputDir)) }
	case "remove checkpoints":
		onStep = func() { o.must(os.RemoveAll(checkpointsDir(c))) }
	case "remove the lock":
		onStep = func() { o.must(os.Remove(filepath.Join(checkpointsDir(c), ".lock"))) }
	case "another run":
		onStep = func() {
			o.must(os.RemoveAll(c.OutputDir))
			other := p.config
			other.Seed, other.OutputDir, other.Memory.Path = 77, c.OutputDir, filepath.Join(o.root, "state of another")
			if _, err := o.start(&other, newEnv(o)); err != nil {
				o.Error(err)
			}
			taken = o.snapshot(c.OutputDir)
		}
	}
	happened := false
	env.Progress = writeFunc(func(line []byte) {
		if onStep != nil && !happened && strings.HasPrefix(string(line), at) {
			happened = true
			onStep()
		}
	})
	return env, func() map[string]uint64 { return taken }
}

// ownDirs are a run's directories elsewhere.
func (o *operator) ownDirs(c *runfile.Config) []string {
	id, err := newEnv(o).readIdentity(c.OutputDir)
	if err != nil || id == nil {
		return nil
	}
	return []string{filepath.Dir(id.fallbackDir(c)), id.stateDir(c)}
}

// checkpoints are the run's whole ones, newest first.
func (o *operator) checkpoints(c *runfile.Config) (dirs []string) {
	id, err := newEnv(o).identityOf(c.OutputDir, nil)
	if err != nil {
		return nil // of two runs: the next start is refused
	}
	own := id.owner()
	for _, at := range []string{checkpointsDir(c), id.fallbackDir(c)} {
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

// same checks that a checkpoint has the bits of its step.
func (o *operator) same(p *undisturbed, dir string) {
	o.Helper()
	c, err := checkpoint.Open(vfs.OS{}, dir)
	o.must(err)
	if !reflect.DeepEqual(sumsIn(c.Manifest), p.sums[c.Manifest.Step]) {
		o.Errorf("%s is not what step %d was", dir, c.Manifest.Step)
	}
}

// right checks what a run has left that came to its end.
func (o *operator) right(p *undisturbed, c *runfile.Config, sum *Summary) {
	o.Helper()
	if model := modelFiles(o, sum.Model); !maps.Equal(model, p.model) {
		o.Errorf("%s is another model than that of the run that was left alone", sum.Model)
	}
	records := metricsOf(o.T, c.OutputDir)
	for _, m := range records {
		if m.Loss != p.losses[m.Step-1] {
			o.Errorf("the loss of step %d is %v, want %v", m.Step, m.Loss, p.losses[m.Step-1])
		}
	}
	if len(records) < len(p.losses) && !o.lostRecords { // a full disk, or a kill, may cost some
		o.Errorf("there are %d records", len(records))
	}
	if sum.Checkpoint != "" {
		o.same(p, sum.Checkpoint)
	}
	for _, dir := range o.checkpoints(c) {
		o.same(p, dir)
	}
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

func (o *operator) isRefusal(err error, parts string) bool {
	return errors.Is(err, blame.ErrRequest) && !strings.Contains(err.Error(), "\n") &&
		slices.ContainsFunc(strings.Split(parts, "|"), func(part string) bool { return strings.Contains(err.Error(), part) })
}

func (o *operator) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}
