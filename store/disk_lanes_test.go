package store_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
	"pgregory.net/rapid"
)

// four is an extent of four pieces.
var four = store.Spec{ID: store.ID{Part: 7, Kind: store.SecondMoment}, Bytes: 3*4096 + 100, Piece: 4096}

func borrow(t testing.TB, d store.Store, lane trace.Worker, id store.ID, off, n int64, a store.Access,
	version uint64) *store.Lease {
	t.Helper()
	l, err := d.Borrow(t.Context(), lane, id, off, n, a, version)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fill writes the next version of every piece.
func fill(t testing.TB, d store.Store, s store.Spec, version uint64) {
	t.Helper()
	for off, n := range s.Pieces() {
		l := borrow(t, d, trace.Update.Of(0), s.ID, off, n, store.Write, version)
		storetest.Pattern(l.Bytes(), s.ID, off, version+1)
		l.Release()
	}
}

// holds checks that every piece is the pattern of its version.
func holds(t testing.TB, d store.Store, s store.Spec, version uint64) {
	t.Helper()
	for off, n := range s.Pieces() {
		l := borrow(t, d, trace.Update.Of(0), s.ID, off, n, store.Read, version)
		if !storetest.Matches(l.Bytes(), s.ID, off, version) {
			t.Errorf("%v at %d: not what version %d was", s.ID, off, version)
		}
		l.Release()
	}
}

func inMemory(t testing.TB, q int, specs ...store.Spec) *store.Disk {
	return openDisk(t, store.DiskOptions{FS: vfs.NewMem(), Specs: specs, Quota: quota(q), Workers: 2,
		Crew: trace.Crew{Ranks: 2, Network: true}})
}

// A lane that has used up its quota waits, until ctx ends or it gives something back. The others continue.
func TestQuotaIsPerLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := inMemory(t, 2, four)
		defer d.Close()
		var held [trace.NumLanes][]*store.Lease
		for lane := range trace.NumLanes {
			for _, off := range []int64{0, 4096} {
				held[lane] = append(held[lane], borrow(t, d, lane.Of(0), four.ID, off, 4096, store.Read, 0))
			}
		}
		for lane := range trace.NumLanes {
			// A piece that other lanes have in memory needs a buffer of one's own as well.
			for _, off := range []int64{0, 8192} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if off == 0 {
					borrow(t, d, lane.Of(0), four.ID, off, 1, store.Read, 0).Release() // it has that one
				} else {
					_, err := d.Borrow(ctx, lane.Of(0), four.ID, off, 4096, store.Read, 0)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v lane: beyond its quota it got %v", lane, err)
					}
				}
				cancel()
			}
			got := make(chan *store.Lease)
			go func() {
				l, err := d.Borrow(t.Context(), lane.Of(0), four.ID, 8192, 4096, store.Read, 0)
				if err != nil {
					t.Error(err)
				}
				got <- l
			}()
			synctest.Wait()
			select {
			case <-got:
				t.Fatalf("%v lane: a lease beyond its quota", lane)
			default:
			}
			held[lane][0].Release()
			held[lane][0] = <-got
		}
		for lane := range held {
			for _, l := range held[lane] {
				l.Release()
			}
		}
		// A wait that was given up leaves no trace: the pieces can be written.
		fill(t, d, four, 0)
		holds(t, d, four, 1)
	})
}

