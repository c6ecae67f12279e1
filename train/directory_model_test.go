package train

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// A model check of what a run does with its checkpoints: every way in which up to three of them can be whole, damaged,
// unhealthy or another run's, in output_dir and in save.fallback, for every save.keep up to three. The run resumes,
// sets aside what it leaves, saves a step and prunes, with the functions that training has for that.

// condition names the state of a checkpoint.
type condition int

const (
	absent    condition = iota
	whole               // and healthy
	unhealthy           // whole, and unhealthy steps led to it
	rotten              // a byte of its state has changed: only reading it finds that
	lacking             // a file is missing
	torn                // its manifest cannot be read, so that it does not say whose it is
	foreign             // whole, and of another run
	conditions
)

// slot is a checkpoint of a case.
type slot struct {
	condition
	inFallback bool
}

// directories are a case: two directories of a run, on a file system in memory.
type directories struct {
	*testing.T
	files  *vfs.Mem
	t      *trainer
	others map[string]checkpoint.Sum // what is another run's, by path, with the checksum of its state
}

var modelSpec = checkpoint.Spec{ID: checkpoint.ID{Part: "norm", Kind: store.Weights}, DType: tensor.BF16, Bytes: 16,
	PieceBytes: 16}

func newDirectories(test *testing.T, slots []slot, keep int, diverged bool) *directories {
	d := &directories{test, vfs.NewMem(), nil, map[string]checkpoint.Sum{}}
	c := &runfile.Config{OutputDir: "/runs/run", Save: runfile.Save{Keep: keep, Fallback: "/fallback"}}
	d.t = newTrainer(c, Options{Env: &session.Env{FS: d.files, Progress: io.Discard}})
	d.t.home.ID = d.t.env.Runs().NewIdentity(c.OutputDir)
	if diverged {
		d.t.home.ID.Ended = &rundir.Ending{Step: 99, Diverged: true}
	}
	d.start()
	for i, s := range slots {
		if s.condition != absent {
			d.put(10*(i+1), s)
		}
	}
	d.must(d.t.home.Dir.Close())
	d.must(d.t.home.Fallback.Close())
	d.start() // another process, which has read nothing
	return d
}

func (d *directories) start() {
	c := d.t.config
	d.t.home.Dir, d.t.home.Fallback = d.hold(rundir.CheckpointsDir(c)), d.hold(d.t.home.ID.FallbackDir(c))
}

func (d *directories) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *directories) hold(path string) *checkpoint.Directory {
	d.Helper()
	dir, err := checkpoint.Acquire(d.files, path, d.t.home.ID.Owner())
	d.must(err)
	return dir
}

// dir is one of the two directories.
func (d *directories) dir(inFallback bool) *checkpoint.Directory {
	if inFallback {
		return d.t.home.Fallback
	}
	return d.t.home.Dir
}

// put saves a checkpoint, and has it become what it is in the case.
func (d *directories) put(step int, s slot) {
	d.Helper()
	to, m := d.dir(s.inFallback), checkpoint.Manifest{}
	switch s.condition {
	case foreign:
		d.must(to.Own(checkpoint.Owner{Run: "ffffffffffffffffffffffffffffffff"}))
		defer func() { d.must(to.Own(d.t.home.ID.Owner())) }()
	case unhealthy:
		m.UnhealthySteps = 2
	}
	path, err := d.save(to, step, m)
	d.must(err)
	state, manifest := filepath.Join(path, "norm.weights"), filepath.Join(path, checkpoint.ManifestName)
	switch s.condition {
	case rotten:
		d.must(d.files.FlipBit(state, 3, 1))
	case lacking:
		d.must(d.files.Remove(state))
	case torn:
		d.must(d.files.FlipBit(manifest, 200, 1))
	case foreign:
		d.others[path] = d.sum(path)
	}
}

func (d *directories) save(to *checkpoint.Directory, step int, m checkpoint.Manifest) (string, error) {
	w, err := to.Create(step, []checkpoint.Spec{modelSpec})
	if err != nil {
		return "", err
	}
	d.must(w.Add(modelSpec.ID, 0, fmt.Appendf(nil, "%16d", step)))
	return w.Commit(m)
}

// sum is the checksum of a checkpoint's state; the test ends if it is not whole.
func (d *directories) sum(path string) checkpoint.Sum {
	d.Helper()
	c, err := checkpoint.Open(d.files, path)
	d.must(err)
	d.must(c.Verify(context.Background(), nil))
	return c.Manifest.Extents[0].Pieces[0].Sum
}

