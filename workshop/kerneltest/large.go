package kerneltest

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/tensor"
)

// Shapes of models of 7B to 70B parameters, on a GPU; the interpreter, which would take hours, gets small ones, so that
// all of a test but its sizes is tried without a GPU. The tests compare sampled rows and columns of products, and all
// of attention: enough to see any wrong block.

// testLargeMatMul multiplies as the projections of a block of a 7B model do.
func testLargeMatMul(t *testing.T, on *backend) {
	type product struct {
		form    string
		in, out tensor.DType
		m, n, k int
	}
	cases := []product{
		{"nt", tensor.BF16, tensor.BF16, 2048, 4608, 3584}, {"nn", tensor.BF16, tensor.BF16, 2048, 3584, 4608},
		{"tn", tensor.BF16, tensor.F32, 4608, 3584, 2048}, {"nt", tensor.BF16, tensor.F32, 1003, 3584, 2064},
		{"tn", tensor.BF16, tensor.BF16, 1040, 528, 1999}, {"nn", tensor.BF16, tensor.F32, 777, 2064, 1040},
		{"nt", tensor.F32, tensor.F32, 515, 1040, 1024}, {"nn", tensor.F32, tensor.F32, 515, 1040, 1024}, {"tn", tensor.F32, tensor.F32, 528, 1040, 515},
	}
	if on.gpu == nil {
		cases = []product{
			{"nt", tensor.BF16, tensor.BF16, 77, 80, 48}, {"nn", tensor.F32, tensor.F32, 41, 48, 32},
			{"tn", tensor.BF16, tensor.F32, 80, 48, 41},
		}
	}
	for _, c := range cases {
		name := fmt.Sprintf("matmul.%s.%s.%s.a16", typeWord(c.in), typeWord(c.out), c.form)
		t.Run(fmt.Sprintf("%s %dx%dx%d", name, c.m, c.n, c.k), func(t *testing.T) {
			b := benchFor(t, on, uint64(c.m+c.n+c.k))
			b.large = true
			transA, transB := c.form[0] == 't', c.form[1] == 't'
			operand := func(rows, cols int, trans bool) *field {
				if trans {
					rows, cols = cols, rows
				}
				return b.normal(c.in, rows, cols, cols)
			}
			a, x := operand(c.m, c.k, transA), operand(c.k, c.n, transB)
			out := b.normal(c.out, c.m, c.n, c.n+16)
			const every = 37 // rows and columns; all tiles have some
			rows, cols := (c.m+every-1)/every, (c.n+every-1)/every
			want := make([]float64, rows*cols)
			each(rows, func(r int) {
				for j := range cols {
					want[r*cols+j] = out.get(r*every, j*every)
					for l := range c.k {
						want[r*cols+j] += pick(a, r*every, l, transA) * pick(x, l, j*every, transB)
					}
				}
			})
			b.run(name, out, out, a, x, c.m, c.n, c.k, out.stride, out.stride, a.stride, x.stride, 1)
			got := b.field(tensor.F64, rows, cols, cols)
			for r := range rows {
				for j := range cols {
					got.putF64(r, j, out.get(r*every, j*every))
				}
			}
			rel := devicetest.ToleranceOf(c.out).Rel
			// Tensor cores take 16 products at a time and truncate each sum, which grows like the root of its length.
			sum := math.Sqrt(float64(c.k))
			allowed := max(4e-6, 0x1p-23*float64(c.k)/16) * sum
			b.compare("sampled products", got, want, func(w float64) float64 { return rel*math.Abs(w) + allowed })
			if !out.intact() {
				t.Error("it writes between the rows")
			}
		})
	}
}

