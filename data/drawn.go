package data

import (
	"math"
	"slices"

	"github.com/millrace/millrace/internal/rng"
)

// An epoch takes the documents of a dataset, or its groups of them, once or as often as weights say, in an order that
// is drawn for the epoch. The functions here know documents and groups by their number in the dataset. Those that are
// packed have other numbers, since some are left out and others are several pieces: a function of the caller appends
// these.

// weighted reports whether documents come another number of times than once.
func (d *Dataset) weighted() bool {
	return slices.ContainsFunc(d.sources, func(s sourceDocuments) bool { return s.weight != 1 })
}

// shuffled fills a part of at with the members of an epoch in an order drawn for it, and returns that part. Without
// weights they are 0 to n-1. With weights, of appends the members that group i of the dataset is; pool has room for all
// members, and scratch for the groups of a source.
func (d *Dataset) shuffled(at, pool, scratch []int32, n int, seed uint64, epoch int,
	of func(dst []int32, i int) []int32) []int32 {
	documents := rng.New(seed, "shuffle documents", uint64(epoch), 0)
	if !d.weighted() {
		documents.Perm(at[:n])
		return at[:n]
	}
	pool = d.drawn(pool[:0], scratch, seed, epoch, of)
	at = at[:len(pool)]
	documents.Perm(at)
	for i, j := range at {
		at[i] = pool[j]
	}
	return at
}

// drawn appends the members of an epoch, in order, as often as the weights of their sources say. For a share it takes
// the next groups of an order drawn from the seed, so that all come equally often in the long run. scratch has room
// for the groups of a source.
func (d *Dataset) drawn(dst, scratch []int32, seed uint64, epoch int, of func(dst []int32, i int) []int32) []int32 {
	first := 0
	for n, s := range d.sources {
		groups := s.documents / s.groupSize()
		times, share := wholeWeight(s.weight)
		for range times {
			for i := range groups {
				dst = of(dst, first+i)
			}
		}
		if some := int(math.Round(share * float64(groups))); some > 0 {
			order := scratch[:groups]
			rng.New(seed, "share of documents", uint64(n), 0).Perm(order)
			for i := range some {
				dst = of(dst, first+int(order[(epoch%groups*some+i)%groups]))
			}
		}
		first += groups
	}
	return dst
}
