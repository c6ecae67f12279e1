package kerneltest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/tensor"
)

// deltaCase is a gated delta net, all its operands, and what it should give.
type deltaCase struct {
	dtype                             tensor.DType
	variant                           string // a16 or any
	keyHeads, heads, keyDim, valueDim int
	lengths                           []int // of the documents
	atOnce                            int   // chunks of a launch

	rows, chunks                             int
	starts, ends                             []int32
	qkv, decay, beta, dout, start, end       *field
	out, states, dqkv, ddecay, dbeta, solved *field
	dstates                                  *field
}

const deltaChunk = 64

// Every kernel of gated delta nets, over chunks with several documents, in stretches of chunks.
func testDelta(t *testing.T, on *backend) {
	for _, c := range []*deltaCase{
		{variant: "any", keyHeads: 1, heads: 2, keyDim: 6, valueDim: 10, lengths: []int{30, 2, 50, 61}, atOnce: 2},
		{variant: "any", keyHeads: 1, heads: 1, keyDim: 20, valueDim: 33, lengths: []int{70}, atOnce: 2},
		{variant: "a16", keyHeads: 1, heads: 2, keyDim: 128, valueDim: 64, lengths: []int{66, 9}, atOnce: 1},
		{variant: "a16", keyHeads: 1, heads: 1, keyDim: 128, valueDim: 128, lengths: []int{40, 30}, atOnce: 2},
	} {
		for _, d := range types {
			if c.variant == "a16" && d == tensor.F32 {
				continue
			}
			c.dtype = d
			name := fmt.Sprintf("%s.%s, heads of %d and %d, documents %v", typeWord(d), c.variant, c.keyDim, c.valueDim,
				c.lengths)
			t.Run(name, func(t *testing.T) { c.run(t, on) })
		}
	}
}

func (c *deltaCase) run(t *testing.T, on *backend) {
	b := benchFor(t, on, uint64(c.keyDim))
	c.make(b)
	suffix, plain := "."+typeWord(c.dtype)+"."+c.variant, "."+typeWord(c.dtype)
	terms, past := c.variant == "a16", 2*deltaChunk*deltaChunk
	if terms {
		past += deltaChunk*deltaChunk/2 + 4*deltaChunk + 16
	}
	each := past + 2*deltaChunk*c.valueDim
	read := []any{c.qkv, c.decay, c.beta}
	// name is that of a kernel that has another one where T is in terms.
	name := func(op string) string {
		if terms && !strings.HasSuffix(op, "_queries") && !strings.HasSuffix(op, "_keys") {
			return op + "_terms" + plain
		}
		return op + suffix
	}
	stretches := func(backward bool, f func(all, heads []any)) {
		for done := 0; done < c.chunks; done += c.atOnce {
			count := min(c.atOnce, c.chunks-done)
			first := done
			if backward {
				first = c.chunks - done - count
			}
			some := []any{first, count, each}
			b.run(name("delta_solve"), slices.Concat([]any{c.solved}, read,
				[]any{c.start, c.rows, c.keyHeads, c.heads, c.keyDim}, some, []any{c.qkv.stride})...)
			f(append([]any{c.rows, c.chunks, c.keyHeads, c.heads, c.keyDim, c.valueDim}, some...),
				append([]any{c.keyHeads, c.heads, c.valueDim}, some...))
		}
	}
	stretches(false, func(all, heads []any) {
		if terms {
			b.run(name("delta_scan"), slices.Concat([]any{c.states, c.solved, c.qkv, c.start, c.end, c.rows, c.chunks}, heads,
				[]any{c.qkv.stride})...)
			b.run(name("delta_out"), slices.Concat([]any{c.out, c.states, c.solved, c.qkv, c.rows}, heads,
				[]any{c.out.stride, c.qkv.stride})...)
			return
		}
		b.run("delta_scan"+suffix, slices.Concat([]any{c.states, c.solved}, read, []any{c.start}, all,
			[]any{c.qkv.stride})...)
		b.run("delta_out"+suffix, slices.Concat([]any{c.out, c.states, c.solved}, read,
			[]any{c.start}, all, []any{c.out.stride, c.qkv.stride})...)
	})
	stretches(true, func(all, heads []any) {
		if terms {
			b.run("delta_before"+plain, c.solved, c.dout, c.rows, c.heads, c.valueDim, all[6], all[7], each, past, c.dout.stride)
			b.run(name("delta_scan_grad"), slices.Concat([]any{c.dstates, c.solved, c.dout, c.qkv, c.start, c.rows, c.chunks},
				heads, []any{past, c.dout.stride, c.qkv.stride})...)
		} else {
			b.run("delta_scan_grad"+suffix, slices.Concat([]any{c.dstates, c.solved, c.dout}, read, []any{c.start}, all,
				[]any{c.dout.stride, c.qkv.stride})...)
		}
		last := slices.Concat([]any{c.states, c.start}, all)
		strides := []any{c.dqkv.stride, c.dout.stride, c.qkv.stride}
		b.run(name("delta_grad_values"), slices.Concat([]any{c.dqkv, c.ddecay, c.dbeta, c.dstates, c.solved, c.dout},
			read, last, []any{past}, strides)...)
		b.run("delta_grad_queries"+suffix, slices.Concat([]any{c.dqkv, c.solved, c.dout, c.qkv, c.decay}, last, strides)...)
		b.run("delta_grad_keys"+suffix, slices.Concat([]any{c.dqkv, c.dstates, c.solved}, read, last,
			[]any{past, c.dqkv.stride, c.qkv.stride})...)
	})
	for _, r := range c.reference() {
		most := 1.0
		for _, x := range r.want {
			most = max(most, math.Abs(x))
		}
		// 64 roundings of fp32, as in test_delta.py. A result in bf16 is half a unit of its last place off.
		limit := 64.0 / (1 << 24)
		if r.got.dtype == tensor.BF16 {
			limit += 1.0 / 256
		}
		b.compareOf(name(r.kernel), r.name, r.got, r.want, within(limit*most))
		if !r.got.intact() {
			t.Errorf("%s is written between the rows", r.name)
		}
	}
}

