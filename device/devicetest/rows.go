package devicetest

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// testCutRows: a device that says Info.CutsRows adds up the rows before rows of zeros as it adds up all of them.
func testCutRows(r *rig) {
	if !r.dev.Info().CutsRows {
		r.Skip("the device does not say that it cuts rows")
	}
	const m, n = 17, 19
	for _, s := range []struct{ rows, of int }{{1, 2}, {20, 37}, {650, 700}, {1, 1500}, {937, 1500}, {1152, 2048}} {
		for variant := range 2 {
			for _, d := range types {
				what := fmt.Sprint(s, d, " accumulate ", variant == 1)
				dy, x := r.output("dy", d, s.of, m), r.normal("x", d, s.of, n)
				r.filled(dy, func(i int) float64 {
					if i/m >= s.rows {
						return 0
					}
					return r.rng.NormFloat64()
				})
				begun := make([]float64, m*n)
				for i := range begun {
					begun[i] = r.rng.NormFloat64()
				}
				sum := func(name string, rows, cols int) *matrix {
					return r.filled(r.output(name, tensor.F32, rows, cols), func(i int) float64 { return begun[i] })
				}
				all, first, db, dbFirst := sum("all", m, n), sum("first", m, n), sum("db", 1, m), sum("dbFirst", 1, m)
				f := device.MatMulFlags{TransA: true, Accumulate: variant == 1}
				r.run(func(st device.Stream) {
					st.MatMul(all.Mat, dy.Mat, x.Mat, f)
					st.BiasGrad(db.Mat, dy.Mat)
					f := f
					f.Of = s.of
					rows := dy.RowRange(0, s.rows)
					st.MatMul(first.Mat, rows, x.RowRange(0, s.rows), f)
					st.BiasGrad(dbFirst.Mat, rows)
				})
				r.near(what, all, math.Sqrt(float64(s.of))+1)
				r.near(what, db, math.Sqrt(float64(s.of))+1)
				r.same(what, first, all)
				r.same(what, dbFirst, db)
				r.finish(what)
			}
		}
	}
}
