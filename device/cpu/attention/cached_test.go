package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/tensor"
)

// attendCached computes some rows of a Spec whose keys and values are all there.
func attendCached(t *testing.T, k *kernels.Table, mul Multiplier, s *Spec, rng *rand.Rand) {
	t.Helper()
	c, err := NewCached(s)
	if err != nil {
		t.Fatal(err)
	}
	scratch := alignedBytes(ScratchBytes(s.HeadDim))
	for i := range scratch {
		scratch[i] = 0xff // NaN in both types
	}
	for _, task := range rng.Perm(c.Tasks()) {
		c.Run(k, mul, 0, task, scratch)
	}
}

// The bits of a row do not depend on the rows that are computed with it.
func TestCachedRowsAreAlone(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("with -race -short only: one goroutine computes, so there is no race to find; make test runs it")
	}
	const cached, rows = 420, 300
	for _, c := range []struct {
		heads, kvHeads, headDim, window int
		softCap                         float32
		sinks                           bool
	}{{3, 1, 64, 0, 0, false}, {4, 2, 6, 37, 0, true}, {2, 2, 80, 130, 20, false}} {
		for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
			t.Run(fmt.Sprintf("%s/%+v", dtype, c), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 2))
				normal := func() float32 { return float32(rng.NormFloat64()) }
				q, kv := c.heads*c.headDim, c.kvHeads*c.headDim
				s := &Spec{Q: mat(dtype, rows, q, normal), K: mat(dtype, cached, kv, normal),
					V: mat(dtype, cached, kv, normal), Out: mat(dtype, rows, q, normal),
					Heads: c.heads, KVHeads: c.kvHeads, HeadDim: c.headDim,
					Scale: float32(1 / math.Sqrt(float64(c.headDim))), Window: c.window, SoftCap: c.softCap}
				if c.sinks {
					s.Sinks = row(mat(dtype, 1, c.heads, normal), 0, 0, c.heads)
				}
				for i := range rows { // the last rows of a sequence, a whole one, and one that takes up the first again
					start, end := 3, 100+i
					switch {
					case i >= 250:
						end = i
					case i >= 120:
						start, end = 290, 291+i-120
					}
					s.DocStart, s.End = append(s.DocStart, int32(start)), append(s.End, int32(end))
				}
				k, mul := kernels.For(isa.Best()), newMultiplier(isa.Best(), 1)
				attendCached(t, k, mul, s, rng)
				want := floats(s.Out)
				for _, most := range []int{1, 7, 64} {
					cut := *s
					cut.Out = mat(dtype, rows, q, normal)
					for r0 := 0; r0 < rows; {
						r1 := min(r0+1+rng.IntN(most), rows)
						few := cut
						few.Q, few.Out = part(s.Q, r0, r1, 0, q), part(cut.Out, r0, r1, 0, q)
						few.DocStart, few.End = s.DocStart[r0:r1], s.End[r0:r1]
						attendCached(t, k, mul, &few, rng)
						r0 = r1
					}
					if !slices.Equal(floats(cut.Out), want) {
						t.Errorf("passes of up to %d rows have other bits than one pass", most)
					}
				}
				for _, block := range []int{7, 64, keyBlock, 2 * keyBlock} {
					if got := inBlocks(t, k, mul, s, block, rng); !slices.Equal(floats(got), want) {
						t.Errorf("keys and values in blocks of %d rows: other bits than in rows that follow each other", block)
					}
				}
			})
		}
	}
}

// inBlocks computes the output of a Spec whose keys and values are in blocks, in any order, with NaN in the rest.
func inBlocks(t *testing.T, k *kernels.Table, mul Multiplier, s *Spec, block int, rng *rand.Rand) kernels.Mat {
	t.Helper()
	nan := func() float32 { return float32(math.NaN()) }
	n, kv := (s.K.Rows+block-1)/block, s.K.Cols
	paged := *s
	paged.Out, paged.TableRows = mat(s.Q.DType, s.Q.Rows, s.Q.Cols, nan), block
	paged.K, paged.V = mat(s.Q.DType, (n+2)*block, kv, nan), mat(s.Q.DType, (n+2)*block, kv, nan)
	for _, at := range rng.Perm(n + 2)[:n] {
		first := len(paged.Table) * block
		for r := first; r < min(first+block, s.K.Rows); r++ {
			k.Convert(row(paged.K, at*block+r-first, 0, kv), row(s.K, r, 0, kv))
			k.Convert(row(paged.V, at*block+r-first, 0, kv), row(s.V, r, 0, kv))
		}
		paged.Table = append(paged.Table, int32(at))
	}
	attendCached(t, k, mul, &paged, rng)
	return paged.Out
}

// Rows that leave the cache are refused, and blocks that do.
func TestCachedRefuses(t *testing.T) {
	zero := func() float32 { return 0 }
	for _, of := range [][2]int32{{-1, 2}, {3, 2}, {0, 6}} {
		s := &Spec{Q: mat(tensor.F32, 1, 4, zero), K: mat(tensor.F32, 5, 4, zero), V: mat(tensor.F32, 5, 4, zero),
			Out: mat(tensor.F32, 1, 4, zero), Heads: 1, KVHeads: 1, HeadDim: 4, Scale: 1,
			DocStart: []int32{of[0]}, End: []int32{of[1]}}
		if _, err := NewCached(s); err == nil {
			t.Errorf("rows %v of a cache of 5: no error", of)
		}
		for _, table := range [][]int32{{0, 2}, {0, -1}, {0}} {
			s.DocStart, s.End, s.Table, s.TableRows = []int32{1}, []int32{4}, table, 2
			if _, err := NewCached(s); err == nil {
				t.Errorf("blocks %v of a cache of two: no error", table)
			}
		}
	}
}