// A piece that was read ahead is not read again, and is read as soon as its version exists.
func TestPrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := inMemory(t, 2, four)
		defer d.Close()
		fill(t, d, four, 0)
		d.Sync(t.Context())
		for _, off := range []int64{2 * 4096, 3 * 4096} { // so that these are what the buffers of the update lane hold
			borrow(t, d, trace.Update.Of(0), four.ID, off, 1, store.Read, 1).Release()
		}

		before := d.Traffic().ReadBytes
		d.Prefetch(trace.Fetch.Of(0), four.ID, 0, 1)
		d.Prefetch(trace.Fetch.Of(0), four.ID, 4096, 2) // not yet
		d.Prefetch(trace.Fetch.Of(0), four.ID, 0, 0)    // no more
		synctest.Wait()
		if got := d.Traffic().ReadBytes - before; got != 4096 {
			t.Fatalf("%d bytes were read ahead, want one piece", got)
		}
		for range 2 { // by the lane, and by one that has another quota
			borrow(t, d, trace.Fetch.Of(0), four.ID, 0, 4096, store.Read, 1).Release()
			borrow(t, d, trace.Update.Of(0), four.ID, 0, 4096, store.Read, 1).Release()
		}
		if got := d.Traffic().ReadBytes - before; got != 4096 {
			t.Errorf("%d bytes were read, want one piece", got)
		}

		l := borrow(t, d, trace.Update.Of(0), four.ID, 4096, 4096, store.Write, 1)
		storetest.Pattern(l.Bytes(), four.ID, 4096, 2)
		l.Release() // the hint takes the buffer over
		for range 5 {
			borrow(t, d, trace.Update.Of(0), four.ID, 8192, 4096, store.Read, 1).Release()
			borrow(t, d, trace.Update.Of(0), four.ID, 0, 4096, store.Read, 1).Release()
		}
		synctest.Wait()
		before = d.Traffic().ReadBytes
		l = borrow(t, d, trace.Fetch.Of(0), four.ID, 4096, 4096, store.Read, 2)
		if !storetest.Matches(l.Bytes(), four.ID, 4096, 2) {
			t.Error("the new version reads as something else")
		}
		l.Release()
		if got := d.Traffic().ReadBytes - before; got != 0 {
			t.Errorf("%d bytes were read again", got)
		}
	})
}

// A borrowed piece takes the buffer of the piece that was read ahead and is needed last; that one is read again when
// there is room.
func TestBorrowBeforePrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		six := store.Spec{ID: four.ID, Bytes: 6 * 4096, Piece: 4096}
		d := inMemory(t, 2, six)
		defer d.Close()
		fill(t, d, six, 0)
		d.Sync(t.Context())
		for _, off := range []int64{4 * 4096, 5 * 4096} { // so that these are what the buffers of the update lane hold
			borrow(t, d, trace.Update.Of(0), six.ID, off, 4096, store.Read, 1).Release()
		}
		for _, off := range []int64{0, 4096, 8192} { // the third finds no buffer
			d.Prefetch(trace.Fetch.Of(0), four.ID, off, 1)
		}
		synctest.Wait()
		start := d.Traffic().ReadBytes
		read := func(off, want int64) {
			t.Helper()
			l := borrow(t, d, trace.Fetch.Of(0), four.ID, off, 1, store.Read, 1)
			if got := d.Traffic().ReadBytes - start; got != want*4096 {
				t.Errorf("%d bytes were read, want %d pieces", got, want)
			}
			synctest.Wait() // what is held leaves the hints one buffer at most
			l.Release()
			synctest.Wait() // and now all
		}
		read(3*4096, 1) // takes the buffer of the second piece, which comes back after it
		read(0, 2)
		read(4096, 3) // the third piece was read when the first was given back
		read(8192, 3)
	})
}

// Of two pieces that were read ahead, the one that is needed last gives way, and the other is there without a read.
func TestNearestPieceStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := inMemory(t, 2, four)
		defer d.Close()
		fill(t, d, four, 0)
		d.Sync(t.Context())
		for _, off := range []int64{2 * 4096, 3 * 4096} { // so that these are what the buffers of the update lane hold
			borrow(t, d, trace.Update.Of(0), four.ID, off, 1, store.Read, 1).Release()
		}
		d.Prefetch(trace.Fetch.Of(0), four.ID, 0, 1)
		d.Prefetch(trace.Fetch.Of(0), four.ID, 4096, 1)
		synctest.Wait()
		held := borrow(t, d, trace.Fetch.Of(0), four.ID, 2*4096, 1, store.Read, 1)
		before := d.Traffic().ReadBytes
		nearest := borrow(t, d, trace.Fetch.Of(0), four.ID, 0, 1, store.Read, 1)
		if got := d.Traffic().ReadBytes - before; got != 0 { // once it is given back, the other one is read again
			t.Errorf("%d bytes of the nearest piece were read again", got)
		}
		nearest.Release()
		held.Release()
	})
}

