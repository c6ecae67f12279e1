//go:build unix

package hub

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// noFollow makes opening a link fail.
const noFollow = unix.O_NOFOLLOW

// CheckCache refuses a repository's place in the cache if every user of the machine can write there: they could replace
// models and data, and what is in the cache is believed. A cache that a group writes, or that has another owner, is one
// that the user has chosen to share with them: clusters and containers have such caches. So is one with the sticky bit,
// where users change only what they own, as far as other users own nothing that is used. Directories above the cache
// are not looked at.
func (h *Hub) CheckCache(r Repo) error {
	paths := []string{h.Cache, h.dir(r)}
	for _, name := range []string{"refs", "blobs", "snapshots", "listings", "trees"} {
		paths = append(paths, filepath.Join(h.dir(r), name))
	}
	if commit, known := h.cachedCommit(r); known {
		paths = append(paths, h.snapshotDir(r, commit))
	}
	var dirs []cacheDir
	for _, path := range paths {
		info, err := os.Stat(path)
		name, errName := os.Lstat(path)
		if err != nil || errName != nil || !hasModes(path) {
			continue // what cannot be looked at is not there, or fails where it is needed
		}
		dirs = append(dirs, cacheDir{path, info.Mode(), owner(info), owner(name)})
	}
	return checkDirs(h.Cache, dirs, os.Geteuid())
}

// cacheDir is a directory of the cache.
type cacheDir struct {
	path    string
	mode    fs.FileMode
	uid     int
	nameUID int // the owner of a link, where the directory is one
}

func owner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// checkDirs is CheckCache for a user.
func checkDirs(cache string, dirs []cacheDir, user int) error {
	var open []string
	isOwner := true
	for _, d := range dirs {
		if d.mode&0o002 == 0 {
			continue
		}
		if d.path != cache || d.mode&fs.ModeSticky == 0 {
			open = append(open, d.path)
			isOwner = isOwner && (user == 0 || user == d.uid)
			continue
		}
		trusted := []int{0, user, d.uid}
		for _, in := range dirs {
			if filepath.Dir(in.path) == cache && !slices.Contains(trusted, in.nameUID) {
				return fmt.Errorf("%s belongs to another user (uid %d), in a cache where every user of this machine can make "+
					"directories: set HF_HUB_CACHE to a directory of your own", in.path, in.nameUID)
			}
		}
	}
	if len(open) == 0 {
		return nil
	}
	advice := "set HF_HUB_CACHE to a directory of your own"
	if isOwner {
		advice = "change the permissions (chmod o-w), or " + advice
	}
	return fmt.Errorf("every user of this machine can write to %s, so what is there cannot be trusted: %s",
		strings.Join(open, " and "), advice)
}
