package gemm

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/pool"
	"github.com/millrace/millrace/tensor"
)

// A product with a packed B has the bits of one without, also with fewer columns, and never reads B itself.
func TestBitsOfPackedB(t *testing.T) {
	forLevels(t, func(t *testing.T, _ isa.Level, e *Engine) {
		rapid.Check(t, func(t *rapid.T) {
			ab, cd := dtypes(t)
			m, n, k := dim(t, "m", 210), dim(t, "n", 300), dim(t, "k", maxUnits)
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
			op := Op{TransA: rapid.Bool().Draw(t, "transA"), TransB: rapid.Bool().Draw(t, "transB"),
				Accumulate: rapid.Bool().Draw(t, "accumulate")}
			mat := func(rows, cols int, transposed bool) Mat {
				if transposed {
					rows, cols = cols, rows
				}
				return newMat(rng, ab, rows, cols, cols+rapid.IntRange(0, 3).Draw(t, "pad"), 0)
			}
			op.A, op.B = mat(m, k, op.TransA), mat(k, n, op.TransB)
			panels := alignedFloats(e.PackedFloats(ab, k, n) + 8)
			for i := range panels {
				panels[i] = float32(math.NaN())
			}
			room := len(panels) - 8
			e.PackB(1, panels[:room], op.B, op.TransB)
			for _, x := range panels[room:] {
				if x == x {
					t.Fatal("PackB writes after its memory")
				}
			}
			fewer := rapid.IntRange(1, n).Draw(t, "fewer")
			if op.TransB {
				op.B.Rows = fewer
			} else {
				op.B.Cols = fewer
			}
			want := op
			op.C = newMat(rng, cd, m, fewer, fewer+3, 0)
			want.C = clone(op.C, false, 3, 0)
			e.MulSerial(0, want)
			for i := range op.B.Rows { // what is packed counts
				for j := range op.B.Cols {
					op.B.Set(i, j, float32(math.NaN()))
				}
			}
			e.MulPacked(2, op, panels[:room])
			for i := range m {
				for j := range fewer {
					if got, want := op.C.At(i, j), want.C.At(i, j); math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("C[%d,%d] = %x, without packing before %x (%v)", i, j, got, want, op)
					}
				}
			}
			if paddingTouched(&op.C) {
				t.Fatalf("wrote between the rows of C (%v)", op)
			}
		})
	})
}

func TestPackedRefuses(t *testing.T) {
	p := pool.New(1, nil)
	defer p.Close()
	e := New(isa.Best(), p)
	if n := e.PackedFloats(tensor.F32, maxUnits+1, 4); n != 0 {
		t.Errorf("two blocks of k take %d floats", n)
	}
	rng := rand.New(rand.NewPCG(8, 8))
	b := newMat(rng, tensor.F32, 20, 40, 40, 0)
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, "packed B of f32 [20, 40] in 100 floats") {
			t.Errorf("too little memory: %q", r)
		}
	}()
	e.PackB(0, make([]float32, 100), b, false)
}
