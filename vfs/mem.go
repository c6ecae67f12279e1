package vfs

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a file system in memory, for tests. It tells what is durable from what is not, fails where it is told to
// ([Mem.Intercept]), and lists what a crash could leave ([Mem.CrashImages]). It is safe for concurrent use.
//
// Paths are cleaned, and "/a", "a" and "./a" are the same file.
type Mem struct {
	mu        sync.Mutex
	root      *node
	ops       int
	intercept func(Op) Outcome
	locked    map[*node]bool
	capacity  int64 // bytes; 0 is no limit
	recording bool
	points    []crashPoint
}

var _ FS = (*Mem)(nil)

// NewMem makes an empty file system.
func NewMem() *Mem { return &Mem{root: newDir()} }

// node is a file or a directory.
type node struct {
	// A directory: the names now, and those that are durable. Both are nil in a file.
	names, durableNames map[string]*node

	// A file: its bytes now, those that are durable, and, while crashes are recorded, the changes in between, oldest
	// first. Only data may be changed in place, and only while it is owned: until then crash points may share it.
	data, durable []byte
	owned         bool
	pending       []change
}

// change is a write at an offset, or (data nil) a new length.
type change struct {
	off  int64
	data []byte
}

func newDir() *node { return &node{names: map[string]*node{}, durableNames: map[string]*node{}} }

func (n *node) isDir() bool { return n.names != nil }

// apply changes bytes, which must be the caller's own.
func (c change) apply(to []byte) []byte {
	end := c.off + int64(len(c.data))
	if old := int64(len(to)); end > old {
		to = slices.Grow(to, int(end-old))[:end]
		clear(to[old:])
	}
	if c.data == nil {
		return to[:c.off]
	}
	copy(to[c.off:], c.data)
	return to
}

func (m *Mem) change(n *node, c change) {
	if !n.owned {
		n.data, n.owned = slices.Clone(n.data), true
	}
	n.data = c.apply(n.data)
	if m.recording {
		n.pending = append(n.pending, change{c.off, slices.Clone(c.data)})
	}
}

// makeDurable makes a file's bytes durable.
func (n *node) makeDurable() { n.durable, n.owned, n.pending = n.data, false, nil }

// split turns a path into the names along it.
func split(name string) []string {
	clean := filepath.ToSlash(filepath.Clean("/" + name))
	return strings.FieldsFunc(clean, func(r rune) bool { return r == '/' })
}

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// find walks to a path.
func (m *Mem) find(op, name string) (*node, error) {
	n := m.root
	for _, part := range split(name) {
		if !n.isDir() {
			return nil, pathError(op, name, syscall.ENOTDIR)
		}
		if n = n.names[part]; n == nil {
			return nil, pathError(op, name, fs.ErrNotExist)
		}
	}
	return n, nil
}

// parent walks to the directory that holds, or would hold, a path, and gives the last name.
func (m *Mem) parent(op, name string) (*node, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", pathError(op, name, fs.ErrInvalid)
	}
	dir, err := m.find(op, strings.Join(parts[:len(parts)-1], "/"))
	if err == nil && !dir.isDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		var inner *fs.PathError
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, "", pathError(op, name, err)
	}
	return dir, parts[len(parts)-1], nil
}

// Open opens for reading.
func (m *Mem) Open(name string) (File, error) { return m.OpenFile(name, os.O_RDONLY, 0) }

// Create makes or empties a file.
func (m *Mem) Create(name string) (File, error) {
	return m.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o664)
}

// OpenFile knows O_RDONLY, O_WRONLY, O_RDWR, O_CREATE, O_EXCL, O_TRUNC, O_APPEND and [Direct], and ignores other flags.
// With Direct it demands what disks demand: everything aligned.
func (m *Mem) OpenFile(name string, flag int, _ fs.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.beginOp(Op{Kind: OpOpen, Name: name, Flag: flag}); err != nil {
		return nil, pathError("open", name, err)
	}
	n, err := m.find("open", name)
	switch {
	case err == nil && flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		return nil, pathError("open", name, fs.ErrExist)
	case err == nil && n.isDir() && flag&(os.O_WRONLY|os.O_RDWR) != 0:
		return nil, pathError("open", name, syscall.EISDIR)
	case err == nil && flag&(os.O_WRONLY|os.O_RDWR) != 0 && m.root.count(n) > 1:
		return nil, notOneName(name, m.root.count(n))
	case errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0:
		dir, base, err := m.parent("open", name)
		if err != nil {
			return nil, err
		}
		n = &node{}
		dir.names[base] = n
		m.point("create " + name)
	case err != nil:
		return nil, err
	case flag&os.O_TRUNC != 0 && len(n.data) > 0:
		m.change(n, change{})
		m.point("truncate " + name)
	}
	return &memFile{fs: m, node: n, name: name, flag: flag}, nil
}

