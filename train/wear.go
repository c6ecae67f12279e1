package train

import (
	"context"
	"time"
)

// wear holds what a run writes to drives below a limit: bytes may be ahead of their time by no more than one step's. It
// counts from when the run, or the part of it since it was resumed, began.
type wear struct {
	bytesPerDay int64 // 0: no limit
	begin       time.Time
}

const day = 24 * time.Hour

// due is how long to wait, at a time, until so many bytes since the beginning are within the limit.
func (w wear) due(written int64, now time.Time) time.Duration {
	if w.bytesPerDay <= 0 {
		return 0
	}
	earned := time.Duration(float64(written) / float64(w.bytesPerDay) * float64(day))
	return max(earned-now.Sub(w.begin), 0)
}

// written is what the run has written to drives: by the disk tier, and by checkpoints that did not share its files.
func (t *trainer) written() int64 {
	n := t.saves.written
	if t.saves.writer != nil {
		n += t.saves.writer.Written()
	}
	if t.disk != nil {
		n += t.disk.Traffic().WrittenBytes
	}
	return n
}

// pause waits, unless the run is asked to stop.
func (t *trainer) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.env.Stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
