package train

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/store"
)

// wear holds what a run writes to each drive below a limit: bytes may be ahead of their time by no more than one
// step's. It counts from when the run, or the part of it since it was resumed, began.
type wear struct {
	bytesPerDay int64 // 0: no limit
	begin       time.Time
	saved       []int // the drives with state on disk that checkpoints are on

	traffic store.Traffic // of the disk tier, that metrics have
	wrote   int64         // to drives, that metrics have
}

const day = 24 * time.Hour

// due returns how long to wait from now until the bytes written since the beginning are within the limit.
func (w wear) due(written int64, now time.Time) time.Duration {
	if w.bytesPerDay <= 0 {
		return 0
	}
	earned := time.Duration(float64(written) / float64(w.bytesPerDay) * float64(day))
	return max(earned-now.Sub(w.begin), 0)
}

// written counts the bytes that the run has written to drives: by the disk tier, and by checkpoints that did not share
// its files.
func (t *trainer) written() int64 {
	n := t.saves.writtenBytes()
	if t.session.Disk != nil {
		n += t.session.Disk.Traffic().WrittenBytes
	}
	return n
}

// driveWritten counts those of the drive that has got most: all of them, unless state on disk is on several.
func (t *trainer) driveWritten() int64 {
	saves := t.saves.writtenBytes()
	if t.session.Disk == nil {
		return saves
	}
	byDrive := t.session.Disk.WrittenBytes()
	if len(byDrive) == 1 {
		return byDrive[0] + saves
	}
	most := saves
	for i, n := range byDrive {
		if slices.Contains(t.wear.saved, i) {
			n += saves
		}
		most = max(most, n)
	}
	return most
}

// pause waits, unless the run is asked to stop.
func (t *trainer) pause(ctx context.Context, d time.Duration) error {
	passed, free := t.env.Time().After(d)
	defer free()
	select {
	case <-passed:
	case <-t.env.Stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
