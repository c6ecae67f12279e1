package hub

import (
	"slices"

	"golang.org/x/sys/unix"
)

// hasModes reports whether a directory is on a file system whose permissions say who writes there. Some show what they
// were mounted with, often 0777: drives of Windows (also those in WSL) and of servers, and what programs serve. To one
// that is mounted for reading alone no user of this machine writes.
func hasModes(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) != nil || keepsModes(&s)
}

func keepsModes(s *unix.Statfs_t) bool {
	const ntfs3 = 0x7366746e
	return s.Flags&unix.ST_RDONLY == 0 && !slices.Contains([]uint32{unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC, ntfs3,
		unix.V9FS_MAGIC, unix.FUSE_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC},
		uint32(s.Type))
}
