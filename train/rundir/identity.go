package rundir

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	shared "github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// Files are the file system that runs write to. Note and Warn tell what a user may want to know of what is found there,
// and of a fault that a run survives; a caller who only asks whose a directory is may leave them out.
type Files struct {
	FS         vfs.FS
	Note, Warn func(format string, args ...any)
}

// A run is its id, and not the name of a directory, which another run may get when the first one is removed, and which
// two runs may share below save.fallback. The id is in every checkpoint of the run, and in the names of its
// directories elsewhere. run.json in the output directory says which run that directory has. It is written before
// anything that bears the id.

// IdentityName is the name of that file.
const IdentityName = "run.json"

// Identity says which run an output directory has.
type Identity struct {
	Run checkpoint.RunID `json:"run"`
	// Name is that of the run's directories below save.fallback and memory.path. It stays when the output directory
	// is moved.
	Name string `json:"name"`
	// Dir is the output directory, from the root of the file system, where the run was last started, and Inode is that
	// of the directory; nil where the system has none. A directory with another one is a copy, and so of another run,
	// whatever has become of the first: see isHere.
	Dir   string     `json:"dir"`
	Inode *vfs.Inode `json:"inode,omitempty"`
	// Saves is the directory to which a link at checkpoints led when the run was last started; nil: there was no link.
	Saves *vfs.Inode `json:"saves,omitempty"`
	// CopiedFrom are the runs whose checkpoints came into the output directory with the copy.
	CopiedFrom []checkpoint.RunID `json:"copied_from,omitempty"`
	// Origin is the checkpoint of another run that the run began from, with resume: PATH.
	Origin *Origin `json:"origin,omitempty"`
	// Asked are the settings that decide the run's numbers, by key, as its latest start has asked for them.
	Asked map[string]string `json:"asked,omitempty"`
	// Begun is that files outside of the output directory may have the id, and stay where the user removes it.
	Begun bool `json:"begun,omitempty"`
	// Ended records the end of a run that may not simply continue.
	Ended *Ending `json:"ended,omitempty"`
	// Results are the models that the run has written, and that are there, the latest last.
	Results []result `json:"results,omitempty"`
}

// Ending is the end of a run.
type Ending struct {
	Step     int  `json:"step"`
	Diverged bool `json:"diverged,omitempty"` // it has written no model
	// Settings is a checksum of the settings that decide the numbers of the last step; empty in those of older
	// versions. The latest checkpoint may be of a step before they were changed.
	Settings string `json:"settings,omitempty"`
	// Plateau is that of the last step, by which the run may have ended early.
	Plateau *checkpoint.Plateau `json:"plateau,omitempty"`
	// Best is the evaluation with the lowest loss.
	Best           *checkpoint.Best `json:"best,omitempty"`
	UnhealthySteps int              `json:"unhealthy_steps,omitempty"` // the latest ones
	// ModelSHA256 is the fingerprint of the model that it has written, from versions that had no results.
	ModelSHA256 string `json:"model_sha256,omitempty"`
}

// HasDiverged reports whether the run's latest process ended it for that.
func (id *Identity) HasDiverged() bool { return id.Ended != nil && id.Ended.Diverged }

// NewIdentity makes the identity of a run that starts in an output directory.
func (f Files) NewIdentity(outputDir string) Identity {
	id, dir := checkpoint.NewRunID(), runfile.Absolute(outputDir)
	return Identity{Run: id, Name: filepath.Base(dir) + "-" + id.Short(), Dir: dir, Inode: vfs.InodeOf(f.FS, dir)}
}

