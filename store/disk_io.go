package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/vfs"
)

// blockBytes is the size of one read or write; larger blocks are no faster, smaller ones cost system calls.
const blockBytes = 4 << 20

// ErrChecksum is the cause of an error that says that a file does not hold what was written to it.
var ErrChecksum = errors.New("the checksum does not match: the file was changed or the disk is damaged")

// serve is a worker of a drive: it reads and writes what is queued for that, urgent reads first.
func (d *Disk) serve(v *drive) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.closed {
		b := d.next(v)
		if b == nil {
			_ = d.wait(context.Background()) // which does not end
			continue
		}
		begin := time.Now()
		if d.active == 0 {
			d.since = begin
		}
		d.active++
		if b.state == asked {
			d.load(b)
		} else {
			d.save(b)
		}
		d.active--
		if d.active == 0 {
			d.traffic.Busy += time.Since(d.since)
		}
		d.followHints()
		if v.Rest != nil {
			d.mu.Unlock()
			d.pause(v.Rest(time.Since(begin)))
			d.mu.Lock()
		}
	}
}

// pause waits, unless the store is closed.
func (d *Disk) pause(wait time.Duration) {
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.closing:
	}
}

// next takes a buffer from a drive's queues. A broken store writes no more.
func (d *Disk) next(v *drive) *buffer {
	for _, queue := range []*[]*buffer{&v.urgent, &v.later} {
		for len(*queue) > 0 {
			b := (*queue)[0]
			*queue = (*queue)[1:]
			if b.state == asked || d.err == nil {
				return b
			}
		}
	}
	return nil
}

// load reads a piece. The caller holds the lock, which load gives up meanwhile: the piece keeps its file, since no lane
// can write the piece before it is read.
func (d *Disk) load(b *buffer) {
	p, f := b.piece, b.piece.file
	b.state = reading
	d.mu.Unlock()
	err := d.read(f, p, b.mem)
	d.mu.Lock()
	if f != nil && err == nil {
		d.traffic.ReadBytes += fileBytes(p.bytes)
		b.unread = true
	}
	switch {
	case err == nil:
		b.state = idle
	case b.lent == 0:
		d.drop(b) // no lane asked for it; one that does reads it again, and gets the error
	default:
		b.state, b.err = failed, err
	}
}

// read fills mem with a piece and verifies it.
func (d *Disk) read(f *file, p *diskPiece, mem []byte) error {
	switch {
	case d.addressOnly:
		return nil
	case f == nil:
		clear(mem[:p.bytes])
		return nil
	}
	err := again(func() error {
		err := d.readFile(f, p.bytes, mem)
		if err == nil && xxh3.Hash(mem[:p.bytes]) != f.sum {
			err = fmt.Errorf("%s: %w", f.path, ErrChecksum)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("store: read %v: %w", p, err)
	}
	return nil
}

// attempts is the number of times that a piece is read or written, or its file recycled, before that counts as failed:
// a drive that was reset, or a bit that flipped on its way, should not end a week's run.
const attempts = 3

// again calls f until it succeeds, attempts times at most.
func again(f func() error) (err error) {
	for range attempts {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

func (d *Disk) readFile(f *file, bytes int64, mem []byte) error {
	open, err := d.fs.OpenFile(f.path, os.O_RDONLY|f.drive.direct, 0)
	if err != nil {
		return err
	}
	defer open.Close()
	for at, end := int64(0), fileBytes(bytes); at < end; at += blockBytes {
		n, err := open.ReadAt(mem[at:min(at+blockBytes, end)], at)
		if at+int64(n) >= bytes {
			return nil // a file that was adopted may lack the padding
		}
		if err != nil {
			return fmt.Errorf("%s: after %d of %d bytes: %w", f.path, at+int64(n), bytes, err)
		}
	}
	return nil
}

// save writes a version into a file of its own, which becomes the piece's. The caller holds the lock, which save gives
// up meanwhile: the buffer does not change, since no lane can write the piece before it is on disk.
func (d *Disk) save(b *buffer) {
	p := b.piece
	b.state = writing
	f, err := d.takeFile(p.drive, fileBytes(p.bytes))
	if err == nil {
		version := p.version
		d.mu.Unlock()
		err = again(func() error { return d.write(f, p, version, b.mem) })
		d.mu.Lock()
	}
	if err == errClosed {
		return
	}
	if err != nil {
		// The buffer stays as it is: it alone has the version.
		d.fail(fmt.Errorf("store: write %v: %w", p, err))
		return
	}
	d.traffic.WrittenBytes += f.bytes
	p.drive.written += f.bytes
	old := p.file
	p.file, b.state = f, idle
	d.dirty--
	d.retire(old)
}

// write fills a file of the pool and gives it the name of the version.
func (d *Disk) write(f *file, p *diskPiece, version uint64, mem []byte) error {
	f.version, f.synced = version, false
	if d.addressOnly {
		return nil
	}
	clear(mem[p.bytes:f.bytes])
	f.sum = xxh3.Hash(mem[:p.bytes])
	open, err := d.fs.OpenFile(f.path, os.O_WRONLY|f.drive.direct, 0)
	if err != nil {
		return err
	}
	if err := cmp.Or(writeBlocks(open, mem[:f.bytes]), open.Close()); err != nil {
		return err
	}
	return d.rename(f, p.versionPath(version))
}

func writeBlocks(f vfs.File, mem []byte) error {
	for at := 0; at < len(mem); at += blockBytes {
		if _, err := f.WriteAt(mem[at:min(at+blockBytes, len(mem))], int64(at)); err != nil {
			return err
		}
	}
	return nil
}
