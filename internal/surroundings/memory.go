package surroundings

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// prefix begins the names of directories, which end with the number of the process that made them.
const prefix = "millrace-tests-"

// leastFreeBytes keeps tests out of small file systems. A container may have one of 64 MiB.
const leastFreeBytes = 2 << 30

// onDisk is the TMPDIR of before.
var onDisk = os.Getenv("TMPDIR")

// Run runs the tests of a package and returns the exit status, for TestMain. It leaves all that was inherited, and temporary directories are
// in memory where the system has a file system there with room, else where they always are.
//
// Tests of the engine save state and sync it thousands of times. On a drive most of their time is waiting: the laws of
// package stream took 9 to 31 s there, and 2 s in a file system in memory, with the same operations and the same
// checks. Tests with vfs.Mem show what a power cut would leave. Tests of packages store and checkpoint, and the demo,
// use the drive itself.
func Run(m *testing.M) int {
	if err := Leave(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if inMemory(shared) != nil {
		return m.Run()
	}
	dir, err := create(shared)
	if err != nil {
		return m.Run()
	}
	defer os.RemoveAll(dir)
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return m.Run()
	}
	return m.Run()
}

// OnDisk has the temporary directories of a test on the drive, where the test is about drives.
func OnDisk(t *testing.T) { t.Setenv("TMPDIR", onDisk) }

// create makes this process's directory below root. Those of processes that ended without removing theirs leave.
func create(root string) (string, error) {
	others, err := filepath.Glob(filepath.Join(root, prefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range others {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), prefix))
		if err == nil && !lives(pid) {
			os.RemoveAll(dir)
		}
	}
	dir := filepath.Join(root, prefix+strconv.Itoa(os.Getpid()))
	return dir, os.Mkdir(dir, 0o755) // tests may be about other users
}