// Rename replaces newName in one step. Directories move only to a free name.
func (m *Mem) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fail := func(err error) error { return &os.LinkError{Op: "rename", Old: oldName, New: newName, Err: err} }
	if _, err := m.begin(OpRename, newName, 0); err != nil {
		return fail(err)
	}
	from, oldBase, err := m.parent("rename", oldName)
	if err != nil {
		return fail(err)
	}
	to, newBase, err := m.parent("rename", newName)
	if err != nil {
		return fail(err)
	}
	n, old := from.names[oldBase], to.names[newBase]
	switch {
	case n == nil:
		return fail(fs.ErrNotExist)
	case n == old:
		return nil
	case old != nil && (n.isDir() || old.isDir()):
		return fail(fs.ErrExist)
	case n.isDir() && slices.Equal(split(oldName), split(newName)[:min(len(split(oldName)), len(split(newName)))]):
		return fail(fs.ErrInvalid) // into itself
	}
	delete(from.names, oldBase)
	to.names[newBase] = n
	m.point("rename " + newName)
	return nil
}

// Exchange gives each of two files or directories the other's name.
func (m *Mem) Exchange(a, b string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fail := func(err error) error { return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err} }
	if _, err := m.begin(OpExchange, b, 0); err != nil {
		return fail(err)
	}
	dirA, baseA, err := m.parent("exchange", a)
	if err != nil {
		return fail(err)
	}
	dirB, baseB, err := m.parent("exchange", b)
	if err != nil {
		return fail(err)
	}
	nodeA, nodeB := dirA.names[baseA], dirB.names[baseB]
	if nodeA == nil || nodeB == nil {
		return fail(fs.ErrNotExist)
	}
	dirA.names[baseA], dirB.names[baseB] = nodeB, nodeA
	m.point("exchange " + b)
	return nil
}

// Link gives a file a second name.
func (m *Mem) Link(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fail := func(err error) error { return &os.LinkError{Op: "link", Old: oldName, New: newName, Err: err} }
	if _, err := m.begin(OpLink, newName, 0); err != nil {
		return fail(err)
	}
	n, err := m.find("link", oldName)
	if err != nil {
		return fail(err)
	}
	dir, base, err := m.parent("link", newName)
	switch {
	case err != nil:
		return fail(err)
	case n.isDir():
		return fail(fs.ErrPermission)
	case dir.names[base] != nil:
		return fail(fs.ErrExist)
	}
	dir.names[base] = n
	m.point("link " + newName)
	return nil
}

// Remove removes a file or an empty directory. Open files stay readable.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpRemove, name, 0); err != nil {
		return pathError("remove", name, err)
	}
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	switch n := dir.names[base]; {
	case n == nil:
		return pathError("remove", name, fs.ErrNotExist)
	case len(n.names) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	delete(dir.names, base)
	m.point("remove " + name)
	return nil
}

// MkdirAll makes a directory and those above it.
func (m *Mem) MkdirAll(name string, _ fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpMkdir, name, 0); err != nil {
		return pathError("mkdir", name, err)
	}
	n := m.root
	for _, part := range split(name) {
		next := n.names[part]
		if next == nil {
			next = newDir()
			n.names[part] = next
			m.point("mkdir " + name)
		}
		if !next.isDir() {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		n = next
	}
	return nil
}

