package vfs

import "golang.org/x/sys/unix"

// bornAt returns the time at which a directory was made, in ns since 1970; 0 where that is not known.
func bornAt(dir string) int64 {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}
