package session

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// A run that continues says that moments were rounded to codes in another way before.
func TestOtherCodes(t *testing.T) {
	for before, want := range map[string]string{"": "to the nearest code, also to zero",
		"as in 2031": "another rounding of 8-bit moments (as in 2031)"} {
		if got := otherCodes(before, optim.Dynamic8); !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("codes %q: it says %q", before, got)
		}
	}
	if got := otherCodes("", optim.MomentsF32); got != "" {
		t.Errorf("fp32 moments: it says %q", got)
	}
}

// The next run removes the state that a killed run has left, so that counts as free. Files that a checkpoint links do
// not.
func TestLeftStateIsFree(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"part-1.extent", "part-2.extent", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte("x"), 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "part-2.extent"), filepath.Join(dir, "kept")); err != nil {
		t.Skip("no hard links: ", err)
	}
	info, err := os.Stat(filepath.Join(dir, "part-1.extent"))
	if err != nil {
		t.Fatal(err)
	}
	left := store.LeftBytes(dir)
	if left < info.Size() || left > 2*info.Size() {
		t.Skipf("a file of %d bytes takes %d here", info.Size(), left)
	}
	m := runfile.Memory{Disk: runfile.Bytes{N: 1 << 50}, Path: dir}
	if got, err := diskBytes(m, freeFS{free: 5 << 20}); err != nil || got != 5<<20+left {
		t.Errorf("%d bytes may be used, %v; want %d", got, err, 5<<20+left)
	}
	auto, _ := runfile.ParseBytes("auto")
	m = runfile.Memory{Disk: auto, Path: dir}
	if got, err := diskBytes(m, freeFS{free: 5 << 20}); err != nil || got != int64(diskShare*float64(5<<20+left)) {
		t.Errorf("%d bytes may be used, %v", got, err)
	}
}

// freeFS is the system's files on a drive that has so much left.
type freeFS struct {
	vfs.OS
	free int64
}

func (f freeFS) FreeBytes(string) (int64, error) { return f.free, nil }
