package store

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// Disk is a store that keeps its extents in files, each version of a piece in a file of its own, and lends staging
// buffers.
//
// The files may be on several drives, each with a directory, and each with workers of its own that read and write it: a
// [Deal] gives each piece to one of them. All else knows pieces and not drives.
//
// The space is reserved when the store is made. A crash can only tear a file that nothing refers to, and a file of a
// checkpoint ([Disk.Files]) is never written again: disk_pool.go says how. The directories belong to the store, which
// empties them at both ends of its life. State that must survive is linked elsewhere. Extents that were never written
// are zeros, which are neither stored nor read.
//
// Buffers belong to lanes, by a [Quota]. A lane waits for its own leases and for the disk, and for nothing else. If a
// piece is in another lane's buffer, the lane takes that buffer in exchange for one of its own, or copies it if the
// other lane still uses it. Pieces that are read ahead give way to borrowed ones. So lanes cannot starve each other.
//
// A written version is current at once, and is read from its buffer until it is on disk. A version that is replaced
// before its write has begun is never written. When a write fails the store is broken: every later call returns that
// error.
type Disk struct {
	fs          vfs.FS
	drives      []*drive
	deal        Deal
	log         *slog.Logger
	quota       Quota
	workers     int // of each drive
	addressOnly bool
	regions     [Kinds]*hostmem.Region
	closing     chan struct{} // closed when the store is

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, at each change that a lane may wait for
	extents map[ID]*diskExtent
	buffers [Kinds][]*buffer
	crew    trace.Crew
	lanes   []trace.Worker  // of the crew, by index
	hints   [][Kinds][]hint // by the index of the lane
	clock   uint64          // counts hints and uses

	dirty   int // buffers that hold a version which is not on disk
	serving fault.Group
	err     error // of the first write that failed
	closed  bool

	traffic Traffic
	active  int       // workers that read or write
	since   time.Time // when active became positive
}

// DiskOptions say where the extents go.
type DiskOptions struct {
	Drives   []Drive // one for each that Deal deals to; none: one without a directory, for rehearsals
	Deal     Deal    // which drive has which piece; nil: there is one drive
	FS       vfs.FS  // of all drives; nil: the system's
	Accounts *hostmem.Accounts
	Specs    []Spec
	Quota    Quota
	Crew     trace.Crew   // whose workers have a quota each
	Workers  int          // pieces that are read or written at once on each drive; 0: a default that keeps a drive busy
	Log      *slog.Logger // nil: the default one

	// AddressOnly makes a store for rehearsals: buffers without memory and no files. It counts what it would have read
	// and written.
	AddressOnly bool
}

// Traffic counts the bytes that a store has moved so far, in whole blocks. When nothing is under way, the bytes that
// were read and those that were spared are all that was lent to be read, unless something was read ahead in vain; and
// the bytes that were written and spared are all that was lent to be written.
type Traffic struct {
	ReadBytes, WrittenBytes int64 // of files
	// SparedReadBytes were lent without a read: they were still in a buffer, or had never been written.
	// SparedWriteBytes were replaced by the next version before their write had begun.
	SparedReadBytes, SparedWriteBytes int64
	Busy                              time.Duration // how long something was being read or written
}

// diskExtent is an extent and its pieces.
type diskExtent struct {
	Spec
	pieces []diskPiece
}

// diskPiece is a piece: its leases, its file and its buffer.
type diskPiece struct {
	pieceState
	id    ID
	index int
	bytes int64
	drive *drive  // that its files are on
	file  *file   // the latest version on disk; nil: zeros
	buf   *buffer // holds the current version, or waits for it; nil: only the file has it

	copies []*buffer // of buf, for lanes that read it while another lane does
}

func (p *diskPiece) String() string { return fmt.Sprintf("piece %d of %v", p.index, p.id) }

// NewDisk reserves staging memory and disk space for the extents. If it cannot have all, it takes nothing; where the
// disk is too small, the error says how much is needed and how much is free.
func NewDisk(o DiskOptions) (*Disk, error) {
	d := &Disk{fs: o.FS, deal: o.Deal, log: o.Log, quota: o.Quota, workers: workersOr(o.Workers),
		addressOnly: o.AddressOnly, closing: make(chan struct{}), changed: make(chan struct{}), crew: o.Crew,
		lanes:   o.Crew.Workers(),
		extents: map[ID]*diskExtent{}}
	if len(o.Drives) == 0 {
		o.Drives = make([]Drive, o.Deal.drives())
	}
	if n := o.Deal.drives(); n > len(o.Drives) {
		panic(fmt.Sprintf("store: a deal to %d drives, of which there are %d", n, len(o.Drives)))
	}
	for _, at := range o.Drives {
		d.drives = append(d.drives, &drive{Drive: at, direct: vfs.Direct, free: map[int64][]*file{}})
	}
	d.hints = make([][Kinds][]hint, len(d.lanes))
	if d.fs == nil {
		d.fs = vfs.OS{}
	}
	if d.log == nil {
		d.log = slog.Default()
	}
	specs := slices.DeleteFunc(slices.Clone(o.Specs), func(s Spec) bool { return s.Bytes == 0 })
	first := numbers(specs)
	for _, s := range specs {
		d.add(s, first[s.ID])
	}
	err := d.reserveStaging(o.Accounts, specs)
	if err == nil && !d.addressOnly {
		err = d.reserveFiles(specs)
	}
	if err != nil {
		_ = d.release() // the first error is the one to report
		return nil, err
	}
	for _, v := range d.drives {
		for range d.workers {
			d.serving.Go(func() { d.serve(v) })
		}
	}
	return d, nil
}

