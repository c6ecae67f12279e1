package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// probeDir names the directory that the probe makes in the one that it measures, and removes. A probe that was killed
// leaves it; the next one empties it.
const probeDir = ".millrace-probe"

// Rounds of the disk's probe: of each, one pass of writes and one of reads. A slow drive has fewer of them.
const (
	diskRounds     = 3
	diskRoundsTime = 8 * time.Second
)

// diskPass is a store with the kinds that an update reads and writes, with the pieces, the workers and the staging
// memory of a run.
type diskPass struct {
	*store.Disk
	ctx     context.Context
	specs   []store.Spec
	version uint64
	random  *rand.PCG
}

// disk measures how much the disk tier reads and writes in a second: direct I/O where the file system has it, a new
// file for each version of a piece, checksums, and a sync after all writes.
func (p *prober) disk(m *plan.Machine) (err error) {
	path, err := filepath.Abs(p.Path)
	if err != nil {
		return err
	}
	t := &diskPass{ctx: p.ctx, random: rand.NewPCG(1, 2)}
	var each int64 // bytes of a parameter
	scheme := optim.Scheme{}
	for _, kind := range scheme.States() {
		bytes := scheme.Forms()[kind].Bytes(1)
		t.specs = append(t.specs, store.Spec{ID: store.ID{Kind: kind}, Bytes: bytes, Piece: p.pieceElems * bytes})
		each += bytes
	}
	pieces := max(p.diskBytes/(each*p.pieceElems), 1)
	for i := range t.specs {
		t.specs[i].Bytes = pieces * t.specs[i].Piece
	}
	dir := filepath.Join(path, probeDir)
	t.Disk, err = store.NewDisk(store.DiskOptions{Dir: dir, Accounts: p.Accounts, Specs: t.specs, Quota: plan.StagingQuota,
		Workers: plan.DiskWorkers, Log: slog.New(slog.NewTextHandler(p.Progress, nil))})
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return blame.BadRequest(fmt.Errorf("--path: another probe measures %s: wait for it, or name another directory", path))
	case errors.Is(err, syscall.ENOSPC):
		removeProbeDir(dir)
		return fmt.Errorf("--path: the probe writes %s to %s: %w; free space there, or name another drive or none", plan.FormatBytes(p.diskBytes), path, syscall.ENOSPC)
	case err != nil:
		removeProbeDir(dir)
		return blame.BadRequest(fmt.Errorf("--path: %w", err))
	}
	defer func() {
		err = errors.Join(err, t.Disk.Close())
		removeProbeDir(dir)
	}()
	if _, err := t.write(); err != nil { // turns reserved space into written space
		return err
	}
	var reads, writes []float64
	for begin := time.Now(); len(reads) < diskRounds && (len(reads) == 0 || time.Since(begin) < diskRoundsTime); {
		w, err := t.write()
		if err != nil {
			return err
		}
		r, err := t.read()
		if err != nil {
			return err
		}
		writes, reads = append(writes, w), append(reads, r)
	}
	slices.Sort(reads)
	slices.Sort(writes)
	m.DiskReadBytesPerSec, m.DiskWriteBytesPerSec, m.DiskPath = trace.Median(reads), trace.Median(writes), path
	// A device that computes on the host's cores leaves one free now and then, when its workers wait for each other. So
	// the rate of a save is between the rate with all cores busy and the rate with one of them free.
	busy := []int{0}
	if p.device == nil || p.device.Info().Unified {
		busy = []int{runtime.GOMAXPROCS(0), runtime.GOMAXPROCS(0) - 1}
	}
	var secPerByte, secPerLink float64
	for _, cores := range busy {
		stop := occupyCores(cores)
		rate, link, err := t.save(p.Accounts, dir)
		stop()
		if errors.Is(err, syscall.ENOSPC) { // the tier fits, and a save in addition does not
			return nil
		}
		if err != nil {
			return err
		}
		secPerByte, secPerLink = secPerByte+1/rate, secPerLink+link
	}
	m.SaveBytesPerSec, m.SaveLinkSeconds = float64(len(busy))/secPerByte, secPerLink/float64(len(busy))
	return nil
}

// occupyCores keeps that number of cores busy until stop.
func occupyCores(cores int) (stop func()) {
	var done atomic.Bool
	var wg fault.Group
	for range cores {
		wg.Go(func() {
			for !done.Load() { // which the scheduler may interrupt
			}
		})
	}
	return func() {
		done.Store(true)
		wg.Wait()
	}
}

