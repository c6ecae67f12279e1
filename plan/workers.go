package plan

import (
	"math"
	"runtime"
	"sync/atomic"

	"github.com/millrace/millrace/internal/fault"
)

// mostWorkers bounds the workers of a search: each has memory for a schedule, which has millions of operations for the
// largest models on several devices.
const mostWorkers = 8

// each does n pieces of work, each by a worker with memory of its own, and returns when all are done or the context has
// ended. A search that takes notes has one worker, so that they come in order.
func (c *chooser) each(n int, do func(w *chooser, i int)) {
	count := c.workers
	if count == 0 {
		count = min(runtime.GOMAXPROCS(0), mostWorkers)
	}
	if count = min(count, n); count <= 1 || c.note != nil {
		for i := 0; i < n && c.ctx.Err() == nil; i++ {
			do(c, i)
		}
		return
	}
	free := make(chan *chooser, count)
	for range count {
		free <- &chooser{Request: c.Request, ctx: c.ctx, most: c.most, alone: c.alone, accounts: c.accounts,
			measured: c.measured, owned: c.owned, manifest: c.manifest, workers: 1}
	}
	_ = fault.Share(c.ctx, n, count, func(i int) error { // its error is the context's
		w := <-free
		do(w, i)
		free <- w
		return nil
	})
	for range count {
		w := <-free
		c.effort.placements += w.effort.placements
		c.effort.simulations += w.effort.simulations
		c.effort.operations += w.effort.operations
		w.memory, w.extents, w.measured = walkMemory{}, nil, nil // a plan keeps its chooser
	}
}

// shortest is the shortest step that workers have found so far.
type shortest struct{ bits atomic.Uint64 } // of its seconds; 0: none

// seconds returns the length of the step; 0 before there is one.
func (s *shortest) seconds() float64 { return math.Float64frombits(s.bits.Load()) }

// lower notes a step, if it is shorter. Bits of positive numbers are in the order of the numbers.
func (s *shortest) lower(sec float64) {
	if math.IsInf(sec, 1) {
		return
	}
	for {
		old := s.bits.Load()
		if old != 0 && math.Float64bits(sec) >= old || s.bits.CompareAndSwap(old, math.Float64bits(sec)) {
			return
		}
	}
}
