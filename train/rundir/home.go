package rundir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// Names in a run's output directory, other than the models'.
const (
	ResolvedName      = "run.yaml"      // the run file with every key, as the run uses it
	OtherResolvedName = "resolved.yaml" // the same, where run.yaml is the user's
	PlanName          = "plan.json"
	MetricsName       = "metrics.jsonl"
	SamplesName       = "samples.jsonl"
	TraceName         = "trace.json"
	LastModel         = "model"
	BestModel         = "model-best" // the one with the lowest evaluation loss
	CheckpointsName   = "checkpoints"
	OldName           = "old" // log-probabilities of a policy's answers by the model before its updates with them
)

// Home has the directories of a run, its output directory and those elsewhere, with their locks, and the identity by
// which they are the run's.
type Home struct {
	files  Files
	Config *runfile.Config

	ID         Identity
	Asked      map[string]string // see Identity.Asked: before the run decides anything
	unclaimed  []byte            // run.json as it was before this process; nil: there was no such file
	MemoryPath runfile.Paths     // as the run file has it: config has the directories below it that are the run's

	Dir      *checkpoint.Directory // of checkpoints; nil on a host that does not lead
	Saving   *checkpoint.Hosts     // that write checkpoints together; nil: the process is alone
	Fallback *checkpoint.Directory // nil until it is needed, or found
	Taken    error                 // the output directory is another run's now
	Remake   string                // what was removed of it, while its files are not all there again; empty: nothing
}

// NewHome returns the Home of a run that is to start as a configuration says, which nothing has decided on yet.
func NewHome(f Files, c *runfile.Config) Home { return Home{files: f, Config: c, Asked: c.Asked()} }

// Hold takes the lock of the output directory, and finds out which run this is and how it starts.
func (h *Home) Hold() (b Beginning, err error) {
	c := h.Config
	if err := CheckPaths(c.Budgets()); err != nil {
		return b, err
	}
	if h.Dir, err = h.files.holdRun(c); err != nil {
		return b, err
	}
	if h.ID, err = h.files.identityToWrite(c); err != nil {
		return b, err
	}
	if err := h.files.checkLinks(c, &h.ID); err != nil {
		return b, err
	}
	if at := h.ID.FallbackDir(c); at != "" {
		if err := vfs.CheckDir(h.files.FS, filepath.Dir(at), at); err != nil {
			return b, fmt.Errorf("save.fallback: %w", err)
		}
	}
	if err := h.own(); err != nil {
		return b, err
	}
	if !h.ID.Begun {
		h.files.noteFirst(c, &h.ID)
	}
	found := h.ID.Run
	if b, err = h.files.FindBeginning(c, &h.ID); err != nil {
		return b, err
	}
	if h.ID.Run != found {
		if err := h.own(); err != nil {
			return b, err
		}
	}
	h.ID.Saves = h.files.savesNoted(CheckpointsDir(c))
	h.files.noteForeign(c, &h.ID)
	if !h.ID.Begun {
		h.files.noteOthers(c, &h.ID)
	}
	h.files.noteDrives(c.Budgets())
	h.MemoryPath, c.Memory.Path = c.Memory.Path, h.ID.StateDirs(c)
	return b, nil
}

// ClearState removes what this run has left in memory.path when it was killed, of all hosts that it had. A start on
// fewer hosts, or with other ranks on a machine, would never remove it. No process of the run has a store yet;
// one of a run before, which has not ended, keeps its own.
func (h *Home) ClearState() {
	for _, path := range h.Config.Memory.Path {
		within := filepath.Dir(path)
		for _, name := range h.files.dirsIn(within) {
			if h.ID.isStateOf(name) {
				h.clearStateIn(filepath.Join(within, name))
			}
		}
	}
}

func (h *Home) clearStateIn(dir string) {
	_ = h.files.FS.Remove(filepath.Join(dir, StateOwnerName+".tmp")) // half-written; costs nothing if it stays
	err := store.RemoveLeft(h.files.FS, dir)
	if err != nil && !errors.Is(err, vfs.ErrLocked) && !errors.Is(err, fs.ErrNotExist) { // another host was first
		h.files.Warn("memory.path: state that this run left there when it was killed stays: %s", console.OneLine(err))
	}
}

// own says which run holds the directories. That below save.fallback is held where it is there, so that a checkpoint
// which an interrupted save was to replace is found.
func (h *Home) own() (err error) {
	if err := h.Dir.Own(h.ID.Owner()); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	if h.Fallback != nil {
		h.Fallback.Close()
		h.Fallback = nil
	}
	if path := h.ID.FallbackDir(h.Config); path != "" && vfs.Exists(path) {
		if h.Fallback, err = checkpoint.Acquire(h.files.FS, path, h.ID.Owner()); err != nil {
			return fmt.Errorf("save.fallback: %w", err)
		}
	}
	return nil
}

