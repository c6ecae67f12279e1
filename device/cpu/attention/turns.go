package attention

import (
	"sync"
	"sync/atomic"
)

// Turns keeps the order in which the tasks of a Backward add to what they share.
type Turns struct{ heads []turn }

// turn orders the tasks of one head, one for each block of queries.
type turn struct {
	// final is, by block of queries, the keys below which that block and all before it in its document have added to the
	// gradients.
	final  []atomic.Int64
	lock   sync.Mutex
	change sync.Cond
}

// NewTurns makes the turns of one operation.
func NewTurns(s *Spec) *Turns {
	t := &Turns{heads: make([]turn, s.Heads)}
	for h := range t.heads {
		o := &t.heads[h]
		o.final, o.change.L = make([]atomic.Int64, len(s.blocks)), &o.lock
	}
	return t
}

// await returns when a block of queries, and those before it in its document, have added to all keys below the key.
func (t *turn) await(block, key int) {
	if t.final[block].Load() >= int64(key) {
		return
	}
	t.lock.Lock()
	for t.final[block].Load() < int64(key) {
		t.change.Wait()
	}
	t.lock.Unlock()
}

// done says that a block of queries, as those before it in its document, has added to all keys below the key.
func (t *turn) done(block, key int) {
	t.lock.Lock()
	t.final[block].Store(int64(key))
	t.lock.Unlock()
	t.change.Broadcast()
}
