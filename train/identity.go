package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// A run is its id, and not the name of a directory, which another run may get when the first one is removed, and which
// two runs may share below save.fallback. The id is in every checkpoint of the run, and in the names of its
// directories elsewhere. run.json in the output directory says which run that directory has. It is written before
// anything that bears the id.

// identityName is the name of that file.
const identityName = "run.json"

// identity says which run an output directory has.
type identity struct {
	Run checkpoint.RunID `json:"run"`
	// Name is that of the run's directories below save.fallback and memory.path. It stays when the output directory
	// is moved.
	Name string `json:"name"`
	// Dir is the output directory, from the root of the file system, where the run was last started. A directory that
	// is elsewhere, while this one has the same run, is a copy, and so of another run.
	Dir string `json:"dir"`
	// CopiedFrom are the runs whose checkpoints came into the output directory with the copy.
	CopiedFrom []checkpoint.RunID `json:"copied_from,omitempty"`
	// Begun is that files outside of the output directory may have the id, and stay where the user removes it.
	Begun bool `json:"begun,omitempty"`
	// Ended is how the run has ended, unless it may simply continue.
	Ended *ending `json:"ended,omitempty"`
}

// ending is the end of a run.
type ending struct {
	Step     int  `json:"step"`
	Diverged bool `json:"diverged,omitempty"` // it has written no model
	// ModelSHA256 is the fingerprint of the model that it has written.
	ModelSHA256 string `json:"model_sha256,omitempty"`
}

// hasDiverged reports whether the run's latest process ended it for that.
func (id *identity) hasDiverged() bool { return id.Ended != nil && id.Ended.Diverged }

// newIdentity is that of a run that starts in an output directory.
func newIdentity(outputDir string) identity {
	id, dir := checkpoint.NewRunID(), runfile.Absolute(outputDir)
	return identity{Run: id, Name: filepath.Base(dir) + "-" + id.Short(), Dir: dir}
}

// owner is the run whose checkpoints the run takes for its own.
func (id *identity) owner() checkpoint.Owner {
	return checkpoint.Owner{Run: id.Run, Earlier: id.CopiedFrom}
}

// fallbackDir is where the run's checkpoints go when they cannot go to its output directory; empty without
// save.fallback.
func (id *identity) fallbackDir(c *runfile.Config) string {
	if c.Save.Fallback == "" {
		return ""
	}
	return filepath.Join(c.Save.Fallback, id.Name, checkpointsName)
}

// stateDir is where the run has its state on disk.
func (id *identity) stateDir(c *runfile.Config) string {
	return filepath.Join(c.Budgets().Path, id.Name)
}

// sealedIdentity is run.json: a record in which a drive has changed a bit must not be that of another run.
type sealedIdentity struct {
	Sum      checkpoint.Sum  `json:"xxh3"` // of the bytes of Identity
	Identity json.RawMessage `json:"identity"`
}

func (id *identity) encode() ([]byte, error) {
	body, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	doc, err := json.Marshal(sealedIdentity{checkpoint.Sum(xxh3.Hash(body)), body})
	return append(doc, '\n'), err
}

func decodeIdentity(doc []byte) (*identity, error) {
	var sealed sealedIdentity
	if err := json.Unmarshal(doc, &sealed); err != nil {
		return nil, err
	}
	if checkpoint.Sum(xxh3.Hash(sealed.Identity)) != sealed.Sum {
		return nil, errors.New("its checksum does not match")
	}
	id := &identity{}
	if err := json.Unmarshal(sealed.Identity, id); err != nil {
		return nil, err
	}
	if err := id.Run.Check(); err != nil {
		return nil, err
	}
	if id.Run == "" || !strings.HasSuffix(id.Name, "-"+id.Run.Short()) || id.Name != filepath.Base(id.Name) {
		return nil, errors.New("it names no run")
	}
	return id, nil
}

// maxIdentityBytes is more than run.json ever has.
const maxIdentityBytes = 1 << 20

// readIdentity reads the run.json of an output directory; nil if there is no such file, or it is damaged. An error is
// the machine's.
func (e *Env) readIdentity(outputDir string) (*identity, error) {
	name := filepath.Join(outputDir, identityName)
	doc, err := vfs.ReadFile(e.files(), name, maxIdentityBytes)
	switch {
	case blame.IsOfMachine(err):
		return nil, fmt.Errorf("output_dir: %w", err)
	case err != nil:
		return nil, nil
	}
	id, err := decodeIdentity(doc)
	if err != nil {
		return nil, nil
	}
	return id, nil
}

// OwnerOf returns the run that an output directory has. It is an error if that is not known.
func OwnerOf(outputDir string) (checkpoint.Owner, error) { return (&Env{}).ownerOf(outputDir) }

// ownerOf is the run that an output directory has.
func (e *Env) ownerOf(outputDir string) (checkpoint.Owner, error) {
	id, err := e.identityOf(outputDir, !exists(filepath.Join(outputDir, checkpointsName)))
	return id.owner(), err
}

