package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// lexicon is a small model of texts: rows of two tokens, a hidden layer, and logits, with a gain before it. It has
// sparse rows, as tokens are rare, and dense matrices, as models of texts do.
type lexicon struct {
	vocab, width, hidden     int
	rows, in, gain, out, all int // where tensors begin, and the number of parameters; each begins on a block
}

func newLexicon(vocab, width, hidden int) *lexicon {
	l := &lexicon{vocab: vocab, width: width, hidden: hidden}
	align := func(n int) int { return (n + tensor.MomentBlock - 1) / tensor.MomentBlock * tensor.MomentBlock }
	l.in = align(vocab * width)
	l.gain = l.in + align(2*width*hidden)
	l.out = l.gain + align(hidden)
	l.all = l.out + align(hidden*vocab)
	return l
}

func (l *lexicon) begin(r *rand.Rand) []float32 {
	w := make([]float32, l.all)
	fill := func(from, n int, size float64) {
		for i := range n {
			w[from+i] = float32(size * r.NormFloat64())
		}
	}
	fill(l.rows, l.vocab*l.width, 0.1)
	fill(l.in, 2*l.width*l.hidden, 1/math.Sqrt(float64(2*l.width)))
	fill(l.out, l.hidden*l.vocab, 1/math.Sqrt(float64(l.hidden)))
	for i := range l.hidden {
		w[l.gain+i] = 1
	}
	return w
}

// gradient returns the gradient of the mean loss of the last tokens of texts, rounded to bf16, and its norm.
func (l *lexicon) gradient(w []float32, texts [][3]int) (g []float32, norm float64) {
	g = make([]float32, l.all)
	x, pre, h, dh := make([]float32, 2*l.width), make([]float32, l.hidden), make([]float32, l.hidden), make([]float32,
		l.hidden)
	logits := make([]float32, l.vocab)
	for _, text := range texts {
		for c := range 2 {
			copy(x[c*l.width:], w[l.rows+text[c]*l.width:][:l.width])
		}
		for j := range l.hidden {
			row, sum := w[l.in+j*2*l.width:][:2*l.width], float32(0)
			for i, x := range x {
				sum += x * row[i]
			}
			pre[j] = float32(math.Tanh(float64(sum)))
			h[j] = pre[j] * w[l.gain+j]
		}
		most, total := float32(math.Inf(-1)), float32(0)
		for t := range l.vocab {
			row, sum := w[l.out+t*l.hidden:][:l.hidden], float32(0)
			for j, h := range h {
				sum += h * row[j]
			}
			logits[t], most = sum, max(most, sum)
		}
		for t := range logits {
			logits[t] = float32(math.Exp(float64(logits[t] - most)))
			total += logits[t]
		}
		clear(dh)
		for t := range logits {
			d := logits[t] / total
			if t == text[2] {
				d--
			}
			d /= float32(len(texts))
			row, dRow := w[l.out+t*l.hidden:][:l.hidden], g[l.out+t*l.hidden:][:l.hidden]
			for j := range dh {
				dRow[j] += d * h[j]
				dh[j] += d * row[j]
			}
		}
		for j := range dh {
			g[l.gain+j] += dh[j] * pre[j]
			d := dh[j] * w[l.gain+j] * (1 - pre[j]*pre[j])
			row, dRow := w[l.in+j*2*l.width:][:2*l.width], g[l.in+j*2*l.width:][:2*l.width]
			for i := range x {
				dRow[i] += d * x[i]
				g[l.rows+text[i/l.width]*l.width+i%l.width] += d * row[i]
			}
		}
	}
	for i, x := range g {
		g[i] = tensor.F32FromBF16(tensor.BF16FromF32(x))
		norm += float64(g[i]) * float64(g[i])
	}
	return g, math.Sqrt(norm)
}

// source draws texts: a token follows from the two before it, by rules of the source's own, or is any, rare ones
// rarely.
type source struct {
	*rand.Rand
	vocab, rules int
}

func (s source) texts(n int) [][3]int {
	all := make([][3]int, n)
	token := func() int { return int(math.Exp(s.Float64()*math.Log(float64(s.vocab+1)))) - 1 }
	for i := range all {
		a, b, c := token(), token(), token()
		if s.IntN(4) > 0 {
			c = (a*s.rules + b*7 + s.rules) % s.vocab
		}
		all[i] = [3]int{min(a, s.vocab-1), min(b, s.vocab-1), min(c, s.vocab-1)}
	}
	return all
}

// exact is AdamW in float64.
type exact struct{ p, m, v []float64 }

func (e *exact) step(g []float32, a optim.AdamW, step int, lr, clip float64) {
	bc1, bc2 := 1-math.Pow(a.Beta1, float64(step)), 1-math.Pow(a.Beta2, float64(step))
	for i := range e.p {
		g := clip * float64(g[i])
		e.p[i] *= 1 - lr*a.WeightDecay
		e.m[i] += (g - e.m[i]) * (1 - a.Beta1)
		e.v[i] = a.Beta2*e.v[i] + (1-a.Beta2)*g*g
		e.p[i] -= lr / bc1 * e.m[i] / (math.Sqrt(e.v[i]/bc2) + a.Eps)
	}
}

