package rng

import "math/bits"

// Source is a stream of random numbers. It is made by [New] and is not safe for concurrent use: a second thread asks
// for a source of its own.
type Source struct {
	key    Key
	index  uint64
	block  uint64  // the next counter block
	buf    Counter // what is left of the last block: buf[4-unused:]
	unused int
}

// New is the stream of numbers named by its arguments. The purpose is a word such as "init" or "shuffle"; step and index
// are whatever tells two draws for one purpose apart (the optimizer step and the tensor's number, say), and 0 where
// nothing does.
//
// Philox's key and counter hold 192 bits and a name with a position in its stream needs more. So the name's first three
// parts choose a key, through the generator itself (counter: 64-bit hash of the purpose and step, key: seed), and index
// and position make the counter.
func New(seed uint64, purpose string, step, index uint64) *Source {
	return &Source{key: KeyOf(seed, purpose, step), index: index}
}

// KeyOf is the key under which a source draws. Its number i is word i%4 of Philox4x32 at the counter {i/4, index}, of 64
// bits each, low word first: for those who draw many numbers at once, from anywhere in the stream.
func KeyOf(seed uint64, purpose string, step uint64) Key {
	h := hash(purpose)
	d := Philox4x32(Key{uint32(seed), uint32(seed >> 32)},
		Counter{uint32(h), uint32(h >> 32), uint32(step), uint32(step >> 32)})
	return Key{d[0], d[1]}
}

// hash is FNV-1a, 64 bits.
func hash(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// Uint32 is uniform over all 32-bit values.
func (s *Source) Uint32() uint32 {
	if s.unused == 0 {
		s.buf = Philox4x32(s.key,
			Counter{uint32(s.block), uint32(s.block >> 32), uint32(s.index), uint32(s.index >> 32)})
		s.block++
		s.unused = 4
	}
	v := s.buf[4-s.unused]
	s.unused--
	return v
}

// Uint64 is uniform over all 64-bit values. It is two of the stream's 32-bit values, the first one low.
func (s *Source) Uint64() uint64 {
	lo := s.Uint32()
	return uint64(s.Uint32())<<32 | uint64(lo)
}

// Uint64N is uniform over [0, n), without bias. It panics when n is 0.
//
// Source: Lemire, "Fast random integer generation in an interval", ACM TOMACS 29 (2019).
func (s *Source) Uint64N(n uint64) uint64 {
	if n == 0 {
		panic("rng: Uint64N of 0")
	}
	hi, lo := bits.Mul64(s.Uint64(), n)
	if lo < n {
		for reject := -n % n; lo < reject; {
			hi, lo = bits.Mul64(s.Uint64(), n)
		}
	}
	return hi
}

// Float32 is uniform over the multiples of 2^-24 in [0, 1).
func (s *Source) Float32() float32 { return float32(s.Uint32()>>8) * (1.0 / (1 << 24)) }

// Float64 is uniform over the multiples of 2^-53 in [0, 1).
func (s *Source) Float64() float64 { return float64(s.Uint64()>>11) * (1.0 / (1 << 53)) }

// Perm fills p with a random permutation of 0..len(p)-1, all of them equally likely (Fisher-Yates).
func (s *Source) Perm(p []int32) {
	for i := range p {
		j := s.Uint64N(uint64(i) + 1)
		p[i] = p[j]
		p[j] = int32(i)
	}
}
