package rundir

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// ResolvedIn returns the name of the run file that a run has written to a directory; empty if there is no such file. An
// error is the machine's: the contents of the directory are not known.
func (f Files) ResolvedIn(dir string) (string, error) {
	for _, name := range []string{OtherResolvedName, ResolvedName} {
		switch doc, err := vfs.ReadBelow(f.FS, dir, name, runfile.MaxBytes); {
		case blame.IsOfMachine(err):
			return "", err
		case err == nil && bytes.HasPrefix(doc, []byte(runfile.ResolvedHeader)):
			return name, nil
		}
	}
	return "", nil
}

// ReadResolved reads the run file that a run has written to a directory; nil if there is no such file, or it is no
// longer a run file.
func (f Files) ReadResolved(dir string) (*runfile.Config, error) {
	name, err := f.ResolvedIn(dir)
	if err != nil || name == "" {
		return nil, err
	}
	c, err := runfile.Read(filepath.Join(dir, name), nil)
	switch {
	case blame.IsOfMachine(err):
		return nil, err
	case err != nil:
		return nil, nil
	}
	return c, nil
}

// SettingsIn lists the values of the run file that the run in a directory has written, as far as it can be read; nil
// where there is no such file.
func SettingsIn(dir string) ([]runfile.FlatValue, error) {
	f := Files{FS: vfs.OS{}}
	name, err := f.ResolvedIn(dir)
	if err != nil || name == "" {
		return nil, err
	}
	doc, err := vfs.ReadBelow(f.FS, dir, name, runfile.MaxBytes)
	if err != nil {
		return nil, err
	}
	values, err := runfile.Flat(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
	}
	return values, nil
}

// WriteResolved writes the run file with every key, and the run's id for people. The user's own run.yaml stays as it
// is.
func (f Files) WriteResolved(c *runfile.Config, run checkpoint.RunID) error {
	doc, err := c.YAML()
	if err != nil {
		return err
	}
	name, err := f.ResolvedIn(c.OutputDir)
	if err != nil {
		return err
	}
	if name == "" {
		name = ResolvedName
		if _, err := os.Lstat(filepath.Join(c.OutputDir, name)); err == nil {
			name = OtherResolvedName
		}
	}
	header := fmt.Appendf(nil, "%s# Run %s\n", runfile.ResolvedHeader, run)
	return vfs.WriteFileAtomic(f.FS, filepath.Join(c.OutputDir, name), append(header, doc...))
}
