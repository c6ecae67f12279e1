package data

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/hostmem"
)

// groupOrder is the order of groups over epochs, each of which has an order of its own.
type groupOrder struct {
	*groups
	seed    uint64
	epochs  int     // 0: without end
	planned int     // the epoch of members
	members []int32 // the groups of an epoch by number; nil: all of them in the order of the dataset

	region            *hostmem.Region
	at, pool, scratch []int32
}

// newGroupOrder reserves the memory of an epoch.
func newGroupOrder(g *groups, o LoaderOptions) (*groupOrder, error) {
	order := &groupOrder{groups: g, seed: o.Seed, epochs: o.Epochs, planned: -1}
	n, pool, shared := int64(g.n), int64(0), int64(0)
	if g.d.weighted() {
		n, shared = g.most()
		pool = n
	}
	if n > math.MaxInt32 {
		return nil, fmt.Errorf("the weights make %d pairs of an epoch, more than %d: lower weight", n, math.MaxInt32)
	}
	var err error
	if order.region, err = reserve(o.Accounts, 4*(n+pool+shared)); err != nil {
		return nil, err
	}
	all := hostmem.I32(order.region.Bytes())
	order.at, order.pool, order.scratch = all[:n:n], all[n:n+pool], all[n+pool:]
	return order, nil
}

// datasetOrder is one epoch of groups in the order of the dataset.
func datasetOrder(g *groups) *groupOrder { return &groupOrder{groups: g, epochs: 1} }

func (o *groupOrder) close() error {
	if o.region == nil {
		return o.groups.close()
	}
	return firstOf(o.region.Close(), o.groups.close())
}

// epochGroups makes the order that of an epoch and returns its number of groups, which is 0 after the last epoch.
func (o *groupOrder) epochGroups(epoch int) int {
	switch {
	case o.epochs > 0 && epoch >= o.epochs:
		return 0
	case o.at == nil:
		return o.n
	}
	if o.planned != epoch {
		o.members = o.d.shuffled(o.at, o.pool, o.scratch, o.n, o.seed, epoch, o.of)
		o.planned = epoch
	}
	return len(o.members)
}

// find returns the number of the next group from a cursor on, and the cursor after it, or false after the last epoch.
func (o *groupOrder) find(c Cursor) (group int32, after Cursor, ok bool) {
	for ; o.epochs == 0 || c.Epoch < o.epochs; c = (Cursor{Epoch: c.Epoch + 1}) {
		n := o.epochGroups(c.Epoch)
		if c.Row >= n {
			continue
		}
		group = int32(c.Row)
		if o.at != nil {
			group = o.members[c.Row]
		}
		if c.Row++; c.Row == n {
			c = Cursor{Epoch: c.Epoch + 1}
		}
		return group, c, true
	}
	return 0, c, false
}
