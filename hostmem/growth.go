package hostmem

import (
	"errors"
	"io/fs"
	"math"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// Some virtual machines get memory as they use it: little is available at first, and each piece that is populated
// brings more. A request that is larger than what is available is then populated as long as the next piece fits, and
// not refused before the first one.

const (
	// growthSpareBytes stays available while a region is populated that is larger than what is: for the rest of the
	// system.
	growthSpareBytes = 256 << 20
	// growthLooks bounds the looks for more memory, growthPause apart, while nothing is populated.
	growthLooks = 100
	growthPause = 20 * time.Millisecond
)

// errNoGrowth is the cause where memory was to grow and does not.
var errNoGrowth = errors.New("more than there is, and no more was added while it was used")

// GrowOnUse says whether regions may be populated that are larger than what the machine has available, because that
// grows as it is used or because the user has said that there is as much. It is found out piece by piece then, and
// still an error in time. Limits of cgroups hold.
func (a *Accounts) GrowOnUse(yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.growOnUse = yes
}

// GrowsOnUse reports whether GrowOnUse has switched growth on.
func (a *Accounts) GrowsOnUse() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.growOnUse
}

// growth lets workers populate pieces while there is memory for them.
type growth struct {
	available func() (int64, error) // may still be taken now
	pause     func()                // between two looks

	mu      sync.Mutex
	landed  sync.Cond // a piece has been populated
	flying  int64     // bytes of pieces that are being populated: not yet gone from what is available
	stopped error
}

func newGrowth(available func() (int64, error), pause func()) *growth {
	g := &growth{available: available, pause: pause}
	g.landed.L = &g.mu
	return g
}

// systemGrowth watches the system whose root directory it is given. Memory that the system makes available by swapping
// out is no growth.
func systemGrowth(root fs.FS) *growth {
	swap := func() int64 {
		kib, _ := field(root, "proc/meminfo", "SwapFree:") // 0 where there is no swap
		return kib << 10
	}
	before := swap()
	return newGrowth(func() (int64, error) {
		n, _, err := available(root)
		return n - max(before-swap(), 0), err
	}, func() { time.Sleep(growthPause) })
}

// take waits until a piece fits. The error is errNoGrowth, for all who ask from then on.
func (g *growth) take(bytes int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for looks := 0; g.stopped == nil; {
		n, err := g.available()
		switch {
		case err != nil:
			g.stopped = err
		case n-g.flying >= bytes+growthSpareBytes:
			g.flying += bytes
			return nil
		case g.flying > 0:
			g.landed.Wait()
		case looks == growthLooks:
			g.stopped = errNoGrowth
		default:
			looks++
			g.pause() // with the lock: all the others would wait for the same
		}
	}
	return g.stopped // who waits hears it when what is flying has landed
}

// land is the end of populating a piece that was taken.
func (g *growth) land(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying -= bytes
	g.landed.Broadcast()
}

// inPieces populates the bytes of a region by several workers, as a growth allows if that is not nil. It ends early
// at an error.
func inPieces(bytes int64, workers int, g *growth, populate func(off, n int64) error) error {
	pieces := (bytes + populatePiece - 1) / populatePiece
	var mu sync.Mutex
	var next int64
	var failed error
	take := func() (off, n int64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if next >= bytes || failed != nil {
			return 0, 0, false
		}
		off, n = next, min(populatePiece, bytes-next)
		next += n
		return off, n, true
	}
	one := func(off, n int64) error {
		if g != nil {
			if err := g.take(n); err != nil {
				return err
			}
			defer g.land(n)
		}
		return populate(off, n)
	}
	var group fault.Group
	for range min(int64(workers), pieces) {
		group.Go(func() {
			for {
				off, n, ok := take()
				if !ok {
					return
				}
				if err := one(off, n); err != nil {
					mu.Lock()
					if failed == nil {
						failed = err
					}
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	return failed
}

// mustGrow reports whether memory must grow for a region to be populated, given what is available and what cgroups
// leave; those are asked only where that decides. The error is errShort where that must not be hoped for.
func (a *Accounts) mustGrow(bytes, available int64, cgroups func() int64) (bool, error) {
	switch {
	case bytes <= available:
		return false, nil
	case !a.GrowsOnUse() || bytes > cgroups():
		return false, errShort
	}
	return true, nil
}

// cgroupLeft returns the bytes that the cgroups of this process leave to it: no memory is added to those.
func cgroupLeft(root fs.FS) int64 {
	least := int64(math.MaxInt64)
	cgroups(root, func(limit, used int64, _ string) { least = min(least, max(limit-used, 0)) })
	return least
}
