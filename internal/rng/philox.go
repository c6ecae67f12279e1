// Package rng draws random numbers that depend on nothing but their names.
//
// A [Source] is named by (seed, purpose, step, index). The same name always draws the same numbers, in any order, on
// any thread, after any number of restarts. So no generator state is saved in a checkpoint and no schedule can change a
// run. Different names give streams that are independent for all practical purposes.
//
// The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011), checked against the known-answer vectors of its authors' Random123 library.
//
// Invariants: the numbers are the same on every platform. Integers are exact by nature. [Source.NormFloat32] uses only
// IEEE additions, products, divisions and square roots, with every product converted explicitly, because Go may
// otherwise fuse x*y+z into one rounding (it does on arm64), and because math.Log differs between platforms.
package rng

import "math/bits"

// Key is the 64-bit key of a Philox4x32 generator, low word first.
type Key [2]uint32

// Counter is the 128-bit counter of a Philox4x32 generator, low word first.
type Counter [4]uint32

// The multipliers and the Weyl constants of Philox4x32 (table 2 of the paper).
const (
	mul0, mul1   = 0xD2511F53, 0xCD9E8D57
	weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85
	rounds       = 10
)

// Philox4x32 is the bijection itself: ten rounds that turn a counter into 128 random bits.
func Philox4x32(k Key, c Counter) Counter {
	for range rounds {
		hi0, lo0 := bits.Mul32(mul0, c[0])
		hi1, lo1 := bits.Mul32(mul1, c[2])
		c = Counter{hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0}
		k[0] += weyl0
		k[1] += weyl1
	}
	return c
}
