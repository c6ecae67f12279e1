package cpu

import "sync/atomic"

// queue hands tasks from the one goroutine that uses a stream to the stream's own. It never blocks who puts, and orders
// only one way: what happened before a put happens before the take. A mutex, or a channel that fills up, would also
// order the taker's past before later puts, and the race detector would take this accident for a wait.
type queue struct {
	head   *node // the last node that was taken; the taker's
	tail   *node // the last node that was put; the putter's
	signal chan struct{}
}

type node struct {
	next atomic.Pointer[node]
	task task
}

func newQueue() *queue {
	n := new(node)
	return &queue{head: n, tail: n, signal: make(chan struct{}, 1)}
}

func (q *queue) put(t task) {
	n := &node{task: t}
	q.tail.next.Store(n)
	q.tail = n
	unordered(func() {
		select {
		case q.signal <- struct{}{}:
		default: // the taker has not seen the last one yet and will look again
		}
	})
}

func (q *queue) take() task {
	for {
		if n := q.head.next.Load(); n != nil {
			q.head = n
			t := n.task
			n.task = task{} // the node lives until the next take; what it refers to need not
			return t
		}
		unordered(func() { <-q.signal })
	}
}
