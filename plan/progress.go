package plan

import (
	"context"
	"math"
	"sync"
)

// Progress says how far a search is.
type Progress struct {
	Placements int // that were simulated
	// StepSeconds are those of the fastest step so far, of those with as many tokens on as many hosts as the latest
	// one; 0 before there is one.
	StepSeconds float64
}

// WithProgress is a context whose searches tell how far they are, each time that a placement was simulated. Searches
// wait for tell, which is called by one goroutine at a time.
func WithProgress(ctx context.Context, tell func(Progress)) context.Context {
	return context.WithValue(ctx, progressKey{}, &watch{tell: tell})
}

// HasProgress reports whether searches of a context tell how far they are.
func HasProgress(ctx context.Context) bool { return watchOf(ctx) != nil }

type progressKey struct{}

// watch follows the searches of a context.
type watch struct {
	mu   sync.Mutex
	tell func(Progress)
	now  Progress
	of   stepSize // of now.StepSeconds
}

// stepSize tells steps apart that a search may not compare.
type stepSize struct{ positions, hosts int }

// watchOf follows the searches of a context; nil: nothing does.
func watchOf(ctx context.Context) *watch {
	w, _ := ctx.Value(progressKey{}).(*watch)
	return w
}

// simulated notes a placement and its step, which may last forever.
func (w *watch) simulated(of stepSize, sec float64) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.Placements++
	if w.of != of {
		w.of, w.now.StepSeconds = of, 0
	}
	if !math.IsInf(sec, 1) && (w.now.StepSeconds == 0 || sec < w.now.StepSeconds) {
		w.now.StepSeconds = sec
	}
	w.tell(w.now)
}
