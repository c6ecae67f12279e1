package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/trace"
)

// The problem. Three lanes borrow pieces of extents on disk: fetch reads weights, drain writes gradients, update
// changes both and the moments. With several devices, each has a fetch lane and a drain lane. A lane often reads the
// piece that another lane has just written, so the freshest bytes are in that lane's staging memory. Staging memory is
// small, and the plan has counted it to the byte.
//
// The obvious answer is one pool of buffers for all lanes, of which the least recently used one is taken next. It
// deadlocks: drain holds the last buffers and waits for update to take its gradients, and update waits for a buffer to
// read moments into. Separate buffers for each lane do not deadlock, but then a piece in another lane's buffer has to
// be written and read again, or one lane holds another lane's buffer while the owner waits for it: two lanes that hold
// each other's buffers never continue.
//
// The answer here: each lane has a quota of buffers for each kind, and the quota never shrinks. A lane that wants a
// piece out of another lane's buffer gives one of its own for it. Buffers change owners, counts do not:
//
//	attach(lane, piece):
//		the lane has a copy of it           -> use that
//		no lane has it                      -> a buffer of the lane's; read into it
//		the lane's own buffer has it        -> use that
//		another lane's buffer has it:
//			it is being read                -> wait for the disk, then as below
//			own = a free buffer of the lane; none: wait for a lease of the lane's own to come back
//			it is not in use                -> exchange: that buffer is the lane's now, and own the other's
//			the other lane still uses it    -> copy it into own (both read; who writes waits for versions, not here)
//
// So a lane waits for its own leases and for the disk, and for nothing else. The disk waits for no lane: it has the
// buffers that it writes, and a buffer that it reads into belongs to it until the read ends. Reading ahead takes only
// free buffers, gives way to borrowed pieces, and remembers its hint.

// buffer is a piece of staging memory.
type buffer struct {
	lane   trace.Worker // whose quota it counts against
	kind   Kind
	off    int64 // in the region of its kind
	mem    []byte
	piece  *diskPiece // whose current version it holds or will hold; nil: nothing, or a copy
	copyOf *diskPiece // of which it is one lane's copy, while that lane reads it
	state  bufferState
	lent   int    // leases that point into it, and borrowers that wait for its contents
	hinted uint64 // the hint that it was read for and that is not used yet, or 0
	used   uint64 // when it was last given back
	unread bool   // it was read from disk, and no lane has borrowed that yet
	err    error  // of a read that failed
}

type bufferState uint8

const (
	idle    bufferState = iota // holds nothing, or what a file holds as well, or is lent to be written
	asked                      // waits for a worker to read into it
	reading                    // a worker reads into it
	failed                     // could not be read
	dirty                      // holds a version that no file has, and waits for a worker
	writing                    // a worker writes it
)

// hint is a prefetch that has not started, for want of a buffer or because the version is not there yet.
type hint struct {
	piece   *diskPiece
	version uint64
	number  uint64 // later ones are needed later
}

// maxHints bounds what a lane is ahead of itself; hints beyond are forgotten.
const maxHints = 256

// Borrow implements Store. The range is within one piece. It waits, if it must, for staging memory of the lane's quota
// and for the disk. Errors come from reading (one that matches [ErrChecksum] if the bytes differ from the written
// ones), from an earlier write, and from ctx.
func (d *Disk) Borrow(ctx context.Context, lane trace.Worker, id ID, off, n int64, access Access,
	version uint64) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.extent(id)
	e.checkRange(off, n, access)
	if n == 0 {
		return &Lease{Region: d.regions[id.Kind]}, nil
	}
	p := &e.pieces[off/e.Piece]
	switch first := off - off%e.Piece; {
	case off+n > first+e.Piece:
		panic(fmt.Sprintf("store: range [%d, %d+%d) of %v is of more than one piece", off, off, n, id))
	case d.buffersOf(lane, id.Kind) == 0:
		panic(fmt.Sprintf("store: the %v lane has no quota for %v", lane, id.Kind))
	}
	p.check(id, access, version)
	p.take(access)
	b, err := d.stage(ctx, lane, p, access)
	if err != nil {
		p.abandon(access)
		return nil, err
	}
	return &Lease{Region: d.regions[id.Kind], Off: b.off + off%e.Piece, Len: n, release: func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		p.endAccess(access)
		d.clock++
		b.used = d.clock
		if access != Read {
			b.state = dirty
			d.dirty++
			p.drive.later = append(p.drive.later, b)
		}
		d.detach(b)
	}}, nil
}

