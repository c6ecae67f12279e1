package standin

import "sync/atomic"

// queue hands work to the one goroutine of a stream; any number may put. It passes order one way: what happened
// before a put happens before the take, and nothing that the taker or another putter did is ordered by it.
type queue struct {
	head   *node // the last one taken; the taker's
	tail   atomic.Pointer[node]
	signal chan struct{}
}

type node struct {
	next atomic.Pointer[node]
	work func()
}

func newQueue() *queue {
	n := new(node)
	q := &queue{head: n, signal: make(chan struct{}, 1)}
	q.tail.Store(n)
	return q
}

func (q *queue) put(work func()) {
	n := new(node) // and not with a literal, which would write next: another putter may come first to set it
	n.work = work
	var last *node
	unordered(func() { last = q.tail.Swap(n) })
	last.next.Store(n)
	unordered(func() {
		select {
		case q.signal <- struct{}{}:
		default: // the taker has not seen the last one yet and will look again
		}
	})
}

func (q *queue) take() func() {
	for {
		if n := q.head.next.Load(); n != nil {
			q.head = n
			work := n.work
			n.work = nil // the node lives until the next take; what it refers to need not
			return work
		}
		unordered(func() { <-q.signal })
	}
}
