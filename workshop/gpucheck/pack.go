package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// The programs of a check have most of their code in common. gzip looks back 32 KiB and cannot see that. One window
// over all files finds the copies, and this program unpacks them, so that the target needs no tool for it but gzip,
// which unpacks this program.
//
// Compiled kernels and golden files are neither in the programs nor small: the programs are built with the tag
// kernelfiles, and read kernels next to them. Where the folder travels with the tree, which has them as well, the
// archive names their paths instead (treeName), and they are linked.

// packedName is the archive next to this program in a packed folder.
const packedName = "files.tar.zst"

// treeName is the file of an archive that lists what its folder takes from the tree that it is in, a path a line.
const treeName = "tree.txt"

// packCommand has this program write an archive: gpucheck pack DIR FILE.
const packCommand = "pack"

// windowBytes spans all programs: the compressor looks back that far.
const windowBytes = 64 << 20

func packMain(args []string, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "gpucheck: pack: give a directory and the archive to write")
		return exitRequest
	}
	if err := packFiles(args[0], args[1]); err != nil {
		fmt.Fprintln(stderr, "gpucheck: pack:", err)
		return exitFailed
	}
	return exitDone
}

// packFiles writes all files of a directory to an archive.
func packFiles(dir, to string) (err error) {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// The faster levels keep too few places to find a copy that is 10 MiB back or more.
	z, err := zstd.NewWriter(file, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(windowBytes))
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	err = t.AddFS(os.DirFS(dir))
	return errors.Join(err, t.Close(), z.Close())
}

// unpackFiles writes the files of an archive into a directory, and nothing outside of it.
func unpackFiles(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := zstd.NewReader(file, zstd.WithDecoderMaxWindow(windowBytes))
	if err != nil {
		return err
	}
	defer z.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(h.Name), 0o777)
		case tar.TypeReg:
			err = unpackFile(root, h, t)
		default:
			err = fmt.Errorf("%s is neither a file nor a directory", h.Name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
	}
}

func unpackFile(root *os.Root, h *tar.Header, from io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(h.Name), 0o777); err != nil {
		return err
	}
	f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// files returns the folder of what the rows run and read: that of this program, or a new one if they are packed in it.
// remove removes what is new.
func files(here string) (dir string, remove func() error, err error) {
	archive := filepath.Join(here, packedName)
	if _, err := os.Stat(archive); errors.Is(err, fs.ErrNotExist) {
		return here, func() error { return nil }, nil
	}
	if dir, err = os.MkdirTemp("", "gpucheck-files-"); err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	if err := errors.Join(unpackFiles(archive, dir), linkTree(here, dir)); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}

// linkTree gives an unpacked folder what treeName takes from the tree above here.
func linkTree(here, dir string) error {
	list, err := os.ReadFile(filepath.Join(dir, treeName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	root, err := filepath.Abs(here)
	for err == nil && !isTree(root) {
		if root == filepath.Dir(root) {
			return fmt.Errorf("%s was packed with TREE=1, to be in the tree that it reads kernels and golden files from, "+
				"and is in none; pack it without", here)
		}
		root = filepath.Dir(root)
	}
	if err != nil {
		return err
	}
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSpace(name)
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%s: %q is no path in the tree", treeName, name)
		}
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		if _, err := os.Stat(from); err != nil {
			return fmt.Errorf("the tree is not the one that was packed: %w", err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o777), os.Symlink(from, to)); err != nil {
			return err
		}
	}
	return nil
}

// isTree reports whether a folder is the root of this module.
func isTree(dir string) bool {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(mod), "module github.com/millrace/millrace\n")
}