// identityOf returns the identity of the run that an output directory has, or that of a new run. A run whose run.json
// is gone, or was never there, is a new one with the checkpoints that are in the directory. isNew is that there was no
// directory for checkpoints: a run.json that names another output directory was then copied alone.
func (e *Env) identityOf(outputDir string, isNew bool) (identity, error) {
	fresh := newIdentity(outputDir)
	old, err := e.readIdentity(outputDir)
	if err != nil {
		return fresh, err
	}
	if old == nil {
		dir := filepath.Join(outputDir, checkpointsName)
		runs, err := checkpoint.Runs(e.files(), dir)
		if err != nil {
			return fresh, blame.NotRequest(err) // whether there are checkpoints is not known
		}
		if len(runs) > 1 {
			return fresh, fmt.Errorf("output_dir: %s has checkpoints of %d runs, and no %s that says which one continues; "+
				"move those of the others to another directory", dir, len(runs), identityName)
		}
		fresh.CopiedFrom = runs
		return fresh, nil
	}
	if old.Dir != fresh.Dir {
		if isNew {
			return fresh, nil
		}
		there, err := e.readIdentity(old.Dir)
		if err == nil && there != nil && there.Run == old.Run && !sameDir(old.Dir, outputDir) {
			fresh.CopiedFrom = append([]checkpoint.RunID{old.Run}, old.CopiedFrom...)
			return fresh, nil
		}
		old.Dir = fresh.Dir // it was moved
	}
	return *old, nil
}

// identityToWrite is identityOf for a run that writes: it does not take over checkpoints to which a link leads.
func (e *Env) identityToWrite(outputDir string, isNew bool) (identity, error) {
	id, err := e.identityOf(outputDir, isNew)
	if !id.Begun && e.isLink(filepath.Join(outputDir, checkpointsName)) {
		id.CopiedFrom = nil
	}
	return id, err
}

// findRun finds out which run this is, and how it starts. The lock is held.
func (t *trainer) findRun(env *Env) (b beginning, err error) {
	c := t.config
	if t.id, err = env.identityToWrite(c.OutputDir, t.saves.dir.IsNew()); err != nil {
		return b, err
	}
	if err := env.checkLinks(c, &t.id); err != nil {
		return b, err
	}
	if at := t.id.fallbackDir(c); at != "" {
		if err := vfs.CheckDir(env.files(), filepath.Dir(at), at); err != nil {
			return b, fmt.Errorf("save.fallback: %w", err)
		}
	}
	if err := t.saves.own(env, c, &t.id); err != nil {
		return b, err
	}
	found := t.id.Run
	if b, err = env.findBeginning(c, &t.id); err != nil {
		return b, err
	}
	if t.id.Run != found {
		if err := t.saves.own(env, c, &t.id); err != nil {
			return b, err
		}
	}
	if !t.id.Begun {
		env.sayOthers(c, &t.id)
	}
	t.memoryPath, c.Memory.Path = c.Memory.Path, t.id.stateDir(c)
	return b, nil
}

// claim writes run.json, so that what bears the run's id is known for its own after a kill. unclaim undoes it.
func (t *trainer) claim(env *Env) (err error) {
	t.unclaimed, err = vfs.ReadFile(env.files(), filepath.Join(t.config.OutputDir, identityName), maxIdentityBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("output_dir: %w", err)
	}
	return t.writeIdentity(env)
}

func (t *trainer) unclaim(env *Env) {
	name := filepath.Join(t.config.OutputDir, identityName)
	if t.unclaimed == nil {
		_ = env.files().Remove(name) // a run that has not begun has nothing to lose
	} else if now, err := t.id.encode(); err == nil && !bytes.Equal(now, t.unclaimed) {
		_ = vfs.WriteFileAtomic(env.files(), name, t.unclaimed)
	}
}

// writeIdentity writes run.json if it has other contents.
func (t *trainer) writeIdentity(env *Env) error {
	name := filepath.Join(t.config.OutputDir, identityName)
	doc, err := t.id.encode()
	if err != nil {
		return err
	}
	if now, err := vfs.ReadFile(env.files(), name, maxIdentityBytes); err == nil && bytes.Equal(now, doc) {
		return nil
	}
	if err := vfs.WriteFileAtomic(env.files(), name, doc); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

// sayOthers tells a run that starts what other runs have left in its directories elsewhere: it uses nothing of that,
// and removes nothing.
func (e *Env) sayOthers(c *runfile.Config, id *identity) {
	base := filepath.Base(runfile.Absolute(c.OutputDir))
	var saved []string
	for _, name := range e.dirsIn(c.Save.Fallback) {
		dir := filepath.Join(c.Save.Fallback, name, checkpointsName)
		if name == id.Name || name != base && !strings.HasPrefix(name, base+"-") {
			continue
		}
		if last, _, err := checkpoint.Latest(e.files(), dir); err == nil && last != nil {
			saved = append(saved, last.Dir())
		}
	}
	if len(saved) > 0 {
		e.say("save.fallback has checkpoints of another run with this name, such as %s; this run does not use them: to "+
			"continue from one, set resume to its path", saved[len(saved)-1])
	}
	var left int64
	var where []string
	for _, name := range e.dirsIn(c.Budgets().Path) {
		dir := filepath.Join(c.Budgets().Path, name)
		if bytes := store.LeftBytes(dir); name != id.Name && bytes > 0 {
			left, where = left+bytes, append(where, dir)
		}
	}
	if left > 0 {
		e.say("memory.path has %s of state of other runs, in %s; remove what is of no run that you start again",
			plan.FormatBytes(left), strings.Join(where[:min(len(where), 3)], ", "))
	}
}

// dirsIn are the names of the directories in a directory; nil if it cannot be read.
func (e *Env) dirsIn(dir string) (names []string) {
	if dir == "" {
		return nil
	}
	entries, _ := e.files().ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names
}
