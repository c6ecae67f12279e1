package session

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// heap bounds the Go heap for all open sessions of the process, such as a run and the reward model that scores its
// answers. They may be closed in any order.
var heap heapLimits

// heapLimits has the limit that each open session has asked for. The greatest one counts: each was taken from the
// whole heap at the time, so it has room for the sessions that were open then.
type heapLimits struct {
	mu     sync.Mutex
	of     map[*Session]int64
	before int64 // the limit without a session
}

// limitHeap has the garbage collector keep the Go heap to what the plan has for it, until the session is closed: what
// is there now, when all that lasts is there, the slack, and a manifest. Without a limit garbage may grow to as much
// as what is kept. It is a backstop: it leaves more room than a step needs, so that the collector has no more to do
// because of it. A limit that the user has set (GOMEMLIMIT) stays.
func (s *Session) limitHeap() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.FreeOSMemory()
	now := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(now)
	heap.hold(s, int64(now[0].Value.Uint64()-now[1].Value.Uint64())+goHeapSlack+s.Plan.ManifestBytes)
}

// hold sets a session's limit.
func (h *heapLimits) hold(s *Session, limit int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.of) == 0 {
		h.of, h.before = map[*Session]int64{}, debug.SetMemoryLimit(-1)
	}
	h.of[s] = limit
	debug.SetMemoryLimit(h.greatest())
}

// release gives up a session's limit, if it has one.
func (h *heapLimits) release(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.of[s]; !ok {
		return
	}
	if delete(h.of, s); len(h.of) == 0 {
		debug.SetMemoryLimit(h.before)
		return
	}
	debug.SetMemoryLimit(h.greatest())
}

// greatest is the limit of all sessions together.
func (h *heapLimits) greatest() (limit int64) {
	for _, of := range h.of {
		limit = max(limit, of)
	}
	return limit
}