// buffersOf is the lane's quota of a kind.
func (d *Disk) buffersOf(lane trace.Worker, kind Kind) int {
	if d.crew.Index(lane) >= len(d.lanes) {
		return 0
	}
	return d.quota[lane.Lane][kind]
}

// stage brings a piece into a buffer of the lane. A loan of bytes that were not read for it spared the disk a read.
func (d *Disk) stage(ctx context.Context, lane trace.Worker, p *diskPiece, access Access) (*buffer, error) {
	b, err := d.attach(ctx, lane, p, access)
	if err != nil {
		return nil, err
	}
	for b.state == asked || b.state == reading {
		if err = d.wait(ctx); err == nil {
			err = d.err
		}
		if err != nil {
			d.detach(b)
			return nil, err
		}
	}
	if b.state == failed {
		err := b.err
		d.detach(b)
		return nil, err
	}
	if access != Write && !b.unread {
		d.traffic.SparedReadBytes += fileBytes(p.bytes)
	}
	b.unread = false
	return b, nil
}

// attach makes sure that the lane has a buffer for the piece, from which it is not taken any more.
func (d *Disk) attach(ctx context.Context, lane trace.Worker, p *diskPiece, access Access) (*buffer, error) {
	for d.err == nil {
		b := p.buf
		if i := slices.IndexFunc(p.copies, func(c *buffer) bool { return c.lane == lane }); i >= 0 {
			d.dropHint(lane, p)
			p.copies[i].lent++
			return p.copies[i], nil
		}
		switch {
		case b == nil:
			if b = d.takeBuffer(lane, p.id.Kind, true); b != nil {
				d.dropHint(lane, p)
				b.piece, p.buf = p, b
				b.lent = 1
				if access != Write {
					d.ask(b, true)
				}
				return b, nil
			}
		case b.state == failed, b.state == writing && access != Read:
			// The first goes when those who asked for it have their error, the second when the worker is done.
		case b.lane == lane:
			d.use(b, access)
			return b, nil
		case b.state == asked || b.state == reading:
			d.hurry(b) // and then have it
		default:
			own := d.takeBuffer(lane, p.id.Kind, true)
			if own == nil {
				break
			}
			if b.lent > 0 {
				d.dropHint(lane, p)
				d.copyLent(own, b)
				return own, nil
			}
			if b.hinted != 0 { // the other lane still needs it, before what it reads ahead next
				d.remember(b.lane, p.id.Kind, hint{p, p.version, b.hinted})
			}
			b.lane, own.lane, b.hinted = lane, b.lane, 0
			d.use(b, access)
			d.followHints() // the other lane has a free buffer now
			return b, nil
		}
		if err := d.wait(ctx); err != nil {
			return nil, err
		}
	}
	return nil, d.err
}

// use attaches to a buffer of the lane that has the piece, or will have it.
func (d *Disk) use(b *buffer, access Access) {
	if b.hinted == 0 {
		d.dropHint(b.lane, b.piece)
	}
	b.hinted = 0
	b.lent++
	d.hurry(b)
	if b.state == dirty && access != Read {
		// The version is replaced before it was written: it is not needed on disk.
		b.piece.drive.later = without(b.piece.drive.later, b)
		d.dirty--
		b.state = idle
		d.traffic.SparedWriteBytes += fileBytes(b.piece.bytes)
	}
}

// detach is the end of a use.
func (d *Disk) detach(b *buffer) {
	b.lent--
	switch {
	case b.lent > 0:
	case b.copyOf != nil:
		b.copyOf.copies = without(b.copyOf.copies, b)
		b.copyOf = nil
	case b.state == failed:
		d.drop(b)
	}
	d.followHints()
}

// drop parts a buffer from its piece.
func (d *Disk) drop(b *buffer) {
	b.piece.buf = nil
	b.piece, b.state, b.err, b.hinted, b.unread = nil, idle, nil, 0, false
}

// copyLent fills a buffer of one's own from one that another lane reads from, so that neither waits for the other.
func (d *Disk) copyLent(own, from *buffer) {
	p := from.piece
	own.copyOf, p.copies = p, append(p.copies, own)
	own.lent = 1
	from.lent++
	own.state = reading
	if !d.addressOnly {
		d.mu.Unlock()
		copy(own.mem, from.mem[:p.bytes])
		d.mu.Lock()
	}
	own.state = idle
	d.detach(from)
}