// paper4 rounds moments as Li, Chen and Zhu, "Memory Efficient Optimizers with 4-bit States" (2023), in blocks: first
// ones to the nearest of a dynamic map, second ones to the nearest of a line without zero.
func paper4(m, v []float32) {
	dynamic := []float32{-0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0, 0.0055, 0.0325, 0.0775, 0.2125,
		0.4375, 0.6625, 0.8875, 1}
	linear := make([]float32, 16)
	for i := range linear {
		linear[i] = float32(i+1) / 16
	}
	for i := 0; i < len(m); i += tensor.MomentBlock4 {
		for _, c := range []struct{ x, values []float32 }{{m[i : i+tensor.MomentBlock4], dynamic},
			{v[i : i+tensor.MomentBlock4], linear}} {
			scale := greatest(c.x)
			if scale == 0 {
				continue
			}
			for j, x := range c.x {
				c.x[j] = scale * slices.MinFunc(c.values, func(a, b float32) int {
					if math.Abs(float64(a-x/scale)) < math.Abs(float64(b-x/scale)) {
						return -1
					}
					return 1
				})
			}
		}
	}
}

// With the gradients of a run with fp32 states, 150 steps of fine-tuning at 3e-5, states go as far along the way of
// float64 states as they should (the slope), and end close to their end (the distance, in ways). The published codes of
// 4 bits do not, which shows that the test can tell. The losses of such runs are too much alike to tell.
func TestSlopesOfMoments(t *testing.T) {
	vocab, width, hidden, seeds := 64, 16, 48, 1
	if !testing.Short() {
		vocab, width, hidden, seeds = 256, 32, 96, 3
	}
	for seed := range uint64(seeds) {
		testSlopes(t, newLexicon(vocab, width, hidden), seed)
	}
}

func testSlopes(t *testing.T, l *lexicon, seed uint64) {
	a := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}
	k := For(isa.Best())
	clip := func(norm float64) float64 { return min(1, 1/(norm+1e-6)) }
	texts := source{rand.New(rand.NewPCG(seed, 1)), l.vocab, 3}
	w, m, v := l.begin(texts.Rand), make([]float32, l.all), make([]float32, l.all)
	for step := 1; step <= 100; step++ { // what is fine-tuned
		g, norm := l.gradient(w, texts.texts(128))
		s := a.Scalars(step, 3e-3, clip(norm), true)
		k.AdamWF32(w, m, v, g, &s)
	}
	texts.rules = 5
	clear(m)
	clear(v)
	start := slices.Clone(w)
	e := &exact{make([]float64, l.all), make([]float64, l.all), make([]float64, l.all)}
	for i, x := range w {
		e.p[i] = float64(x)
	}
	newMoments := map[string]Moments8{"8-bit": newMoments8(l.all), "8+4": newMoments4(l.all, 8),
		"4-bit": newMoments4(l.all, 4)}
	weights := map[string][]float32{"fp32": w, "paper": slices.Clone(w)}
	for name := range newMoments {
		weights[name] = slices.Clone(w)
	}
	paperM, paperV := make([]float32, l.all), make([]float32, l.all)
	for step := 1; step <= 150; step++ {
		g, norm := l.gradient(w, texts.texts(128))
		s := a.Scalars(step, 3e-5, clip(norm), true)
		e.step(g, a, step, 3e-5, clip(norm))
		k.AdamWF32(w, m, v, g, &s)
		k.AdamWF32(weights["paper"], paperM, paperV, g, &s)
		paper4(paperM, paperV)
		for name, m := range newMoments {
			if told := k.AdamW8F32(weights[name], m, g, device.Draw{Key: rng.KeyOf(seed, "round states", uint64(step))},
				&s); told.Longest*s.StepSize > 25*3e-5 {
				t.Errorf("%s moments: an update is %.1f times the learning rate", name, told.Longest*s.StepSize/3e-5)
			}
		}
	}
	for _, c := range []struct {
		name          string
		least, most   float64 // slope
		mostFar       float64
		isToFailSlope bool
	}{
		{"fp32", 0.999, 1.001, 0.01, false}, {"8-bit", 0.98, 1.02, 0.12, false}, {"8+4", 0.97, 1.04, 0.25, false},
		{"4-bit", 0.97, 1.05, 0.40, false}, {"paper", 0.97, 1.05, 0, true},
	} {
		var along, square, away float64
		for i, x := range weights[c.name] {
			way, exact := float64(x)-float64(start[i]), e.p[i]-float64(start[i])
			along, square, away = along+way*exact, square+exact*exact, away+(way-exact)*(way-exact)
		}
		slope, distance := along/square, math.Sqrt(away/square)
		t.Logf("seed %d, %d parameters, %s: slope %.3f, distance %.3f", seed, l.all, c.name, slope, distance)
		switch fits := slope >= c.least && slope <= c.most; {
		case c.isToFailSlope && fits:
			t.Errorf("%s: slope %.3f: the test cannot tell", c.name, slope)
		case !c.isToFailSlope && (!fits || distance > c.mostFar):
			t.Errorf("seed %d, %s: slope %.3f, want %v to %v; distance %.3f, want at most %v", seed, c.name, slope, c.least,
				c.most, distance, c.mostFar)
		}
	}
}
