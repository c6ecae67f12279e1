package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// The programs of a check embed the same kernels, 8 MB each, which are compressed already. gzip looks back 32 KiB and
// cannot see that. Two copies and the tree are too much for one transfer. One window over all files finds the copies,
// and this program unpacks them, so that the target needs no tool for it but gzip, which unpacks this program.

// packedName is the archive next to this program in a packed folder.
const packedName = "files.tar.zst"

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
	if err := unpackFiles(archive, dir); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}
