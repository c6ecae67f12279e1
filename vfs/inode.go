package vfs

// Inode tells a directory from its copies. It stays when the directory, or one above it, is renamed.
type Inode struct {
	Device uint64 `json:"device"`         // number of the file system, which may change when that is mounted again
	Number uint64 `json:"number"`         // a file that is made after this one is removed may get the same one
	Born   int64  `json:"born,omitempty"` // when it was made, in ns since 1970; 0 where the file system does not say
}

// InodeOf returns the inode of a directory; nil if the system has none, as a [Mem], or the directory cannot be read.
func InodeOf(fsys FS, dir string) *Inode {
	info, err := fsys.Stat(dir)
	if err != nil {
		return nil
	}
	i := inode(info)
	if i != nil {
		i.Born = bornAt(dir)
	}
	return i
}

// Is reports whether this is the directory that had the other inode, whose file system may be mounted again since.
func (i Inode) Is(other Inode) bool { return i.Number == other.Number && i.Born == other.Born }
