package rundir

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
//   - memory.path/NAME, in each directory that memory.path lists, and those of other hosts, with state on disk;
//   - the directory to which a link at checkpoints leads.
//
// Runs of older versions have no such files. Their record counts if it has the time at which the output directory was
// made, which no person can guess. Where a file system has no such times it counts for an empty directory alone.

const (
	// OutsideName is the file in save.fallback/NAME, and at the end of a link at checkpoints.
	OutsideName = checkpoint.OwnerName
	// StateOwnerName is the file in memory.path/NAME. The store removes files with this suffix when it closes.
	StateOwnerName = "owner" + store.FileSuffix
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
func (o *outside) isOf(id *Identity) bool {
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
func (f Files) owns(id *Identity, dir, name string, isEmpty func(dir string) bool) bool {
	doc, err := vfs.ReadFile(f.FS, filepath.Join(dir, name), maxOutsideBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return id.Inode == nil || id.Inode.Born != 0 || isEmpty(dir)
	}
	var o outside
	return err == nil && shared.Unmarshal(doc, &o) == nil && o.isOf(id) || isEmpty(dir)
}

// ownsOutside reports whether the directories that a run has in save.fallback and memory.path are of its output
// directory.
func (f Files) ownsOutside(id *Identity, c *runfile.Config) bool {
	if at := id.FallbackDir(c); at != "" && !f.owns(id, filepath.Dir(at), OutsideName, f.hasNoSaves) {
		return false
	}
	for _, path := range c.Budgets().Path {
		if !f.OwnsStates(id, path) {
			return false
		}
	}
	return true
}

// OwnsStates reports whether the directories in one of memory.path that have a run's name are of its output directory.
func (f Files) OwnsStates(id *Identity, within string) bool {
	for _, name := range f.dirsIn(within) {
		if id.isStateOf(name) && !f.owns(id, filepath.Join(within, name), StateOwnerName, f.hasNoState) {
			return false
		}
	}
	return true
}

// ownsSaves reports whether the directory to which a link at checkpoints leads is of the output directory.
func (f Files) ownsSaves(id *Identity, dir string) bool {
	return f.owns(id, dir, OutsideName, func(dir string) bool {
		is, err := checkpoint.IsUnused(f.FS, dir)
		return err == nil && is
	})
}

// hasNoSaves reports whether a directory in save.fallback has no checkpoints.
func (f Files) hasNoSaves(dir string) bool {
	is, err := checkpoint.IsUnused(f.FS, filepath.Join(dir, CheckpointsName))
	return err == nil && is
}

// hasNoState reports whether a directory in memory.path has no state.
func (f Files) hasNoState(dir string) bool {
	entries, err := f.FS.ReadDir(dir)
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), store.FileSuffix) && entry.Name() != StateOwnerName {
			return false
		}
	}
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

// NoteOutside writes to the directories outside of its output directory in which the run saves whose they are, as far
// as they are there. A run without that continues as a copy of itself at worst, so an error is a warning.
func (h *Home) NoteOutside() {
	if h.ID.Saves != nil {
		h.NoteOwner("output_dir", CheckpointsDir(h.Config), OutsideName)
	}
	if h.Fallback != nil {
		h.NoteOwner("save.fallback", filepath.Dir(h.Fallback.Path()), OutsideName)
	}
}

// NoteState writes to the directories with this host's state on disk whose they are, if the store has made them.
func (h *Home) NoteState() {
	for _, dir := range h.Config.Memory.Path { // the run's own: see hold
		if vfs.Exists(dir) {
			h.NoteOwner("memory.path", dir, StateOwnerName)
		}
	}
}

// NoteOwner writes to a directory, which a key names, in a file whose it is.
func (h *Home) NoteOwner(key, dir, name string) {
	doc, err := json.Marshal(outside{h.ID.Run, h.ID.Dir, h.ID.Inode})
	if err == nil {
		err = h.files.writeChanged(filepath.Join(dir, name), append(doc, '\n'))
	}
	if err != nil {
		h.files.Warn("%s: that %s is of this run is not noted: %s", key, dir, console.OneLine(err))
	}
}

// writeChanged writes a small file if it has other contents.
func (f Files) writeChanged(name string, doc []byte) error {
	now, err := vfs.ReadFile(f.FS, name, int64(len(doc)))
	if err == nil && string(now) == string(doc) {
		return nil
	}
	return vfs.WriteFileAtomic(f.FS, name, doc)
}
