package cpu

import (
	"math/rand/v2"
	"testing"
)

// TestSpans: the tasks of a ScatterAdd have each token once in each column, in the order of the list, and no two of
// them have a row and a column in common; a row that most tokens have is cut between columns.
func TestSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		rows, cols, elem := 1+rng.IntN(40), 1+rng.IntN(5000), int64(2+2*rng.IntN(2))
		hot := rng.IntN(rows)
		rowOf, rowEnds := []int{}, make([]int32, rows)
		for r := range rowEnds {
			n := rng.IntN(4)
			if r == hot {
				n = rng.IntN(3000)
			}
			for range n {
				rowOf = append(rowOf, r)
			}
			rowEnds[r] = int32(len(rowOf))
		}
		columnsOf := make([]int, len(rowOf)) // the columns of a token that tasks have had
		owner := map[[2]int]int{}            // by row and first column: the task
		for i, s := range spansOf(nil, rowEnds, cols, elem) {
			if s.first >= s.end || s.col0 >= s.col1 || s.col1 > cols {
				t.Fatalf("an empty task %+v of %d columns", s, cols)
			}
			if bytes := int64(s.end-s.first) * int64(s.col1-s.col0) * elem; s.col1-s.col0 > leastColumns && bytes > 3*taskBytes {
				t.Fatalf("a task of %d bytes: %+v", bytes, s)
			}
			for tok := s.first; tok < s.end; tok++ {
				if columnsOf[tok] != s.col0 {
					t.Fatalf("token %d has had columns up to %d, and comes again with %d", tok, columnsOf[tok], s.col0)
				}
				columnsOf[tok] = s.col1
				of := [2]int{rowOf[tok], s.col0}
				if j, ok := owner[of]; ok && j != i {
					t.Fatalf("row %d from column %d on belongs to tasks %d and %d", of[0], of[1], j, i)
				}
				owner[of] = i
			}
		}
		for tok, n := range columnsOf {
			if n != cols {
				t.Fatalf("token %d has %d of %d columns", tok, n, cols)
			}
		}
	}
}
