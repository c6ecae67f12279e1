package nn_test

import (
	"math"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// product is a mixer and a feed-forward of one product: Weight·x.
type product struct{ role string }

func (l product) Fields(hidden int) []tensor.Field {
	return []tensor.Field{{Name: l.role, Shape: tensor.Shape{hidden, hidden}, Trainable: true, Decay: true}}
}

func (l product) Values(int) []nn.Value { return nil }

// mixing is it as a mixer, which has its input.
type mixing struct{ product }

func (l mixing) Values(int) []nn.Value { return []nn.Value{{Cols: 6, Lives: nn.Result}} }

func (l mixing) Forward(p *nn.Pass, x device.Mat) {
	p.EachChunk(func(p *nn.Pass, rows func(device.Mat) device.Mat) {
		p.Normalize(rows(x))
		p.Copy(p.Value(0).Mem, p.Norm().Mem)
	})
}

func (l mixing) Recompute(p *nn.Pass, x device.Mat) { l.Forward(p, x) }

func (l mixing) Output(p *nn.Pass, x, h device.Mat) {
	p.MatMul(h, p.Value(0), p.Weight(l.role, 1), device.MatMulFlags{TransB: true, Onto: x})
}

func (l mixing) Backward(p *nn.Pass, x, dy, dx device.Mat) {
	p.EachChunk(func(p *nn.Pass, rows func(device.Mat) device.Mat) {
		p.WeightGrad(l.role, 1, rows(dy), p.Value(0))
		p.Normalize(rows(x))
		p.ProjectGrad(p.Norm(), rows(dy), l.role, 1)
		p.NormalizeGrad(rows(x), rows(dx))
	})
}

// feeding is it as a feed-forward.
type feeding struct{ product }

func (l feeding) Forward(p *nn.Pass, h, y device.Mat, last device.MatMulFlags) {
	p.Normalize(h)
	p.MatMul(y, p.Norm(), p.Weight(l.role, 1), last)
}

func (l feeding) Backward(p *nn.Pass, h, dy, dx device.Mat) {
	p.Normalize(h)
	p.WeightGrad(l.role, 1, dy, p.Norm())
	p.ProjectGrad(p.Norm(), dy, l.role, 1)
	p.NormalizeGrad(h, dx)
}

// Each rule is the formula that it states, in float64, and its gradients are the derivatives of that.
func TestRules(t *testing.T) {
	const hidden = 6
	rules := []nn.Rule{nn.Pre, nn.Post, nn.Sandwich, nn.Parallel, nn.ParallelNorms}
	norms := []nn.Norm{{Eps: 1e-5}, {Eps: 1e-5, Layer: true}, {Eps: 1e-5, Layer: true, Bias: true}}
	for i := range len(rules) * len(norms) {
		rule := formula{rules[i/len(norms)], norms[i%len(norms)]}
		for _, rows := range []int{0, 4} {
			d := &nn.Block{Hidden: hidden, Rule: rule.Rule, Norm: rule.Norm, Mixer: mixing{product{"a.weight"}},
				FeedForward: feeding{product{"b.weight"}}}
			k := newBlock(t, d, tensor.F32, nil)
			k.rows = rows
			w := map[string][]float64{"x": wide(k.get(k.x))}
			for i, f := range k.layout.Fields {
				w[f.Name] = wide(k.get(k.w.Mat(i)))
			}
			for keep := nn.KeepInput; keep <= nn.KeepAll; keep++ {
				y, dx, g := k.run(keep)
				offBy(t, "y", y, ruled(rule, w, hidden), 1e-5)
				offBy(t, "dx", dx, derivative(rule, w, "x", k.dy), 1e-4)
				for _, f := range k.layout.Fields {
					offBy(t, f.Name, g[f.State:f.State+f.Elems], derivative(rule, w, f.Name, k.dy), 1e-4)
				}
			}
		}
	}
}

// formula is a rule with a kind of norms.
type formula struct {
	nn.Rule
	nn.Norm
}

// ruled computes a block in float64.
func ruled(rule formula, w map[string][]float64, hidden int) (all []float64) {
	norm := func(x []float64, name string) (y []float64) {
		mean, squares := 0.0, 0.0
		for _, v := range x {
			if rule.Layer {
				mean += v / float64(hidden)
			}
		}
		for _, v := range x {
			squares += (v - mean) * (v - mean) / float64(hidden)
		}
		for i, v := range x {
			y = append(y, w[name+".weight"][i]*(v-mean)/math.Sqrt(squares+1e-5))
			if rule.Bias {
				y[i] += w[name+".bias"][i]
			}
		}
		return y
	}
	times := func(name string, x []float64) (y []float64) {
		for r := range hidden {
			sum := 0.0
			for c, v := range x {
				sum += w[name][r*hidden+c] * v
			}
			y = append(y, sum)
		}
		return y
	}
	plus := func(a ...[]float64) []float64 {
		sum := make([]float64, hidden)
		for _, x := range a {
			for i := range sum {
				sum[i] += x[i]
			}
		}
		return sum
	}
	const in1, in2, out1, out2 = "mixer_norm", "feed_norm", "mixer_post_norm", "feed_post_norm"
	for t := range positions {
		x := w["x"][t*hidden:][:hidden]
		var y []float64
		switch rule.Rule {
		case nn.Pre:
			h := plus(x, times("a.weight", norm(x, in1)))
			y = plus(h, times("b.weight", norm(h, in2)))
		case nn.Post:
			h := plus(x, norm(times("a.weight", x), out1))
			y = plus(h, norm(times("b.weight", h), out2))
		case nn.Sandwich:
			h := plus(x, norm(times("a.weight", norm(x, in1)), out1))
			y = plus(h, norm(times("b.weight", norm(h, in2)), out2))
		case nn.Parallel:
			n := norm(x, in1)
			y = plus(x, times("a.weight", n), times("b.weight", n))
		case nn.ParallelNorms:
			y = plus(x, times("a.weight", norm(x, in1)), times("b.weight", norm(x, in2)))
		}
		all = append(all, y...)
	}
	return all
}

// derivative computes the derivative of dy·y by an operand, from differences in float64.
func derivative(rule formula, w map[string][]float64, of string, dy []float32) (d []float64) {
	loss := func() (sum float64) {
		for i, y := range ruled(rule, w, len(w["x"])/positions) {
			sum += y * float64(dy[i])
		}
		return sum
	}
	const step = 1e-6
	for i, x := range w[of] {
		w[of][i] = x + step
		above := loss()
		w[of][i] = x - step
		d = append(d, (above-loss())/(2*step))
		w[of][i] = x
	}
	return d
}

func wide(x []float32) (y []float64) {
	for _, v := range x {
		y = append(y, float64(v))
	}
	return y
}

func offBy(t *testing.T, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	norm, off := 0.0, 0.0
	for i, x := range want {
		norm += x * x
		off += (float64(got[i]) - x) * (float64(got[i]) - x)
	}
	if !(math.Sqrt(off) <= tolerance*math.Sqrt(norm)) {
		t.Errorf("%s is off by %g of its norm", what, math.Sqrt(off/norm))
	}
}

// A rule adds norms and sums of results to the account of a block; backward, it also adds the products whose results the
// norms' gradients read, at any level.
func TestMeasureOfRules(t *testing.T) {
	const hidden, inner, heads, width = 26, 38, 4, 6
	out, feed := int64(2*positions*hidden*heads*width), int64(2*positions*hidden*inner)
	d := variants()["window"]
	account := func(rule nn.Rule, to nn.Direction, level nn.Keep) nn.Account {
		b := *d
		b.Rule = rule
		layout, err := tensor.NewLayout(b.Fields()...)
		check(t, err)
		return b.Measure(b.Stages(to, false)[0][0], nn.Shape{Docs: docs, DType: tensor.F32, Level: level}, layout)
	}
	rowBytes := int64(positions * hidden * 4)
	for _, c := range []struct {
		rule              nn.Rule
		to                nn.Direction
		level             nn.Keep
		ops               int
		products, traffic int64 // traffic in bytes of rows, and what SwiGLU moves
	}{
		{nn.Post, nn.Forward, nn.KeepInput, 4, 0, 2*2 + 2*3},
		{nn.Sandwich, nn.Forward, nn.KeepInput, 4, 0, 2*2 + 2*3},
		{nn.Parallel, nn.Forward, nn.KeepInput, 0, 0, 0},
		{nn.ParallelNorms, nn.Forward, nn.KeepInput, 0, 0, 0},
		{nn.Sandwich, nn.Backward, nn.KeepAll, 10, out + 3*feed, 2 + 3 + 2 + 2 + 3 + 3},
		{nn.Sandwich, nn.Backward, nn.KeepInput, 8, feed, 2 + 3 + 2 + 2 + 3 + 3},
		{nn.Parallel, nn.Backward, nn.KeepAll, 1, 0, 2},
		{nn.Parallel, nn.Backward, nn.KeepInput, 0, -out, 2},
		{nn.ParallelNorms, nn.Backward, nn.KeepAll, 1, 0, 2},
	} {
		pre, got := account(nn.Pre, c.to, c.level), account(c.rule, c.to, c.level)
		traffic := c.traffic * rowBytes
		if c.to == nn.Backward && c.rule == nn.Sandwich {
			traffic += 3 * positions * inner * 4 // SwiGLU
		}
		ops, products := got.Ops-pre.Ops, got.Work[nn.OfProducts]-pre.Work[nn.OfProducts]
		if moved := got.Bytes() - pre.Bytes(); ops != c.ops ||
			products != c.products || moved != traffic {
			t.Errorf("rule %d, direction %d, level %v: %d operations, %d FLOPs and %d bytes more than Pre, want %d, %d and %d",
				c.rule, c.to, c.level, ops, products, moved, c.ops, c.products, traffic)
		}
	}
}
