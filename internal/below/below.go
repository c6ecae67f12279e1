// Package below reads files of directories that came from elsewhere: a model that was cloned, unpacked or downloaded,
// with its configuration, weights, tokenizer, templates and card; or the directory of a run, with its checkpoints.
//
// A symbolic link in such a directory can name any file of the user, and what this program reads of it, it copies
// into exports, runs and commits. So there is one rule, for every reader: a name leads to a regular file inside of the
// directory. Links are followed as far as they stay inside. The one exception is the cache of the Hugging Face hub,
// where the files of models--ORG--NAME/snapshots/COMMIT are links into models--ORG--NAME/blobs: links from such a
// snapshot may lead into the blobs of the same repository.
//
// The rule counts for weights, too. Weights leave with an export as much as any other file, and a shard that links to
// another model of the user would publish that.
//
// The user can allow more, see [Allow]: links into the hub's cache that the user has configured, and any link.
//
// A directory or a single file that the user names may itself be a link to anywhere.
//
// Every package may import this one, and it imports none of ours.
package below

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// Links are links out of directories that the user allows.
type Links struct {
	// HubCache is a cache of the Hugging Face hub; "": none. Links may lead to the blobs of its repositories, which are
	// named by their hashes: a stranger who makes a directory knows the hashes of public files alone. The user may have
	// moved those blobs to another disk and left a link to them. huggingface_hub before 0.23 made links to blobs in
	// local_dir.
	HubCache string
	// Anywhere allows every link, except to files that the kernel makes up.
	Anywhere bool
}

// allowed are the links that Allow was told.
var allowed atomic.Pointer[Links]

// Allow says what the user allows, for the whole process, as the environment does: it replaces what was said before.
func Allow(l Links) { allowed.Store(&l) }

// FollowVariable is the name in the environment by which the user allows every link, which the program reads.
const FollowVariable = "MILLRACE_FOLLOW_LINKS"

// Open opens a regular file of a directory for reading. Errors are *fs.PathError of the file's path in the directory,
// and match fs.ErrNotExist for a file that is missing, also at the end of a link.
func Open(dir, name string) (*os.File, error) {
	at, err := find(dir, name)
	if err != nil {
		return nil, err
	}
	if err := isRegular(at.info); err != nil { // before it is opened: a named pipe may wait forever
		return nil, at.fail(err)
	}
	return at.open()
}

// Read reads a regular file of a directory whole. One that is longer than maxBytes is an error, whatever length the
// system states.
func Read(dir, name string, maxBytes int64) ([]byte, error) {
	f, err := Open(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, filepath.Join(dir, name), maxBytes)
}

// OpenFile opens a regular file that the user, or this program, has named; it may be a link.
func OpenFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := isRegular(info); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.Open(path)
}

// ReadFile reads what OpenFile opens whole, as Read does.
func ReadFile(path string, maxBytes int64) ([]byte, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, path, maxBytes)
}

