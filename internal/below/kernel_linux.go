package below

import "golang.org/x/sys/unix"

// ofKernel reports whether the kernel makes a file up, as those of /proc: they have no size, some never
// end, and a link to one can give away the environment of the process, with the tokens in it.
func ofKernel(name string) bool {
	var s unix.Statfs_t
	if unix.Statfs(name, &s) != nil {
		return false
	}
	kind := int64(s.Type)
	return kind == unix.PROC_SUPER_MAGIC || kind == unix.SYSFS_MAGIC
}
