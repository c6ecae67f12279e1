package model

import "slices"

// Slab is a run of elements of a tensor.
type Slab struct {
	Tensor       int // its number in the list
	First, Elems int64
}

// Slabs orders the elements of tensors for writers that have one part at a time: of neighbouring tensors that are made
// up of the same parts one after the other, such as stacked experts, what the first part has of all of them comes
// before what the second part has. Any other tensor is one slab. Of each tensor the slabs are in the order of its
// elements.
func Slabs(tensors []Tensor) []Slab {
	var all []Slab
	for i := 0; i < len(tensors); {
		of := tensors[i].byPart()
		group := [][]stretch{of}
		for next := i + len(group); len(of) > 1 && next < len(tensors); next++ {
			more := tensors[next].byPart()
			if !slices.EqualFunc(of, more, func(a, b stretch) bool { return a.part == b.part }) {
				break
			}
			group = append(group, more)
		}
		if len(group) == 1 {
			of = []stretch{{0, 0, tensors[i].Shape.Elems()}}
			group[0] = of
		}
		for s := range of {
			for j, stretches := range group {
				at := stretches[s]
				all = append(all, Slab{i + j, at.first, at.end - at.first})
			}
		}
		i += len(group)
	}
	return all
}

// stretch names the elements of a tensor that one part has.
type stretch struct {
	part       int
	first, end int64
}

// byPart are the stretches of the parts of a tensor, which follow each other; a single one if those of several parts
// are mixed.
func (t *Tensor) byPart() (all []stretch) {
	for _, p := range t.Pieces {
		end := p.At + int64(p.Rows-1)*int64(p.RowStep) + int64(p.Cols-1)*int64(p.ColStep) + 1
		if n := len(all); n > 0 && all[n-1].part == p.Part {
			last := &all[n-1]
			last.first, last.end = min(last.first, p.At), max(last.end, end)
			continue
		}
		all = append(all, stretch{p.Part, p.At, end})
	}
	whole := []stretch{{t.Pieces[0].Part, 0, t.Shape.Elems()}}
	at := int64(0)
	for _, s := range all {
		if s.first != at {
			return whole
		}
		at = s.end
	}
	if at != t.Shape.Elems() {
		return whole
	}
	return all
}
