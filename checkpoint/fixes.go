package checkpoint

import (
	"errors"
	"io/fs"
	"syscall"
)

// fix says how to get rid of an error of the operating system, as the end of a line; empty where it knows no way.
func fix(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ": free space there, lower save.keep, or set output_dir to a larger disk"
	case errors.Is(err, syscall.EFBIG):
		return ": raise the limit of file sizes (ulimit -f)"
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return ": set output_dir to a directory that can be written"
	case errors.Is(err, syscall.EIO):
		return ": the disk fails: look at the system's log, and set output_dir to another disk"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrNotExist):
		return ": the path is missing or not a directory: restore it, or set another output_dir"
	}
	return ""
}