// ReadDir lists a directory by name.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpReadDir, name, 0); err != nil {
		return nil, pathError("readdir", name, err)
	}
	n, err := m.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if !n.isDir() {
		return nil, pathError("readdir", name, syscall.ENOTDIR)
	}
	var entries []fs.DirEntry
	for _, base := range slices.Sorted(maps.Keys(n.names)) {
		entries = append(entries, fs.FileInfoToDirEntry(stat(base, n.names[base])))
	}
	return entries, nil
}

// Stat describes a file.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpStat, name, 0); err != nil {
		return nil, pathError("stat", name, err)
	}
	n, err := m.find("stat", name)
	if err != nil {
		return nil, err
	}
	return stat(filepath.Base(name), n), nil
}

// Lstat is Stat: there are no symbolic links.
func (m *Mem) Lstat(name string) (fs.FileInfo, error) { return m.Stat(name) }

// SyncDir makes the names in a directory durable.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.point("before sync of " + name)
	if _, err := m.begin(OpSyncDir, name, 0); err != nil {
		return pathError("sync", name, err)
	}
	n, err := m.find("sync", name)
	if err != nil {
		return err
	}
	if !n.isDir() {
		return pathError("sync", name, syscall.ENOTDIR)
	}
	n.durableNames = maps.Clone(n.names)
	m.point("after sync of " + name)
	return nil
}

// SetCapacity limits what all files together may hold; writes and preallocations beyond it fail with ENOSPC. 0 is no
// limit.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// FreeBytes is the capacity less what files hold now. Without a limit it is an exbibyte.
func (m *Mem) FreeBytes(name string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpFreeBytes, name, 0); err != nil {
		return 0, pathError("statfs", name, err)
	}
	if _, err := m.find("statfs", name); err != nil {
		return 0, err
	}
	return m.free(), nil
}

// free is FreeBytes for a caller that holds the lock.
func (m *Mem) free() int64 {
	if m.capacity == 0 {
		return 1 << 60
	}
	return m.capacity - m.root.bytes(map[*node]bool{})
}

// bytes sums the sizes of the files of a tree, each counted once.
func (n *node) bytes(seen map[*node]bool) int64 {
	if seen[n] {
		return 0
	}
	seen[n] = true
	sum := int64(len(n.data))
	for _, child := range n.names {
		sum += child.bytes(seen)
	}
	return sum
}

// count returns the number of names that a file has in a tree.
func (n *node) count(of *node) (names int) {
	for _, child := range n.names {
		if child == of {
			names++
		}
		names += child.count(of)
	}
	return names
}

// fits is an error if a file cannot be as long as this.
func (m *Mem) fits(n *node, bytes int64) error {
	if more := bytes - int64(len(n.data)); m.capacity > 0 && more > 0 && more > m.free() {
		return syscall.ENOSPC
	}
	return nil
}

// Lock holds a file.
func (m *Mem) Lock(name string) (Lock, error) {
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.begin(OpLock, name, 0); err != nil {
		return nil, pathError("lock", name, err)
	}
	open := f.(*memFile)
	n := open.node
	if m.locked[n] {
		return nil, pathError("lock", name, ErrLocked)
	}
	if m.locked == nil {
		m.locked = map[*node]bool{}
	}
	m.locked[n] = true
	return memLock{open, name}, nil
}

type memLock struct {
	*memFile
	name string
}

func (l memLock) InPlace() (bool, error) {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	n, err := l.fs.find("lock", l.name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return n == l.node, err
}

func (l memLock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locked, l.node)
	return nil
}

// FlipBit changes one stored bit, durably and silently, as a failing disk does.
func (m *Mem) FlipBit(name string, off int64, bit uint) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("flip", name)
	if err != nil {
		return err
	}
	if off < 0 || off >= int64(len(n.data)) {
		return pathError("flip", name, io.ErrUnexpectedEOF)
	}
	n.data = slices.Clone(n.data)
	n.data[off] ^= 1 << (bit & 7)
	n.makeDurable()
	return nil
}

type memInfo struct {
	name string
	size int64
	dir  bool
}

func stat(name string, n *node) fs.FileInfo { return memInfo{name, int64(len(n.data)), n.isDir()} }

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) ModTime() time.Time { return time.Time{} }
func (i memInfo) Sys() any           { return nil }

func (i memInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o777
	}
	return 0o664
}
