package rundir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// Beginning says how a run starts in its output directory.
type Beginning struct {
	From     *checkpoint.Checkpoint // it continues from this one; nil: it starts from the model
	Sizes    runfile.Sizes          // those that this very run had before it was killed without a checkpoint
	Overlong string                 // that this very run then had; empty: it is a new one
}

// HasSizes reports whether the run has sizes from an earlier start.
func (b *Beginning) HasSizes() bool { return b.From != nil || b.Sizes != runfile.Sizes{} }

// AdoptSizes gives the configuration the sizes that the run has, and what it does with long documents.
func (b *Beginning) AdoptSizes(c *runfile.Config) error {
	c.Numerics = b.Sizes.Or(c.Numerics)
	if b.Overlong != "" {
		c.Overlong = b.Overlong
	}
	return AdoptCuts(c, b.From)
}

// FindBeginning decides how the run starts. The lock is held. It refuses a directory that has another run. A run that
// begins where there was another one, whose files the user has removed, gets an id of its own.
func (f Files) FindBeginning(c *runfile.Config, id *Identity) (b Beginning, err error) {
	old, err := f.ReadResolved(c.OutputDir)
	if err != nil {
		return b, fmt.Errorf("output_dir: %w", err)
	}
	begins := func() error {
		if id.Begun || len(id.CopiedFrom) > 0 {
			*id = f.NewIdentity(c.OutputDir)
		}
		return f.RefuseRun(c)
	}
	if c.Resume == "never" {
		return b, begins()
	}
	own, broken, err := f.newest(c, id, checkpoint.Query{Healthy: id.HasDiverged()})
	if err == nil && own == nil && id.HasDiverged() {
		own, broken, err = f.newest(c, id, checkpoint.Query{})
	}
	if err != nil {
		return b, blame.NotRequest(err) // the directory was ours to lock, and now it cannot be read
	}
	for _, entry := range broken {
		f.Note("%v", entry.Err)
	}
	switch path := runfile.Absolute(c.Resume); {
	case c.Resume != "auto" && (SameDir(filepath.Dir(path), CheckpointsDir(c)) ||
		SameDir(filepath.Dir(path), id.FallbackDir(c))):
		if b.From, err = checkpoint.Open(f.FS, c.Resume); err != nil {
			return b, blame.BadName(fmt.Errorf("resume: %w", err))
		}
		if !id.Owner().Has(b.From.Manifest.Run) {
			return b, fmt.Errorf("resume: %s is of another run than the one in this output_dir; set output_dir to another "+
				"directory to continue from it", c.Resume)
		}
		if own != nil && own.Manifest.Step > b.From.Manifest.Step {
			return b, fmt.Errorf("resume: %s is older than %s, which the run in this output_dir has come to; set output_dir "+
				"to another directory to go back to the older one",
				c.Resume, own.Dir())
		}
		return b, nil
	case c.Resume == "auto" || old != nil && old.Resume == path || id.began(f, path):
		// The run's own progress counts, also of one that began elsewhere.
		if own != nil {
			b.From = own
			return b, nil
		}
		if len(broken) > 0 {
			return b, fmt.Errorf("output_dir: none of the %d checkpoints in %s is whole; of the newest: %w", len(broken),
				CheckpointsDir(c), broken[0].Err)
		}
		if c.Resume != "auto" {
			break
		}
		isBegun := id.Begun && id.Asked != nil && vfs.Exists(filepath.Join(c.OutputDir, MetricsName))
		if old == nil && !isBegun {
			return b, begins()
		}
		others, allow := id.otherSettings(c, old)
		if len(others) == 0 {
			switch model := filepath.Join(c.OutputDir, LastModel); {
			case !vfs.Exists(model):
				f.Note("%s has this run, and no checkpoint of it; the run starts over", c.OutputDir)
			case !id.HasResult(LastModel):
				return b, fmt.Errorf("output_dir: %s is there, and neither a checkpoint nor %s says that the run has ended; "+
					"move it to another directory to train again", model, IdentityName)
			}
			if old != nil && old.SequenceLen == c.SequenceLen && old.BatchTokens == c.BatchTokens {
				b.Sizes = old.Numerics
				if c.Overlong == string(data.AutoLong) {
					b.Overlong = old.Overlong
				}
			}
			return b, nil
		}
		err := begins()
		if err != nil && !blame.IsOfMachine(err) {
			how := "restore them"
			if len(allow) == len(others) {
				how += fmt.Sprintf(", allow the change with resume_with: [%s]", strings.Join(allow, ", "))
			}
			err = fmt.Errorf("output_dir: %s already has a run, without a checkpoint, and settings that change the result are "+
				"not those of the run (%s); %s, choose another directory, or remove it", c.OutputDir, strings.Join(others, "; "),
				how)
		}
		return b, err
	default:
		err = begins()
	}
	from, errOpen := checkpoint.Open(f.FS, c.Resume)
	if errOpen != nil {
		return b, blame.BadName(fmt.Errorf("resume: %w", errOpen))
	}
	b.From = from
	return b, err
}