// A piece that one lane has read ahead and another one borrows returns to the first after that, without a second read.
func TestPieceReadAheadReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := inMemory(t, 1, four)
		defer d.Close()
		fill(t, d, four, 0)
		d.Sync(t.Context())
		before := d.Traffic().ReadBytes
		d.Prefetch(trace.Fetch.Of(0), four.ID, 0, 1)
		synctest.Wait()
		for _, off := range []int64{0, 4096} {
			borrow(t, d, trace.Update.Of(0), four.ID, off, 1, store.Read, 1).Release()
			synctest.Wait()
		}
		borrow(t, d, trace.Fetch.Of(0), four.ID, 0, 1, store.Read, 1).Release()
		if got := d.Traffic().ReadBytes - before; got != 2*4096 {
			t.Errorf("%d bytes were read, want two pieces", got)
		}
	})
}

// A lane that reads what another one holds has its own copy, so that neither waits for the other.
func TestTwoLanesReadOnePiece(t *testing.T) {
	d := inMemory(t, 1, four)
	defer d.Close()
	fill(t, d, four, 0)
	a := borrow(t, d, trace.Fetch.Of(0), four.ID, 0, 4096, store.Read, 1)
	b := borrow(t, d, trace.Drain.Of(0), four.ID, 4, 8, store.Read, 1)
	a.Release()
	other := borrow(t, d, trace.Fetch.Of(0), four.ID, 4096, 4096, store.Read, 1) // the lane has its quota back
	if &a.Region.Bytes()[a.Off+4] == &b.Bytes()[0] || !storetest.Matches(other.Bytes(), four.ID, 4096, 1) {
		t.Error("two lanes use one buffer")
	}
	var want [12]byte
	storetest.Pattern(want[:], four.ID, 0, 1)
	if string(want[4:]) != string(b.Bytes()) {
		t.Error("the copy differs")
	}
	b.Release()
	other.Release()
	fill(t, d, four, 1)
	holds(t, d, four, 2)
}

// Lanes that are one buffer short of what they like make progress all the same, in any order of hints and leases.
func TestLeastQuotaMakesProgress(t *testing.T) {
	d := inMemory(t, 1, four)
	defer d.Close()
	for version := range uint64(50) {
		for off, n := range four.Pieces() {
			for lane := range trace.NumLanes {
				d.Prefetch(lane.Of(0), four.ID, off, version)
				d.Prefetch(lane.Of(0), four.ID, (off+4096)%(4*4096), version+1)
			}
			for lane := range trace.NumLanes {
				borrow(t, d, lane.Of(0), four.ID, off, n, store.Read, version).Release()
			}
			l := borrow(t, d, trace.Lane(version%uint64(trace.NumLanes)).Of(0), four.ID, off, n, store.ReadWrite,
				version)
			storetest.Pattern(l.Bytes(), four.ID, off, version+1)
			l.Release()
		}
	}
	holds(t, d, four, 50)
}

func TestZerosAreNotRead(t *testing.T) {
	d := inMemory(t, 2, four)
	defer d.Close()
	holds(t, d, four, 0)
	if got := d.Traffic(); got.ReadBytes != 0 || got.WrittenBytes != 0 {
		t.Errorf("traffic %+v", got)
	}
}

