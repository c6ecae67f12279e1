package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"io"
	"slices"
	"time"
)

// tarGzip is an archive of files and of the directories that they are in, in the order of their names, owned by root.
// The prefix, such as "./", begins all names.
func tarGzip(prefix string, files []file, made time.Time) ([]byte, error) {
	var b bytes.Buffer
	err := gzipped(&b, func(w io.Writer) error {
		t := tar.NewWriter(w)
		have := map[string]bool{}
		for _, f := range sorted(files) {
			name := prefix + f.path
			for i, c := range name {
				if dir := name[:i+1]; c == '/' && !have[dir] {
					have[dir] = true
					header := tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: made, Format: tar.FormatUSTAR}
					if err := t.WriteHeader(&header); err != nil {
						return err
					}
				}
			}
			header := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode(f), ModTime: made, Format: tar.FormatUSTAR}
			header.Size = int64(len(f.data))
			if err := t.WriteHeader(&header); err != nil {
				return err
			}
			if _, err := t.Write(f.data); err != nil {
				return err
			}
		}
		return t.Close()
	})
	return b.Bytes(), err
}

// gzipped compresses what fill writes; the header has neither a name nor a time.
func gzipped(b *bytes.Buffer, fill func(io.Writer) error) error {
	z, err := gzip.NewWriterLevel(b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := fill(z); err != nil {
		return err
	}
	return z.Close()
}

func mode(f file) int64 {
	if f.executable {
		return 0o755
	}
	return 0o644
}

func sorted(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.path, b.path) })
}