// make lays the operands out. Decays are of all sizes; those of some rows leave nothing of a state.
func (c *deltaCase) make(b *bench) {
	c.starts, c.ends = nil, nil
	for _, n := range c.lengths {
		first := int32(len(c.starts))
		for range n {
			c.starts, c.ends = append(c.starts, first), append(c.ends, first+int32(n))
		}
	}
	c.rows = len(c.starts)
	c.chunks = (c.rows + deltaChunk - 1) / deltaChunk
	pad := map[string]int{"any": 3, "a16": 16}[c.variant]
	values := c.heads * c.valueDim
	cols := 2*c.keyHeads*c.keyDim + values
	c.qkv, c.dqkv = b.normal(c.dtype, c.rows, cols, cols+pad), b.field(c.dtype, c.rows, cols, cols+pad)
	c.out, c.dout = b.field(c.dtype, c.rows, values, values+pad), b.normal(c.dtype, c.rows, values, values+pad)
	dense := func(rows, cols int) *field { return b.field(tensor.F32, rows, cols, cols) }
	c.decay, c.beta, c.ddecay, c.dbeta = dense(c.rows, c.heads), dense(c.rows, c.heads), dense(c.rows, c.heads),
		dense(c.rows, c.heads)
	for r := range c.rows {
		for h := range c.heads {
			size := [...]float64{0.01, 0.3, 0.001, 1, 0, 0.1, 0.05}[(r+h)%7]
			if r%53 == 31 {
				size = 200
			}
			c.decay.put(r, h, -size*b.rng.Float64())
			c.beta.put(r, h, b.rng.Float64())
		}
	}
	state := c.heads * c.keyDim * c.valueDim
	c.states, c.dstates = dense(c.chunks, state), dense(c.chunks, state)
	c.solved = dense(c.atOnce*c.heads, 5*deltaChunk*deltaChunk+2*deltaChunk*c.valueDim) // more than T in terms takes
	c.start, c.end = b.ints(c.starts), b.ints(c.ends)
}

// deltaResult holds the numbers that a kernel wrote, and those that it should have written.
type deltaResult struct {
	kernel, name string
	got          *field
	want         []float64
}

