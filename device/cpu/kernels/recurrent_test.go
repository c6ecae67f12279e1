package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// The operations around gated delta nets have the same bits at all levels, and however work is cut into ranges: here
// those of one call in plain Go. The suite of all devices holds the numbers against float64.

// sameAs fails unless two arrays are equal, bit by bit. All NaNs are equal: those between rows.
func (a array) sameAs(t *testing.T, what string, b array) {
	t.Helper()
	for r := range a.Rows {
		for c := range a.Cols {
			if x, y := a.at(r, c), b.at(r, c); math.Float64bits(x) != math.Float64bits(y) {
				t.Fatalf("%s[%d, %d] is %v, in one call of plain Go %v", what, r, c, x, y)
			}
		}
	}
}

// againstPlain calls f for every level and type with numbers that are always the same, and compares what it returns.
func againstPlain(t *testing.T, f func(k *Table, d tensor.DType, rng *rand.Rand, pieces bool) []array) {
	forAll(t, func(t *testing.T, k *Table, d tensor.DType, _ *rand.Rand) {
		seeded := func() *rand.Rand { return rand.New(rand.NewPCG(7, 8)) }
		want := f(For(isa.Plain), d, seeded(), false)
		for i, got := range f(k, d, seeded(), true) {
			got.sameAs(t, fmt.Sprint("result ", i), want[i])
		}
	})
}

// pieces calls f for ranges that cover [0, n), or for all of it.
func pieces(cut bool, n int, f func(lo, hi int)) {
	if !cut {
		f(0, n)
		return
	}
	for lo, size := 0, 1; lo < n; lo, size = lo+size, size+2 {
		f(lo, min(lo+size, n))
	}
}

func TestConv(t *testing.T) {
	const rows, cols = 37, 45
	start := make([]int32, rows)
	for r := range start {
		for _, first := range []int{0, 1, 3, 20} {
			if r >= first {
				start[r] = int32(first)
			}
		}
	}
	for _, taps := range []int{1, 4, device.MostTaps} {
		againstPlain(t, func(k *Table, d tensor.DType, rng *rand.Rand, cut bool) []array {
			x, dy := newArray(d, rows, cols, 3, normal(rng)), newArray(d, rows, cols, 0, normal(rng))
			w, dw := newArray(d, cols, taps, 1, normal(rng)), newArray(tensor.F32, cols, taps, 2, normal(rng))
			y, dx := newArray(d, rows, cols, 1, nan), newArray(d, rows, cols, 2, nan)
			a := &Conv{X: x.Mat, Y: y.Mat, W: w.Mat, Start: start, DX: dx.Mat, DY: dy.Mat, DW: dw.Mat}
			pieces(cut, rows, func(row0, row1 int) {
				pieces(cut, cols, func(col0, col1 int) { k.ConvForward(a, row0, row1, col0, col1) })
			})
			pieces(cut, cols, func(lo, hi int) { k.ConvBackward(a, rows, lo, hi) })
			return []array{y, dx, dw}
		})
	}
}

func TestGate(t *testing.T) {
	const rows = 5
	for _, s := range []struct{ gates, each int }{{45, 1}, {2500, 1}, {3, 15}, {1, 77}} {
		for _, kind := range []device.GateKind{device.SigmoidGate, device.SiLUGate} {
			againstPlain(t, func(k *Table, d tensor.DType, rng *rand.Rand, cut bool) []array {
				cols := s.gates * s.each
				x, dy := newArray(d, rows, cols, 3, normal(rng)), newArray(d, rows, cols, 1, normal(rng))
				gate, y := newArray(d, rows, s.gates, 2, normal(rng)), newArray(d, rows, cols, 0, nan)
				a := &Gate{X: x.Mat, Y: y.Mat, Gate: gate.Mat, Kind: kind, DY: dy.Mat, DX: dy.Mat, DGate: gate.Mat}
				pieces(cut, rows, func(lo, hi int) { k.GateForward(a, lo, hi) })
				pieces(cut, rows, func(lo, hi int) { k.GateBackward(a, lo, hi) })
				return []array{y, dy, gate}
			})
		}
	}
}

func TestDeltaGates(t *testing.T) {
	const rows = 11
	for _, heads := range []int{1, 5, 70} {
		againstPlain(t, func(k *Table, d tensor.DType, rng *rand.Rand, cut bool) []array {
			a, b := newArray(d, rows, heads, 3, normal(rng)), newArray(d, rows, heads, 1, normal(rng))
			aLog, dt := newArray(d, 1, heads, 0, normal(rng)), newArray(d, 1, heads, 0, normal(rng))
			f32 := func(rows int) array { return newArray(tensor.F32, rows, heads, 0, normal(rng)) }
			decay, beta, ddecay, dbeta, dlog, ddt := f32(rows), f32(rows), f32(rows), f32(rows), f32(1), f32(1)
			da, db := newArray(d, rows, heads, 2, nan), newArray(d, rows, heads, 0, nan)
			g := &DeltaGates{A: a.Mat, B: b.Mat, ALog: aLog.vec(), DtBias: dt.vec(), Decay: decay.f, Beta: beta.f,
				DDecay: ddecay.f, DBeta: dbeta.f, DA: da.Mat, DB: db.Mat, DALog: dlog.f, DDt: ddt.f}
			pieces(cut, rows, func(lo, hi int) { k.DeltaGatesForward(g, lo, hi) })
			pieces(cut, heads, func(lo, hi int) { k.DeltaGatesBackward(g, rows, lo, hi) })
			return []array{decay, beta, da, db, dlog, ddt}
		})
	}
}
