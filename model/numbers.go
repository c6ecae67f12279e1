package model

import "math"

// Numbers says which numbers a file holds of a tensor whose elements are x.
type Numbers uint8

// The numbers.
const (
	Plain   Numbers = iota // x
	PlusOne                // x + 1, as llama.cpp has weights of norms to which the model adds 1
	NegExp                 // -exp(x), as llama.cpp has the logarithms of decays
)

// toFile replaces elements by what a file holds.
func (n Numbers) toFile(x []float32) {
	if n == Plain {
		return
	}
	for i, v := range x {
		switch n {
		case PlusOne:
			x[i] = v + 1
		case NegExp:
			x[i] = float32(-math.Exp(float64(v)))
		}
	}
}

// fromFile replaces what a file holds by the elements. What toFile rounded is not brought back: of PlusOne, elements
// keep their multiples of 2^-23.
func (n Numbers) fromFile(x []float32) {
	if n == Plain {
		return
	}
	for i, v := range x {
		switch n {
		case PlusOne:
			x[i] = v - 1
		case NegExp:
			x[i] = float32(math.Log(float64(-v)))
		}
	}
}
