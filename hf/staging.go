package hf

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/vfs"
)

// staging is a directory that becomes visible as a whole: files are written into a temporary directory next to the
// target, and commit renames it. A process that is killed leaves the target as it was, and a directory named
// .<target>.tmp-<random> that may be deleted.
type staging struct {
	fs          vfs.FS
	target, tmp string
	hasMore     bool // tmp has a directory of templates
}

// stage makes the temporary directory, next to the target; if the target is a link, next to the directory that the link
// names. It fails at once if commit could not succeed: if the target is not empty and may not be replaced, or has files
// that no model has.
func stage(fsys vfs.FS, target string, replace bool) (*staging, error) {
	target, err := filepath.Abs(target)
	if err != nil {
		return nil, err
	}
	if info, err := os.Lstat(target); err == nil && info.Mode()&os.ModeSymlink != 0 {
		to, err := filepath.EvalSymlinks(target)
		if err != nil {
			return nil, fmt.Errorf("%s is a link to nothing: make the directory that it names, or remove the link", target)
		}
		target = to
	}
	s := &staging{fs: fsys, target: target, tmp: tempName(target)}
	if _, err := s.replaces(replace); err != nil {
		return nil, err
	}
	// Not os.MkdirTemp, whose directories are private: the target gets the permissions that the umask grants, up to
	// those that let others put files into it.
	if err := fsys.MkdirAll(s.tmp, 0o775); err != nil {
		return nil, fmt.Errorf("%s cannot be written: %w", target, err)
	}
	return s, nil
}

// tempName is a new name in path's directory.
func tempName(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.tmp-%016x", filepath.Base(path), rand.Uint64()))
}

// RemoveStaged removes temporary directories that killed processes have left next to a target. No process may be
// writing the target.
func RemoveStaged(fsys vfs.FS, target string) error {
	dir := filepath.Dir(target)
	entries, err := fsys.ReadDir(dir)
	for _, e := range entries {
		if random, ok := strings.CutPrefix(e.Name(), "."+filepath.Base(target)+".tmp-"); ok && len(random) == 16 {
			err = cmp.Or(err, vfs.RemoveAll(fsys, filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// CheckReplace returns the error with which [WriteOptions].Replace would not replace a directory.
func CheckReplace(fsys vfs.FS, dir string) error {
	_, err := (&staging{fs: fsys, target: dir}).replaces(true)
	return err
}

// replaces reports whether there is something at the target. It guards against deleting a user's files: only an empty
// directory may be replaced, or one that has a config.json, or the card that this program wrote, and no files other
// than those that this package writes.
func (s *staging) replaces(replace bool) (bool, error) {
	target := s.target
	entries, err := s.fs.ReadDir(target)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s cannot be written: %w", target, err)
	}
	if len(entries) == 0 {
		return true, nil
	}
	if !replace {
		return false, fmt.Errorf("%s exists and is not empty: name another directory, or remove it", target)
	}
	isModel, foreign := false, []string(nil)
	for _, e := range entries {
		if e.IsDir() && e.Name() == templatesDir {
			inner, err := s.fs.ReadDir(filepath.Join(target, templatesDir))
			if err != nil {
				return false, fmt.Errorf("%s cannot be written: %w", target, err)
			}
			for _, t := range inner {
				if name := templatesDir + "/" + t.Name(); !t.Type().IsRegular() || !isTemplateFile(name) {
					foreign = append(foreign, name)
				}
			}
			continue
		}
		if !e.Type().IsRegular() {
			return false, fmt.Errorf("%s is not replaced because it holds %s, which is not a plain file: name another directory", target, terminal.Quote(e.Name()))
		}
		hasOwnCard := e.Name() == CardName && isOwnCard(target)
		isModel = isModel || e.Name() == configName || hasOwnCard
		if !isWritten(e.Name()) && !hasOwnCard {
			foreign = append(foreign, e.Name())
		}
	}
	if !isModel {
		return false, fmt.Errorf("%s is not replaced because it is not a model directory (it has no %s): name another directory", target, configName)
	}
	if len(foreign) > 0 {
		return false, fmt.Errorf("%s is not replaced because %s in it would be lost: move it, or name another directory", target, terminal.Quote(foreign[0]))
	}
	return true, nil
}

// isWritten reports whether a file has a name of those that a model directory is written with.
func isWritten(name string) bool {
	if name == configName || name == indexName || IsSidecar(name) {
		return true
	}
	return strings.HasPrefix(name, "model") && strings.HasSuffix(name, ".safetensors")
}

func (s *staging) path(name string) string { return filepath.Join(s.tmp, name) }

// writeFile writes and syncs a small file.
func (s *staging) writeFile(name string, data []byte) error {
	f, err := s.create(name)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = ReadBack(f, 0, int64(len(data)), xxh3.Hash(data))
	}
	return cmp.Or(err, f.Close())
}

// create makes a file in the directory, or a template in the directory of these.
func (s *staging) create(name string) (vfs.File, error) {
	switch {
	case isTemplateFile(name):
		if err := s.fs.MkdirAll(s.path(templatesDir), 0o775); err != nil {
			return nil, err
		}
		s.hasMore = true
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\"):
		return nil, fmt.Errorf("%s is not a file name", terminal.Quote(name))
	}
	return s.fs.Create(s.path(name))
}

// copyFile writes and syncs a file of any size.
func (s *staging) copyFile(name string, in io.Reader) error {
	return s.writeParts(name, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}

// writeParts is copyFile of what a function writes.
func (s *staging) writeParts(name string, write func(io.Writer) error) error {
	out, err := s.create(name)
	if err != nil {
		return err
	}
	sum := counter{}
	if err = write(io.MultiWriter(out, &sum)); err == nil {
		err = out.Sync()
	}
	if err == nil {
		err = ReadBack(out, 0, sum.n, sum.Sum64())
	}
	return cmp.Or(err, out.Close())
}

// counter is the checksum and the number of bytes that are written.
type counter struct {
	xxh3.Hasher
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.Hasher.Write(b)
}

// commit makes the directory durable and visible, and calls staged between the two, unless it is nil. A directory that
// it replaces goes away after that.
func (s *staging) commit(replace bool, staged func(dir string) error) error {
	if err := s.fs.SyncDir(s.tmp); err != nil {
		return err
	}
	if s.hasMore {
		if err := s.fs.SyncDir(s.path(templatesDir)); err != nil {
			return err
		}
	}
	if staged != nil {
		if err := staged(s.tmp); err != nil {
			return err
		}
	}
	// Checked again: the target may have come or changed while the files were written.
	exists, err := s.replaces(replace)
	if err != nil {
		return err
	}
	if exists {
		// So that there is a whole directory at the target at every moment; tmp is then the old one.
		err = s.fs.Exchange(s.tmp, s.target)
	} else {
		err = s.fs.Rename(s.tmp, s.target)
	}
	if err != nil {
		return err
	}
	if err := s.fs.SyncDir(filepath.Dir(s.target)); err != nil {
		return err
	}
	_ = vfs.RemoveAll(s.fs, s.tmp) // the model is there, whatever is left of the old one
	return nil
}

func (s *staging) abort() { _ = vfs.RemoveAll(s.fs, s.tmp) }
