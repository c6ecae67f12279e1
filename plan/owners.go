package plan

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/model"
)

// Each part has an owner: the host that keeps its low halves, moments and gradient, updates it, and takes it to
// checkpoints. The others have its weights alone, and get them from the owner after each update.
//
// Owners follow from the model and the number of hosts, so that all hosts agree on them without a message.

// Owner is the host that owns a part, which may be frozen; 0 where one host is alone.
func (p *Plan) Owner(part int) int {
	if p.owners == nil {
		return 0
	}
	return p.owners[part]
}

// Owns reports whether this host owns a part.
func (p *Plan) Owns(part int) bool { return p.Owner(part) == p.Cluster.Host }

// ownersOf deals the parts to hosts, nil if there is one: the largest first, each to the host that has least, so that
// hosts have about as many elements of state each. Parts that are frozen as a whole are dealt by themselves, by their
// weights.
func ownersOf(m *model.Model, hosts int) []int {
	if hosts <= 1 {
		return nil
	}
	owners, trained, frozen := make([]int, len(m.Parts)), make([]int64, len(m.Parts)), make([]int64, len(m.Parts))
	for part := range m.Parts {
		if l := m.Parts[part].Layout; l.StateElems > 0 {
			trained[part] = l.StateElems
		} else {
			frozen[part] = l.WeightElems
		}
	}
	for _, elems := range [][]int64{trained, frozen} {
		var parts []int
		for part, n := range elems {
			if n > 0 {
				parts = append(parts, part)
			}
		}
		slices.SortStableFunc(parts, func(a, b int) int { return cmp.Compare(elems[b], elems[a]) })
		has := make([]int64, hosts)
		for _, part := range parts {
			least := slices.Index(has, slices.Min(has))
			owners[part], has[least] = least, has[least]+elems[part]
		}
	}
	return owners
}

// owners deals the model's parts once for all plans of a search.
func (c *chooser) owners() []int {
	if c.owned == nil {
		c.owned = ownersOf(c.Model, c.Cluster.Count())
	}
	return c.owned
}
