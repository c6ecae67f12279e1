package kernels

import "unsafe"

// SumChunk is the elements that go into one partial sum of SumSquares and Sum.
const SumChunk = 65536

// SumChunks is the partial sums that n elements have.
func SumChunks(n int) int { return (n + SumChunk - 1) / SumChunk }

// SumSquares writes the sum of squares of elements [i*SumChunk, (i+1)*SumChunk) of x to sums[i]; sums has SumChunks(x.Len)
// elements. To spread the work, cut x at multiples of SumChunk. Total adds the chunks up.
//
// Within a chunk, 16 float64 lanes start at 0; lane j adds the squares (exact in float64) of elements i = j mod 16, in order. Then
// l[j] += l[j+8] for j < 8, l[j] += l[j+4] for j < 4, l[j] += l[j+2] for j < 2, and the sum is l[0] + l[1].
func (t *Table) SumSquares(sums []float64, x Vec) {
	check(len(sums) == SumChunks(x.Len), "SumSquares: one sum for each chunk")
	f, size := t.sumSquares[kind(x.DType)], size(x.DType)
	for i := range sums {
		lo := i * SumChunk
		sums[i] = f(unsafe.Add(x.Data, lo*size), min(SumChunk, x.Len-lo))
	}
}

// Sum is SumSquares without the squares: the order is the same.
func (t *Table) Sum(sums []float64, x []float32) {
	check(len(sums) == SumChunks(len(x)), "Sum: one sum for each chunk")
	for i := range sums {
		part := x[i*SumChunk : min((i+1)*SumChunk, len(x))]
		sums[i] = t.sum(unsafe.Pointer(&part[0]), len(part))
	}
}

// Total adds the sums of chunks in order.
func Total(sums []float64) float64 {
	var total float64
	for _, s := range sums {
		total += s
	}
	return total
}
