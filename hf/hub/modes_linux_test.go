package hub

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Permissions count where they keep users from writing, and where users can write at all.
func TestFileSystemsWithPermissions(t *testing.T) {
	for _, c := range []struct {
		s    unix.Statfs_t
		want bool
	}{
		{unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC}, true},
		{unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Flags: unix.ST_RDONLY | unix.ST_NOSUID}, false},
		{unix.Statfs_t{Type: unix.EXFAT_SUPER_MAGIC}, false},
	} {
		if got := keepsModes(&c.s); got != c.want {
			t.Errorf("type %#x with flags %#x: %v", c.s.Type, c.s.Flags, got)
		}
	}
}
