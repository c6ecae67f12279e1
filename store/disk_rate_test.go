package store_test

import (
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// drive is a file system on a drive that takes time. It serves a number of requests at once, each with its share of the
// rates.
type drive struct {
	vfs.FS
	free          chan struct{}
	read, written float64 // seconds that a byte takes of one request
}

func newDrive(requests int, readPerSec, writtenPerSec float64) *drive {
	n := float64(requests)
	return &drive{vfs.NewMem(), make(chan struct{}, requests), n / readPerSec, n / writtenPerSec}
}

func (d *drive) take(bytes int, sec float64) {
	d.free <- struct{}{}
	time.Sleep(time.Duration(float64(bytes) * sec * float64(time.Second)))
	<-d.free
}

func (d *drive) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := d.FS.OpenFile(name, flag, perm)
	return driveFile{f, d}, err
}

type driveFile struct {
	vfs.File
	drive *drive
}

func (f driveFile) ReadAt(p []byte, off int64) (int, error) {
	f.drive.take(len(p), f.drive.read)
	return f.File.ReadAt(p, off)
}

func (f driveFile) WriteAt(p []byte, off int64) (int, error) {
	f.drive.take(len(p), f.drive.written)
	return f.File.WriteAt(p, off)
}

// updates goes through the pieces of a part's state as the update lane does, and returns the time that it takes, on
// the clock of the bubble, against the time that the drive is needed for.
func updates(t *testing.T, requests, depth int, work time.Duration) float64 {
	const pieces, elems = 200, 4096 // pieces of 8 KiB and 16 KiB
	const readPerSec, writtenPerSec = 6.3e6, 1.8e6
	var specs []store.Spec
	var bytes [2]float64
	for kind, size := range map[store.Kind]int64{store.Low: 2, store.Grad: 2, store.FirstMoment: 4, store.SecondMoment: 4} {
		s := store.Spec{ID: store.ID{Kind: kind}, Bytes: pieces * elems * size, Piece: elems * size}
		specs = append(specs, s)
		bytes[0] += float64(s.Bytes)
		if kind != store.Grad {
			bytes[1] += float64(s.Bytes)
		}
	}
	d := openDisk(t, store.DiskOptions{FS: newDrive(requests, readPerSec, writtenPerSec), Specs: specs,
		Quota: store.LaneQuota(depth, 1), Workers: 4})
	defer d.Close()
	for _, s := range specs {
		fill(t, d, s, 0)
	}
	d.Sync(t.Context())
	begin := time.Now()
	for i := range int64(pieces) {
		var held []*store.Lease
		for _, kind := range []store.Kind{store.Low, store.Grad, store.FirstMoment, store.SecondMoment} {
			var s store.Spec
			for _, s = range specs {
				if s.Kind == kind {
					break
				}
			}
			for next := i; next <= i+2 && next < pieces; next++ {
				if i == 0 || next == i+2 {
					d.Prefetch(trace.Update.Of(0), s.ID, next*s.Piece, 1)
				}
			}
			access := store.ReadWrite
			if kind == store.Grad {
				access = store.Read
			}
			held = append(held, borrow(t, d, trace.Update.Of(0), s.ID, i*s.Piece, s.Piece, access, 1))
		}
		time.Sleep(work)
		for _, l := range held {
			l.Release()
		}
	}
	d.Sync(t.Context())
	return time.Since(begin).Seconds() / (bytes[0]/readPerSec + bytes[1]/writtenPerSec)
}

// The update lane keeps a drive busy that is slower than its work, and needs no more staging memory for that than one
// piece of each kind to read ahead and one to write back; without these the drive and the work take turns.
func TestUpdatesKeepTheDriveBusy(t *testing.T) {
	for _, requests := range []int{1, 2, 4} {
		synctest.Test(t, func(t *testing.T) {
			const work = 20 * time.Millisecond // two thirds of what the drive needs
			none, one, four := updates(t, requests, 0, work), updates(t, requests, 1, work), updates(t, requests, 4, work)
			t.Logf("%d requests at once: %.3f, %.3f and %.3f of the time that the drive needs", requests, none, one, four)
			if none < 1.5 || one > 1.02 || four < one-0.01 {
				t.Errorf("%d requests at once: %.3f of the time that the drive needs, without read-ahead %.3f, with more %.3f", requests, one, none, four)
			}
		})
	}
}