// add takes an extent, whose first piece has a number in the deal.
func (d *Disk) add(s Spec, number int) {
	if s.Share > 0 {
		panic(fmt.Sprintf("store: %v would share files", s.ID))
	}
	if d.extents[s.ID] != nil {
		panic(fmt.Sprintf("store: %v asked for twice", s.ID))
	}
	e := &diskExtent{Spec: s}
	for _, n := range s.Pieces() {
		i := len(e.pieces)
		e.pieces = append(e.pieces, diskPiece{id: s.ID, index: i, bytes: n, drive: d.drives[d.deal.drive(number+i)]})
	}
	d.extents[s.ID] = e
}

// reserveStaging takes one region for each kind, since not all kinds meet a device.
func (d *Disk) reserveStaging(accounts *hostmem.Accounts, specs []Spec) error {
	var opts []hostmem.Option
	if d.addressOnly {
		opts = append(opts, hostmem.AddressOnly)
	}
	sizes := bufferBytes(specs)
	for kind := range Kind(Kinds) {
		size := sizes[kind]
		if size == 0 {
			continue
		}
		r, err := accounts.Reserve(StagingPurpose, size*int64(d.quota.buffers(kind, d.lanes)), opts...)
		if err != nil {
			return err
		}
		d.regions[kind] = r
		if err := r.Populate(); err != nil {
			return err
		}
		for _, lane := range d.lanes {
			for range d.quota[lane.Lane][kind] {
				off := size * int64(len(d.buffers[kind]))
				d.buffers[kind] = append(d.buffers[kind], &buffer{lane: lane, kind: kind, off: off,
					mem: r.Bytes()[off : off+size]})
			}
		}
	}
	return nil
}

// StagingPurpose is the purpose of staging buffers in the accounts of host memory.
const StagingPurpose = "staging"

// Version implements Store.
func (d *Disk) Version(id ID) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.extent(id).pieces[0].version
}

func (d *Disk) extent(id ID) *diskExtent {
	if e := d.extents[id]; e != nil {
		return e
	}
	panic(fmt.Sprintf("store: there are no %v", id))
}

// Regions implements Store.
func (d *Disk) Regions() []*hostmem.Region {
	var all []*hostmem.Region
	for _, r := range d.regions {
		if r != nil {
			all = append(all, r)
		}
	}
	return all
}

// Traffic returns the bytes read and written so far, of all drives, for metrics.
func (d *Disk) Traffic() Traffic {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.traffic
	if d.active > 0 {
		t.Busy += time.Since(d.since)
	}
	return t
}

// Close implements Store. It removes the store's files, so what is not on its way to disk yet need not get there. It
// returns the error that broke the store, if any.
func (d *Disk) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	for id, e := range d.extents {
		for i := range e.pieces {
			if p := &e.pieces[i]; p.writing || p.readers > 0 {
				d.mu.Unlock()
				panic(fmt.Sprintf("store: closed while %v are lent", id))
			}
		}
	}
	d.closed = true
	close(d.closing)
	d.wake()
	d.mu.Unlock()
	d.serving.Wait()
	return cmp.Or(d.err, d.release())
}

// release removes the files and gives back the memory.
func (d *Disk) release() error {
	var err error
	for _, v := range d.drives {
		if v.lock == nil {
			continue
		}
		if left := clearDir(d.fs, v.Dir); left != nil {
			err = cmp.Or(err, fmt.Errorf("store: files of the state are left in %s: %w", v.Dir, left))
		}
		_ = d.fs.Remove(lockFile(v.Dir)) // a process that waits for it sees that it is gone: see vfs.FS
		vfs.RemoveEmpty(d.fs, v.made)
		err = cmp.Or(err, v.lock.Close())
	}
	for _, r := range d.Regions() {
		err = cmp.Or(err, r.Close())
	}
	return err
}

// wake makes all who wait look again. The caller holds the lock.
func (d *Disk) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// wait gives up the lock until something has changed, or until ctx ends, which is an error.
func (d *Disk) wait(ctx context.Context) error {
	changed := d.changed
	d.mu.Unlock()
	defer d.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fail breaks the store. The caller holds the lock.
func (d *Disk) fail(err error) {
	if d.err == nil {
		d.err = err
		d.wake()
	}
}