// isHere reports whether a fresh identity is for the output directory that this identity was written
// to. It may have been moved in its file system. A directory at another path in another file system is taken for a
// copy: that there is no other one cannot be known. So is a directory while the one where the run was last started has
// the run.
//
// A record that came with files proves nothing about files outside of them: a person who was given a run's directory, or a
// checkpoint, knows the run's id, and can write it into the record of another directory. No person knows the
// inode of a directory that is still to be unpacked. So a record without one is of this directory only where the system
// has none either, and the path is the same.
func (id *Identity) isHere(f Files, fresh *Identity) bool {
	if id.Dir != fresh.Dir {
		there, err := f.ReadIdentity(id.Dir)
		if err == nil && there != nil && there.Run == id.Run && !SameDir(id.Dir, fresh.Dir) {
			return false
		}
	}
	return isSameHome(id.Dir, id.Inode, fresh.Dir, fresh.Inode)
}

// Owner is the run whose checkpoints the run takes for its own.
func (id *Identity) Owner() checkpoint.Owner {
	return checkpoint.Owner{Run: id.Run, Earlier: id.CopiedFrom}
}

// FallbackDir takes the run's checkpoints when they cannot go to its output directory; empty without
// save.fallback.
func (id *Identity) FallbackDir(c *runfile.Config) string {
	if c.Save.Fallback == "" {
		return ""
	}
	return filepath.Join(c.Save.Fallback, id.Name, CheckpointsName)
}

// StateDirs hold the run's state on disk, one on each drive.
func (id *Identity) StateDirs(c *runfile.Config) (dirs runfile.Paths) { return id.StateDirsOf(c, 0) }

// sealedIdentity is run.json: a record in which a drive has changed a bit must not be that of another run.
type sealedIdentity struct {
	Sum      checkpoint.Sum  `json:"xxh3"` // of the bytes of Identity
	Identity json.RawMessage `json:"identity"`
}

// Encode is the contents of run.json.
func (id *Identity) Encode() ([]byte, error) {
	body, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	doc, err := json.Marshal(sealedIdentity{checkpoint.Sum(xxh3.Hash(body)), body})
	return append(doc, '\n'), err
}

func decodeIdentity(doc []byte) (*Identity, error) {
	var sealed sealedIdentity
	if err := shared.Unmarshal(doc, &sealed); err != nil {
		return nil, err
	}
	if checkpoint.Sum(xxh3.Hash(sealed.Identity)) != sealed.Sum {
		return nil, errors.New("its checksum does not match")
	}
	id := &Identity{}
	if err := json.Unmarshal(sealed.Identity, id); err != nil {
		return nil, err
	}
	if err := id.Check(); err != nil {
		return nil, err
	}
	if end := id.Ended; end != nil && end.ModelSHA256 != "" {
		if len(id.Results) == 0 {
			id.Results = []result{{Name: LastModel, Step: end.Step, WeightsSHA256: end.ModelSHA256}}
		}
		end.ModelSHA256 = ""
	}
	return id, nil
}

// Check refuses an identity that is of no run.
func (id *Identity) Check() error {
	if err := id.Run.Check(); err != nil {
		return err
	}
	if id.Run == "" || !strings.HasSuffix(id.Name, "-"+id.Run.Short()) || id.Name != filepath.Base(id.Name) {
		return errors.New("it names no run")
	}
	return nil
}

// maxIdentityBytes is more than run.json ever has.
const maxIdentityBytes = 1 << 20

// ReadIdentity reads the run.json of an output directory; nil if there is no such file, or it is damaged. An error is
// the machine's, or that the file is the user's own.
func (f Files) ReadIdentity(outputDir string) (*Identity, error) {
	name := filepath.Join(outputDir, IdentityName)
	doc, err := vfs.ReadBelow(f.FS, outputDir, IdentityName, maxIdentityBytes)
	switch {
	case blame.IsOfMachine(err):
		return nil, fmt.Errorf("output_dir: %w", err)
	case err != nil:
		return nil, nil
	}
	id, err := decodeIdentity(doc)
	if err == nil {
		return id, nil
	}
	if json.Valid(doc) && !bytes.Contains(doc, []byte(`"xxh3"`)) && !bytes.Contains(doc, []byte(`"identity"`)) {
		return nil, fmt.Errorf("output_dir: %s was not written by a run, which would replace it: rename it, or choose "+
			"another output_dir", name)
	}
	return nil, nil // it is damaged
}

