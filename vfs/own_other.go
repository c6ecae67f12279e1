//go:build !unix

package vfs

import "io/fs"

// This system says neither whose a file is, nor how many names or which inode it has.

const noFollow = 0

func owner(fs.FileInfo) (uid int, ok bool) { return 0, false }
func names(fs.FileInfo) int                { return 1 }
func inode(fs.FileInfo) *Inode             { return nil }
