//go:build unix

package vfs

import (
	"io/fs"
	"syscall"
)

// noFollow has a name that is a link not opened, and a pipe not waited for.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// owner is the user that a file belongs to.
func owner(info fs.FileInfo) (uid int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false // a file of a Mem
	}
	return int(s.Uid), true
}

// names returns the number of names that a file has.
func names(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Nlink)
	}
	return 1
}

// inode returns the identity of a file, without the time at which it was made.
func inode(info fs.FileInfo) *Inode {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return &Inode{Device: uint64(s.Dev), Number: s.Ino}
}
