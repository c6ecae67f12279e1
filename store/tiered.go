package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/trace"
)

// Tier is a store and the extents that it keeps.
type Tier struct {
	Store Store
	Specs []Spec
}

// Tiered is several stores as one: each extent is in exactly one of them.
type Tiered struct {
	tiers []Tier
	of    map[ID]Store
}

// NewTiered takes the stores over. It panics if two keep the same extent.
func NewTiered(tiers ...Tier) *Tiered {
	t := &Tiered{tiers: tiers, of: map[ID]Store{}}
	for _, tier := range tiers {
		for _, s := range tier.Specs {
			if t.of[s.ID] != nil {
				panic(fmt.Sprintf("store: %v are in two tiers", s.ID))
			}
			t.of[s.ID] = tier.Store
		}
	}
	return t
}

// Of is the store that keeps an extent. It panics on an unknown one.
func (t *Tiered) Of(id ID) Store {
	if s := t.of[id]; s != nil {
		return s
	}
	panic(fmt.Sprintf("store: there are no %v", id))
}

// Borrow implements Store.
func (t *Tiered) Borrow(ctx context.Context, lane trace.Worker, id ID, off, n int64, access Access,
	version uint64) (*Lease, error) {
	return t.Of(id).Borrow(ctx, lane, id, off, n, access, version)
}

// Prefetch implements Store.
func (t *Tiered) Prefetch(lane trace.Worker, id ID, off int64, version uint64) {
	t.Of(id).Prefetch(lane, id, off, version)
}

// Version implements Store.
func (t *Tiered) Version(id ID) uint64 { return t.Of(id).Version(id) }

// Regions implements Store: those of all tiers, in order.
func (t *Tiered) Regions() []*hostmem.Region {
	var all []*hostmem.Region
	for _, tier := range t.tiers {
		all = append(all, tier.Store.Regions()...)
	}
	return all
}

// Close closes the tiers, the last one first, and returns their first error.
func (t *Tiered) Close() error {
	var err error
	for _, tier := range slices.Backward(t.tiers) {
		err = cmp.Or(err, tier.Store.Close())
	}
	return err
}
