package memdir

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

// What ended processes have left is removed, and what others use is not.
func TestLeftDirectories(t *testing.T) {
	if inMemory(shared) != nil {
		t.Skip("this system has no file system in memory with room, so nothing is left in one")
	}
	const dead = prefix + "1073741823" // above the limit of process numbers
	gone, used := filepath.Join(shared, dead), filepath.Join(shared, prefix+"1")
	for _, dir := range []string{gone, used} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Skip("another process runs this test: ", err)
		}
		defer os.Remove(dir)
	}
	own, err := os.Stat(os.Getenv("TMPDIR"))
	if err != nil || !own.IsDir() {
		t.Fatal(err)
	}
	if _, err := create(shared); !os.IsExist(err) {
		t.Errorf("a second directory of this process: %v", err)
	}
	if _, err := os.Stat(gone); !os.IsNotExist(err) {
		t.Error("the directory of a process that ended is there: ", err)
	}
	if _, err := os.Stat(used); err != nil {
		t.Error(err)
	}
}

func TestOnDisk(t *testing.T) {
	OnDisk(t)
	if dir := t.TempDir(); inMemory(filepath.Dir(dir)) == nil && inMemory(filepath.Dir(os.TempDir())) != nil {
		t.Errorf("%s is in memory", dir)
	}
}
