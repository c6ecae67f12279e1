package surroundings

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

// What ended processes have left is removed, and what others use is not.
func TestLeftDirectories(t *testing.T) {
	root := t.TempDir()
	const dead = 1<<30 - 1 // above the limit of process numbers
	gone, used := filepath.Join(root, prefix+strconv.Itoa(dead)), filepath.Join(root, prefix+"1")
	for _, dir := range []string{gone, used} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	own, err := create(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := create(root); !os.IsExist(err) {
		t.Errorf("a second directory of this process: %v", err)
	}
	if _, err := os.Stat(gone); os.IsNotExist(err) == lives(dead) {
		t.Errorf("the directory of a process that ended: %v", err)
	}
	for _, dir := range []string{own, used} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

func TestOnDisk(t *testing.T) {
	OnDisk(t)
	if dir := t.TempDir(); inMemory(filepath.Dir(dir)) == nil && inMemory(filepath.Dir(os.TempDir())) != nil {
		t.Errorf("%s is in memory", dir)
	}
}
