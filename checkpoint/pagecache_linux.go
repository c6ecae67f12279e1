package checkpoint

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/vfs"
)

// startWriteback has the kernel write a range to the disk now, and does not wait. Left to itself it would let a tenth of
// the memory fill with dirty pages, which the run's budget does not have, and then stop all writers at once.
func startWriteback(f vfs.File, off, n int64) error {
	return control(f, func(fd int) error { return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE) })
}

// dropWritten waits until a range is written, and gives its pages back: nobody reads a checkpoint soon. It makes nothing
// durable; but an error of writing that it sees is not reported again by fsync, so it must not be ignored.
func dropWritten(f vfs.File, off, n int64) error {
	const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := control(f, func(fd int) error { return unix.SyncFileRange(fd, off, n, wait) })
	if err != nil {
		return err
	}
	dropRead(f, off, n)
	return nil
}

// dropRead gives the clean pages of a range back.
func dropRead(f vfs.File, off, n int64) {
	_ = control(f, func(fd int) error { return unix.Fadvise(fd, off, n, unix.FADV_DONTNEED) }) // a hint
}

// control calls a system call on a real file. That the file system does not know the call is no error.
func control(f vfs.File, call func(fd int) error) error {
	real, ok := f.(syscall.Conn)
	if !ok {
		return nil // in memory
	}
	raw, err := real.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		for {
			inner = call(int(fd))
			if inner != unix.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return err
	case errors.Is(inner, unix.ENOSYS), errors.Is(inner, unix.EOPNOTSUPP), errors.Is(inner, unix.EINVAL), errors.Is(inner, unix.ESPIPE):
		return nil
	}
	return inner
}
