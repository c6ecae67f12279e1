//go:build unix

package gemm

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// guarded is memory between two pages that fault.
type guarded struct{ inside []byte }

func newGuarded(t *testing.T, bytes int) guarded {
	page := unix.Getpagesize()
	bytes = ceilTo(bytes, page)
	all, err := unix.Mmap(-1, 0, bytes+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(all) })
	for _, guard := range [][]byte{all[:page], all[page+bytes:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return guarded{all[page : page+bytes]}
}

// place puts a matrix of random numbers at the very start or end of the memory.
func (g guarded) place(rng *rand.Rand, d tensor.DType, rows, cols, stride int, atEnd bool) Mat {
	bytes := ((rows-1)*stride + cols) * int(d.Bytes())
	at := 0
	if atEnd {
		at = len(g.inside) - bytes
	}
	m := Mat{Data: unsafe.Pointer(&g.inside[at]), DType: d, Rows: rows, Cols: cols, Stride: stride}
	for i := range rows {
		for j := range cols {
			m.Set(i, j, float32(rng.NormFloat64()))
		}
	}
	return m
}

// No level reads or writes outside a matrix: it would fault here.
func TestStaysInside(t *testing.T) {
	ga, gb, gc := newGuarded(t, 1<<19), newGuarded(t, 1<<19), newGuarded(t, 1<<16)
	forLevels(t, func(t *testing.T, _ isa.Level, e *Engine) {
		rapid.Check(t, func(t *rapid.T) {
			rng := rand.New(rand.NewPCG(1, 1))
			ab, cd := dtypes(t)
			m, n, k := dim(t, "m", 60), dim(t, "n", 90), rapid.IntRange(1, 800).Draw(t, "k")
			if rapid.Bool().Draw(t, "few") { // which are read where they are, if they may be
				m = min(m, 1+m%8)
			}
			op := Op{TransA: rapid.Bool().Draw(t, "transA"), TransB: rapid.Bool().Draw(t, "transB"),
				Accumulate: rapid.Bool().Draw(t, "accumulate")}
			mat := func(g guarded, d tensor.DType, rows, cols int, trans bool) Mat {
				if trans {
					rows, cols = cols, rows
				}
				return g.place(rng, d, rows, cols, cols+rapid.IntRange(0, 3).Draw(t, "pad"), rapid.Bool().Draw(t, "end"))
			}
			op.A, op.B, op.C = mat(ga, ab, m, k, op.TransA), mat(gb, ab, k, n, op.TransB), mat(gc, cd, m, n, false)
			e.Mul(op)
		})
	})
}
