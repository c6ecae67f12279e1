package tensor

import (
	"math"
	"strconv"
	"strings"
)

// Shape is the length of each dimension, outermost first (row-major).
type Shape []int

// Elems is the number of elements, or -1 if a dimension is negative or the product overflows int64.
func (s Shape) Elems() int64 {
	n := int64(1)
	for _, d := range s {
		if d < 0 {
			return -1
		}
		if d > 0 && n > math.MaxInt64/int64(d) {
			return -1
		}
		n *= int64(d)
	}
	return n
}

// Equal reports whether both shapes have the same dimensions.
func (s Shape) Equal(t Shape) bool {
	if len(s) != len(t) {
		return false
	}
	for i := range s {
		if s[i] != t[i] {
			return false
		}
	}
	return true
}

// String is "[2048 576]".
func (s Shape) String() string {
	p := make([]string, len(s))
	for i, d := range s {
		p[i] = strconv.Itoa(d)
	}
	return "[" + strings.Join(p, " ") + "]"
}
