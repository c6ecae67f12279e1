package gemm

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/device/cpu/pool"
	"github.com/millrace/millrace/tensor"
)

// BenchmarkMul measures square products and the three products of linear layers: Y = X W^T, dX = dY W, dW += dY^T X.
func BenchmarkMul(b *testing.B) {
	p := pool.New(runtime.GOMAXPROCS(0), nil)
	defer p.Close()
	for _, s := range []struct {
		name           string
		m, n, k        int
		transA, transB bool
		add            bool
	}{
		{"square/NN", 2048, 2048, 2048, false, false, false},
		{"square/NT", 2048, 2048, 2048, false, true, false},
		{"square/TN", 2048, 2048, 2048, true, false, false},
		{"square/TT", 2048, 2048, 2048, true, true, false},
		{"QKV/Y", 512, 960, 576, false, true, false},
		{"QKV/dX", 512, 576, 960, false, false, false},
		{"QKV/dW", 960, 576, 512, true, false, true},
		{"head/Y", 2048, 6144, 576, false, true, false},
		{"7B/Y", 512, 4096, 4096, false, true, false},
	} {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			for _, level := range isa.Available() {
				if level == isa.Plain && s.m > 1000 {
					continue // seconds
				}
				b.Run(fmt.Sprintf("%s/%v/%v", s.name, d, level), func(b *testing.B) {
					e := New(level, p)
					cd := d
					if s.add {
						cd = tensor.F32
					}
					op := benchOp(d, cd, s.m, s.n, s.k, s.transA, s.transB)
					op.Accumulate = s.add
					for b.Loop() {
						e.Mul(op)
					}
					reportRate(b, &op)
				})
			}
		}
	}
}

// BenchmarkFewRows are products that read more weights than caches hold, as of a pass over few positions.
func BenchmarkFewRows(b *testing.B) {
	p := pool.New(runtime.GOMAXPROCS(0), nil)
	defer p.Close()
	e := New(isa.Best(), p)
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		for _, m := range []int{1, 4, 16, 32} {
			op := benchOp(d, d, m, 49152, 576, false, true)
			for _, way := range []struct {
				name string
				mul  func(Op)
			}{{"few", e.mulFew}, {"many", e.mulMany}} {
				b.Run(fmt.Sprintf("%v/%d/%s", d, m, way.name), func(b *testing.B) {
					for b.Loop() {
						way.mul(op)
					}
					bytes := float64(op.B.Rows*op.B.Cols) * float64(d.Bytes())
					b.ReportMetric(bytes*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
				})
			}
		}
	}
}

// BenchmarkMulSerial measures the small blocks of attention.
func BenchmarkMulSerial(b *testing.B) {
	p := pool.New(1, nil)
	defer p.Close()
	e := New(isa.Best(), p)
	for _, s := range [][3]int{{64, 64, 64}, {64, 256, 64}, {128, 128, 64}, {128, 64, 256}, {256, 128, 256}} {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			for _, transB := range []bool{false, true} {
				b.Run(fmt.Sprintf("%dx%dx%d/transB=%v/%v", s[0], s[1], s[2], transB, d), func(b *testing.B) {
					op := benchOp(d, tensor.F32, s[0], s[1], s[2], false, transB)
					for b.Loop() {
						e.MulSerial(0, op)
					}
					reportRate(b, &op)
				})
			}
		}
	}
}

func benchOp(ab, c tensor.DType, m, n, k int, transA, transB bool) Op {
	rng := rand.New(rand.NewPCG(1, 1))
	mat := func(d tensor.DType, rows, cols int, trans bool) Mat {
		if trans {
			rows, cols = cols, rows
		}
		return newMat(rng, d, rows, cols, cols, 0)
	}
	return Op{A: mat(ab, m, k, transA), B: mat(ab, k, n, transB), C: mat(c, m, n, false), TransA: transA, TransB: transB}
}

func reportRate(b *testing.B, op *Op) {
	m, n, k := op.Shape()
	b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}
