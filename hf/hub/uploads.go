package hub

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/below"
)

// Upload is a file of this machine that is to be in a repository.
type Upload struct {
	Name string // a path with slashes
	Path string // on this machine
	Size int64  // bytes
	Link string // what the path is a link to, as the link has it; "" for a file

	dir string // that links must not leave; "" for a file that the user named
}

// Uploads are the files of a directory and of those in it, by name, or the one file that a path names. Hidden files and
// directories are left out, and so is what choose does not take; leftOut names that. choose is asked with the name in
// the repository, of a directory with a slash at its end, and may refuse the whole; nil takes all.
//
// The path itself may be a link. In the directory links are followed to files inside of it, and from a snapshot of the
// hub's cache to the blobs of its repository; another link that was chosen is an error, since it can name any file of
// the user.
func Uploads(path string, choose func(name string) (bool, error)) (files []Upload, leftOut []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	link, _ := os.Readlink(path) // of a file: an error
	if info.Mode().IsRegular() {
		return []Upload{{Name: filepath.Base(path), Path: path, Size: info.Size(), Link: link}}, nil, nil
	}
	dir, err := filepath.EvalSymlinks(path) // WalkDir does not follow the link that it begins with
	if err != nil {
		return nil, nil, err
	}
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(dir, file)
		switch {
		case err != nil:
			return err
		case relErr != nil:
			return relErr
		case file == dir:
			return nil
		case strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		name := filepath.ToSlash(rel)
		if entry.IsDir() {
			name += "/"
		}
		if choose != nil {
			if taken, err := choose(name); err != nil {
				return err
			} else if !taken {
				leftOut = append(leftOut, name)
				if entry.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
		}
		if entry.IsDir() {
			return nil
		}
		info, err := below.Stat(dir, rel)
		if err != nil {
			return err
		}
		link, _ := os.Readlink(file)
		files = append(files, Upload{Name: name, Path: file, Size: info.Size(), Link: link, dir: dir})
		return nil
	})
	return files, leftOut, err
}

// local is the file's path in the directory that must not be left.
func (u Upload) local() string {
	rel, err := filepath.Rel(u.dir, u.Path)
	if err != nil {
		return u.Path // which is not local, and refused
	}
	return rel
}

// open opens the file. It may no longer be the one that was listed.
func (u Upload) open() (*os.File, error) {
	if u.dir != "" {
		return below.Open(u.dir, u.local())
	}
	return below.OpenFile(u.Path)
}

// stat describes the file, which must be a regular one still.
func (u Upload) stat() (fs.FileInfo, error) {
	if u.dir != "" {
		return below.Stat(u.dir, u.local())
	}
	info, err := os.Stat(u.Path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a plain file: name one", u.Path)
	}
	return info, err
}
