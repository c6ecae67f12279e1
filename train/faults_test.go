package train

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

var (
	faults    = flag.Int("faults", 12, "how many faults TestRunsUnderFaults puts into runs; 2000 for a long run")
	faultSeed = flag.Uint64("fault-seed", 0, "which faults those are; 0: others each time, which is logged")
)

// mishap is one way in which a file operation goes wrong.
type mishap struct {
	what  string
	kinds []vfs.OpKind // of operations that it can strike; nil: any
	err   error        // nil: the operation reports success
	part  bool         // of a write some bytes take effect
	most  int          // operations struck at most, the first and those after it; 0: all until the process ends
}

var (
	writes     = []vfs.OpKind{vfs.OpWrite}
	readWrites = []vfs.OpKind{vfs.OpRead, vfs.OpWrite}
	takesSpace = []vfs.OpKind{vfs.OpOpen, vfs.OpWrite, vfs.OpPreallocate, vfs.OpSync, vfs.OpRename, vfs.OpLink, vfs.OpMkdir, vfs.OpLock}
)

var mishaps = []mishap{
	{"EIO", nil, syscall.EIO, false, 1},
	{"EIO from then on", nil, syscall.EIO, false, 0},
	{"ENOSPC", takesSpace, syscall.ENOSPC, false, 1},
	{"ENOSPC for a while", takesSpace, syscall.ENOSPC, false, 30},
	{"ENOSPC from then on", takesSpace, syscall.ENOSPC, false, 0},
	{"a short write", writes, syscall.ENOSPC, true, 1},
	{"a torn write", writes, syscall.EIO, true, 1},
	{"a torn write without an error", writes, nil, true, 1},
	{"a flipped bit", readWrites, nil, false, 1},
}

func (f mishap) strikes(op vfs.Op) bool {
	switch {
	case op.Kind == vfs.OpClose:
		return false // the file is closed all the same, and what it held is said by Sync
	case f.err == syscall.ENOSPC && op.Kind == vfs.OpOpen && op.Flag&os.O_CREATE == 0:
		return false
	case f.err == nil && op.Bytes == 0:
		return false
	}
	return f.kinds == nil || slices.Contains(f.kinds, op.Kind)
}

// outcome draws the outcome of an operation that is struck.
func (f mishap) outcome(op vfs.Op, random *rand.Rand) vfs.Outcome {
	at := 0
	if op.Bytes > 0 {
		at = random.IntN(op.Bytes)
	}
	switch {
	case f.err == nil && f.part:
		return vfs.Outcome{Damage: func(p []byte) { clear(p[min(at, len(p)-1):]) }}
	case f.err == nil:
		bit := byte(1) << random.IntN(8)
		return vfs.Outcome{Damage: func(p []byte) { p[at%len(p)] ^= bit }}
	case f.part:
		return vfs.Outcome{Err: f.err, Written: at}
	}
	return vfs.Outcome{Err: f.err}
}

var digitsInNames = regexp.MustCompile(`[0-9a-f]{16}|[0-9]+`)

// groupOf is the kind of an operation and of the file that it is on.
func groupOf(op vfs.Op) string {
	dir, base := filepath.Split(op.Name)
	return fmt.Sprint(op.Kind, " ", digitsInNames.ReplaceAllString(filepath.Base(dir)+"/"+base, "#"))
}

