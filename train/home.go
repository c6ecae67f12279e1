package train

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// home has the directories of a run, its output directory and those elsewhere, with their locks, and the identity by
// which they are the run's.
type home struct {
	env    *Env
	config *runfile.Config

	id         identity
	asked      map[string]string // see identity.Asked: before the run decides anything
	unclaimed  []byte            // run.json as it was before this process; nil: there was no such file
	memoryPath string            // as the run file has it: config has the directory below it that is the run's

	dir      *checkpoint.Directory // of checkpoints; nil on a host that does not lead
	saving   *checkpoint.Hosts     // that write checkpoints together; nil: the process is alone
	fallback *checkpoint.Directory // nil until it is needed, or found
	taken    error                 // the output directory is another run's now
	remake   string                // what was removed of it, while its files are not all there again; empty: nothing
}

// hold takes the lock of the output directory, and finds out which run this is and how it starts.
func (h *home) hold() (b beginning, err error) {
	c := h.config
	if h.dir, err = h.env.holdRun(c); err != nil {
		return b, err
	}
	if h.id, err = h.env.identityToWrite(c); err != nil {
		return b, err
	}
	if err := h.env.checkLinks(c, &h.id); err != nil {
		return b, err
	}
	if at := h.id.fallbackDir(c); at != "" {
		if err := vfs.CheckDir(h.env.files(), filepath.Dir(at), at); err != nil {
			return b, fmt.Errorf("save.fallback: %w", err)
		}
	}
	if err := h.own(); err != nil {
		return b, err
	}
	if !h.id.Begun {
		h.env.noteFirst(c, &h.id)
	}
	found := h.id.Run
	if b, err = h.env.findBeginning(c, &h.id); err != nil {
		return b, err
	}
	if h.id.Run != found {
		if err := h.own(); err != nil {
			return b, err
		}
	}
	h.id.Saves = h.env.savesNoted(checkpointsDir(c))
	h.env.noteForeign(c, &h.id)
	if !h.id.Begun {
		h.env.noteOthers(c, &h.id)
	}
	h.memoryPath, c.Memory.Path = c.Memory.Path, h.id.stateDir(c)
	return b, nil
}

// clearState removes what this run has left in memory.path when it was killed, of all hosts that it had. A start on
// fewer hosts, or with other ranks on a machine, would never remove it. No process of the run has a store yet;
// one of a run before, which has not ended, keeps its own.
func (h *home) clearState() {
	within := filepath.Dir(h.config.Memory.Path)
	for _, name := range h.env.dirsIn(within) {
		if !h.id.isStateOf(name) {
			continue
		}
		dir := filepath.Join(within, name)
		_ = h.env.files().Remove(filepath.Join(dir, stateOwnerName+".tmp")) // half-written; costs nothing if it stays
		err := store.RemoveLeft(h.env.files(), dir)
		if err != nil && !errors.Is(err, vfs.ErrLocked) && !errors.Is(err, fs.ErrNotExist) { // another host was first
			h.env.warn("memory.path: state that this run left there when it was killed stays: %s", console.OneLine(err))
		}
	}
}

// own says which run holds the directories. That below save.fallback is held where it is there, so that a checkpoint
// which an interrupted save was to replace is found.
func (h *home) own() (err error) {
	if err := h.dir.Own(h.id.owner()); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	if h.fallback != nil {
		h.fallback.Close()
		h.fallback = nil
	}
	if path := h.id.fallbackDir(h.config); path != "" && exists(path) {
		if h.fallback, err = checkpoint.Acquire(h.env.files(), path, h.id.owner()); err != nil {
			return fmt.Errorf("save.fallback: %w", err)
		}
	}
	return nil
}

// fallbackDir is the directory of save.fallback where the run saves; nil without the key.
func (h *home) fallbackDir() (*checkpoint.Directory, error) {
	path := h.id.fallbackDir(h.config)
	if path == "" {
		return nil, nil
	}
	var err error
	if h.fallback != nil {
		_, err = h.fallback.Retake()
	} else {
		h.fallback, err = checkpoint.Acquire(h.env.files(), path, h.id.owner())
	}
	if err != nil {
		return nil, fmt.Errorf("save.fallback: %w", err)
	}
	h.noteOwner("save.fallback", filepath.Dir(path), outsideName)
	return h.fallback, nil
}

// newest is the run's newest whole checkpoint.
func (h *home) newest(q checkpoint.Query) (*checkpoint.Checkpoint, error) {
	found, _, err := h.env.newest(h.config, &h.id, q)
	return found, err
}

// file is the path of a file in the output directory.
func (h *home) file(name string) string { return filepath.Join(h.config.OutputDir, name) }

// claim writes run.json, so that what bears the run's id is known for its own after a kill, after it has noted in the
// run's other directories whose they are. unclaim undoes what it has written to the output directory.
func (h *home) claim() (err error) {
	fsys, dir := h.env.files(), h.config.OutputDir
	if vfs.CheckBelow(fsys, dir, identityName) == nil { // else a link to another file, which is replaced
		h.unclaimed, err = vfs.ReadBelow(fsys, dir, identityName, maxIdentityBytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("output_dir: %w", err)
		}
	}
	h.noteOutside()
	return h.writeIdentity()
}

func (h *home) unclaim() {
	if h.unclaimed == nil {
		_ = h.env.files().Remove(h.file(identityName)) // a run that has not begun has nothing to lose
	} else if now, err := h.id.encode(); err == nil && !bytes.Equal(now, h.unclaimed) {
		_ = vfs.WriteFileAtomic(h.env.files(), h.file(identityName), h.unclaimed)
	}
}

// writeIdentity writes run.json if it has other contents.
func (h *home) writeIdentity() error {
	doc, err := h.id.encode()
	if err != nil {
		return err
	}
	now, err := vfs.ReadBelow(h.env.files(), h.config.OutputDir, identityName, maxIdentityBytes)
	if err == nil && bytes.Equal(now, doc) {
		return nil
	}
	if err := vfs.WriteFileAtomic(h.env.files(), h.file(identityName), doc); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

// close gives up the locks. A run that has not begun leaves nothing.
func (h *home) close(begun bool) {
	if h.fallback != nil {
		h.fallback.Close()
	}
	if h.dir == nil {
		return
	}
	if begun {
		h.dir.Close()
	} else {
		h.dir.Abandon()
	}
}
