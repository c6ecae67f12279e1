package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/device/cuda/kernels"
)

// operation names what a launch computes. Kernels' names are its words and one that says which operands a variant is
// for: "rmsnorm_grad.bf16.resid.a16". A launch looks operations up by value, so that it puts no strings together.
type operation struct {
	words [4]string
	head  int // columns of a head, of attention's kernels
}

// named is the operation with these words.
func named(words ...string) (o operation) {
	copy(o.words[:], words)
	return o
}

// String begins the names of the kernels.
func (o operation) String() string {
	text := strings.TrimRight(strings.Join(o.words[:], "."), ".")
	if o.head > 0 {
		text += fmt.Sprintf(".h%d", o.head)
	}
	return text
}

// variant cuts the last word off a name, and says how quick the kernel is: less is quicker.
func variant(name string) (operation string, rank int) {
	for rank, v := range kernels.Variants {
		if rest, ok := strings.CutSuffix(name, v); ok {
			return rest, rank
		}
	}
	return name, len(kernels.Variants)
}

// tabulate lists the kernels of each operation, the one to try first in front. An attention kernel that is aligned is for heads
// of one size; the others have room for all that are narrower, and the narrowest of them comes first.
func tabulate(functions []*function) map[operation][]*function {
	type ranked struct {
		*function
		rank int
	}
	all := map[operation][]ranked{}
	for _, f := range functions {
		text, rank := variant(f.Name)
		words := strings.Split(text, ".")
		last := len(words) - 1
		width, isHead := strings.CutPrefix(words[last], "h")
		room, err := strconv.Atoi(width)
		if !isHead || err != nil {
			o := named(words...)
			all[o] = append(all[o], ranked{f, rank})
			continue
		}
		o := named(words[:last]...)
		narrowest := 1
		if rank < len(kernels.Variants)-1 {
			narrowest = room // it is aligned, and knows its size
		}
		for o.head = narrowest; o.head <= room; o.head++ {
			all[o] = append(all[o], ranked{f, rank<<16 + room})
		}
	}
	table := make(map[operation][]*function, len(all))
	for o, list := range all {
		slices.SortFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
		for _, f := range list {
			table[o] = append(table[o], f.function)
		}
	}
	return table
}
