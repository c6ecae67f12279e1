package train

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/checkpoint"
	shared "github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// run.json is in the output directory, so its author may be another person. The directories of a run outside of that
// have a file of their own, which names the output directory that writes there. Who made the output directory cannot
// have made that file. A record in run.json counts for such a directory only if the two agree:
//
//   - save.fallback/NAME, with checkpoints that could not go to the output directory;
//   - memory.path/NAME, and those of other hosts, with state on disk;
//   - the directory to which a link at checkpoints leads.
//
// Runs of older versions have no such files. Their record counts if it has the time at which the output directory was
// made, which no person can guess. Where a file system has no such times it counts for an empty directory alone.

const (
	// outsideName is the file in save.fallback/NAME, and at the end of a link at checkpoints.
	outsideName = checkpoint.OwnerName
	// stateOwnerName is the file in memory.path/NAME. The store removes files with this suffix when it closes.
	stateOwnerName = "owner" + store.FileSuffix
	// maxOutsideBytes is more than such a file ever has.
	maxOutsideBytes = 64 << 10
)

// outside is the content of such a file: the output directory that writes to the directory of the file.
type outside struct {
	Run   checkpoint.RunID `json:"run"`
	Dir   string           `json:"dir"`
	Inode *vfs.Inode       `json:"inode,omitempty"`
}

// isOf reports whether a file names the output directory of an identity, which has that directory's path and inode.
func (o *outside) isOf(id *identity) bool {
	return o.Run == id.Run && isSameHome(o.Dir, o.Inode, id.Dir, id.Inode)
}

// isSameHome reports whether an output directory that was noted with a path and an inode is the one that has them now.
func isSameHome(dir string, inode *vfs.Inode, nowDir string, now *vfs.Inode) bool {
	if inode == nil || now == nil {
		return inode == nil && now == nil && dir == nowDir
	}
	return now.Is(*inode) && (dir == nowDir || inode.Device == now.Device)
}

// owns reports whether a directory outside of the output directory is the run's. isEmpty says whether it has nothing to
// lose.
func (e *Env) owns(id *identity, dir, name string, isEmpty func(dir string) bool) bool {
	doc, err := vfs.ReadFile(e.files(), filepath.Join(dir, name), maxOutsideBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return id.Inode == nil || id.Inode.Born != 0 || isEmpty(dir)
	}
	var o outside
	return err == nil && shared.Unmarshal(doc, &o) == nil && o.isOf(id) || isEmpty(dir)
}

// ownsOutside reports whether the directories that a run has in save.fallback and memory.path are of its output
// directory.
func (e *Env) ownsOutside(id *identity, c *runfile.Config) bool {
	if at := id.fallbackDir(c); at != "" && !e.owns(id, filepath.Dir(at), outsideName, e.hasNoSaves) {
		return false
	}
	return e.ownsStates(id, filepath.Dir(id.stateDir(c)))
}

// ownsStates reports whether the directories in memory.path that have a run's name are of its output directory.
func (e *Env) ownsStates(id *identity, within string) bool {
	for _, name := range e.dirsIn(within) {
		if id.isStateOf(name) && !e.owns(id, filepath.Join(within, name), stateOwnerName, e.hasNoState) {
			return false
		}
	}
	return true
}

// ownsSaves reports whether the directory to which a link at checkpoints leads is of the output directory.
func (e *Env) ownsSaves(id *identity, dir string) bool {
	return e.owns(id, dir, outsideName, func(dir string) bool {
		is, err := checkpoint.IsUnused(e.files(), dir)
		return err == nil && is
	})
}

// hasNoSaves reports whether a directory in save.fallback has no checkpoints.
func (e *Env) hasNoSaves(dir string) bool {
	is, err := checkpoint.IsUnused(e.files(), filepath.Join(dir, checkpointsName))
	return err == nil && is
}

// hasNoState reports whether a directory in memory.path has no state.
func (e *Env) hasNoState(dir string) bool {
	entries, err := e.files().ReadDir(dir)
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), store.FileSuffix) && entry.Name() != stateOwnerName {
			return false
		}
	}
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

// noteOutside writes to the directories outside of its output directory in which the run saves whose they are, as far
// as they are there. A run without that continues as a copy of itself at worst, so an error is a warning.
func (h *home) noteOutside() {
	if h.id.Saves != nil {
		h.noteOwner("output_dir", checkpointsDir(h.config), outsideName)
	}
	if h.fallback != nil {
		h.noteOwner("save.fallback", filepath.Dir(h.fallback.Path()), outsideName)
	}
}

// noteState writes to the directory with this host's state on disk whose it is, if the store has made it.
func (h *home) noteState() {
	if dir := h.config.Memory.Path; exists(dir) { // the run's own: see hold
		h.noteOwner("memory.path", dir, stateOwnerName)
	}
}

func (h *home) noteOwner(key, dir, name string) {
	doc, err := json.Marshal(outside{h.id.Run, h.id.Dir, h.id.Inode})
	if err == nil {
		err = h.env.writeChanged(filepath.Join(dir, name), append(doc, '\n'))
	}
	if err != nil {
		h.env.warn("%s: that %s is of this run is not noted: %s", key, dir, console.OneLine(err))
	}
}

// writeChanged writes a small file if it has other contents.
func (e *Env) writeChanged(name string, doc []byte) error {
	now, err := vfs.ReadFile(e.files(), name, int64(len(doc)))
	if err == nil && string(now) == string(doc) {
		return nil
	}
	return vfs.WriteFileAtomic(e.files(), name, doc)
}
