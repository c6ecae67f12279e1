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
	"strings"
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
	ahead   int64 // pieces of each kind that are read ahead: one for each drive
}

// disk measures how much the disk tier reads and writes in a second: direct I/O where the file system has it, a new
// file for each version of a piece, checksums, and a sync after all writes. Of several drives it measures each alone,
// and then all of them at once, with pieces dealt by their rates.
func (p *prober) disk(m *plan.Machine) (err error) {
	var paths []string
	for _, path := range p.Paths {
		full, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		paths = append(paths, full)
	}
	for i, path := range paths {
		var saves *plan.Machine // where a save is measured: on the first drive
		if i == 0 {
			saves = m
		}
		read, write, err := p.drives([]string{path}, nil, saves)
		if err != nil {
			return err
		}
		m.DiskReadBytesPerSec, m.DiskWriteBytesPerSec, m.DiskPath = read, write, path
		m.Drives = append(m.Drives, plan.DriveRates{Path: path, ReadBytesPerSec: read, WriteBytesPerSec: write})
	}
	if len(paths) == 1 {
		m.Drives = nil
		return nil
	}
	m.DiskPath = ""
	r := plan.Request{Machine: *m}
	r.DealByRate(paths, make([]int64, len(paths)))
	var shares []int
	for _, d := range r.Drives {
		shares = append(shares, d.Share)
	}
	m.DiskReadBytesPerSec, m.DiskWriteBytesPerSec, err = p.drives(paths, store.NewDeal(shares), nil)
	return err
}

// drives measures the drives with some directories, at once, and has a machine get the rates of a save; nil: none is
// measured.
func (p *prober) drives(paths []string, deal store.Deal, saves *plan.Machine) (read, write float64, err error) {
	t := &diskPass{ctx: p.ctx, random: rand.NewPCG(1, 2), ahead: int64(len(paths))}
	var each int64 // bytes of a parameter
	scheme := optim.Scheme{}
	for _, kind := range scheme.States() {
		bytes := scheme.Forms()[kind].Bytes(1)
		t.specs = append(t.specs, store.Spec{ID: store.ID{Kind: kind}, Bytes: bytes, Piece: p.pieceElems * bytes})
		each += bytes
	}
	pieces := max(int64(len(paths))*p.diskBytes/(each*p.pieceElems), 1)
	for i := range t.specs {
		t.specs[i].Bytes = pieces * t.specs[i].Piece
	}
	options := store.DiskOptions{Deal: deal, Accounts: p.Accounts, Specs: t.specs,
		Quota: store.LaneQuota(len(paths), 1), Workers: plan.DiskWorkers,
		Log: slog.New(slog.NewTextHandler(p.Progress, nil))}
	for _, path := range paths {
		options.Drives = append(options.Drives, store.Drive{Dir: filepath.Join(path, probeDir)})
	}
	names := strings.Join(paths, " and ")
	t.Disk, err = store.NewDisk(options)
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return 0, 0, blame.BadRequest(fmt.Errorf("--path: another probe measures %s: wait for it, or name another directory",
			names))
	case errors.Is(err, syscall.ENOSPC):
		removeProbeDirs(options.Drives)
		return 0, 0, fmt.Errorf("--path: the probe writes %s to %s: %w; free space there, or name another drive or none",
			plan.FormatBytes(p.diskBytes), names, syscall.ENOSPC)
	case err != nil:
		removeProbeDirs(options.Drives)
		return 0, 0, blame.BadRequest(fmt.Errorf("--path: %w", err))
	}
	defer func() {
		err = errors.Join(err, t.Disk.Close())
		removeProbeDirs(options.Drives)
	}()
	if read, write, err = t.rates(); err == nil && saves != nil {
		err = p.saves(t, options.Drives[0].Dir, saves)
	}
	return read, write, err
}

// rates are the medians of some rounds.
func (t *diskPass) rates() (read, write float64, err error) {
	if _, err := t.write(); err != nil { // turns reserved space into written space
		return 0, 0, err
	}
	var reads, writes []float64
	for begin := time.Now(); len(reads) < diskRounds && (len(reads) == 0 || time.Since(begin) < diskRoundsTime); {
		w, err := t.write()
		if err != nil {
			return 0, 0, err
		}
		r, err := t.read()
		if err != nil {
			return 0, 0, err
		}
		writes, reads = append(writes, w), append(reads, r)
	}
	slices.Sort(reads)
	slices.Sort(writes)
	return trace.Median(reads), trace.Median(writes), nil
}

// saves measures the rates of a save to a directory. A device that computes on the host's cores leaves one free now and
// then, when its workers wait for each other. So the rate of a save is between the rate with all cores busy and the
// rate with one of them free.
func (p *prober) saves(t *diskPass, dir string, m *plan.Machine) error {
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
	err = t.Files(t.ctx, low.ID, []bool{true}, func(f store.PieceFile) error {
		piece++
		return w.Link(linked.ID, piece-1, f.Path, f.XXH3)
	})
	return bytesPerSec, time.Since(begin).Seconds() / float64(piece), err
}

// removeProbeDirs removes what the disk tier leaves in its directories, and these, if nothing else is in them.
func removeProbeDirs(drives []store.Drive) {
	for _, d := range drives {
		os.Remove(filepath.Join(d.Dir, "lock"))
		os.Remove(d.Dir)
	}
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

// each visits the pieces in the order of an update, all kinds of a piece and then the next one. The next ones are read
// ahead.
func (t *diskPass) each(access store.Access) error {
	first := t.specs[0]
	for i := range first.Bytes / first.Piece {
		for next := i + 1; access == store.Read && next <= i+t.ahead; next++ {
			for _, s := range t.specs {
				if ahead := next * s.Piece; (i == 0 || next == i+t.ahead) && ahead < s.Bytes {
					t.Prefetch(trace.Update.Of(0), s.ID, ahead, t.version)
				}
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
