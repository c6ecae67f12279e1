package ptx

import (
	"fmt"
)

// decodeLoadMatrix reads ldmatrix: n 8x8 matrices of 16-bit elements from shared memory. Lane 8j+i names row i of
// matrix j, 16 bytes. Lane l gets elements 2(l%4) and the next of row l/4 of each; with .trans, of column l/4.
func decodeLoadMatrix(a *assembly) {
	a.must("sync")
	a.must("aligned")
	a.must("m8n8")
	n := map[string]int{"x1": 1, "x2": 2, "x4": 4}[a.must("x1", "x2", "x4")]
	isTransposed := a.mod("trans") != ""
	a.must("shared", "shared::cta")
	a.must("b16")
	if !a.count(2) {
		return
	}
	a.in.v = a.written(a.ops[0], n, types["b32"])
	isWide := a.pointer(a.ops[1], sharedSpace)
	a.in.flow = flowCheck
	a.in.exec = full(func(w *warp, in *instr, m uint32) {
		addr := *w.addresses(in, isWide)
		for j, r := range in.v {
			if r == sink {
				continue
			}
			var tile [8][8]uint16
			for i := range tile {
				b := w.at(sharedSpace, addr[8*j+i], 16, 8*j+i, false)
				if b == nil {
					return
				}
				for k := range tile[i] {
					tile[i][k] = uint16(read(b[2*k:], 2))
				}
			}
			d := w.narrow(r)
			for l := range d {
				i, k := l/4, l%4*2
				if isTransposed {
					d[l] = uint32(tile[k][i]) | uint32(tile[k+1][i])<<16
				} else {
					d[l] = uint32(tile[i][k]) | uint32(tile[i][k+1])<<16
				}
			}
		}
	})
}

// full guards an instruction that takes 32 lanes.
func full(f exec) exec {
	return func(w *warp, in *instr, m uint32) {
		if m != all {
			w.fail(lowest(^m), fmt.Errorf("%w: it needs all 32", ErrDivergence))
			return
		}
		f(w, in, m)
	}
}

// A fragment is the layout of a matrix in the registers of a warp: group is lane/4, within is lane%4 (PTX ISA, "matrix
// fragments for mma").
type fragment struct {
	registers int
	// place locates an element: e of register r, of a lane in a group.
	place func(r, e, group, within int) (row, col int)
	// packed counts the elements in a register.
	packed int
}

// mma is a shape of mma.sync with its fragments: A is 16 x k, B is k x 8, C and D are 16 x 8 in float32.
type mma struct {
	k    int
	a, b fragment
}

// Elements of 16 bits, two to a register. A's registers go down first, then right.
func halves(k int) mma {
	return mma{
		k: k,
		a: fragment{k / 4, func(r, e, group, within int) (int, int) { return group + 8*(r&1), 2*within + e + 8*(r>>1) }, 2},
		b: fragment{k / 8, func(r, e, group, within int) (int, int) { return 2*within + e + 8*r, group }, 2},
	}
}

// Elements of 32 bits.
func words(k int) mma {
	return mma{
		k: k,
		a: fragment{k / 2, func(r, _, group, within int) (int, int) { return group + 8*(r&1), within + 4*(r>>1) }, 1},
		b: fragment{k / 4, func(r, _, group, within int) (int, int) { return within + 4*r, group }, 1},
	}
}

// decodeMultiplyMatrix reads mma.sync: D = A*B + C with A of 16 rows in rows and B of 8 columns in columns, float32
// sums.
func decodeMultiplyMatrix(a *assembly) {
	a.must("sync")
	a.must("aligned")
	shape := a.must("m16n8k16", "m16n8k8", "m16n8k4")
	a.must("row")
	a.must("col")
	a.must("f32")
	element := a.must("bf16", "f16", "tf32")
	if a.must("bf16", "f16", "tf32") != element {
		a.fail("matrices of different types are not supported")
	}
	a.must("f32")
	k := map[string]int{"m16n8k16": 16, "m16n8k8": 8, "m16n8k4": 4}[shape]
	if element == "tf32" && k == 16 || element != "tf32" && k == 4 {
		a.fail("shape .%s of .%s is not supported", shape, element)
	}
	if !a.count(4) {
		return
	}
	layout := halves(k)
	if element == "tf32" {
		layout = words(k)
	}
	na, nb := layout.a.registers, layout.b.registers
	ra := a.read(a.ops[1], na, types["b32"])
	rb := a.read(a.ops[2], nb, types["b32"])
	rc := a.read(a.ops[3], 4, types["f32"])
	rd := a.written(a.ops[0], 4, types["f32"])
	left, right := layout.a.places(k), layout.b.places(8)
	a.in.flow = flowCheck
	a.in.exec = full(func(w *warp, in *instr, m uint32) {
		var rows [16 * 16]float32 // A, row after row of k
		var cols [16 * 8]float32  // B, row after row of 8
		for r, places := range left {
			gather(rows[:], w.narrow(ra[r]), places, element)
		}
		for r, places := range right {
			gather(cols[:], w.narrow(rb[r]), places, element)
		}
		var sums [16][8]float32
		for i, r := range rc {
			x := w.narrow(r)
			for l := range x {
				sums[l/4+8*(i>>1)][l%4*2+i&1] = f32(x[l])
			}
		}
		for i := range sums {
			sums[i] = multiplyRow(sums[i], rows[i*k:(i+1)*k], &cols)
		}
		for i, r := range rd {
			if r == sink {
				continue
			}
			x := w.narrow(r)
			for l := range x {
				x[l] = bits32(sums[l/4+8*(i>>1)][l%4*2+i&1])
			}
		}
	})
}

// multiplyRow adds the products of a row of A with B, one by one.
func multiplyRow(sums [8]float32, row []float32, b *[16 * 8]float32) [8]float32 {
	s0, s1, s2, s3, s4, s5, s6, s7 := sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]
	for j, x := range row {
		y := (*[8]float32)(b[8*(j&15):])
		s0 += float32(x * y[0])
		s1 += float32(x * y[1])
		s2 += float32(x * y[2])
		s3 += float32(x * y[3])
		s4 += float32(x * y[4])
		s5 += float32(x * y[5])
		s6 += float32(x * y[6])
		s7 += float32(x * y[7])
	}
	return [8]float32{s0, s1, s2, s3, s4, s5, s6, s7}
}

// places lists where in a matrix with rows of cols the elements of each register go: of 32 lanes, then of 32 lanes
// their next.
func (f fragment) places(cols int) [][]uint8 {
	list := make([][]uint8, f.registers)
	for r := range list {
		for e := range f.packed {
			for l := range lanes {
				row, col := f.place(r, e, l/4, l%4)
				list[r] = append(list[r], uint8(row*cols+col))
			}
		}
	}
	return list
}

// gather puts the elements of a register into a matrix.
func gather(matrix []float32, x *[lanes]uint32, places []uint8, element string) {
	switch element {
	case "tf32":
		for l, at := range places[:lanes] {
			matrix[at] = f32(x[l] &^ 0x1fff) // what is below is ignored
		}
	case "bf16":
		low, high := places[:lanes], places[lanes:2*lanes]
		for l := range x {
			matrix[low[l]] = f32(x[l] << 16)
			matrix[high[l]] = f32(x[l] &^ 0xffff)
		}
	default:
		low, high := places[:lanes], places[lanes:2*lanes]
		for l := range x {
			matrix[low[l]] = float32(f16(x[l]))
			matrix[high[l]] = float32(f16(x[l] >> 16))
		}
	}
}
