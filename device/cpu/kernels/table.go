package kernels

import (
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
)

// Table is the set of kernels of one instruction-set level. Its methods differ between levels in speed only.
type Table struct {
	level isa.Level
	loops
	blockLoops
	codeLoops
}

// Level is the instruction set that the table was asked for. A kernel that has no assembly for it runs in the best
// lower one that it has.
func (t *Table) Level() isa.Level { return t.level }

// For is the table of a level, which this machine must have (isa.Available).
func For(level isa.Level) *Table { return &tables[level] }

var tables = func() (all [isa.AMX + 1]Table) {
	for l := range all {
		all[l] = Table{isa.Level(l), plainLoops, plainBlockLoops, plainCodeLoops}
		accelerate(&all[l].loops, isa.Level(l))
		accelerateBlocks(&all[l].blockLoops, isa.Level(l))
		accelerateCodes(&all[l].codeLoops, isa.Level(l))
	}
	return all
}()

// Loops of gated units, and of those with limits, and of their gradients.
type (
	gatedLoop       = [2]func(h, gate, up unsafe.Pointer, n int)
	gatedGradLoop   = [2]func(dgate, dup, h, dh, gate, up unsafe.Pointer, n int)
	limitedLoop     = [2]func(h, gate, up unsafe.Pointer, n int, alpha, limit float32)
	limitedGradLoop = [2]func(dgate, dup, h, dh, gate, up unsafe.Pointer, n int, alpha, limit float32)
)

// loops are the inner loops: over n elements without gaps, for a short time. Pairs are indexed by kind.
type loops struct {
	adamwSplit [2]func(hi, lo, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (bad int, longest uint32)
	// words are random ones, one for each parameter.
	adamwSplit24 [2]func(hi, lo, m, v, g, words unsafe.Pointer, n int, s *AdamWScalars) (bad int, longest uint32)
	adamwF32     func(p, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (bad int, longest uint32)

	sumSquares [2]func(x unsafe.Pointer, n int) float64
	sum        func(x unsafe.Pointer, n int) float64

	toBF16 func(dst, src unsafe.Pointer, n int)
	toF32  func(dst, src unsafe.Pointer, n int)
	split  func(hi, lo, src unsafe.Pointer, n int) int
	join   func(dst, hi, lo unsafe.Pointer, n int)

	add   [2]func(dst, a, b unsafe.Pointer, n int)
	addTo [2]func(dst, a unsafe.Pointer, n int)
	scale [2]func(dst, a unsafe.Pointer, n int, s float32)

	addScaled [2]func(dst, a unsafe.Pointer, n int, s float32)

	normSquares [2]func(x unsafe.Pointer, n int) float32
	normApply   [2]func(y, x, w unsafe.Pointer, n int, rstd float32)
	normDot     [2]func(x, w, dy unsafe.Pointer, n int, rstd float32) float32
	normGrad    [2]func(dx, x, w, dy unsafe.Pointer, n int, rstd, mean float32)
	normGradAdd [2]func(dx, residual, x, w, dy unsafe.Pointer, n int, rstd, mean float32)
	normWeight  [2]func(dw, x, dy unsafe.Pointer, n int, rstd float32)

	rotate [2]func(y0, y1, x0, x1, cos, sin unsafe.Pointer, n int, sign float32)

	swiglu, geglu         gatedLoop
	swigluGrad, gegluGrad gatedGradLoop

	gate     [2]func(y, x, gate unsafe.Pointer, n int)
	gateGrad [2]func(dx, dgate, dy, x, gate unsafe.Pointer, n int)

	limited     limitedLoop
	limitedGrad limitedGradLoop

	max       func(x unsafe.Pointer, n int) float32
	sumExp    func(x unsafe.Pointer, n int, max float32) (sum, below float32)
	expMul    [2]func(dst, x unsafe.Pointer, n int, max, factor float32)
	expSum    [2]func(dst, x unsafe.Pointer, n int, scale, max float32) float32
	dot       [2]func(a, b unsafe.Pointer, n int) float32
	scoreGrad [2]func(ds, p, s, dp unsafe.Pointer, n int, scale, lse, delta float32)
}

// piece is the most elements that one call into assembly gets: the slowest loop takes some 20 us for them.
const piece = 16384