// ReadAll reads an open file, a path, whole. One that is longer than maxBytes is an error: some files of the system
// have endless contents and the length 0.
func ReadAll(f interface {
	io.Reader
	Stat() (fs.FileInfo, error)
}, path string, maxBytes int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	doc := make([]byte, 0, max(min(info.Size(), maxBytes), 0)+1)
	for int64(len(doc)) <= maxBytes {
		if len(doc) == cap(doc) {
			doc = append(doc, 0)[:len(doc)]
		}
		n, err := f.Read(doc[len(doc):min(int64(cap(doc)), maxBytes+1)])
		doc = doc[:len(doc)+n]
		if err == io.EOF {
			return doc, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s has more than the %d bytes that such a file can have: "+
		"put the right file there, or remove it", path, maxBytes)
}

// Stat describes the regular file that Open would open.
func Stat(dir, name string) (fs.FileInfo, error) {
	at, err := find(dir, name)
	if err != nil {
		return nil, err
	}
	if err := isRegular(at.info); err != nil {
		return nil, at.fail(err)
	}
	return at.info, nil
}

// Check refuses a name that leads out of a directory, whatever kind of file it is there. Its errors are those of Open.
func Check(dir, name string) error {
	_, err := find(dir, name)
	return err
}

// AnyLink reports whether the user allows links to anywhere.
func AnyLink() bool {
	l := allowed.Load()
	return l != nil && l.Anywhere
}

// Names lists a directory in a directory. The names may be of anything.
func Names(dir, name string) ([]string, error) {
	at, err := find(dir, name)
	if err != nil {
		return nil, err
	}
	if !at.info.IsDir() {
		return nil, at.fail(syscall.ENOTDIR)
	}
	f, err := at.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// place holds the file that a name of a directory leads to.
type place struct {
	path string // as it was asked for
	base string // the directory that must not be left, without links in its path
	rel  string // below base, without links in it
	info fs.FileInfo
}

// fail is an error of the place.
func (p *place) fail(err error) error { return &fs.PathError{Op: "open", Path: p.path, Err: err} }

// open opens what find has found. The directory is held while that is done, so that what was changed into a link in
// the meantime is not followed out of it.
func (p *place) open() (*os.File, error) {
	root, err := os.OpenRoot(p.base)
	if err != nil {
		return nil, p.fail(cause(err))
	}
	defer root.Close()
	f, err := root.Open(p.rel)
	if err != nil {
		return nil, p.fail(cause(err))
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Type() != p.info.Mode().Type() {
		err = errors.New("it was replaced while it was opened; try again")
	}
	if err != nil {
		f.Close()
		return nil, p.fail(cause(err))
	}
	return f, nil
}

// find resolves the links of a name, and refuses what leads out of the directory.
func find(dir, name string) (*place, error) {
	p := &place{path: filepath.Join(dir, name)}
	if !filepath.IsLocal(name) {
		return nil, p.fail(errors.New("it is not a name inside of the directory: use such a name"))
	}
	full, err := filepath.Abs(dir)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return nil, p.fail(cause(err))
	}
	real, err := filepath.EvalSymlinks(filepath.Join(full, name))
	if err != nil {
		return nil, p.fail(cause(err))
	}
	bases := []string{full, blobs(full)}
	if l := allowed.Load(); l != nil {
		bases = append(bases, l.cached(filepath.Join(full, name), real))
		if l.Anywhere {
			if err := CheckKernel(real); err != nil {
				return nil, p.fail(err)
			}
			bases = append(bases, filepath.Dir(real))
		}
	}
	for _, base := range bases {
		rel, err := filepath.Rel(base, real)
		if base == "" || err != nil || !filepath.IsLocal(rel) {
			continue
		}
		p.base, p.rel = base, rel
		if p.info, err = os.Lstat(real); err != nil {
			return nil, p.fail(cause(err))
		}
		return p, nil
	}
	return nil, p.fail(fmt.Errorf("it is a link to %s, out of the directory, and such links are not followed; "+
		"put a copy of that file there, or set %s=1 if you trust all links of the directory", real, FollowVariable))
}

// cached is the directory of blobs in the hub's cache to which the links of a path lead, where they end at real; ""
// for other links.
func (l *Links) cached(path, real string) string {
	if l.HubCache == "" {
		return ""
	}
	cache, err := filepath.Abs(l.HubCache)
	if err == nil {
		cache, err = filepath.EvalSymlinks(cache)
	}
	if err != nil {
		return ""
	}
	for range 255 { // as many as filepath.EvalSymlinks follows
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return ""
		}
		to, err := os.Readlink(filepath.Join(dir, filepath.Base(path)))
		if err != nil {
			return "" // it is no link
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		path = filepath.Clean(to)
		blobs := filepath.Dir(path)
		repo := filepath.Dir(blobs)
		if filepath.Base(blobs) != "blobs" || !isRepo(filepath.Base(repo)) || !isHash(filepath.Base(path)) {
			continue
		}
		in, err := filepath.EvalSymlinks(filepath.Dir(repo))
		if err != nil || in != cache {
			continue
		}
		blobs, err = filepath.EvalSymlinks(blobs)
		if err == nil && filepath.Join(blobs, filepath.Base(path)) == real {
			return blobs
		}
	}
	return ""
}

// blobs returns the directory with the files of a snapshot in the hub's cache; "" for a directory that is not in a
// snapshot.
func blobs(dir string) string {
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		snapshots := filepath.Dir(dir)
		repo := filepath.Dir(snapshots)
		if isRepo(filepath.Base(repo)) && filepath.Base(snapshots) == "snapshots" && isCommit(filepath.Base(dir)) {
			return filepath.Join(repo, "blobs")
		}
	}
	return ""
}

// isRepo reports whether a name is of a repository in the hub's cache.
func isRepo(name string) bool {
	kind, _, ok := strings.Cut(name, "--")
	return ok && (kind == "models" || kind == "datasets" || kind == "spaces")
}

func isCommit(name string) bool { return len(name) == 40 && isHex(name) }

// isHash reports whether a name is that of a blob: a hash of git's or a SHA-256.
func isHash(name string) bool { return (len(name) == 40 || len(name) == 64) && isHex(name) }

func isHex(name string) bool { return strings.Trim(name, "0123456789abcdef") == "" }

// cause is an error without the path that it names, which has no links in it.
func cause(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	if strings.Contains(err.Error(), "too many links") { // filepath.EvalSymlinks has no other sign of it
		return syscall.ELOOP
	}
	return err
}

// CheckKernel refuses a file that the kernel makes up.
func CheckKernel(name string) error {
	if !ofKernel(name) {
		return nil
	}
	return errors.New("it leads to a file of the kernel's (/proc or /sys), which holds no data of yours; " +
		"remove it, or name another")
}

// isRegular refuses what is not a regular file.
func isRegular(info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("it is %s, where a regular file is needed; put one there, or name another", KindOf(info.Mode()))
}

// KindOf names what is not a regular file.
func KindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}
