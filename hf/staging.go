package hf

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// staging is a directory that becomes visible as a whole: files are written into a temporary directory beside the target,
// and commit renames it. A process that is killed leaves the target as it was, and a directory named
// .<target>.tmp-<random> that may be deleted.
type staging struct {
	target, tmp string
}

// stage makes the temporary directory. It fails at once if commit could not succeed: if the target holds anything and is
// not to be replaced, or is not a plain model directory.
func stage(target string, replace bool) (*staging, error) {
	target, err := filepath.Abs(target)
	if err != nil {
		return nil, err
	}
	if err := checkReplaceable(target, replace); err != nil {
		return nil, err
	}
	parent, base := filepath.Split(target)
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return nil, fmt.Errorf("%s cannot be written: %w", target, err)
	}
	// Not os.MkdirTemp, whose directories are private: the target gets the permissions that the umask grants.
	tmp := tempName(filepath.Join(parent, base))
	if err := os.Mkdir(tmp, 0o777); err != nil {
		return nil, fmt.Errorf("%s cannot be written: %w", target, err)
	}
	return &staging{target, tmp}, nil
}

// tempName is a new name in path's directory.
func tempName(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.tmp-%016x", filepath.Base(path), rand.Uint64()))
}

// createBeside creates a temporary file in path's directory, to be renamed to path.
func createBeside(path string) (*os.File, error) {
	return os.OpenFile(tempName(path), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
}

// checkReplaceable guards against deleting what is not ours: only an empty directory or one that holds a config.json and
// plain files may be replaced.
func checkReplaceable(target string, replace bool) error {
	entries, err := os.ReadDir(target)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", target, err)
	}
	if len(entries) == 0 {
		return nil
	}
	if !replace {
		return fmt.Errorf("%s exists and is not empty: name another directory, or remove it", target)
	}
	isModel := false
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return fmt.Errorf("%s is not replaced because it holds %s, which is not a plain file: name another directory", target, quote(e.Name()))
		}
		isModel = isModel || e.Name() == configName
	}
	if !isModel {
		return fmt.Errorf("%s is not replaced because it is not a model directory (it has no %s): name another directory", target, configName)
	}
	return nil
}

func (s *staging) path(name string) string { return filepath.Join(s.tmp, name) }

// writeFile writes and syncs a small file.
func (s *staging) writeFile(name string, data []byte) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\") {
		return fmt.Errorf("%s is not a file name", quote(name))
	}
	f, err := os.OpenFile(s.path(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// copyFile copies and syncs a file of any size.
func (s *staging) copyFile(name, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(s.path(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// commit makes the directory durable and visible. A directory that it replaces goes away after that.
func (s *staging) commit(replace bool) error {
	if err := syncDir(s.tmp); err != nil {
		return err
	}
	// Checked again: the target may have come or changed while the files were written.
	if err := checkReplaceable(s.target, replace); err != nil {
		return err
	}
	_, err := os.Lstat(s.target)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = os.Rename(s.tmp, s.target)
	case err == nil:
		// Exchanged, so that there is a whole directory at the target at every moment; tmp is then the old one.
		err = exchange(s.tmp, s.target)
	}
	if err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(s.target)); err != nil {
		return err
	}
	return os.RemoveAll(s.tmp)
}

func (s *staging) abort() { os.RemoveAll(s.tmp) }
