package devicetest

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/device"
)

// testHeads joins heads of two matrices and takes them apart again: each with a second part of its own, all with one
// that they share, and without.
func testHeads(r *rig) {
	type heads struct{ rows, heads, first, rest int }
	cases := []heads{{1, 1, 1, 1}, {17, 3, 5, 4}, {37, 9, 64, 32}, {130, 2, 7, 600}, {300, 20, 16, 3}}
	if r.suite.Align > 0 {
		cases = append(cases, heads{19, 16, 128, 64}, heads{3, 128, 128, 64}, heads{7, 20, 192, 64})
	}
	for _, s := range cases {
		for _, d := range types {
			for _, b := range []struct {
				name string
				cols int
			}{{"of its own", s.heads * s.rest}, {"shared", s.rest}, {"none", 0}} {
				what := fmt.Sprintf("%v %+v %s", d, s, b.name)
				width := s.first + s.rest
				first := r.normal("a", d, s.rows, s.heads*s.first)
				rest, dRest := &matrix{}, &matrix{}
				if b.cols > 0 {
					rest, dRest = r.normal("b", d, s.rows, b.cols), r.output("db", d, s.rows, b.cols)
				}
				y, dy := r.output("y", d, s.rows, s.heads*width), r.normal("dy", d, s.rows, s.heads*width)
				dFirst := r.output("da", d, s.rows, s.heads*s.first)
				r.run(func(st device.Stream) {
					st.JoinHeads(y.Mat, first.Mat, rest.Mat, s.heads)
					st.SplitHeads(dFirst.Mat, dRest.Mat, dy.Mat, s.heads)
				})
				r.exact(what, y)
				r.exact(what, dFirst)
				switch {
				case b.cols == 0:
				case b.cols == s.heads*s.rest: // nothing is added up
					r.exact(what, dRest)
				default:
					r.near(what, dRest, math.Sqrt(float64(s.heads)))
				}
				r.finish(what)
			}
		}
	}
}