// testLargeAttention has heads of real models, over documents that are longer than many blocks.
func testLargeAttention(t *testing.T, on *backend) {
	cases := []*attentionCase{
		{head: 64, headDim: 64, heads: 6, kvHeads: 2, lengths: []int{1024, 7, 517}},
		{head: 128, headDim: 128, heads: 4, kvHeads: 1, splits: 4, lengths: []int{1100, 33}},
		{head: 128, headDim: 128, heads: 8, kvHeads: 8, lengths: []int{600}},
		{head: 128, headDim: 128, heads: 2, kvHeads: 1, window: 300, lengths: []int{1024}},
		{head: 256, headDim: 256, heads: 2, kvHeads: 1, lengths: []int{700}},
		{head: 80, headDim: 80, heads: 2, kvHeads: 2, lengths: []int{700}},
		{head: 96, headDim: 96, heads: 2, kvHeads: 1, lengths: []int{700}},
		{head: 64, headDim: 64, heads: 8, kvHeads: 1, splits: 4, sunk: true, window: 128, lengths: []int{1024, 7, 517}},
		{head: 64, headDim: 64, heads: 4, kvHeads: 2, softCap: 50, lengths: []int{1100}},
		{head: 128, headDim: 128, heads: 4, kvHeads: 2, softCap: 50, window: 300, lengths: []int{1024}},
		{head: 256, headDim: 256, heads: 2, kvHeads: 1, softCap: 50, sunk: true, lengths: []int{700}},
	}
	if on.gpu == nil {
		cases = []*attentionCase{
			{head: 64, headDim: 64, heads: 4, kvHeads: 2, splits: 2, sunk: true, window: 16, softCap: 50,
				lengths: []int{33, 7}},
		}
	}
	for _, c := range cases {
		c.variant, c.dtype, c.large = "a16", tensor.BF16, true
		t.Run(fmt.Sprintf("%d of %d, %d of keys, window %d, soft cap %g, documents %v", c.heads, c.headDim, c.kvHeads, c.window, c.softCap, c.lengths),
			func(t *testing.T) { c.run(t, on) })
	}
}

// testLargeExperts multiplies as the experts of a model do: some have many rows, and blocks are several tiles.
func testLargeExperts(t *testing.T, on *backend) {
	const every = 37
	k, n, tokens, rowsOfBlock, blocks := 2048, 1536, 3000, 256, 60
	if on.gpu == nil {
		k, n, tokens, rowsOfBlock, blocks = 80, 48, 60, 16, 9
	}
	for _, d := range types {
		b := benchFor(t, on, 14)
		b.large = true
		m := routedOf(b, tokens, 8, rowsOfBlock, 1, blocks)
		a, w, c := m.matrix(b, d, k, k), b.normal(d, m.Experts*n, k, k), m.matrix(b, d, n, n+16)
		dw := b.normal(tensor.F32, m.Experts*n, k, k)
		rows, cols := (m.Rows*m.Count+every-1)/every, (n+every-1)/every
		product := make([]float64, rows*cols)
		each(rows, func(r int) {
			for j := range cols {
				if e := int(m.of[r*every]); e >= 0 {
					for l := range k {
						product[r*cols+j] += a.get(r*every, l) * w.get(e*n+j*every, l)
					}
				} else {
					product[r*cols+j] = c.get(r*every, j*every)
				}
			}
		})
		wide := (k + every - 1) / every
		gradient := make([]float64, m.Experts*cols*wide)
		for i := range gradient {
			gradient[i] = dw.get(i/(cols*wide)*n+i/wide%cols*every, i%wide*every)
		}
		name := typeWord(d)
		b.run("expert_matmul."+name+".nt.a16", slices.Concat([]any{c, a, w, a}, m.args(), []any{n, k, 0, 0, c.stride,
			a.stride, w.stride, 0})...)
		sampled := func(of *field, rows, cols int, at func(r int) int) *field {
			got := b.field(tensor.F64, rows, cols, cols)
			for r := range rows {
				for j := range cols {
					got.putF64(r, j, of.get(at(r), j*every))
				}
			}
			return got
		}
		rel := devicetest.ToleranceOf(d).Rel
		allowed := func(n int, rel float64) func(w float64) float64 {
			sum := math.Sqrt(float64(n))
			return func(w float64) float64 { return rel*math.Abs(w) + max(4e-6, 0x1p-23*float64(n)/16)*sum }
		}
		b.compare("sampled products", sampled(c, rows, cols, func(r int) int { return r * every }), product,
			allowed(k, rel))
		// The gradient takes what was multiplied, as it is stored.
		each(m.Experts*cols, func(i int) {
			e, out := i/cols, i%cols*every
			for row, of := range m.of {
				for j := 0; j < wide && int(of) == e; j++ {
					gradient[i*wide+j] += c.get(row, out) * a.get(row, j*every)
				}
			}
		})
		b.run("expert_weight_grad."+name+".a16",
			slices.Concat([]any{dw, c, a}, m.args(), []any{min(m.Experts, m.Count), n, k, dw.stride, c.stride,
				a.stride})...)
		// Numbers of c are as large as the root of k.
		grad := allowed(m.Routing.Rows, 4e-6)
		b.compare("sampled gradients", sampled(dw, m.Experts*cols, wide, func(r int) int {
			return r/cols*n +
				r%cols*every
		}), gradient,
			func(w float64) float64 { return math.Sqrt(float64(k)) * grad(w) })
	}
}

// each calls f for 0 to n-1, all at once.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f(i)
		}()
	}
	wg.Wait()
}
