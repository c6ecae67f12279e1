package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// Programs that embed the same kernels, which are compressed already, cost their bytes once, however far apart they are
// in the archive; and what is unpacked is what was packed.
func TestPack(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("with -race -short only: nothing of ours runs next to the packing, and 50 MB are many here; make test packs")
	}
	kernels := make([]byte, 12<<20)
	random := rand.NewChaCha8([32]byte{})
	random.Read(kernels)
	dir, to := t.TempDir(), t.TempDir()
	for name, apart := range map[string]int{"one": 1 << 20, "two": 3 << 20, "three": 5 << 20} {
		own := make([]byte, apart)
		random.Read(own)
		text := bytes.Join([][]byte{own, kernels, own[:100]}, nil)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "data", "below"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "below", "text"), []byte("words"), 0o644); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(to, packedName)
	var stderr bytes.Buffer
	if status := run([]string{packCommand, dir, archive}, io.Discard, &stderr, nil); status != exitDone {
		t.Fatalf("status %d: %s", status, stderr.String())
	}
	info, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(12+1+3+5+1) << 20; info.Size() > most {
		t.Errorf("the archive has %d bytes, want %d at most: it keeps what the programs share more "+
			"than once", info.Size(), most)
	}
	unpacked, remove, err := files(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two", "three", "data/below/text"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(unpacked, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s came out otherwise (%v)", name, err)
		}
	}
	if info, err := os.Stat(filepath.Join(unpacked, "one")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("a program cannot be run: %v (%v)", info.Mode(), err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unpacked); !os.IsNotExist(err) {
		t.Errorf("what was unpacked stays: %v", err)
	}
	if dir, remove, err := files(dir); dir == "" || err != nil || remove() != nil {
		t.Errorf("a folder that is not packed: %q, %v", dir, err)
	}
}

// A folder in the tree takes what its archive names from there.
func TestTakesFromTheTree(t *testing.T) {
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	tree, packed := t.TempDir(), t.TempDir()
	write(filepath.Join(tree, "go.mod"), "module github.com/millrace/millrace\n\ngo 1.26\n")
	write(filepath.Join(tree, "kernels/compiled/a"), "code")
	write(filepath.Join(packed, treeName), "kernels/compiled\n")
	for _, c := range []struct {
		here, list string
		want       string // what is wrong; empty: nothing
	}{
		{here: "bin/gpucheck", list: "kernels/compiled\n"},
		{here: "deep/er/gpucheck", list: "kernels/compiled\n"},
		{here: "bin/gpucheck", list: "kernels/other\n", want: "the tree is not the one that was packed"},
		{here: "bin/gpucheck", list: "../secret\n", want: `"../secret" is no path in the tree`},
		{list: "kernels/compiled\n", want: "was packed with TREE=1"},
	} {
		here := filepath.Join(tree, c.here)
		if c.here == "" {
			here = t.TempDir()
		}
		write(filepath.Join(packed, treeName), c.list)
		if err := errors.Join(os.MkdirAll(here, 0o777), packFiles(packed, filepath.Join(here, packedName))); err != nil {
			t.Fatal(err)
		}
		dir, remove, err := files(here)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "kernels/compiled/a")); err != nil || string(text) != "code" {
			t.Errorf("%+v: it has %q, %v", c, text, err)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(tree, "kernels/compiled/a")); err != nil || string(text) != "code" {
		t.Errorf("removing the folder took the tree's files: %q, %v", text, err)
	}
}

// An archive that is cut short or leads outside of its folder costs one line, and leaves nothing.
func TestUnpackRefuses(t *testing.T) {
	archive := func(t *testing.T, headers ...*tar.Header) []byte {
		t.Helper()
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(z)
		for _, h := range headers {
			h.Mode, h.Size = 0o644, 4
			if h.Typeflag != tar.TypeReg {
				h.Size = 0
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				if _, err := w.Write([]byte("text")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if w.Close() != nil || z.Close() != nil {
			t.Fatal("closing")
		}
		return b.Bytes()
	}
	whole := archive(t, &tar.Header{Typeflag: tar.TypeReg, Name: "a"})
	for name, text := range map[string][]byte{
		"cut":     whole[:len(whole)-3],
		"no zstd": []byte("this is not an archive"),
		"above":   archive(t, &tar.Header{Typeflag: tar.TypeReg, Name: "../a"}),
		"link": archive(t, &tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"},
			&tar.Header{Typeflag: tar.TypeReg, Name: "a/b"}),
	} {
		temp := t.TempDir()
		t.Setenv("TMPDIR", temp)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, packedName), text, 0o644); err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		status := run([]string{"--out", filepath.Join(dir, "out"), "--dir", dir}, io.Discard, &stderr, []row{{name: "a"}})
		if said := stderr.String(); status != exitFailed || !strings.HasPrefix(said, "gpucheck: ") ||
			strings.Count(said, "\n") != 1 {
			t.Errorf("%s: status %d, %q", name, status, said)
		}
		if entries, err := os.ReadDir(temp); err != nil || len(entries) > 0 {
			t.Errorf("%s: %d entries are left (%v)", name, len(entries), err)
		}
	}
}
