package kernels

import (
	"math"
	"unsafe"

	"github.com/millrace/millrace/tensor"
)

// The plain-Go loops are the definition of every kernel. Products that are added are converted explicitly, so that no
// compiler fuses the two.

// element types are in memory: fp32, or the bits of a bfloat16.
type element interface{ float32 | uint16 }

func load[E element](x E) float32 {
	switch x := any(x).(type) {
	case uint16:
		return tensor.F32FromBF16(x)
	case float32:
		return x
	}
	panic("unreachable")
}

func round[E element](x float32) (y E) {
	switch y := any(&y).(type) {
	case *uint16:
		*y = tensor.BF16FromF32(x)
	case *float32:
		*y = x
	}
	return y
}

func of[E any](p unsafe.Pointer, n int) []E { return unsafe.Slice((*E)(p), n) }

// store writes one element of a kind.
func store(at unsafe.Pointer, kind int, x float32) {
	if kind == 0 {
		*(*float32)(at) = x
	} else {
		*(*uint16)(at) = tensor.BF16FromF32(x)
	}
}

var plainLoops = loops{
	adamwSplit: [2]func(hi, lo, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (int, uint32){plainAdamWSplit[float32], plainAdamWSplit[uint16]},
	adamwSplit24: [2]func(hi, lo, m, v, g, words unsafe.Pointer, n int, s *AdamWScalars) (int, uint32){
		plainAdamWSplit24[float32], plainAdamWSplit24[uint16]},
	adamwF32:   plainAdamWF32,
	sumSquares: [2]func(x unsafe.Pointer, n int) float64{plainSumSquares[float32], plainSumSquares[uint16]},
	sum:        plainSum,
	toBF16:     plainToBF16,
	toF32:      plainToF32,
	split:      plainSplit,
	join:       plainJoin,
	add:        [2]func(dst, a, b unsafe.Pointer, n int){plainAdd[float32], plainAdd[uint16]},
	addTo:      [2]func(dst, a unsafe.Pointer, n int){plainAddTo[float32], plainAddTo[uint16]},
	scale:      [2]func(dst, a unsafe.Pointer, n int, s float32){plainScale[float32], plainScale[uint16]},
	addScaled:  [2]func(dst, a unsafe.Pointer, n int, s float32){plainAddScaled[float32], plainAddScaled[uint16]},

	normSquares: [2]func(x unsafe.Pointer, n int) float32{plainNormSquares[float32], plainNormSquares[uint16]},
	normApply:   [2]func(y, x, w unsafe.Pointer, n int, rstd float32){plainNormApply[float32], plainNormApply[uint16]},
	normDot:     [2]func(x, w, dy unsafe.Pointer, n int, rstd float32) float32{plainNormDot[float32], plainNormDot[uint16]},
	normGrad:    [2]func(dx, x, w, dy unsafe.Pointer, n int, rstd, mean float32){plainNormGrad[float32], plainNormGrad[uint16]},
	normGradAdd: [2]func(dx, residual, x, w, dy unsafe.Pointer, n int, rstd, mean float32){plainNormGradAdd[float32], plainNormGradAdd[uint16]},
	normWeight:  [2]func(dw, x, dy unsafe.Pointer, n int, rstd float32){plainNormWeight[float32], plainNormWeight[uint16]},
	rotate:      [2]func(y0, y1, x0, x1, cos, sin unsafe.Pointer, n int, sign float32){plainRotate[float32], plainRotate[uint16]},
	swiglu:      gatedLoop{plainSwiGLU[float32], plainSwiGLU[uint16]},
	swigluGrad:  gatedGradLoop{plainSwiGLUGrad[float32], plainSwiGLUGrad[uint16]},
	gate:        [2]func(y, x, gate unsafe.Pointer, n int){plainGate[float32], plainGate[uint16]},
	gateGrad:    [2]func(dx, dgate, dy, x, gate unsafe.Pointer, n int){plainGateGrad[float32], plainGateGrad[uint16]},
	geglu:       gatedLoop{plainGeGLU[float32], plainGeGLU[uint16]},
	gegluGrad:   gatedGradLoop{plainGeGLUGrad[float32], plainGeGLUGrad[uint16]},
	limited:     limitedLoop{plainLimited[float32], plainLimited[uint16]},
	limitedGrad: limitedGradLoop{plainLimitedGrad[float32], plainLimitedGrad[uint16]},
	max:         plainMax,
	sumExp:      plainSumExp,
	expMul:      [2]func(dst, x unsafe.Pointer, n int, max, factor float32){plainExpMul[float32], plainExpMul[uint16]},
	expSum:      [2]func(dst, x unsafe.Pointer, n int, scale, max float32) float32{plainExpSum[float32], plainExpSum[uint16]},
	dot:         [2]func(a, b unsafe.Pointer, n int) float32{plainDot[float32], plainDot[uint16]},
	scoreGrad:   [2]func(ds, p, s, dp unsafe.Pointer, n int, scale, lse, delta float32){plainScoreGrad[float32], plainScoreGrad[uint16]},
}

// lanes are the 16 partial sums of a reduction; element i goes to lane i mod 16.
type lanes[F float32 | float64] [16]F

// sum adds the lanes: 8 to 8, 4 to 4, 2 to 2, 1 to 1.
func (l *lanes[F]) sum() F {
	for half := 8; half > 0; half /= 2 {
		for j := range half {
			l[j] += l[j+half]
		}
	}
	return l[0]
}

// flush makes a denormal +0, which keeps the moments of a parameter that gets no gradient off the slow path of the CPU.
func flush(x float32) float32 {
	if math.Float32bits(x)&0x7f800000 == 0 {
		return 0
	}
	return x
}

// adamw is the update of one parameter: new weight, first and second moment. It tells of the update in t.
func adamw(p, m, v, g float32, s *AdamWScalars, t *tally) (float32, float32, float32) {
	g = float32(s.ClipScale * g)
	p = float32(p * s.Decay)
	m = flush(m + float32((g-m)*s.OneMinusBeta1))
	v = flush(float32(s.Beta2*v) + float32(float32(s.OneMinusBeta2*g)*g))
	root := float32(math.Sqrt(float64(v))) // float64's root of an fp32 rounds to fp32's
	move := float32(s.StepSize*m) / (root/s.SqrtBC2 + s.Eps)
	p -= move
	t.longest = max(t.longest, math.Float32bits(move)&^(1<<31))
	if p-p != 0 { // infinite, or a NaN
		t.bad++
	}
	return p, m, v
}

func plainAdamWSplit[E element](hi, lo, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (bad int, longest uint32) {
	his, los, ms, vs, gs := of[uint16](hi, n), of[int16](lo, n), of[float32](m, n), of[float32](v, n), of[E](g, n)
	var t tally
	for i := range his {
		p := tensor.JoinF32(his[i], los[i])
		p, ms[i], vs[i] = adamw(p, ms[i], vs[i], load(gs[i]), s, &t)
		his[i], los[i] = tensor.SplitF32(p)
	}
	return t.bad, t.longest
}

// adamwSplit24 is adamw for a master of 24 bits, which the lowest 8 bits of a random word round. A number with an
// infinite high half counts as bad.
func adamwSplit24(hi uint16, lo int8, m, v, g float32, word uint32, s *AdamWScalars, t *tally) (uint16, int8, float32,
	float32) {
	p, m, v := adamw(tensor.JoinF24(hi, lo), m, v, g, s, t)
	hi, lo = tensor.SplitF24(p, uint8(word))
	if p-p == 0 && hi&0x7f80 == 0x7f80 {
		t.bad++
	}
	return hi, lo, m, v
}

func plainAdamWSplit24[E element](hi, lo, m, v, g, words unsafe.Pointer, n int, s *AdamWScalars) (bad int,
	longest uint32) {
	his, los, ms, vs, gs := of[uint16](hi, n), of[int8](lo, n), of[float32](m, n), of[float32](v, n), of[E](g, n)
	var t tally
	for i, word := range of[uint32](words, n) {
		his[i], los[i], ms[i], vs[i] = adamwSplit24(his[i], los[i], ms[i], vs[i], load(gs[i]), word, s, &t)
	}
	return t.bad, t.longest
}

func plainAdamWF32(p, m, v, g unsafe.Pointer, n int, s *AdamWScalars) (bad int, longest uint32) {
	ps, ms, vs, gs := of[float32](p, n), of[float32](m, n), of[float32](v, n), of[float32](g, n)
	var t tally
	for i := range ps {
		ps[i], ms[i], vs[i] = adamw(ps[i], ms[i], vs[i], gs[i], s, &t)
	}
	return t.bad, t.longest
}

func plainSumSquares[E element](x unsafe.Pointer, n int) float64 {
	var l lanes[float64]
	addSquares[E](&l, x, n)
	return l.sum()
}

func addSquares[E element](l *lanes[float64], x unsafe.Pointer, n int) {
	for i, x := range of[E](x, n) {
		f := float64(load(x))
		l[i%16] += float64(f * f)
	}
}

func plainSum(x unsafe.Pointer, n int) float64 {
	var l lanes[float64]
	addAll(&l, x, n)
	return l.sum()
}

func addAll(l *lanes[float64], x unsafe.Pointer, n int) {
	for i, x := range of[float32](x, n) {
		l[i%16] += float64(x)
	}
}

func plainToBF16(dst, src unsafe.Pointer, n int) {
	ys := of[uint16](dst, n)
	for i, x := range of[float32](src, n) {
		ys[i] = tensor.BF16FromF32(x)
	}
}

func plainToF32(dst, src unsafe.Pointer, n int) {
	ys := of[float32](dst, n)
	for i, x := range of[uint16](src, n) {
		ys[i] = tensor.F32FromBF16(x)
	}
}

func plainSplit(hi, lo, src unsafe.Pointer, n int) (bad int) {
	his, los := of[uint16](hi, n), of[int16](lo, n)
	for i, x := range of[float32](src, n) {
		his[i], los[i] = tensor.SplitF32(x)
		if x-x != 0 {
			bad++
		}
	}
	return bad
}

func plainJoin(dst, hi, lo unsafe.Pointer, n int) {
	ys, his := of[float32](dst, n), of[uint16](hi, n)
	for i, lo := range of[int16](lo, n) {
		ys[i] = tensor.JoinF32(his[i], lo)
	}
}

func plainAdd[E element](dst, a, b unsafe.Pointer, n int) {
	ys, as, bs := of[E](dst, n), of[E](a, n), of[E](b, n)
	for i := range ys {
		ys[i] = round[E](load(as[i]) + load(bs[i]))
	}
}

func plainAddTo[E element](dst, a unsafe.Pointer, n int) {
	ys, as := of[float32](dst, n), of[E](a, n)
	for i := range ys {
		ys[i] += load(as[i])
	}
}

func plainScale[E element](dst, a unsafe.Pointer, n int, s float32) {
	ys, as := of[E](dst, n), of[E](a, n)
	for i := range ys {
		ys[i] = round[E](load(as[i]) * s)
	}
}

func plainAddScaled[E element](dst, a unsafe.Pointer, n int, s float32) {
	ys, as := of[float32](dst, n), of[E](a, n)
	for i := range ys {
		ys[i] += float32(load(as[i]) * s)
	}
}

func plainNormSquares[E element](x unsafe.Pointer, n int) float32 {
	var l lanes[float32]
	for i, x := range of[E](x, n) {
		f := load(x)
		l[i%16] += float32(f * f)
	}
	return l.sum()
}

func plainNormApply[E element](y, x, w unsafe.Pointer, n int, rstd float32) {
	ys, xs, ws := of[E](y, n), of[E](x, n), of[float32](w, n)
	for i := range ys {
		ys[i] = round[E](ws[i] * float32(load(xs[i])*rstd))
	}
}

func plainNormDot[E element](x, w, dy unsafe.Pointer, n int, rstd float32) float32 {
	xs, ws, dys := of[E](x, n), of[float32](w, n), of[E](dy, n)
	var l lanes[float32]
	for i := range xs {
		l[i%16] += float32(float32(ws[i]*load(dys[i])) * float32(load(xs[i])*rstd))
	}
	return l.sum()
}

func normGrad[E element](x E, w float32, dy E, rstd, mean float32) float32 {
	return rstd * (float32(w*load(dy)) - float32(float32(load(x)*rstd)*mean))
}

func plainNormGrad[E element](dx, x, w, dy unsafe.Pointer, n int, rstd, mean float32) {
	dxs, xs, ws, dys := of[E](dx, n), of[E](x, n), of[float32](w, n), of[E](dy, n)
	for i := range dxs {
		dxs[i] = round[E](normGrad(xs[i], ws[i], dys[i], rstd, mean))
	}
}

func plainNormGradAdd[E element](dx, residual, x, w, dy unsafe.Pointer, n int, rstd, mean float32) {
	dxs, rs, xs, ws, dys := of[E](dx, n), of[E](residual, n), of[E](x, n), of[float32](w, n), of[E](dy, n)
	for i := range dxs {
		dxs[i] = round[E](float32(normGrad(xs[i], ws[i], dys[i], rstd, mean)) + load(rs[i]))
	}
}

func plainNormWeight[E element](dw, x, dy unsafe.Pointer, n int, rstd float32) {
	dws, xs, dys := of[float32](dw, n), of[E](x, n), of[E](dy, n)
	for i := range dws {
		dws[i] += float32(load(dys[i]) * float32(load(xs[i])*rstd))
	}
}

func plainRotate[E element](y0, y1, x0, x1, cos, sin unsafe.Pointer, n int, sign float32) {
	y0s, y1s, x0s, x1s := of[E](y0, n), of[E](y1, n), of[E](x0, n), of[E](x1, n)
	coss, sins := of[float32](cos, n), of[float32](sin, n)
	for i := range y0s {
		a, b, c, s := load(x0s[i]), load(x1s[i]), coss[i], sins[i]*sign
		y0s[i] = round[E](float32(a*c) - float32(b*s))
		y1s[i] = round[E](float32(b*c) + float32(a*s))
	}
}

func sigmoid(x float32) float32 { return 1 / (1 + Exp(-x)) }

func plainSwiGLU[E element](h, gate, up unsafe.Pointer, n int) {
	hs, gs, us := of[E](h, n), of[E](gate, n), of[E](up, n)
	for i := range hs {
		g := load(gs[i])
		hs[i] = round[E](float32(g*sigmoid(g)) * load(us[i]))
	}
}

func plainGate[E element](y, x, gate unsafe.Pointer, n int) {
	ys, xs, gs := of[E](y, n), of[E](x, n), of[E](gate, n)
	for i := range ys {
		ys[i] = round[E](load(xs[i]) * sigmoid(load(gs[i])))
	}
}

func plainGateGrad[E element](dx, dgate, dy, x, gate unsafe.Pointer, n int) {
	dxs, dgs, dys, xs, gs := of[E](dx, n), of[E](dgate, n), of[E](dy, n), of[E](x, n), of[E](gate, n)
	for i := range dxs {
		s, dy, x := sigmoid(load(gs[i])), load(dys[i]), load(xs[i])
		dxs[i] = round[E](dy * s)
		dgs[i] = round[E](float32(dy*x) * float32(s*(1-s)))
	}
}

func plainSwiGLUGrad[E element](dgate, dup, h, dh, gate, up unsafe.Pointer, n int) {
	dgs, dus, hs, dhs, gs, us := of[E](dgate, n), of[E](dup, n), of[E](h, n), of[E](dh, n), of[E](gate, n), of[E](up, n)
	for i := range dgs {
		g, u, dh := load(gs[i]), load(us[i]), load(dhs[i])
		s := sigmoid(g)
		dgs[i] = round[E](float32(dh*u) * float32(s*(1+float32(g*(1-s)))))
		dus[i] = round[E](dh * float32(g*s))
		hs[i] = round[E](float32(g*s) * u)
	}
}

// The argument of GELUTanh's sigmoid is x*(gelu1 + gelu3*x^2); it stays finite for x between -geluMost and geluMost,
// and beyond them the sigmoid is 0 or 1.
const (
	gelu1    = 1.5957691216057308 // 2*sqrt(2/pi)
	gelu3    = gelu1 * 0.044715
	geluMost = 16
)

// geluTanh is s of GELUTanh(x) = x*s, and x times the derivative of the sigmoid's argument.
func geluTanh(x float32) (s, slope float32) {
	x, slope = geluArgument(x)
	return sigmoid(x), slope
}

// geluArgument is the sigmoid's argument of geluTanh, and x times its derivative.
func geluArgument(x float32) (argument, slope float32) {
	if geluMost < x {
		x = geluMost
	}
	if -geluMost > x {
		x = -geluMost
	}
	cubic := float32(float32(x*x) * gelu3)
	return x * (cubic + gelu1), x * (float32(3*cubic) + gelu1)
}

func plainGeGLU[E element](h, gate, up unsafe.Pointer, n int) {
	hs, gs, us := of[E](h, n), of[E](gate, n), of[E](up, n)
	for i := range hs {
		g := load(gs[i])
		s, _ := geluTanh(g)
		hs[i] = round[E](float32(g*s) * load(us[i]))
	}
}

func plainGeGLUGrad[E element](dgate, dup, h, dh, gate, up unsafe.Pointer, n int) {
	dgs, dus, hs, dhs, gs, us := of[E](dgate, n), of[E](dup, n), of[E](h, n), of[E](dh, n), of[E](gate, n), of[E](up, n)
	for i := range dgs {
		g, u, dh := load(gs[i]), load(us[i]), load(dhs[i])
		s, slope := geluTanh(g)
		dgs[i] = round[E](float32(dh*u) * float32(s*(1+float32(slope*(1-s)))))
		dus[i] = round[E](dh * float32(g*s))
		hs[i] = round[E](float32(g*s) * u)
	}
}

// limited are gate and up between their limits. A NaN stays one.
func limited(gate, up, limit float32) (g, u float32) {
	if g, u = gate, up; limit < g {
		g = limit
	}
	if -limit > u {
		u = -limit
	}
	if limit < u {
		u = limit
	}
	return g, u
}

func plainLimited[E element](h, gate, up unsafe.Pointer, n int, alpha, limit float32) {
	hs, gs, us := of[E](h, n), of[E](gate, n), of[E](up, n)
	for i := range hs {
		g, u := limited(load(gs[i]), load(us[i]), limit)
		hs[i] = round[E](float32(g*sigmoid(alpha*g)) * (u + 1))
	}
}

func plainLimitedGrad[E element](dgate, dup, h, dh, gate, up unsafe.Pointer, n int, alpha, limit float32) {
	dgs, dus, hs, dhs, gs, us := of[E](dgate, n), of[E](dup, n), of[E](h, n), of[E](dh, n), of[E](gate, n), of[E](up, n)
	for i := range dgs {
		g, _ := limited(load(gs[i]), 0, limit)
		dgate, dup, hidden := limitedGrad(load(gs[i]), load(us[i]), load(dhs[i]), sigmoid(alpha*g), alpha, limit)
		dgs[i], dus[i], hs[i] = round[E](dgate), round[E](dup), round[E](hidden)
	}
}

// limitedGrad is the gradient of one element, and the element; s is the sigmoid of alpha times the gate below its
// limit.
func limitedGrad(gate, up, dh, s, alpha, limit float32) (dgate, dup, h float32) {
	g, u := limited(gate, up, limit)
	x := float32(alpha * g)
	dgate, dup = float32(dh*(u+1))*float32(s*(1+float32(x*(1-s)))), dh*float32(g*s)
	if limit < gate {
		dgate = 0
	}
	if u != up {
		dup = 0
	}
	return dgate, dup, float32(g*s) * (u + 1)
}

// The loops of GELU, whose erf has no assembly: models with this activation in a gated unit are rare.
var (
	plainERFGLU     = gatedLoop{erfGLU[float32], erfGLU[uint16]}
	plainERFGLUGrad = gatedGradLoop{erfGLUGrad[float32], erfGLUGrad[uint16]}
)

// geluERF is s of GELU(x) = x*s and the derivative of GELU.
func geluERF(x float32) (s, slope float64) {
	g := float64(x)
	s = math.Erfc(-g/math.Sqrt2) / 2
	return s, s + float64(g*math.Exp(-float64(g*g)/2))/math.Sqrt(2*math.Pi)
}

func erfGLU[E element](h, gate, up unsafe.Pointer, n int) {
	hs, gs, us := of[E](h, n), of[E](gate, n), of[E](up, n)
	for i := range hs {
		g := load(gs[i])
		s, _ := geluERF(g)
		hs[i] = round[E](float32(float64(g)*s) * load(us[i]))
	}
}

func erfGLUGrad[E element](dgate, dup, h, dh, gate, up unsafe.Pointer, n int) {
	dgs, dus, hs, dhs, gs, us := of[E](dgate, n), of[E](dup, n), of[E](h, n), of[E](dh, n), of[E](gate, n), of[E](up, n)
	for i := range dgs {
		g, u, dh := load(gs[i]), load(us[i]), load(dhs[i])
		s, slope := geluERF(g)
		f := float32(float64(g) * s)
		dgs[i] = round[E](float32(dh*u) * float32(slope))
		dus[i] = round[E](dh * f)
		hs[i] = round[E](f * u)
	}
}

func plainMax(x unsafe.Pointer, n int) float32 {
	var l lanes[float32]
	for j := range l {
		l[j] = float32(math.Inf(-1))
	}
	for i, x := range of[float32](x, n) {
		if x > l[i%16] {
			l[i%16] = x
		}
	}
	for half := 8; half > 0; half /= 2 {
		for j := range half {
			if l[j+half] > l[j] {
				l[j] = l[j+half]
			}
		}
	}
	return l[0]
}

// plainSumExp sums exp(x-max), and exp(x-max)*(x-max), in which no difference is below -expClamp: 0 times infinity
// would be a NaN.
func plainSumExp(x unsafe.Pointer, n int, max float32) (sum, below float32) {
	var l [2]lanes[float32]
	addExps(&l, x, n, max)
	return l[0].sum(), l[1].sum()
}

func addExps(l *[2]lanes[float32], x unsafe.Pointer, n int, max float32) {
	for i, x := range of[float32](x, n) {
		d := clamped(x - max)
		p := Exp(d)
		l[0][i%16] += p
		l[1][i%16] += float32(p * d)
	}
}

func plainExpMul[E element](dst, x unsafe.Pointer, n int, max, factor float32) {
	ys, xs := of[E](dst, n), of[float32](x, n)
	for i := range ys {
		ys[i] = round[E](Exp(xs[i]-max) * factor)
	}
}

func plainExpSum[E element](dst, x unsafe.Pointer, n int, scale, max float32) float32 {
	ys, xs := of[E](dst, n), of[float32](x, n)
	var l lanes[float32]
	for i := range ys {
		p := Exp(float32(xs[i]*scale) - max)
		l[i%16] += p
		ys[i] = round[E](p)
	}
	return l.sum()
}

func plainDot[E element](a, b unsafe.Pointer, n int) float32 {
	as, bs := of[E](a, n), of[E](b, n)
	var l lanes[float32]
	for i := range as {
		l[i%16] += float32(load(as[i]) * load(bs[i]))
	}
	return l.sum()
}

func plainScoreGrad[E element](ds, p, s, dp unsafe.Pointer, n int, scale, lse, delta float32) {
	dss, ps, ss, dps := of[E](ds, n), of[E](p, n), of[float32](s, n), of[float32](dp, n)
	for i := range dss {
		p := Exp(float32(ss[i]*scale) - lse)
		dss[i] = round[E](float32(p*(dps[i]-delta)) * scale)
		ps[i] = round[E](p)
	}
}
