//go:build !linux

package vfs

// Direct is the flag of [FS.OpenFile] for direct I/O, past the page cache: offsets, lengths and the addresses of
// buffers must be multiples of [DirectAlign]. It is 0 where the system has no such flag.
const Direct = 0
