package data

import "context"

// ahead bounds the text that is on its way from the files to the tokens, in units of aheadUnitBytes: rows may be
// large, and many workers would each have some.
type ahead chan struct{}

const (
	aheadUnitBytes = 1 << 20
	aheadUnits     = 64 // at least; each worker has a few more, so that batches of usual rows do not wait
)

func newAhead(workers int, l limits) ahead {
	return make(ahead, l.rowBytes((aheadUnits+4*workers)*aheadUnitBytes)/aheadUnitBytes)
}

// take waits for room for that number of bytes, or for all room there is, if that is less. units are for give, to
// return the room; ok is false if ctx ended before. Only one goroutine may take.
func (a ahead) take(ctx context.Context, bytes int) (units int, ok bool) {
	want := min(1+bytes/aheadUnitBytes, cap(a))
	for units < want {
		select {
		case a <- struct{}{}:
			units++
		case <-ctx.Done():
			return units, false
		}
	}
	return units, true
}

// give makes room again.
func (a ahead) give(units int) {
	for range units {
		<-a
	}
}