func TestSizes(t *testing.T) {
	specs := []store.Spec{four,
		{ID: store.ID{Part: 8, Kind: store.SecondMoment}, Bytes: 100, Piece: 20000},
		{ID: store.ID{Part: 8, Kind: store.Weights}, Bytes: 20000, Piece: 9000}}
	accounts := hostmem.New()
	fs := vfs.NewMem()
	fs.SetCapacity(1 << 30)
	d := openDisk(t, store.DiskOptions{FS: fs, Drives: at("d"), Accounts: accounts, Specs: specs,
		Quota: store.LaneQuota(1, 2), Workers: 3})
	const want = 3*4096 + (3+4)*12288 // moments of the update lane; weights of fetch and update
	foretold := store.StagingBytes(specs, store.LaneQuota(1, 2), trace.Crew{})
	if now, _ := accounts.Total(); now != want || foretold != want {
		t.Errorf("%d bytes of staging, foretold %d, want %d", now, foretold, want)
	}
	if u := accounts.Usage(); len(u) != 1 || u[0].Purpose != store.StagingPurpose {
		t.Errorf("staging is counted as %v", u)
	}
	free, _ := fs.FreeBytes("d")
	const wantDisk = (6+3)*4096 + (2+2)*12288 // pieces of one length, and a spare one for each worker that can need it
	if got := int64(1<<30) - free; got != wantDisk || store.DriveBytes(specs, nil, 3)[0] != wantDisk {
		t.Errorf("%d bytes on disk, foretold %d, want %d", got, store.DriveBytes(specs, nil, 3)[0], wantDisk)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if now, _ := accounts.Total(); now != 0 {
		t.Errorf("%d bytes are left after Close", now)
	}
	if free, _ := fs.FreeBytes("."); free != 1<<30 {
		t.Errorf("%d bytes are left on disk after Close", int64(1<<30)-free)
	}
}

// A rehearsal has the traffic of a run, without files and without touching memory.
func TestAddressOnly(t *testing.T) {
	d := openDisk(t, store.DiskOptions{FS: nowhere{}, Specs: []store.Spec{four}, AddressOnly: true})
	defer d.Close()
	for version := range uint64(2) {
		for off, n := range four.Pieces() {
			d.Prefetch(trace.Update.Of(0), four.ID, off, version)
			borrow(t, d, trace.Update.Of(0), four.ID, off, n, store.ReadWrite, version).Release()
		}
		if err := d.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.Traffic(); got.WrittenBytes != 2*4*4096 || got.ReadBytes != 4*4096 && got.ReadBytes != 3*4096 {
		t.Errorf("traffic %+v", got)
	}
}

// nowhere is a file system that must not be used.
type nowhere struct{ vfs.FS }

func TestMisuse(t *testing.T) {
	for what, f := range map[string]func(d *store.Disk){
		"a range of two pieces": func(d *store.Disk) {
			borrow(t, d, trace.Update.Of(0), four.ID, 4000, 200, store.Read, 0)
		},
		"a lane without a quota": func(d *store.Disk) {
			borrow(t, d, trace.Fetch.Of(0), four.ID, 0, 1, store.Read, 0)
		},
		"an unknown extent":     func(d *store.Disk) { d.Prefetch(trace.Fetch.Of(0), store.ID{}, 0, 0) },
		"a hint beyond the end": func(d *store.Disk) { d.Prefetch(trace.Update.Of(0), four.ID, four.Bytes, 0) },
		"the files of what is being written": func(d *store.Disk) {
			defer borrow(t, d, trace.Update.Of(0), four.ID, 0, 4096, store.Write, 0).Release()
			d.Files(t.Context(), four.ID, []bool{true}, func(store.PieceFile) error { return nil })
		},
		"close while lent": func(d *store.Disk) {
			defer borrow(t, d, trace.Update.Of(0), four.ID, 0, 4096, store.Read, 0).Release()
			d.Close()
		},
		"adopt after a write": func(d *store.Disk) {
			borrow(t, d, trace.Update.Of(0), four.ID, 0, 4096, store.Write, 0).Release()
			d.Adopt(t.Context(), four.ID, make([]store.PieceFile, 4))
		},
		"one extent twice": func(d *store.Disk) {
			openDisk(t, store.DiskOptions{FS: vfs.NewMem(), Specs: []store.Spec{four, four}})
		},
	} {
		t.Run(what, func(t *testing.T) {
			var q store.Quota
			q[trace.Update][four.Kind] = 1
			d := openDisk(t, store.DiskOptions{FS: vfs.NewMem(), Specs: []store.Spec{four}, Quota: q})
			defer d.Close()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(d)
		})
	}
}

// A lane that hints in the order of its use has every piece read once, however its writes hold up the reads ahead.
func TestReadAheadReadsOnce(t *testing.T) {
	many := store.Spec{ID: four.ID, Bytes: 64 * 4096, Piece: 4096}
	d := openDisk(t, store.DiskOptions{FS: vfs.NewMem(), Specs: []store.Spec{many}, Quota: quota(3), Workers: 4})
	defer d.Close()
	fill(t, d, many, 0)
	var lent int64
	d.Sync(t.Context())
	before := d.Traffic()
	for version := uint64(1); version < 40; version++ {
		for off, n := range many.Pieces() {
			for ahead := range int64(4) {
				if off == 0 || ahead == 3 { // each is hinted at once
					if at := off + ahead*many.Piece; at < many.Bytes {
						d.Prefetch(trace.Update.Of(0), many.ID, at, version)
					}
				}
			}
			borrow(t, d, trace.Update.Of(0), many.ID, off, n, store.ReadWrite, version).Release()
			lent += n
		}
	}
	d.Sync(t.Context())
	now := d.Traffic()
	if read := now.ReadBytes + now.SparedReadBytes - before.ReadBytes - before.SparedReadBytes; read != lent {
		t.Errorf("%d bytes were read or spared for %d that were lent", read, lent)
	}
	if written := now.WrittenBytes + now.SparedWriteBytes - before.WrittenBytes - before.SparedWriteBytes; written != lent {
		t.Errorf("%d bytes were written or spared for %d that were changed", written, lent)
	}
}

// Lanes that hint in the order of their use, each its own, take nothing from each other that was read ahead: what
// they read and were spared is what they were lent, even where they want the same pieces.
func TestLanesReadAheadOfTheSamePieces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		eight := store.Spec{ID: four.ID, Bytes: 8 * 4096, Piece: 4096}
		d := openDisk(t, store.DiskOptions{FS: vfs.NewMem(), Specs: []store.Spec{eight}, Workers: 2,
			Quota: quota(rapid.IntRange(1, 3).Draw(rt, "quota")), Crew: trace.Crew{Ranks: 2}})
		defer d.Close()
		fill(t, d, eight, 0)
		if err := d.Sync(t.Context()); err != nil {
			rt.Fatal(err)
		}
		before := d.Traffic()
		ahead := rapid.IntRange(0, 5).Draw(rt, "ahead")
		var lent atomic.Int64
		var lanes sync.WaitGroup
		for _, lane := range []trace.Worker{trace.Fetch.Of(0), trace.Update.Of(0), trace.Drain.Of(1),
			trace.Fetch.Of(1)} {
			reads := rapid.SliceOfN(rapid.Int64Range(0, 7), 0, 40).Draw(rt, lane.String())
			lanes.Go(func() {
				hinted := 0
				for i, piece := range reads {
					for ; hinted < min(i+1+ahead, len(reads)); hinted++ {
						d.Prefetch(lane, eight.ID, reads[hinted]*4096, 1)
					}
					l, err := d.Borrow(t.Context(), lane, eight.ID, piece*4096, 4096, store.Read, 1)
					if err != nil {
						t.Error(err)
						return
					}
					runtime.Gosched()
					l.Release()
					lent.Add(4096)
				}
			})
		}
		lanes.Wait()
		if err := d.Sync(t.Context()); err != nil {
			rt.Fatal(err)
		}
		now := d.Traffic()
		if got := now.ReadBytes + now.SparedReadBytes - before.ReadBytes - before.SparedReadBytes; got != lent.Load() {
			rt.Errorf("%d bytes were read or spared for %d that were lent", got, lent.Load())
		}
	})
}