// FallbackDir is the directory of save.fallback where the run saves; nil without the key.
func (h *Home) FallbackDir() (*checkpoint.Directory, error) {
	path := h.ID.FallbackDir(h.Config)
	if path == "" {
		return nil, nil
	}
	var err error
	if h.Fallback != nil {
		_, err = h.Fallback.Retake()
	} else {
		h.Fallback, err = checkpoint.Acquire(h.files.FS, path, h.ID.Owner())
	}
	if err != nil {
		return nil, fmt.Errorf("save.fallback: %w", err)
	}
	h.NoteOwner("save.fallback", filepath.Dir(path), OutsideName)
	return h.Fallback, nil
}

// Newest is the run's newest whole checkpoint.
func (h *Home) Newest(q checkpoint.Query) (*checkpoint.Checkpoint, error) {
	found, _, err := h.files.newest(h.Config, &h.ID, q)
	return found, err
}

// File is the path of a file in the output directory.
func (h *Home) File(name string) string { return filepath.Join(h.Config.OutputDir, name) }

// Claim writes run.json, so that what bears the run's id is known for its own after a kill, after it has noted in the
// run's other directories whose they are.
func (h *Home) Claim() (err error) {
	fsys, dir := h.files.FS, h.Config.OutputDir
	if vfs.CheckBelow(fsys, dir, IdentityName) == nil { // else a link to another file, which is replaced
		h.unclaimed, err = vfs.ReadBelow(fsys, dir, IdentityName, maxIdentityBytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("output_dir: %w", err)
		}
	}
	h.NoteOutside()
	return h.WriteIdentity()
}

// Unclaim undoes what Claim has written to the output directory.
func (h *Home) Unclaim() {
	if h.unclaimed == nil {
		_ = h.files.FS.Remove(h.File(IdentityName)) // a run that has not begun has nothing to lose
	} else if now, err := h.ID.Encode(); err == nil && !bytes.Equal(now, h.unclaimed) {
		_ = vfs.WriteFileAtomic(h.files.FS, h.File(IdentityName), h.unclaimed)
	}
}

// WriteIdentity writes run.json if it has other contents.
func (h *Home) WriteIdentity() error {
	doc, err := h.ID.Encode()
	if err != nil {
		return err
	}
	now, err := vfs.ReadBelow(h.files.FS, h.Config.OutputDir, IdentityName, maxIdentityBytes)
	if err == nil && bytes.Equal(now, doc) {
		return nil
	}
	if err := vfs.WriteFileAtomic(h.files.FS, h.File(IdentityName), doc); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

// Close gives up the locks. A run that has not begun leaves nothing.
func (h *Home) Close(begun bool) {
	if h.Fallback != nil {
		h.Fallback.Close()
	}
	if h.Dir == nil {
		return
	}
	if begun {
		h.Dir.Close()
	} else {
		h.Dir.Abandon()
	}
}

// TakenError ends a run whose output directory has become that of another run.
type TakenError struct{ Lost string }

func (e *TakenError) Error() string {
	return fmt.Sprintf("output_dir: %s was removed or moved while the run was using it, and another run has the "+
		"directory now", e.Lost)
}

// holdRun takes the lock of the output directory, before anything in it is read or made.
func (f Files) holdRun(c *runfile.Config) (*checkpoint.Directory, error) {
	if st, err := os.Stat(c.OutputDir); err == nil && !st.IsDir() {
		return nil, fmt.Errorf("output_dir: %s is a file, not a directory; choose another output_dir", c.OutputDir)
	}
	if to, err := os.Readlink(c.OutputDir); err == nil && !vfs.Exists(c.OutputDir) {
		return nil, fmt.Errorf("output_dir: %s is a link to %s, which is not there; make that directory, mount its disk, or "+
			"remove the link", c.OutputDir, to)
	}
	checkOwn := func() error {
		return UnderKey("output_dir", vfs.CheckDir(f.FS, c.OutputDir, filepath.Join(c.OutputDir, LastModel),
			filepath.Join(c.OutputDir, BestModel), CheckpointsDir(c)))
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
	if f.isLink(CheckpointsDir(c)) { // its lock is a file that may be another run's
		id, err := f.identityToWrite(c)
		if err == nil {
			err = f.checkLinks(c, &id)
		}
		if err != nil {
			return nil, err
		}
	}
	dir, err := checkpoint.Hold(f.FS, CheckpointsDir(c))
	if err != nil {
		return nil, fmt.Errorf("output_dir: %w", err)
	}
	// A directory that was missing may since have been made by another user, where all may make one.
	if err := checkOwn(); err != nil {
		_ = dir.Abandon() // err is the one to report
		return nil, err
	}
	// Files that a killed run has left half-written.
	for _, name := range []string{ResolvedName, OtherResolvedName, PlanName, TraceName, IdentityName, MetricsName,
		SamplesName} {
		_ = f.FS.Remove(filepath.Join(c.OutputDir, name+".tmp")) // costs nothing if it stays
	}
	for _, name := range []string{LastModel, BestModel} {
		_ = hf.RemoveStaged(f.FS, filepath.Join(c.OutputDir, name))
	}
	return dir, nil
}
