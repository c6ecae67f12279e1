package gemm

import (
	"unsafe"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/tensor"
)

// tilesInGo is kernelAMX with plain Go in place of the instructions for tiles, on the panels that it packs: whatever
// else it does is tested on CPUs without AMX.
type tilesInGo struct{ kernelAMX }

func (tilesInGo) tile(_ *worker, _ bool, units int, a, b, c unsafe.Pointer, ldc uintptr, rows, cols int, add bool) {
	steps := ceilDiv(units, 16)
	as, bs := unsafe.Slice((*[32][32]uint16)(a), steps), unsafe.Slice((*[16][32][2]uint16)(b), steps)
	sums := make([]float32, 32*32)
	for i := range rows {
		panelRow(sums[32*i:32*i+cols], as, bs, i)
	}
	writeTile(c, ldc, sums, 32, rows, cols, add)
}

// panelRow is a row of the sums of two packed panels.
func panelRow(sums []float32, a [][32][32]uint16, b [][16][32][2]uint16, i int) {
	for j := range sums {
		for s := range a {
			var parts [2]float32
			for l := range 32 {
				x, y := tensor.F32FromBF16(a[s][i][l]), tensor.F32FromBF16(b[s][l/2][j][l%2])
				parts[l%2] = fma32(flush(x), flush(y), parts[l%2], true)
			}
			sums[j] = flush(sums[j] + flush(parts[0]+parts[1]))
		}
	}
}

// kernelsAt are a level's, AMX's in Go where this CPU has AVX-512 alone.
func kernelsAt(level isa.Level) kernels {
	if level == isa.AMX && isa.Highest() < isa.AMX {
		return kernels{kernel512{}, tilesInGo{}}
	}
	return kernelsFor(level)
}

// levelsHere lists the levels that kernelsAt has.
func levelsHere() []isa.Level {
	all := isa.Available()
	if h := isa.Highest(); h >= isa.AVX512 && h < isa.AMX {
		all = append(all, isa.AMX)
	}
	return all
}
