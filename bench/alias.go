package bench

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// aliasing shares host memory among decoder blocks in a benchmark: blocks of one shape are in turn on the first few
// of them.
type aliasing struct {
	copies int
	shapes [][]int // parts, by shape and in the order of the schedule
	bytes  []int64 // by shape: state of one part, in whole pages as it is reserved
}

// mostCopies is enough: each copy is far larger than any cache, and the update lane is seldom so far ahead of fetch.
const mostCopies = 6

// leastCopies is with how many the update lane never waits for a lease of the fetch lane while that waits for it.
// Between two pieces fetch keeps the latest, and while it waits for the update of the next part the latest two if
// they are all of their parts: else the second piece of a part has sent the last one of the part before back.
func leastCopies(blockElems int64) int {
	if blockElems <= plan.DefaultPieceElems {
		return 3
	}
	return 2
}

// aliasBlocks finds the blocks that can share memory.
func aliasBlocks(m *model.Model, n plan.Numerics) *aliasing {
	a := &aliasing{}
	of := map[[2]int64]int{}
	for _, part := range m.BlockParts {
		l := m.Parts[part].Layout
		key := [2]int64{l.WeightElems, l.StateElems}
		shape, known := of[key]
		if !known {
			shape = len(a.shapes)
			of[key] = shape
			var bytes int64
			for _, spec := range store.PartSpecs(part, l, n.Scheme().Forms(), plan.DefaultPieceElems) {
				bytes += store.AlignUp(spec.Bytes)
			}
			a.shapes, a.bytes = append(a.shapes, nil), append(a.bytes, bytes)
			a.copies = max(a.copies, leastCopies(l.StateElems))
		}
		a.shapes[shape] = append(a.shapes[shape], part)
	}
	return a
}

// sharedBytes is the state that need not be there.
func (a *aliasing) sharedBytes() int64 {
	var sum int64
	for i, parts := range a.shapes {
		sum += int64(max(len(parts)-a.copies, 0)) * a.bytes[i]
	}
	return sum
}

// grow raises the number of copies as far as the free bytes allow: closer to a run without sharing.
func (a *aliasing) grow(free int64) {
	for a.copies < mostCopies {
		more := *a
		more.copies++
		if a.sharedBytes()-more.sharedBytes() > free {
			return
		}
		free -= a.sharedBytes() - more.sharedBytes()
		a.copies++
	}
}

// copyOf returns, for each part, the part whose memory it shares.
func (a *aliasing) copyOf(parts int) []int {
	on := make([]int, parts)
	for i := range on {
		on[i] = i
	}
	for _, alike := range a.shapes {
		for i, part := range alike {
			on[part] = alike[i%a.copies]
		}
	}
	return on
}

// report says what was shared.
func (a *aliasing) report() *Alias {
	r := &Alias{SharedBytes: a.sharedBytes()}
	for _, parts := range a.shapes {
		r.Blocks += len(parts)
		r.Copies += min(a.copies, len(parts))
	}
	r.Warning = fmt.Sprintf("%d blocks share the host memory of %d; every fetch, drain and update moves its bytes, but layers overwrite each other: "+
		"the time is measured, and the weights mean nothing", r.Blocks, r.Copies)
	return r
}

// openAliased reserves the state of a plan whose parts share memory: on[i] is the part whose memory part i shares.
func openAliased(accounts *hostmem.Accounts, p *plan.Plan, on []int) (store.Store, error) {
	var there []store.Spec
	for _, spec := range p.Extents() {
		if on[spec.Part] == spec.Part {
			there = append(there, spec)
		}
	}
	ram, err := store.NewRAM(accounts, there)
	if err != nil {
		return nil, err
	}
	aliased := store.NewAliased(ram, p.Extents(), func(part int) int { return on[part] })
	for _, r := range aliased.Regions() {
		if err := r.Populate(); err != nil {
			return nil, errors.Join(err, aliased.Close())
		}
	}
	return aliased, nil
}
