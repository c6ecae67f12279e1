package kernels

import (
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/tensor"
)

// words writes the random words of parameters: the definition of device.Draw.
func words(to []uint32, d device.Draw) {
	for i := 0; i < len(to); i += device.DrawTogether {
		n := d.At(i).First / device.DrawTogether
		w := rng.Philox4x32(d.Key, rng.Counter{uint32(n), uint32(n >> 32), uint32(d.Part), uint32(d.Part >> 32)})
		copy(to[i:], w[:])
	}
}

// wordsOf are the random words of a block.
func wordsOf(d device.Draw) (w [tensor.MomentBlock]uint32) {
	words(w[:], d)
	return w
}

// wordsPiece is the number of parameters whose random words are made at once, where they are made ahead of the update.
// They stay in the L1 cache.
const wordsPiece = 2048

// wordBuffers keeps room for words: what a loop is given may not be on the stack, as loops are called by their values.
var wordBuffers = sync.Pool{New: func() any { return new([wordsPiece]uint32) }}
