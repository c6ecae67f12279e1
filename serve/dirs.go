package serve

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/train/rundir"
)

// Bounds of the search for runs below a directory.
const (
	mostRuns    = 1000
	mostEntries = 20_000
	mostLevels  = 3 // of folders around a run, below the directory that is named
)

// found is a run in a directory.
type found struct{ base, rel, records string }

// search finds the runs of directories, in order. message says what cannot be shown; empty: all can.
func search(dirs []string) (all []found, message string) {
	entries := 0
	say := func(text string) { message = cmp.Or(message, text) }
	var look func(base, rel string, level int)
	look = func(base, rel string, level int) {
		if len(all) >= mostRuns || entries >= mostEntries {
			say(fmt.Sprintf("there are more than %d runs or %d files; name a folder with fewer", mostRuns, mostEntries))
			return
		}
		if isRun(base, rel) {
			all = append(all, found{base, rel, rundir.MetricsName})
			return
		}
		if level > mostLevels {
			return
		}
		names, err := foldersIn(base, rel, &entries)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			say(terminal.Text(console.OneLine(err)))
		}
		for _, name := range names {
			look(base, filepath.Join(rel, name), level+1)
		}
	}
	for _, dir := range dirs {
		look(dir, ".", 0)
	}
	return all, message
}

// isRun reports whether a directory is the output directory of a run.
func isRun(base, rel string) bool {
	for _, name := range []string{rundir.MetricsName, rundir.IdentityName} {
		if _, err := below.Stat(base, filepath.Join(rel, name)); err == nil {
			return true
		}
	}
	return false
}

// foldersIn lists the folders of a directory, sorted: those whose names do not begin with a dot, and to which no link
// out of base leads.
func foldersIn(base, rel string, entries *int) (names []string, err error) {
	if err := below.Check(base, rel); err != nil {
		return nil, err
	}
	d, err := os.Open(filepath.Join(base, rel))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	list, err := d.ReadDir(mostEntries) // in the order of the directory
	*entries += len(list)
	for _, e := range list {
		name := filepath.Join(rel, e.Name())
		isDir := e.IsDir()
		if e.Type()&fs.ModeSymlink != 0 && below.Check(base, name) == nil {
			info, err := os.Stat(filepath.Join(base, name))
			isDir = err == nil && info.IsDir()
		}
		if isDir && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	if errors.Is(err, io.EOF) {
		err = nil // the directory is empty
	}
	return names, err
}
