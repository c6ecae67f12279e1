package train

import (
	"bytes"
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
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// Names in a run's output directory, other than the models'.
const (
	resolvedName      = "run.yaml"      // the run file with every key, as the run uses it
	otherResolvedName = "resolved.yaml" // the same, where run.yaml is the user's
	planName          = "plan.json"
	metricsName       = "metrics.jsonl"
	samplesName       = "samples.jsonl"
	traceName         = "trace.json"
	lastModel         = "model"
	bestModel         = "model-best" // the one with the lowest evaluation loss
	checkpointsName   = "checkpoints"
)

// holdRun takes the lock of the output directory, before anything in it is read or made.
func (e *Env) holdRun(c *runfile.Config) (*checkpoint.Directory, error) {
	if st, err := os.Stat(c.OutputDir); err == nil && !st.IsDir() {
		return nil, fmt.Errorf("output_dir: %s is a file, not a directory; choose another output_dir", c.OutputDir)
	}
	if to, err := os.Readlink(c.OutputDir); err == nil && !exists(c.OutputDir) {
		return nil, fmt.Errorf("output_dir: %s is a link to %s, which is not there; make that directory, mount its disk, or "+
			"remove the link", c.OutputDir, to)
	}
	checkOwn := func() error {
		return underKey("output_dir", vfs.CheckDir(e.files(), c.OutputDir, filepath.Join(c.OutputDir, lastModel),
			filepath.Join(c.OutputDir, bestModel), checkpointsDir(c)))
	}
	if err := checkOwn(); err != nil {
		return nil, err
	}
	if at := c.Save.Fallback; at != "" {
		// Made here it could hide a disk that is not mounted, and with it the newest checkpoint.
		if st, err := os.Stat(at); err != nil || !st.IsDir() {
			return nil, fmt.Errorf("save.fallback: there is no directory %s; make it, or mount its disk", at)
		}
	}
	if e.isLink(checkpointsDir(c)) { // its lock is a file that may be another run's
		id, err := e.identityToWrite(c)
		if err == nil {
			err = e.checkLinks(c, &id)
		}
		if err != nil {
			return nil, err
		}
	}
	dir, err := checkpoint.Hold(e.files(), checkpointsDir(c))
	if err != nil {
		return nil, fmt.Errorf("output_dir: %w", err)
	}
	// A directory that was missing may since have been made by another user, where all may make one.
	if err := checkOwn(); err != nil {
		_ = dir.Abandon() // err is the one to report
		return nil, err
	}
	// Files that a killed run has left half-written.
	for _, name := range []string{resolvedName, otherResolvedName, planName, traceName, identityName, metricsName,
		samplesName} {
		_ = e.files().Remove(filepath.Join(c.OutputDir, name+".tmp")) // costs nothing if it stays
	}
	for _, name := range []string{lastModel, bestModel} {
		_ = hf.RemoveStaged(e.files(), filepath.Join(c.OutputDir, name))
	}
	return dir, nil
}

// beginning says how a run starts in its output directory.
type beginning struct {
	from     *checkpoint.Checkpoint // it continues from this one; nil: it starts from the model
	sizes    runfile.Sizes          // those that this very run had before it was killed without a checkpoint
	overlong string                 // that this very run then had; empty: it is a new one
}

// hasSizes reports whether the run has sizes from an earlier start.
func (b *beginning) hasSizes() bool { return b.from != nil || b.sizes != runfile.Sizes{} }

// adoptSizes gives the configuration the sizes that the run has, and what it does with long documents.
func (b *beginning) adoptSizes(c *runfile.Config) error {
	c.Numerics = b.sizes.Or(c.Numerics)
	if b.overlong != "" {
		c.Overlong = b.overlong
	}
	return adoptCuts(c, b.from)
}

// findBeginning decides how the run starts. The lock is held. It refuses a directory that has another run. A run that
// begins where there was another one, whose files the user has removed, gets an id of its own.
func (e *Env) findBeginning(c *runfile.Config, id *identity) (b beginning, err error) {
	old, err := e.readResolved(c.OutputDir)
	if err != nil {
		return b, fmt.Errorf("output_dir: %w", err)
	}
	begins := func() error {
		if id.Begun || len(id.CopiedFrom) > 0 {
			*id = e.newIdentity(c.OutputDir)
		}
		return e.refuseRun(c)
	}
	if c.Resume == "never" {
		return b, begins()
	}
	own, broken, err := e.newest(c, id, checkpoint.Query{Healthy: id.hasDiverged()})
	if err == nil && own == nil && id.hasDiverged() {
		own, broken, err = e.newest(c, id, checkpoint.Query{})
	}
	if err != nil {
		return b, blame.NotRequest(err) // the directory was ours to lock, and now it cannot be read
	}
	for _, entry := range broken {
		e.note("%v", entry.Err)
	}
	switch path := runfile.Absolute(c.Resume); {
	case c.Resume != "auto" && (sameDir(filepath.Dir(path), checkpointsDir(c)) ||
		sameDir(filepath.Dir(path), id.fallbackDir(c))):
		if b.from, err = checkpoint.Open(e.files(), c.Resume); err != nil {
			return b, blame.BadName(fmt.Errorf("resume: %w", err))
		}
		if !id.owner().Has(b.from.Manifest.Run) {
			return b, fmt.Errorf("resume: %s is of another run than the one in this output_dir; set output_dir to another "+
				"directory to continue from it", c.Resume)
		}
		if own != nil && own.Manifest.Step > b.from.Manifest.Step {
			return b, fmt.Errorf("resume: %s is older than %s, which the run in this output_dir has come to; set output_dir to another directory to go back to the older one",
				c.Resume, own.Dir())
		}
		return b, nil
	case c.Resume == "auto" || old != nil && old.Resume == path || id.began(e, path):
		// The run's own progress counts, also of one that began elsewhere.
		if own != nil {
			b.from = own
			return b, nil
		}
		if len(broken) > 0 {
			return b, fmt.Errorf("output_dir: none of the %d checkpoints in %s is whole; of the newest: %w", len(broken), checkpointsDir(c), broken[0].Err)
		}
		if c.Resume != "auto" {
			break
		}
		isBegun := id.Begun && id.Asked != nil && exists(filepath.Join(c.OutputDir, metricsName))
		if old == nil && !isBegun {
			return b, begins()
		}
		others, allow := id.otherSettings(c, old)
		if len(others) == 0 {
			switch model := filepath.Join(c.OutputDir, lastModel); {
			case !exists(model):
				e.note("%s has this run, and no checkpoint of it; the run starts over", c.OutputDir)
			case !id.hasResult(lastModel):
				return b, fmt.Errorf("output_dir: %s is there, and neither a checkpoint nor %s says that the run has ended; "+
					"move it to another directory to train again", model, identityName)
			}
			if old != nil && old.SequenceLen == c.SequenceLen && old.BatchTokens == c.BatchTokens {
				b.sizes = old.Numerics
				if c.Overlong == string(data.AutoLong) {
					b.overlong = old.Overlong
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
	from, errOpen := checkpoint.Open(e.files(), c.Resume)
	if errOpen != nil {
		return b, blame.BadName(fmt.Errorf("resume: %w", errOpen))
	}
	b.from = from
	return b, err
}

// origin is the checkpoint of another run that a run began from.
type origin struct {
	Run  checkpoint.RunID `json:"run"`
	Step int              `json:"step"`
}

// began reports whether a path is that of the checkpoint that the run began from, wherever it is now. One that is gone
// is known by its name alone.
func (id *identity) began(e *Env, path string) bool {
	if id.Origin == nil {
		return false
	}
	if !exists(path) {
		return filepath.Base(path) == checkpoint.DirName(id.Origin.Step)
	}
	from, err := checkpoint.Open(e.files(), path)
	return err == nil && *id.Origin == origin{from.Manifest.Run, from.Manifest.Step}
}

// newest is the newest whole checkpoint of the run among those that are looked for, wherever it has saved; and what
// newer ones are not whole.
func (e *Env) newest(c *runfile.Config, id *identity, q checkpoint.Query) (newest *checkpoint.Checkpoint,
	broken []checkpoint.Entry, err error) {
	own := id.owner()
	q.Owner = &own
	for _, dir := range []string{checkpointsDir(c), id.fallbackDir(c)} {
		if dir == "" {
			continue
		}
		found, not, err := checkpoint.Find(e.files(), dir, q)
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

// checkpointsDir names the directory of a run's checkpoints.
func checkpointsDir(c *runfile.Config) string { return filepath.Join(c.OutputDir, checkpointsName) }

func sameDir(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// refuseRun refuses a directory that has anything of a run.
func (e *Env) refuseRun(c *runfile.Config) error {
	entries, err := e.files().ReadDir(checkpointsDir(c))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output_dir: %w", err)
	}
	for _, entry := range entries {
		if checkpoint.IsDirName(entry.Name()) {
			return fmt.Errorf("output_dir: %s already has checkpoints of a run; choose another directory", c.OutputDir)
		}
	}
	names := []string{lastModel, metricsName, samplesName, bestModel}
	if old, err := e.resolvedIn(c.OutputDir); err != nil {
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

// resolvedIn returns the name of the run file that a run has written to a directory; empty if there is no such file. An
// error is the machine's: the contents of the directory are not known.
func (e *Env) resolvedIn(dir string) (string, error) {
	for _, name := range []string{otherResolvedName, resolvedName} {
		switch doc, err := vfs.ReadBelow(e.files(), dir, name, runfile.MaxBytes); {
		case blame.IsOfMachine(err):
			return "", err
		case err == nil && bytes.HasPrefix(doc, []byte(runfile.ResolvedHeader)):
			return name, nil
		}
	}
	return "", nil
}

// readResolved reads the run file that a run has written to a directory; nil if there is no such file, or it is no
// longer a run file.
func (e *Env) readResolved(dir string) (*runfile.Config, error) {
	name, err := e.resolvedIn(dir)
	if err != nil || name == "" {
		return nil, err
	}
	c, err := runfile.Read(filepath.Join(dir, name), nil)
	switch {
	case blame.IsOfMachine(err):
		return nil, err
	case err != nil:
		return nil, nil
	}
	return c, nil
}

// writeResolved writes the run file with every key, and the run's id for people. The user's own run.yaml stays as it
// is.
func (e *Env) writeResolved(c *runfile.Config, run checkpoint.RunID) error {
	doc, err := c.YAML()
	if err != nil {
		return err
	}
	name, err := e.resolvedIn(c.OutputDir)
	if err != nil {
		return err
	}
	if name == "" {
		name = resolvedName
		if _, err := os.Lstat(filepath.Join(c.OutputDir, name)); err == nil {
			name = otherResolvedName
		}
	}
	header := fmt.Appendf(nil, "%s# Run %s\n", runfile.ResolvedHeader, run)
	return vfs.WriteFileAtomic(e.files(), filepath.Join(c.OutputDir, name), append(header, doc...))
}

// otherSettings lists what a run file asks for otherwise than the run that has the directory and was killed before its
// first checkpoint, if resume_with does not allow it: without others the run starts over. allow are the keys of others
// that resume_with may allow. old is the run's resolved run file, nil if that is gone.
func (id *identity) otherSettings(c, old *runfile.Config) (others, allow []string) {
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