// Workers rest as long as they are told to, without holding up who waits for what they have read, and Close does not
// wait for them.
func TestWorkersRest(t *testing.T) {
	const pieces, size, perSec = 8, 16384, 6.3e6
	s := store.Spec{ID: store.ID{Kind: store.Grad}, Bytes: pieces * size, Piece: size}
	took := func(times time.Duration) time.Duration {
		var all time.Duration
		synctest.Test(t, func(t *testing.T) {
			d := openDisk(t, store.DiskOptions{FS: newDrive(1, perSec, perSec), Specs: []store.Spec{s},
				Quota: store.LaneQuota(1, 1), Workers: 1,
				Drives: []store.Drive{{Dir: "d", Rest: func(busy time.Duration) time.Duration { return times * busy }}}})
			begin := time.Now() // on the bubble's clock, which the machine's speed does not move
			for off, n := range s.Pieces() {
				borrow(t, d, trace.Drain.Of(0), s.ID, off, n, store.Write, 0).Release()
			}
			if err := d.Sync(t.Context()); err != nil {
				t.Error(err)
			}
			all = time.Since(begin)
			if busy := d.Traffic().Busy; busy < all/(times+2) || busy > all {
				t.Errorf("busy for %v of %v", busy, all)
			}
			begin = time.Now()
			if err := d.Close(); err != nil || time.Since(begin) > 0 {
				t.Errorf("Close waits %v: %v", time.Since(begin), err)
			}
		})
		return all
	}
	at, slow := took(0), took(3)
	// The last piece is on disk before the worker rests after it.
	if want := at + 3*at*(pieces-1)/pieces; slow < want*95/100 || slow > want*105/100 {
		t.Errorf("%d pieces take %v, and with rests of three times as long %v, want %v", pieces, at, slow, want)
	}
}

// moves is the same for a lane that moves one kind of pieces between the drive and a device.
func moves(t *testing.T, lane trace.Lane, depth int) float64 {
	const pieces, size, perSec = 200, 16384, 6.3e6
	s := store.Spec{ID: store.ID{Kind: store.Inputs}, Bytes: pieces * size, Piece: size}
	d := openDisk(t, store.DiskOptions{FS: newDrive(4, perSec, perSec), Specs: []store.Spec{s}, Quota: store.LaneQuota(1, depth), Workers: 4})
	defer d.Close()
	access, version := store.Write, uint64(0)
	if lane == trace.Fetch {
		for off, n := range s.Pieces() {
			borrow(t, d, trace.Drain.Of(0), s.ID, off, n, store.Write, 0).Release()
		}
		access, version = store.Read, 1
	}
	d.Sync(t.Context())
	begin := time.Now()
	var held []*store.Lease
	for i := range int64(pieces) {
		for next := i; lane == trace.Fetch && next <= i+4 && next < pieces; next++ {
			if i == 0 || next == i+4 {
				d.Prefetch(lane.Of(0), s.ID, next*size, version)
			}
		}
		if len(held) > 1 {
			held[0].Release()
			held = held[1:]
		}
		held = append(held, borrow(t, d, lane.Of(0), s.ID, i*size, size, access, version))
		time.Sleep(100 * time.Microsecond)
	}
	for _, l := range held {
		l.Release()
	}
	d.Sync(t.Context())
	return time.Since(begin).Seconds() / (pieces * size / perSec)
}

// A lane that moves a single kind keeps one request under way for each piece that it reads ahead or writes back, and
// about one more.
func TestMovesKeepTheDriveBusy(t *testing.T) {
	for _, lane := range []trace.Lane{trace.Fetch, trace.Drain} {
		for depth := 1; depth <= 3; depth++ {
			synctest.Test(t, func(t *testing.T) {
				got, want := moves(t, lane, depth), 4/float64(1+depth)
				t.Logf("%v lane, depth %d: %.3f of the time that the drive needs", lane, depth, got)
				if got > 1.05*want || got < 0.9*want {
					t.Errorf("%v lane, depth %d: %.3f of the time that the drive needs, want %.3f", lane, depth, got, want)
				}
			})
		}
	}
}