// takeBuffer finds a free buffer of the lane: an empty one, else the one that was used longest ago. With steal set it
// may also take a buffer that was read ahead: the one that is needed last, whose hint is remembered.
func (d *Disk) takeBuffer(lane trace.Worker, kind Kind, steal bool) *buffer {
	var oldest, last *buffer
	for _, b := range d.buffers[kind] {
		switch {
		case b.lane != lane || b.lent > 0:
		case b.piece == nil:
			return b
		case b.state == idle && b.hinted == 0:
			if oldest == nil || b.used < oldest.used {
				oldest = b
			}
		case b.hinted > 0 && (b.state == idle || b.state == asked):
			if last == nil || b.hinted > last.hinted {
				last = b
			}
		}
	}
	switch {
	case oldest != nil:
		d.drop(oldest)
		return oldest
	case last != nil && steal:
		if last.state == asked {
			v := last.piece.drive
			v.later = without(v.later, last)
			v.urgent = without(v.urgent, last) // another lane was in a hurry; it finds out and reads it itself
		}
		d.remember(lane, kind, hint{last.piece, last.piece.version, last.hinted})
		d.drop(last)
		return last
	}
	return nil
}

// Prefetch implements Store: the piece is read into a buffer of the lane as soon as the version is current and a
// buffer is left that holds nothing which was read ahead before.
func (d *Disk) Prefetch(lane trace.Worker, id ID, off int64, version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.extent(id)
	e.checkRange(off, 1, Read)
	if d.buffersOf(lane, id.Kind) == 0 {
		return
	}
	d.clock++
	d.remember(lane, id.Kind, hint{&e.pieces[off/e.Piece], version, d.clock})
	d.followHints()
}

// remember puts a hint in its place, unless there are too many before it.
func (d *Disk) remember(lane trace.Worker, kind Kind, h hint) {
	list := d.hints[d.crew.Index(lane)][kind]
	i := len(list)
	for i > 0 && list[i-1].number > h.number {
		i--
	}
	list = slices.Insert(list, i, h)
	d.hints[d.crew.Index(lane)][kind] = list[:min(len(list), maxHints)]
}

// dropHint forgets the hint that the lane follows by itself.
func (d *Disk) dropHint(lane trace.Worker, p *diskPiece) {
	list := &d.hints[d.crew.Index(lane)][p.id.Kind]
	if i := slices.IndexFunc(*list, func(h hint) bool { return h.piece == p && h.version == p.version }); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
}

// followHints starts what the hints ask for, where that has become possible, and wakes all. It follows the order of use
// and stops where it cannot continue: a piece that is needed later would take the memory, be dropped for a piece that
// is needed earlier, and be read again. That also holds while the next piece is being borrowed, which forgets its hint.
func (d *Disk) followHints() {
	for i, lane := range d.lanes {
		for kind, list := range d.hints[i] {
			for len(list) > 0 {
				h := list[0]
				if h.piece.version <= h.version &&
					(h.piece.version < h.version || h.piece.writing || !d.follow(lane, h)) {
					break
				}
				list = list[1:]
			}
			d.hints[i][kind] = append(d.hints[i][kind][:0], list...)
		}
	}
	d.wake()
}

// follow reads ahead, or keeps what is in memory, and reports whether it could.
func (d *Disk) follow(lane trace.Worker, h hint) bool {
	p, b := h.piece, h.piece.buf
	if b == nil {
		if b = d.takeBuffer(lane, p.id.Kind, false); b == nil {
			return false
		}
		b.piece, p.buf = p, b
		d.ask(b, false)
	}
	switch {
	case b.hinted != 0 || b.state == failed:
		return false
	case b.lane != lane:
		if b.lent > 0 || b.state == asked || b.state == reading {
			return false
		}
		own := d.takeBuffer(lane, p.id.Kind, false)
		if own == nil {
			return false
		}
		b.lane, own.lane = lane, b.lane
	}
	b.hinted = h.number
	return true
}

// ask queues a read.
func (d *Disk) ask(b *buffer, urgent bool) {
	b.state = asked
	if v := b.piece.drive; urgent {
		v.urgent = append(v.urgent, b)
	} else {
		v.later = append(v.later, b)
	}
	d.wake()
}

// hurry moves a queued read ahead of the reads that no lane waits for.
func (d *Disk) hurry(b *buffer) {
	v := b.piece.drive
	if i := slices.Index(v.later, b); i >= 0 && b.state == asked {
		v.later = slices.Delete(v.later, i, i+1)
		d.ask(b, true)
	}
}

func without(queue []*buffer, b *buffer) []*buffer {
	return slices.DeleteFunc(queue, func(x *buffer) bool { return x == b })
}
