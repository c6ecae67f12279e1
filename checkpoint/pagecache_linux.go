package checkpoint

import (
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/vfs"
)

// startWriteback has the kernel write a range to the disk now, and does not wait. Left to itself it would let a tenth
// of the memory fill with dirty pages, which the run's budget does not have, and then stop all writers at once.
func startWriteback(f vfs.File, off, n int64) error {
	return vfs.Control(f, func(fd int) error { return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE) })
}

// dropWritten waits until a range is written, and gives its pages back, since a checkpoint is rarely read soon. It
// makes nothing durable. Fsync does not report a write error again that dropWritten has seen, so its error must not be
// ignored.
func dropWritten(f vfs.File, off, n int64) error {
	const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := vfs.Control(f, func(fd int) error { return unix.SyncFileRange(fd, off, n, wait) })
	if err != nil {
		return err
	}
	vfs.DropCache(f, off, n)
	return nil
}