// accepted are the paths of the run's healthy checkpoints that a resume accepts, by a look at every byte.
func (d *directories) accepted() map[string]bool {
	d.Helper()
	paths := map[string]bool{}
	for _, dir := range []*checkpoint.Directory{d.t.home.Dir, d.t.home.Fallback} {
		entries, err := checkpoint.List(d.files, dir.Path())
		d.must(err)
		for _, e := range entries {
			if e.Err != nil || e.Manifest.Run != d.t.home.ID.Run || e.Manifest.UnhealthySteps > 0 {
				continue
			}
			c, err := checkpoint.Open(d.files, e.Dir)
			d.must(err)
			if c.Verify(context.Background(), nil) == nil {
				paths[e.Dir] = true
			}
		}
	}
	return paths
}

// resume finds the checkpoint that the run continues from, as openState does; nil if there is no such checkpoint.
func (d *directories) resume() *checkpoint.Checkpoint {
	d.Helper()
	q := checkpoint.Query{Healthy: d.t.home.ID.HasDiverged()}
	for {
		from, err := d.t.home.Newest(q)
		d.must(err)
		if from == nil {
			return nil
		}
		damage := (*checkpoint.DamageError)(nil)
		if err := from.Verify(context.Background(), nil); !errors.As(err, &damage) {
			d.must(err)
			return from
		}
		d.t.damaged = append(d.t.damaged, from.Dir())
		q.Below = from.Manifest.Step
	}
}

// check goes through a case, and fails the test where a law is broken.
func (d *directories) check(keep int, saveInFallback bool) {
	d.Helper()
	before := d.accepted()
	from := d.resume()
	if from == nil {
		return // the run is refused, or begins
	}
	d.t.from = from
	d.t.setAsideAfter(from.Manifest.Step)
	if now := d.accepted(); !maps.Equal(now, before) {
		d.Fatalf("set aside were whole checkpoints: %v are left of %v", now, before)
	}
	to := d.dir(saveInFallback)
	step := from.Manifest.Step + 10 // which another one may have
	saved, err := d.save(to, step, checkpoint.Manifest{})
	if err != nil {
		if _, isOthers := d.others[filepath.Join(to.Path(), checkpoint.DirName(step))]; !isOthers {
			d.Fatal(err)
		}
		step++
		saved, err = d.save(to, step, checkpoint.Manifest{})
	}
	d.must(err)
	n := d.accepted()
	_, err = to.Prune(context.Background(), step, keep, -1)
	d.must(err)
	left := d.accepted()
	if !left[saved] {
		d.Fatalf("%s was removed as it was saved", saved)
	}
	if len(left) < min(keep, len(n)) {
		d.Fatalf("%v are whole, of %v", left, n)
	}
	for path, sum := range d.others {
		if d.sum(path) != sum {
			d.Fatalf("%s, which is another run's, has changed", path)
		}
	}
	d.t.damaged, d.t.home.ID.Ended = nil, nil // the next process
	if again := d.resume(); again == nil || again.Dir() != saved {
		d.Fatalf("the next start continues from %+v, not from %s", again, saved)
	}
}

var allDirectories = flag.Bool("directories", false, "TestModelOfTheDirectories checks all of them instead of a part that differs each time")

func TestModelOfTheDirectories(t *testing.T) {
	var all []slot
	for c := range conditions {
		all = append(all, slot{c, false})
		if c != absent {
			all = append(all, slot{c, true})
		}
	}
	n, cases := len(all), 0
	stride := 7
	switch {
	case *allDirectories:
		stride = 1
	case testing.Short():
		stride = 23
	}
	for i := rand.IntN(stride); i < n*n*n; i += stride {
		slots := []slot{all[i%n], all[i/n%n], all[i/n/n]}
		if !slices.ContainsFunc(slots, func(s slot) bool { return s.condition == whole || s.condition == unhealthy }) {
			continue // nothing to resume from
		}
		for keep := 1; keep <= 3; keep++ {
			for variant := range 4 {
				diverged, saveInFallback := variant&1 != 0, variant&2 != 0
				name := fmt.Sprintf("%v keep=%d diverged=%v fallback=%v", slots, keep, diverged, saveInFallback)
				ok := t.Run(name, func(t *testing.T) { newDirectories(t, slots, keep, diverged).check(keep, saveInFallback) })
				if cases++; !ok {
					t.FailNow() // one is enough
				}
			}
		}
	}
	t.Logf("%d cases", cases)
}
