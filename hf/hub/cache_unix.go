//go:build unix

package hub

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// noFollow makes opening a link fail.
const noFollow = unix.O_NOFOLLOW

// CheckCache refuses a repository's place in the cache if every user of the machine can write there: they could replace
// models and data, and what is in the cache is believed. A cache that a group writes, or that has another owner, is one
// that the user has chosen to share with them: clusters and containers have such caches.
func (h *Hub) CheckCache(r Repo) error {
	dirs := []string{h.Cache}
	for _, name := range []string{".", "refs", "blobs", "snapshots", "listings", "trees"} {
		dirs = append(dirs, filepath.Join(h.dir(r), name))
	}
	if commit, known := h.cachedCommit(r); known {
		dirs = append(dirs, h.snapshotDir(r, commit))
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir) // what cannot be looked at is not there, or fails where it is needed
		if err == nil && info.Mode().Perm()&0o002 != 0 && hasModes(dir) {
			return fmt.Errorf("every user of this machine can write to %s, so what is in it cannot be trusted: "+
				"change its permissions (chmod o-w), or set HF_HOME to another directory", dir)
		}
	}
	return nil
}