// OwnerOf returns the run that an output directory has. It is an error if that is not known.
func OwnerOf(outputDir string) (checkpoint.Owner, error) {
	return Files{FS: vfs.OS{}}.OwnerOf(outputDir)
}

// HasEnded reports whether the run in an output directory has come to its end, or diverged. It is false where that is
// not known.
func HasEnded(outputDir string) bool {
	id, err := Files{FS: vfs.OS{}}.ReadIdentity(outputDir)
	return err == nil && id != nil && id.Ended != nil
}

// OwnerOf is the run that an output directory has.
func (f Files) OwnerOf(outputDir string) (checkpoint.Owner, error) {
	id, err := f.IdentityOf(outputDir, nil)
	return id.Owner(), err
}

// IdentityOf returns the identity of the run that an output directory has, or that of a new run: for all that asks. A
// run whose run.json is gone, or was never there, is a new one with the checkpoints that are in the directory. So is
// one whose directory is a copy; where run.json was copied alone, it says nothing. With a configuration, so is one
// whose directories in save.fallback and memory.path are of another output directory: see ownsOutside.
func (f Files) IdentityOf(outputDir string, c *runfile.Config) (Identity, error) {
	fresh := f.NewIdentity(outputDir)
	old, err := f.ReadIdentity(outputDir)
	if err != nil {
		return fresh, err
	}
	dir := filepath.Join(outputDir, CheckpointsName)
	isHere := old != nil && old.isHere(f, &fresh)
	if isHere {
		now := *old
		now.Dir, now.Inode = fresh.Dir, fresh.Inode
		if old.Saves != nil && !f.ownsSaves(&now, dir) {
			now.Saves = nil
		}
		isHere = c == nil || f.ownsOutside(&now, c)
		old, fresh.Saves = &now, now.Saves
	}
	if err := f.checkSavesRead(dir, fresh.Saves); err != nil {
		return fresh, UnderKey("output_dir", err)
	}
	if isHere {
		return *old, nil
	}
	runs, others, err := checkpoint.Runs(f.FS, dir)
	if err != nil {
		return fresh, blame.NotRequest(err) // whether there are checkpoints is not known
	}
	switch {
	case old == nil && len(others) > 0:
		return fresh, fmt.Errorf("output_dir: %s has checkpoints of %d runs, and no %s that says which one continues; "+
			"move those of the others to another directory", dir, 1+len(others), IdentityName)
	case old == nil:
		fresh.CopiedFrom = runs
	case len(runs) > 0 || vfs.Exists(filepath.Join(outputDir, MetricsName)) ||
		vfs.Exists(filepath.Join(outputDir, LastModel)):
		fresh.CopiedFrom = append([]checkpoint.RunID{old.Run}, old.CopiedFrom...)
		fresh.Ended, fresh.Results, fresh.Origin = old.Ended, old.Results, old.Origin
	}
	return fresh, nil
}

// identityToWrite is identityOf for a run that writes: it does not take over checkpoints to which a link leads.
func (f Files) identityToWrite(c *runfile.Config) (Identity, error) {
	id, err := f.IdentityOf(c.OutputDir, c)
	if !id.Begun && f.isLink(CheckpointsDir(c)) {
		id.CopiedFrom = nil
	}
	return id, err
}

