package rundir

import (
	"fmt"
	"os"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// OnDrive are the numbers of the paths in the file system of a directory.
func OnDrive(paths runfile.Paths, dir string) (numbers []int) {
	for i, path := range paths {
		if path == dir || vfs.SameDrive(path, dir) {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// CheckPaths refuses a memory.path with several directories of which one is not there, since state for a drive that is
// not mounted would go to another one, or of which two are the same. A directory alone is made when it is needed.
func CheckPaths(m runfile.Memory) error {
	if len(m.Path) < 2 || !m.UsesDisk() {
		return nil
	}
	var there []os.FileInfo
	for i, path := range m.Path {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			return fmt.Errorf("memory.path: there is no directory %s; make it, or mount its drive, or take it off the list",
				path)
		}
		for j, other := range there {
			if os.SameFile(other, info) {
				return fmt.Errorf("memory.path: %s and %s are the same directory; name each one once", m.Path[j],
					m.Path[i])
			}
		}
		there = append(there, info)
	}
	return nil
}

// noteDrives says of directories of memory.path that they are on one drive.
func (f Files) noteDrives(m runfile.Memory) {
	for i, path := range m.Path {
		if same := OnDrive(m.Path, path); m.UsesDisk() && len(same) > 1 && same[0] == i {
			f.Note("memory.path: %s of the list are in one file system, such as %s and %s, which does the work of all of "+
				"them: list one directory on each drive", spelling.Count(len(same), "path"), path, m.Path[same[1]])
		}
	}
}