// savePieces counts the pieces that the probe saves each way.
const savePieces = 16

// save makes a checkpoint as a run does: pieces that are copied from memory, one after the other, and pieces that are
// linked. It is not kept.
func (t *diskPass) save(accounts *hostmem.Accounts, dir string) (bytesPerSec, linkSec float64, err error) {
	dir = filepath.Join(dir, "save")
	made, err := checkpoint.Acquire(vfs.OS{}, dir, checkpoint.Owner{})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, made.Close(), vfs.RemoveAll(vfs.OS{}, dir)) }()
	moments, low := t.specs[1], t.specs[0]
	memory, err := accounts.Reserve("probe", moments.Piece)
	if err != nil {
		return 0, 0, err
	}
	defer memory.Close()
	t.fill(memory.Bytes())
	copied := checkpoint.Spec{ID: checkpoint.ID{Part: "copied", Kind: moments.Kind}, DType: tensor.F32, Bytes: savePieces * moments.Piece, PieceBytes: moments.Piece}
	linked := checkpoint.Spec{ID: checkpoint.ID{Part: "linked", Kind: low.Kind}, DType: tensor.I16, Bytes: low.Bytes, PieceBytes: low.Piece}
	w, err := made.Create(1, []checkpoint.Spec{copied, linked})
	if err != nil {
		return 0, 0, err
	}
	defer w.Abort()
	begin := time.Now()
	for piece := range savePieces {
		if err := t.ctx.Err(); err != nil {
			return 0, 0, err
		}
		if err := w.Add(copied.ID, piece, memory.Bytes()); err != nil {
			return 0, 0, err
		}
	}
	bytesPerSec = float64(copied.Bytes) / time.Since(begin).Seconds()
	begin = time.Now()
	piece := 0
	err = t.Files(t.ctx, low.ID, true, func(f store.PieceFile) error {
		piece++
		return w.Link(linked.ID, piece-1, f.Path, f.XXH3)
	})
	return bytesPerSec, time.Since(begin).Seconds() / float64(piece), err
}

// removeProbeDir removes what the disk tier leaves in its directory, and that, if nothing else is in it.
func removeProbeDir(dir string) {
	os.Remove(filepath.Join(dir, "lock"))
	os.Remove(dir)
}

// write makes the next version of everything.
func (t *diskPass) write() (bytesPerSec float64, err error) {
	before, begin := t.Traffic().WrittenBytes, time.Now()
	if err := t.each(store.Write); err != nil {
		return 0, err
	}
	t.version++
	err = t.Sync(t.ctx)
	return float64(t.Traffic().WrittenBytes-before) / time.Since(begin).Seconds(), err
}

// read reads everything, but what the last writes have left in memory.
func (t *diskPass) read() (bytesPerSec float64, err error) {
	before, begin := t.Traffic().ReadBytes, time.Now()
	err = t.each(store.Read)
	return float64(t.Traffic().ReadBytes-before) / time.Since(begin).Seconds(), err
}

// each visits the pieces in the order of an update, all kinds of a piece and then the next one, which is read ahead.
func (t *diskPass) each(access store.Access) error {
	first := t.specs[0]
	for i := range first.Bytes / first.Piece {
		for _, s := range t.specs {
			if ahead := (i + 1) * s.Piece; access == store.Read && ahead < s.Bytes {
				t.Prefetch(trace.Update.Of(0), s.ID, ahead, t.version)
			}
		}
		for _, s := range t.specs {
			l, err := t.Borrow(t.ctx, trace.Update.Of(0), s.ID, i*s.Piece, s.Piece, access, t.version)
			if err != nil {
				return err
			}
			if access == store.Write {
				t.fill(l.Bytes())
			}
			l.Release()
		}
	}
	return nil
}

// fill makes contents that no block has had before: drives and virtual disks are quicker with zeros and with what
// they know. The first pass finds zeros in its buffers, later ones what another piece has left there, of which each
// block is changed.
func (t *diskPass) fill(b []byte) {
	const block = 512
	step := block
	if t.version == 0 {
		step = 8
	}
	for i := 0; i+8 <= len(b); i += step {
		binary.NativeEndian.PutUint64(b[i:], t.random.Uint64())
	}
}
