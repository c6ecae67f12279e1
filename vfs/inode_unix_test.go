//go:build unix

package vfs

import (
	"os"
	"path/filepath"
	"testing"
)

// A directory keeps its inode when it is renamed, and when one above it is; a copy has another one.
func TestInodeOf(t *testing.T) {
	root := t.TempDir()
	was := filepath.Join(root, "a", "run")
	if err := os.MkdirAll(was, 0o777); err != nil {
		t.Fatal(err)
	}
	first := InodeOf(OS{}, was)
	if first == nil || InodeOf(OS{}, filepath.Join(root, "none")) != nil || InodeOf(NewMem(), "/") != nil {
		t.Fatalf("of a directory: %v; or one that is not there has one", first)
	}
	now := filepath.Join(root, "b", "moved")
	for _, to := range [][2]string{{filepath.Join(root, "a"), filepath.Join(root, "b")},
		{filepath.Join(root, "b", "run"), now}} {
		if err := os.Rename(to[0], to[1]); err != nil {
			t.Fatal(err)
		}
	}
	if got := InodeOf(NewFaulty(OS{}), now); got == nil || *got != *first || !got.Is(*first) {
		t.Errorf("after it was moved: %v, was %v", got, first)
	}
	if err := os.Mkdir(was+"2", 0o777); err == nil {
		t.Fatal("the directory above is still there")
	}
	if err := os.CopyFS(was, os.DirFS(now)); err != nil {
		t.Fatal(err)
	}
	if got := InodeOf(OS{}, was); got == nil || got.Is(*first) {
		t.Errorf("of a copy: %v, that of the first is %v", got, first)
	}
}
