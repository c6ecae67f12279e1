package cpu_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// BenchmarkEmbeddingGradient times the gradient of a table of 152,064 rows from a step of 32,768 tokens, piece by piece
// as a step computes it: of each kind of operation, all that a step has.
func BenchmarkEmbeddingGradient(b *testing.B) {
	const micros, tokens, hidden, vocab, pieceRows, room = 2, 16384, 3584, 152064, 4681, 16 << 20
	d := open(b, cpu.Options{})
	b.Cleanup(func() { d.Close() })
	s, err := d.NewStream("bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	sp := newSpace(b, d, 1536<<20)
	dx := sp.random(1, sp.arena.Mat(tensor.BF16, micros*tokens, hidden), 1)
	stored, sums := sp.arena.Take(2*vocab*hidden), sp.arena.Take(room)
	numbersMem, ofTokenMem, squares := sp.arena.Take(4*tokens*micros), sp.arena.Take(4*vocab), sp.arena.Take(8)
	numbers, ofToken := hostmem.I32(sp.bytes(numbersMem)), hostmem.I32(sp.bytes(ofTokenMem))
	s.Zero(stored) // so that its pages are there
	if err := s.Sync(); err != nil {
		b.Fatal(err)
	}
	// piece is what a step does with a piece of the table, from row `first` on.
	piece := func(occur []int32, first int, do func(what string, enqueue func())) {
		rows := min(pieceRows, vocab-first)
		table := device.NewMat(stored.Slice(2*hidden*int64(first), 2*hidden*int64(rows)), tensor.BF16, rows, hidden)
		do("zero", func() { s.Zero(table.Mem) })
		from, _ := slices.BinarySearch(occur, int32(first))
		end, _ := slices.BinarySearch(occur, int32(first+rows))
		for most := room / (6 * hidden); from < end; from += most {
			n := min(most, end-from)
			sum := device.NewMat(sums, tensor.F32, n, hidden)
			rounded := device.NewMat(sums.Slice(int64(4*n*hidden), int64(2*n*hidden)), tensor.BF16, n, hidden)
			do("sums", func() {
				s.Zero(sum.Mem)
				for m := range micros {
					s.ScatterAdd(sum, dx.RowRange(m*tokens, tokens), numbersMem.Slice(int64(4*m*tokens), 4*tokens), from, 1)
				}
			})
			do("rounding", func() {
				s.Cast(rounded, sum)
				s.Gather(table, rounded, ofTokenMem.Slice(4*int64(first), 4*int64(rows)), from)
			})
		}
		do("squares", func() { s.SumSquares(squares, device.NewVec(table.Mem, tensor.BF16, rows*hidden)) })
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 8, vocab-1)
	for name, draw := range map[string]func() int32{
		"as_words":   func() int32 { return int32(zipf.Uint64()) },
		"all_random": func() int32 { return rand.Int32N(vocab) },
	} {
		ids := make([]int32, micros*tokens)
		for i := range ids {
			ids[i] = draw()
		}
		occur := slices.Compact(slices.Sorted(slices.Values(ids)))
		for i := range ofToken {
			ofToken[i] = -1
		}
		for n, token := range occur {
			ofToken[token] = int32(n)
		}
		for i, id := range ids {
			numbers[i] = ofToken[id]
		}
		for _, what := range []string{"zero", "sums", "rounding", "squares"} {
			do := func(op string, enqueue func()) {
				if op == what {
					enqueue()
				}
			}
			b.Run(name+"/"+what, func(b *testing.B) {
				for b.Loop() {
					for first := 0; first < vocab; first += pieceRows {
						piece(occur, first, do)
					}
					if err := s.Sync(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