// A user has a run of 8 steps that saves after every second one and keeps two checkpoints, stops it, and starts it
// again until it has ended. One operation of its files goes wrong, anywhere and in any way. Then the run ends with the
// bits of an undisturbed run, from the newest checkpoint that is whole, and leaves no files over; or it says in one
// line, as a fault of the machine, why it has ended, and the next start ends so.
func TestRunsUnderFaults(t *testing.T) {
	seed, rounds := *faultSeed, *faults
	if seed == 0 {
		seed = rand.Uint64()
	}
	if testing.Short() {
		rounds = min(rounds, 2)
	}
	t.Logf("-fault-seed=%d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 1, HeadChunk: 32}
	base.BatchTokens, base.MaxSteps = base.SequenceLen, 8
	base.Save.Every, base.Save.Keep = 2, 2
	for _, p := range placementsOf(t, base) {
		if p.name == "in memory" || p.name == "on disk" {
			t.Run(p.name, func(t *testing.T) { runsUnderFaults(t, base, p, rounds/2, random) })
		}
	}
}

// victims are the runs of a placement: what they come to when they are left alone, and the operations that this takes.
type victims struct {
	*testing.T
	base   runfile.Config
	cache  string
	sums   map[int]map[checkpoint.ID][]checkpoint.Sum // of the state after each step
	model  string
	losses []float64
	groups map[string][]vfs.Op // the operations, by group
}

func runsUnderFaults(t *testing.T, base *runfile.Config, p placement, rounds int, random *rand.Rand) {
	v := &victims{T: t, base: *base, cache: p.cache, sums: map[int]map[checkpoint.ID][]checkpoint.Sum{}, groups: map[string][]vfs.Op{}}
	v.base.Memory = p.memory
	all := v.base
	all.Save.Every, all.Save.Keep, all.OutputDir = 1, 0, filepath.Join(t.TempDir(), "all")
	want, err := v.start(&all, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for step := 1; step <= all.MaxSteps; step++ {
		v.sums[step] = sumsOf(t, filepath.Join(rundir.CheckpointsDir(&all), checkpoint.DirName(step)))
	}
	v.model, v.losses = want.Model, losses(t, all.OutputDir)
	if _, err := v.disturbed(func(op vfs.Op) vfs.Outcome {
		if mishaps[0].strikes(op) {
			v.groups[groupOf(op)] = append(v.groups[groupOf(op)], op)
		}
		return vfs.Outcome{}
	}, mishap{}, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(v.groups))
	struck, ends := map[string]int{}, map[string]int{}
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for round, wrong, at, tries := 0, 0, 0, 0; round < rounds && wrong < 10; {
		// Each group as often as another one, however few its operations are.
		f, group := mishaps[random.IntN(len(mishaps))], names[at%len(names)]
		ops := slices.DeleteFunc(slices.Clone(v.groups[group]), func(op vfs.Op) bool { return !f.strikes(op) })
		if len(ops) == 0 {
			continue
		}
		nth, seen, hits := 1+random.IntN(len(ops)), 0, 0
		most := f.most
		if most > 1 {
			most = 1 + random.IntN(most)
		}
		var hit vfs.Op
		end, err := v.disturbed(func(op vfs.Op) vfs.Outcome {
			if !f.strikes(op) || most > 0 && hits >= most {
				return vfs.Outcome{}
			}
			if hits == 0 {
				if groupOf(op) != group {
					return vfs.Outcome{}
				}
				if seen++; seen < nth {
					return vfs.Outcome{}
				}
				hit = op
			}
			hits++
			return f.outcome(op, random)
		}, f, func() bool { return hits > 0 })
		if err != nil {
			t.Errorf("%s at %v of %s (number %d of its kind): %v", f.what, hit.Kind, hit.Name, nth, err)
			wrong++
		}
		if tries++; hits > 0 {
			round, at, tries = round+1, at+1, 0
			struck[group]++
			ends[end]++
		} else if tries == 10 { // lanes that run at the same time do not always meet the same operations
			at, tries = at+1, 0
		}
	}
	t.Logf("%d faults in %d of %d kinds of operations; the disturbed process %v", rounds, len(struck), len(names), ends)
}

// start is one process of a run. A panic in it is an error.
func (v *victims) start(c *runfile.Config, files vfs.FS, env *session.Env) (sum *Summary, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if env == nil {
		env = newEnv(v)
	}
	env.Tests.ProgramBytes, env.CacheDir, env.FS = 1, v.cache, files
	run := *c
	return Train(context.Background(), &run, Options{Env: env})
}

// disturbed runs a run to its end in as many processes as it takes, with an intercept until the end of the process in
// which it was hit. It returns how that process ended; the error is what is wrong.
func (v *victims) disturbed(intercept func(vfs.Op) vfs.Outcome, f mishap, hit func() bool) (end string, err error) {
	dir, err := os.MkdirTemp("", "millrace-test-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	c := v.base
	c.OutputDir = filepath.Join(dir, "run")
	if len(c.Memory.Path) > 0 {
		c.Memory.Path = runfile.Paths{filepath.Join(dir, "state")}
	}
	files := vfs.NewFaulty(vfs.OS{})
	files.Intercept(intercept)
	var before, after []int // whole checkpoints
	var said bytes.Buffer
	for starts := 1; ; starts++ {
		before = after
		env, wasHit := newEnv(v), hit()
		env.Progress = &said
		if starts == 1 {
			stop := make(chan struct{})
			env.Stop, env.Progress = stop, io.MultiWriter(&said, &stopper{"step 5/8", stop})
		}
		sum, err := v.start(&c, files, env)
		if hit() {
			files.Intercept(nil)
		}
		now := hit() && !wasHit
		switch {
		case err == nil && now:
			end = "came to its end"
		case errors.Is(err, ErrInterrupted) && now:
			end = "was stopped, and saved"
		case now:
			end = "ended early"
		}
		var lost error
		if after, lost = v.whole(&c); lost == nil {
			lost = kept(before, after, f, hit())
		}
		if lost != nil {
			return end, fmt.Errorf("start %d ended with %v: %w", starts, err, lost)
		}
		switch {
		case err == nil:
			newest := 0
			if len(before) > 0 {
				newest = before[0]
			}
			if sum.ResumedAfter < newest && !now { // it may be newer: what a resume does not need may be damaged
				return end, fmt.Errorf("start %d resumed after step %d, and %v are whole", starts, sum.ResumedAfter, before)
			}
			if now { // a start after the end finds that it is the end, and removes what could not be removed
				again, err := v.start(&c, nil, nil)
				if err != nil || again.Steps != c.MaxSteps || again.Model != sum.Model {
					return end, fmt.Errorf("a start after the end: %+v, error %w", again, err)
				}
			}
			return end, v.ended(&c, sum, f, said.String())
		case errors.Is(err, ErrInterrupted) && starts == 1:
		case strings.HasPrefix(err.Error(), "panic"), strings.Contains(err.Error(), "\n"):
			return end, fmt.Errorf("start %d: not one line: %w", starts, err)
		case errors.Is(err, blame.ErrRequest) || starts > 3 || !now:
			return end, fmt.Errorf("start %d: %w", starts, err)
		case f.err != nil && !errors.Is(err, f.err):
			return end, fmt.Errorf("start %d: an error that was not made: %w", starts, err)
		}
	}
}

// whole are the steps whose checkpoints are whole, newest first. A whole checkpoint has the bits of its step.
func (v *victims) whole(c *runfile.Config) ([]int, error) {
	saved, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil {
		return nil, err
	}
	var steps []int
	for _, s := range saved {
		from, err := checkpoint.Open(vfs.OS{}, s.Dir)
		if err != nil || from.Verify(context.Background(), nil) != nil {
			continue
		}
		if !reflect.DeepEqual(sumsIn(from.Manifest), v.sums[s.Step]) {
			return nil, fmt.Errorf("%s is whole, and not what step %d was", s.Dir, s.Step)
		}
		steps = append(steps, s.Step)
	}
	return steps, nil
}

// kept says if a process has lost what was saved before it. Of bits that have changed only the newest checkpoint has
// some.
func kept(before, after []int, f mishap, hit bool) error {
	if len(before) == 0 || len(after) > 0 && (after[0] >= before[0] || f.err == nil && hit) {
		return nil
	}
	return fmt.Errorf("checkpoints %v were whole before, and %v are now", before, after)
}

// strayName is a name that only a process which has not ended should have.
var strayName = regexp.MustCompile(`tmp|^\.(step|model)|\.del$|\.extent$|writable`)

// ofState are the lines about state on disk that could not be removed, which only a run with its memory.path removes.
const ofState = "warning: store: files of the state are left in "

// ended checks what a run has left that came to its end.
func (v *victims) ended(c *runfile.Config, sum *Summary, f mishap, said string) error {
	if a, b := modelFiles(v, sum.Model), modelFiles(v, v.model); !maps.Equal(a, b) {
		return errors.New("the model is another one")
	}
	if got := losses(v.T, c.OutputDir); f.err != nil && fmt.Sprint(got) != fmt.Sprint(v.losses) {
		return fmt.Errorf("losses %v, want %v", got, v.losses)
	}
	var stray []string
	err := filepath.WalkDir(filepath.Dir(c.OutputDir), func(path string, _ fs.DirEntry, err error) error {
		if strayName.MatchString(filepath.Base(path)) && !strings.Contains(said, ofState+filepath.Dir(path)) {
			stray = append(stray, path)
		}
		return err
	})
	if err == nil && len(stray) > 0 {
		err = fmt.Errorf("left are %q", stray)
	}
	return err
}
