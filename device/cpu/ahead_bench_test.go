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

// BenchmarkRowsAhead times the rows of a table that 16,384 tokens look up, as the pending update will leave them: of
// each kind of state, copies of some rows are updated at a time. They are the row of each token, or of each that
// occurs, once, which tokens then look up.
func BenchmarkRowsAhead(b *testing.B) {
	const tokens, hidden, vocab, most = 16384, 3584, 38016, 585
	d := open(b, cpu.Options{})
	b.Cleanup(func() { d.Close() })
	s, err := d.NewStream("bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	sp := newSpace(b, d, 2200<<20)
	types := []tensor.DType{tensor.BF16, tensor.I16, tensor.F32, tensor.F32, tensor.BF16} // weights, low, m, v, gradient
	var table, copies []device.Mem
	for _, t := range types {
		table = append(table, sp.arena.Take(t.Bytes()*vocab*hidden))
		copies = append(copies, sp.arena.Take(t.Bytes()*most*hidden))
		s.Zero(table[len(table)-1])
	}
	y, tally := sp.arena.Mat(tensor.BF16, tokens, hidden), sp.arena.Take(device.TallyBytes)
	idsMem, numbersMem, occurMem := sp.arena.Take(4*tokens), sp.arena.Take(4*tokens), sp.arena.Take(4*tokens)
	ids, numbers := hostmem.I32(sp.bytes(idsMem)), hostmem.I32(sp.bytes(numbersMem))
	s.Zero(y.Mem)
	if err := s.Sync(); err != nil {
		b.Fatal(err)
	}
	scalars := device.AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 0.1, Beta2: 0.999, OneMinusBeta2: 0.001,
		StepSize: 1e-4, SqrtBC2: 1, Eps: 1e-8}
	asRows := func(m device.Mem, rows int) device.Mat {
		return device.NewMat(m, tensor.BF16, rows, int(m.Len)/int(tensor.BF16.Bytes())/rows)
	}
	ahead := func(of device.Mem, n int, once bool) {
		for first := 0; first < n; first += most {
			rows := min(most, n-first)
			var vec [5]device.Mat
			for i, t := range types {
				to := copies[i].Slice(0, t.Bytes()*int64(rows)*hidden)
				if i == 0 && !once {
					to = y.RowRange(first, rows).Mem
				}
				s.Gather(asRows(to, rows), asRows(table[i], vocab), of.Slice(4*int64(first), 4*int64(rows)), 0)
				vec[i] = device.NewVec(to, t, rows*hidden)
			}
			s.AdamW(device.AdamWArgs{Weights: vec[0], Low: vec[1], M: vec[2], V: vec[3], Grad: vec[4],
				AdamWScalars: scalars}, tally)
			if once {
				s.Gather(y, device.NewMat(vec[0].Mem, tensor.BF16, rows, hidden), numbersMem, first)
			}
		}
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 8, vocab-1)
	for _, text := range []struct {
		name string
		draw func() int32
	}{
		{"as_words", func() int32 { return int32(zipf.Uint64()) }},
		{"all_random", func() int32 { return rand.Int32N(vocab) }},
	} {
		for i := range ids {
			ids[i] = text.draw()
		}
		occur := slices.Compact(slices.Sorted(slices.Values(ids)))
		copy(hostmem.I32(sp.bytes(occurMem)), occur)
		for i, id := range ids {
			n, _ := slices.BinarySearch(occur, id)
			numbers[i] = int32(n)
		}
		for _, once := range []bool{false, true} {
			name, of, n := "/each_token", idsMem, tokens
			if once {
				name, of, n = "/each_once", occurMem, len(occur)
			}
			b.Run(text.name+name, func(b *testing.B) {
				for b.Loop() {
					ahead(of, n, once)
					if err := s.Sync(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
