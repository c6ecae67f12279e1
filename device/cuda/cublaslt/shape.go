package cublaslt

import "fmt"

// shape has all that the choice of an algorithm depends on. Sizes are those of the transposed product, D' = C' +
// op(B)'·op(A)'; the library calls our base C, and our C it calls D.
type shape struct {
	m, n, k                        int
	lda, ldb, ldc, ldd             int
	operands, result               Type
	transA, transB                 bool
	alignA, alignB, alignC, alignD uint32 // bytes that their addresses are multiples of, see alignment
}

// transposed is the shape of C' = op(B)'·op(A)'.
func transposed(p *Product) shape {
	s := shape{m: p.C.Cols, n: p.C.Rows, k: p.A.Cols, lda: p.B.Stride, ldb: p.A.Stride, ldc: p.Base.Stride, ldd: p.C.Stride,
		operands: p.A.Type, result: p.C.Type, transA: p.TransB, transB: p.TransA,
		alignA: alignment(p.B), alignB: alignment(p.A), alignC: alignment(p.Base), alignD: alignment(p.C)}
	if p.TransA {
		s.k = p.A.Rows
	}
	return s
}

// alignment tells the library of an operand's address. It excludes algorithms by it, so the bits of a product would
// depend on where its operands are, if the address alone counted: rows from the 8th on of a matrix with rows of 48
// bytes are aligned to 128 bytes, those from the 16th on to 256. A plan that keeps other rows together would compute
// other bits. So the whole alignment is that of a matrix whose every row has it, and all others have the least one.
func alignment(m Matrix) uint32 {
	if m.At%wholeAlignBytes == 0 && int64(m.Stride)*m.Type.Bytes()%wholeAlignBytes == 0 {
		return wholeAlignBytes
	}
	return AlignBytes
}

// wholeAlignBytes is the library's own default, and no more than device.ArenaAlign.
const wholeAlignBytes = 256

// A choice is a line: the numbers of a shape, and the eight words of the algorithm in hexadecimal.
const (
	shapeFormat     = "%dx%dx%d strides %d %d %d %d types %d %d transposed %t %t aligned %d %d %d %d"
	algorithmFormat = ": %016x %016x %016x %016x %016x %016x %016x %016x"
)

func choiceLine(s shape, a algorithm) string {
	return fmt.Sprintf(shapeFormat+algorithmFormat, s.m, s.n, s.k, s.lda, s.ldb, s.ldc, s.ldd, s.operands, s.result, s.transA, s.transB,
		s.alignA, s.alignB, s.alignC, s.alignD, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7])
}

// parseChoice undoes choiceLine, and takes nothing else.
func parseChoice(line string) (s shape, a algorithm, err error) {
	_, err = fmt.Sscanf(line, shapeFormat+algorithmFormat, &s.m, &s.n, &s.k, &s.lda, &s.ldb, &s.ldc, &s.ldd, &s.operands, &s.result,
		&s.transA, &s.transB, &s.alignA, &s.alignB, &s.alignC, &s.alignD, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6], &a[7])
	if err != nil || choiceLine(s, a) != line {
		return s, a, fmt.Errorf("%.200q does not choose an algorithm", line)
	}
	return s, a, nil
}
