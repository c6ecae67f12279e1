package standin

import (
	"maps"
	"sync/atomic"
)

// table is a map whose readers take no lock: a change makes a new map. So a look-up orders the reader after the last
// change only, and not after other readers. A lock would order readers, and hide races from the race detector. Changes
// need a lock of the owner.
type table[K comparable, V any] struct{ entries atomic.Pointer[map[K]V] }

func (t *table[K, V]) all() map[K]V {
	if m := t.entries.Load(); m != nil {
		return *m
	}
	return nil
}

func (t *table[K, V]) get(key K) (V, bool) {
	v, ok := t.all()[key]
	return v, ok
}

func (t *table[K, V]) set(key K, v V) {
	m := maps.Clone(t.all())
	if m == nil {
		m = map[K]V{}
	}
	m[key] = v
	t.entries.Store(&m)
}

func (t *table[K, V]) remove(key K) {
	m := maps.Clone(t.all())
	delete(m, key)
	t.entries.Store(&m)
}

func (t *table[K, V]) removeIf(gone func(V) bool) {
	m := maps.Clone(t.all())
	maps.DeleteFunc(m, func(_ K, v V) bool { return gone(v) })
	t.entries.Store(&m)
}
