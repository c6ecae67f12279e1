package cpu_test

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// BenchmarkEmbeddingGradient times the gradient of a table of 152,064 rows that a step looks up 16,384 of, piece by
// piece.
func BenchmarkEmbeddingGradient(b *testing.B) {
	const tokens, hidden, vocab, rows = 16384, 3584, 152064, 1170
	d := open(b, cpu.Options{})
	b.Cleanup(func() { d.Close() })
	s, err := d.NewStream("bench")
	if err != nil {
		b.Fatal(err)
	}
	sp := newSpace(b, d, 256<<20)
	dx := sp.random(1, sp.arena.Mat(tensor.BF16, tokens, hidden), 1)
	sum, stored := sp.arena.Mat(tensor.F32, rows, hidden), sp.arena.Mat(tensor.BF16, 1, rows*hidden)
	ids, squares := sp.arena.Take(4*tokens), sp.arena.Take(8)
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 8, vocab-1) // as words are distributed
	for i := range hostmem.I32(sp.bytes(ids)) {
		hostmem.I32(sp.bytes(ids))[i] = int32(zipf.Uint64())
	}
	flat := device.NewVec(sum.Mem, tensor.F32, rows*hidden)
	for what, op := range map[string]func(first int){
		"Zero":       func(int) { s.Zero(sum.Mem) },
		"ScatterAdd": func(first int) { s.ScatterAdd(sum, dx, ids, first, 1) },
		"Cast":       func(int) { s.Cast(stored, flat) },
		"SumSquares": func(int) { s.SumSquares(squares, stored) },
	} {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				for first := 0; first < vocab; first += rows {
					op(first)
				}
				if err := s.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
