package vfs

import "golang.org/x/sys/unix"

// Direct is the flag of [FS.OpenFile] for direct I/O, past the page cache: offsets, lengths and the addresses of
// buffers must be multiples of [DirectAlign]. It is 0 where the system has no such flag. A file system may refuse it
// with EINVAL, when a file is opened or when it is used.
const Direct = unix.O_DIRECT