// reference carries out the recurrence row by row in float64.
func (c *deltaCase) reference() []deltaResult {
	results := []deltaResult{{"delta_out", "out", c.out, nil}, {"delta_scan", "states", c.states, nil},
		{"delta_grad_keys", "dqkv", c.dqkv, nil}, {"delta_grad_values", "ddecay", c.ddecay, nil},
		{"delta_grad_values", "dbeta", c.dbeta, nil}, {"delta_scan_grad", "dstates", c.dstates, nil}}
	for i, r := range results {
		results[i].want = make([]float64, r.got.rows*r.got.cols)
	}
	for h := range c.heads {
		c.head64(h, func(result, row, col int, x float64) {
			results[result].want[row*results[result].got.cols+col] += x
		})
	}
	return results
}

// unit returns the query or key of a row at a column of qkv, normalized, and the factor that normalized it.
func (c *deltaCase) unit(row, col int) (x []float64, by float64) {
	x = make([]float64, c.keyDim)
	squares := 1e-6
	for i := range x {
		x[i] = c.qkv.get(row, col+i)
		squares += x[i] * x[i]
	}
	by = 1 / math.Sqrt(squares)
	for i := range x {
		x[i] *= by
	}
	return x, by
}

// head64 adds the results of a head, through add: to which result, and where.
func (c *deltaCase) head64(h int, add func(result, row, col int, x float64)) {
	K, V := c.keyDim, c.valueDim
	atQ := h / (c.heads / c.keyHeads) * K
	atK, atV, share := atQ+c.keyHeads*K, 2*c.keyHeads*K+h*V, 1/math.Sqrt(float64(K))
	found, left := make([][]float64, c.rows), make([][]float64, c.rows)
	wrong := make([][]float64, c.rows)
	for t := range c.rows {
		q, _ := c.unit(t, atQ)
		k, _ := c.unit(t, atK)
		found[t] = make([]float64, K*V)
		if int(c.starts[t]) != t {
			copy(found[t], left[t-1])
		}
		if t%deltaChunk == 0 {
			for i, x := range found[t] {
				add(1, t/deltaChunk, h*K*V+i, x)
			}
		}
		left[t], wrong[t] = make([]float64, K*V), make([]float64, V)
		a, beta := math.Exp(c.decay.get(t, h)), c.beta.get(t, h)
		for j := range V {
			wrong[t][j] = c.qkv.get(t, atV+j)
			for i := range K {
				wrong[t][j] -= a * found[t][i*V+j] * k[i]
			}
			o := 0.0
			for i := range K {
				left[t][i*V+j] = a*found[t][i*V+j] + k[i]*beta*wrong[t][j]
				o += left[t][i*V+j] * q[i] * share
			}
			add(0, t, h*V+j, o)
		}
	}
	ds := make([]float64, K*V)
	for t := c.rows - 1; t >= 0; t-- {
		q, byQ := c.unit(t, atQ)
		k, byK := c.unit(t, atK)
		a, beta := math.Exp(c.decay.get(t, h)), c.beta.get(t, h)
		dq, dk, dx := make([]float64, K), make([]float64, K), make([]float64, V)
		for j := range V {
			do := c.dout.get(t, h*V+j)
			for i := range K {
				ds[i*V+j] += q[i] * share * do
				dq[i] += left[t][i*V+j] * do * share
				dx[j] += ds[i*V+j] * k[i]
			}
		}
		dbeta, ddecay := 0.0, 0.0
		for j := range V {
			dbeta += wrong[t][j] * dx[j]
			dv := beta * dx[j]
			add(2, t, atV+j, dv)
			for i := range K {
				dk[i] += ds[i*V+j]*beta*wrong[t][j] - a*found[t][i*V+j]*dv
				ds[i*V+j] -= k[i] * dv
				ddecay += ds[i*V+j] * a * found[t][i*V+j]
				ds[i*V+j] *= a
			}
		}
		add(3, t, h, ddecay)
		add(4, t, h, dbeta)
		for _, g := range []struct {
			unit, d []float64
			by      float64
			col     int
		}{{q, dq, byQ, atQ}, {k, dk, byK, atK}} {
			along := 0.0
			for i, x := range g.unit {
				along += x * g.d[i]
			}
			for i, x := range g.unit {
				add(2, t, g.col+i, g.by*(g.d[i]-x*along))
			}
		}
		if int(c.starts[t]) == t {
			clear(ds)
		}
		if t%deltaChunk == 0 {
			for i, x := range ds {
				add(5, t/deltaChunk, h*K*V+i, x)
			}
		}
	}
}
