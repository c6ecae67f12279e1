package kernels

// unitPiece is the number of ones that there are, and so the most elements of a call that reads them.
const unitPiece = 2048

// The numbers 1, for loops that multiply where a kernel has nothing to multiply by.
var (
	ones     = filled[float32](1)
	onesBF16 = filled[uint16](0x3f80)
)

func filled[E element](with E) (all [unitPiece]E) {
	for i := range all {
		all[i] = with
	}
	return all
}