// Origin is the checkpoint of another run that a run began from.
type Origin struct {
	Run  checkpoint.RunID `json:"run"`
	Step int              `json:"step"`
}

// began reports whether a path is that of the checkpoint that the run began from, wherever it is now. One that is gone
// is known by its name alone.
func (id *Identity) began(f Files, path string) bool {
	if id.Origin == nil {
		return false
	}
	if !vfs.Exists(path) {
		return filepath.Base(path) == checkpoint.DirName(id.Origin.Step)
	}
	from, err := checkpoint.Open(f.FS, path)
	return err == nil && *id.Origin == Origin{from.Manifest.Run, from.Manifest.Step}
}

// newest is the newest whole checkpoint of the run among those that are looked for, wherever it has saved; and what
// newer ones are not whole.
func (f Files) newest(c *runfile.Config, id *Identity, q checkpoint.Query) (newest *checkpoint.Checkpoint,
	broken []checkpoint.Entry, err error) {
	own := id.Owner()
	q.Owner = &own
	return f.newestOf([]string{CheckpointsDir(c), id.FallbackDir(c)}, q)
}

// newestOf finds the newest checkpoint in directories; an empty name stands for none.
func (f Files) newestOf(dirs []string, q checkpoint.Query) (newest *checkpoint.Checkpoint,
	broken []checkpoint.Entry, err error) {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		found, not, err := checkpoint.Find(f.FS, dir, q)
		if err != nil {
			return nil, nil, err
		}
		broken = append(broken, not...)
		if found != nil && (newest == nil || found.Manifest.Step > newest.Manifest.Step) {
			newest = found
		}
	}
	return newest, broken, nil
}

// CheckpointsDir names the directory of a run's checkpoints.
func CheckpointsDir(c *runfile.Config) string { return filepath.Join(c.OutputDir, CheckpointsName) }

// SameDir reports whether two paths are one directory.
func SameDir(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// RefuseRun refuses a directory that has anything of a run.
func (f Files) RefuseRun(c *runfile.Config) error {
	entries, err := f.FS.ReadDir(CheckpointsDir(c))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output_dir: %w", err)
	}
	for _, entry := range entries {
		if checkpoint.IsDirName(entry.Name()) {
			return fmt.Errorf("output_dir: %s already has checkpoints of a run; choose another directory", c.OutputDir)
		}
	}
	names := []string{LastModel, MetricsName, SamplesName, BestModel}
	if old, err := f.ResolvedIn(c.OutputDir); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	} else if old != "" {
		names = append(names, old)
	}
	for _, name := range names {
		switch _, err := os.Lstat(filepath.Join(c.OutputDir, name)); {
		case err == nil:
			return fmt.Errorf("output_dir: %s already has a %s; choose another directory, or remove it", c.OutputDir, name)
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("output_dir: %w", err)
		}
	}
	return nil
}

// otherSettings lists what a run file asks for otherwise than the run that has the directory and was killed before its
// first checkpoint, if resume_with does not allow it: without others the run starts over. allow are the keys of others
// that resume_with may allow. old is the run's resolved run file, nil if that is gone.
func (id *Identity) otherSettings(c, old *runfile.Config) (others, allow []string) {
	now, then := c.Asked(), id.Asked
	if then == nil { // of an older version: as far as the resolved run file has what was asked
		asked := *c
		asked.Datasets = pinCommits(c.Datasets, old.Datasets)
		if c.Overlong == string(data.AutoLong) {
			asked.Overlong = old.Overlong // whose default was another
		}
		now, then = asked.Asked(), old.Asked()
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		was, is := then[key], now[key]
		may, isAllowed := c.MayChange(key)
		if was == is || isAllowed {
			continue
		}
		others = append(others, fmt.Sprintf("%s was %s, is now %s", key, cmp.Or(was, "not set"), cmp.Or(is, "not set")))
		if may {
			allow = append(allow, key)
		}
	}
	if id.Origin != nil || old != nil && old.Resume != "auto" && old.Resume != "never" {
		others = append(others, "resume was the path of a checkpoint, is now "+c.Resume)
	}
	if old == nil || c.SequenceLen != old.SequenceLen || c.BatchTokens != old.BatchTokens {
		return others, allow
	}
	sizes := c.Numerics
	if key, is, was := keepSizes(&sizes, old.Numerics, int(old.Numerics.MicroBatch)*old.SequenceLen); key != "" {
		others = append(others, fmt.Sprintf("numerics.%s was %d, is now %d", key, was, is))
	}
	return others, allow
}

// pinCommits is the data sets of a run file with the commits that a resolved one has for the same data sets of the hub.
func pinCommits(sets, resolved []data.Source) []data.Source {
	sets = slices.Clone(sets)
	for i := range min(len(sets), len(resolved)) {
		name, _, _ := strings.Cut(sets[i].Path, "@")
		if resolved[i].Revision != "" && resolved[i].Path == name {
			sets[i].Path, sets[i].Revision = name, resolved[i].Revision
		}
	}
	return sets
}
