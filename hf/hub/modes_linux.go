package hub

import (
	"slices"

	"golang.org/x/sys/unix"
)

// hasModes reports whether a directory is on a file system that keeps permissions. Others show what they were mounted
// with, often 0777: drives of Windows (also those in WSL) and of servers, and what programs serve.
func hasModes(dir string) bool {
	var s unix.Statfs_t
	const ntfs3 = 0x7366746e
	return unix.Statfs(dir, &s) != nil || !slices.Contains([]uint32{unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC, ntfs3,
		unix.V9FS_MAGIC, unix.FUSE_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC},
		uint32(s.Type))
}
