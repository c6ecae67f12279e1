package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/tensor"
)

// Every family of products, on shapes that fill no tile and several, with sizes that divide nothing where the kernel
// allows it.
func testMatMul(t *testing.T, on *backend) {
	for _, c := range []struct {
		form       string // "" for any
		in, out    tensor.DType
		m, n, k    int
		transA     bool
		transB     bool
		accumulate bool
		apart      bool // what it is added to is another matrix
	}{
		{"nn.", tensor.BF16, tensor.BF16, 131, 144, 80, false, false, false, false},
		{"nn.", tensor.BF16, tensor.F32, 33, 48, 32, false, false, false, false},
		{"nt.", tensor.BF16, tensor.F32, 129, 16, 144, false, true, true, true},
		{"tn.", tensor.BF16, tensor.BF16, 272, 144, 65, true, false, false, false},
		{"tn.", tensor.BF16, tensor.F32, 144, 32, 77, true, false, true, false},
		{"nt.", tensor.BF16, tensor.BF16, 1, 272, 16, false, true, true, true},
		{"nn.", tensor.F32, tensor.F32, 67, 80, 48, false, false, true, true},
		{"nt.", tensor.F32, tensor.F32, 65, 16, 32, false, true, false, false},
		{"tn.", tensor.F32, tensor.F32, 80, 64, 33, true, false, true, false},
		{"", tensor.BF16, tensor.BF16, 67, 70, 71, false, false, true, true},
		{"", tensor.BF16, tensor.F32, 5, 130, 33, true, true, false, false},
		{"", tensor.F32, tensor.BF16, 35, 37, 65, false, true, true, false},
		{"", tensor.F32, tensor.F32, 3, 1, 100, true, false, false, false},
		{"", tensor.F32, tensor.F32, 3, 5, 0, false, false, true, true},
	} {
		name := fmt.Sprintf("matmul.%s.%s.%s", typeWord(c.in), typeWord(c.out), c.form)
		t.Run(fmt.Sprintf("%s%dx%dx%d", name, c.m, c.n, c.k), func(t *testing.T) {
			b := benchFor(t, on, uint64(c.m*c.n+c.k))
			operand := func(rows, cols int, trans bool) *field {
				if trans {
					rows, cols = cols, rows
				}
				pad := 3
				if c.form != "" {
					pad = 16
				}
				return b.normal(c.in, max(rows, 1), max(cols, 1), max(cols, 1)+pad)
			}
			a, x := operand(c.m, c.k, c.transA).apart(longStride), operand(c.k, c.n, c.transB).apart(longStride)
			out := b.normal(c.out, c.m, c.n, c.n+16).apart(longStride)
			base := out
			if c.apart {
				base = b.normal(c.out, c.m, c.n, c.n+32).apart(longStride)
			}
			left, right := b.of(a), b.of(x)
			if c.k == 0 {
				left, right = left.ColRange(0, 0), right.RowRange(0, 0)
			}
			flags := device.MatMulFlags{TransA: c.transA, TransB: c.transB, Accumulate: c.accumulate}
			if c.apart {
				flags.Onto = b.of(base)
			}
			b.ref.MatMul(b.of(out), left, right, flags)
			args := []any{out, base, a, x, c.m, c.n, c.k, out.stride, base.stride, a.stride, x.stride}
			if c.form == "" {
				args = append(args, bit(c.transA), bit(c.transB))
			}
			b.run(name+map[bool]string{true: "any", false: "a16"}[c.form == ""], append(args, bit(c.accumulate))...)
			allowed := devicetest.ToleranceOf(c.out).Rel
			b.compare("product", out, b.wanted(out), func(w float64) float64 {
				return allowed*math.Abs(w) + 2e-6*math.Sqrt(float64(c.k)+1)
			})
			if !out.intact() {
				t.Error("it writes between the rows")
			}
		})
	}
}

func typeWord(d tensor.DType) string {
	if d == tensor.BF16 {
		return "bf16"
	}
	return "f32"
}

func pick(f *field, r, c int, trans bool) float64 {
	if trans {
		r, c = c, r
	}
	return f.get(r, c)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