// noteOthers tells a run that starts what other runs have left in its directories elsewhere: it uses nothing of that,
// and removes nothing.
func (f Files) noteOthers(c *runfile.Config, id *Identity) {
	base := filepath.Base(runfile.Absolute(c.OutputDir))
	saved := ""
	for _, name := range f.dirsIn(c.Save.Fallback) {
		if name != id.Name && !id.isOfFirst(name) && (name == base || strings.HasPrefix(name, base+"-")) {
			saved = cmp.Or(f.newestIn(filepath.Join(c.Save.Fallback, name)), saved)
		}
	}
	if saved != "" {
		f.Note("save.fallback has checkpoints of another run with this name, such as %s; this run does not use them: to "+
			"continue from one, set resume to its path", saved)
	}
	var left int64
	var where []string
	for _, path := range c.Budgets().Path {
		for _, name := range f.dirsIn(path) {
			dir := filepath.Join(path, name)
			if bytes := store.LeftBytes(dir); !id.isStateOf(name) && bytes > 0 {
				left, where = left+bytes, append(where, dir)
			}
		}
	}
	if left > 0 {
		f.Note("memory.path has %s of state of other runs, in %s; remove what is of no run that you start again",
			plan.FormatBytes(left), strings.Join(where[:min(len(where), 3)], ", "))
	}
}

// noteForeign names the newest checkpoint of another run in the output directory, such as one that a user has put back
// there: the run does not use it.
func (f Files) noteForeign(c *runfile.Config, id *Identity) {
	entries, err := checkpoint.List(f.FS, CheckpointsDir(c))
	own := id.Owner()
	i := slices.IndexFunc(entries, func(s checkpoint.Entry) bool { return s.Err == nil && !own.Has(s.Manifest.Run) })
	if err == nil && i >= 0 {
		f.Note("%s is a checkpoint of another run, and this run does not use it: to continue from it, set resume to its "+
			"path, and another output_dir", entries[i].Dir)
	}
}

// noteFirst tells a run that starts in a copy what the first one has in save.fallback. A directory that has come from
// another file system looks like a copy, and that may be the newest that its user has.
func (f Files) noteFirst(c *runfile.Config, id *Identity) {
	for _, name := range f.dirsIn(c.Save.Fallback) {
		if !id.isOfFirst(name) {
			continue
		}
		if newest := f.newestIn(filepath.Join(c.Save.Fallback, name)); newest != "" {
			f.Note("output_dir is a copy, or was moved from another file system, and is a run of its own; it does not use "+
				"%s, of the first run: to continue from that, set resume to its path, and another output_dir", newest)
		}
	}
}

// isOfFirst reports whether a directory below save.fallback has the name of a run that this one is a copy of.
func (id *Identity) isOfFirst(name string) bool {
	return slices.ContainsFunc(id.CopiedFrom, func(run checkpoint.RunID) bool {
		return run != "" && strings.HasSuffix(name, "-"+run.Short())
	})
}

// newestIn is the path of the newest checkpoint in a run's directory; empty without one.
func (f Files) newestIn(dir string) string {
	newest, _, err := checkpoint.Latest(f.FS, filepath.Join(dir, CheckpointsName))
	if err != nil || newest == nil {
		return ""
	}
	return newest.Dir()
}

// dirsIn are the names of the directories in a directory; nil if it cannot be read.
func (f Files) dirsIn(dir string) (names []string) {
	if dir == "" {
		return nil
	}
	entries, _ := f.FS.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names
}

// isStateOf reports whether a directory below memory.path has the name of a host's of this run.
func (id *Identity) isStateOf(name string) bool {
	host, isHost := strings.CutPrefix(name, id.Name+HostStateInfix)
	_, err := strconv.Atoi(host)
	return name == id.Name || isHost && err == nil
}

// HostStateInfix stands between the name of a run's directory below memory.path and the number of the host that it is
// of, except host 0.
const HostStateInfix = "-rank-"

// StateDirsOf are StateDirs of a host.
func (id *Identity) StateDirsOf(c *runfile.Config, host int) (dirs runfile.Paths) {
	name := id.Name
	if host > 0 {
		name = fmt.Sprintf("%s%s%d", name, HostStateInfix, host)
	}
	for _, path := range c.Budgets().Path {
		dirs = append(dirs, filepath.Join(path, name))
	}
	return dirs
}
