//go:build unix

package store_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/store"
)

// A file that a killed run has left counts with the blocks that it takes, unless a checkpoint has a second name of it.
func TestLeftBytes(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, bytes int) {
		t.Helper()
		text := make([]byte, bytes)
		rand.NewChaCha8([32]byte{}).Read(text) // no file system makes these smaller
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.extent", 64<<10)
	write("b.extent", 128<<10)
	write("other", 1<<20)
	write("kept.extent", 256<<10)
	if err := os.Link(filepath.Join(dir, "kept.extent"), filepath.Join(dir, "checkpoint")); err != nil {
		t.Fatal(err)
	}
	if got := store.LeftBytes(dir); got < 192<<10 || got > 200<<10 {
		t.Errorf("%d bytes, want %d and no more than a block of each file beyond", got, 192<<10)
	}
	if got := store.LeftBytes(filepath.Join(dir, "none")); got != 0 {
		t.Errorf("%d bytes in no directory", got)
	}
}
