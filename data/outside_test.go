package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Links of a data directory that lead out of it are read, and a line says so. A link that the user names is not among
// them.
func TestLinksOutOfADataDirectory(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "set")
	write(t, dir, "in.txt", "one\n")
	private := write(t, root, "private.txt", "my diary\n")
	for link, to := range map[string]string{filepath.Join(dir, "inside.txt"): "in.txt",
		filepath.Join(root, "file.txt"): private, filepath.Join(root, "linked"): dir} {
		if err := os.Symlink(to, link); err != nil {
			t.Skip("this system makes no symbolic links for this user: ", err)
		}
	}
	prepared := func(path string) (said string) {
		d, err := prepare(t, Source{Type: Text, Path: path}, Options{Note: func(line string) { said += line + "\n" }})
		if err != nil || d.Len() == 0 {
			t.Errorf("%s: %v", path, err)
		}
		return said
	}
	for _, path := range []string{dir, filepath.Join(root, "linked"), filepath.Join(root, "file.txt"),
		filepath.Join(dir, "*.txt")} {
		if said := prepared(path); said != "" {
			t.Errorf("%s: %s", path, said)
		}
	}
	out := filepath.Join(dir, "out.txt")
	if err := os.Symlink(private, out); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "*.txt")} {
		if said := prepared(path); said != "dataset "+path+": "+out+" leads out of the directory, and is read\n" {
			t.Errorf("%s: %q", path, said)
		}
	}
	if err := os.Symlink(private, filepath.Join(dir, "again.txt")); err != nil {
		t.Fatal(err)
	}
	if said := prepared(dir); !strings.Contains(said, ": 2 files lead out of the directory") {
		t.Error(said)
	}
}
