package kernels

import "unsafe"

// Loops around the exponential for AVX2. A call of Exp costs more than all else in them, so they write what it is to be
// taken of to a run, have the assembly replace all of the run at once, and do the rest in Go. Assembly of whole loops,
// as AVX-512 has it, would keep twelve constants in registers, of which AVX2 has sixteen: sumExp has them in memory.

// run holds arguments of Exp, and then its values.
type run [64]float32

// exp replaces the first n elements, and may replace others.
func (r *run) exp(n int) { expsAVX2(unsafe.Pointer(r), (n+7)&^7) }

// sigmoids sets the first elements of a run to the sigmoids of up to len(r) elements.
func sigmoids[E element](r *run, xs []E) {
	for i, x := range xs {
		r[i] = -load(x)
	}
	r.sigmoids(len(xs))
}

// sigmoids replaces the first n elements, which are negative arguments, by their sigmoids.
func (r *run) sigmoids(n int) {
	r.exp(n)
	for i := range r[:n] {
		r[i] = 1 / (1 + r[i])
	}
}

// gatedBy is h = (gate*s)*up, with s of a run.
func gatedBy[E element](r *run, hs, gs, us []E) {
	for i := range hs {
		hs[i] = round[E](float32(load(gs[i])*r[i]) * load(us[i]))
	}
}

// gatedGrad is the gradient of an element of h = (g*s)*u, and h; the derivative of g*s is s*(1 + slope*(1-s)).
func gatedGrad[E element](g, u, dh, s, slope float32) (dgate, dup, h E) {
	return round[E](float32(dh*u) * float32(s*(1+float32(slope*(1-s))))), round[E](dh * float32(g*s)), round[E](float32(g*s) * u)
}

func runsSwiGLU[E element](h, gate, up unsafe.Pointer, n int) {
	hs, gs, us := of[E](h, n), of[E](gate, n), of[E](up, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		sigmoids(&r, gs[lo:hi])
		gatedBy(&r, hs[lo:hi], gs[lo:hi], us[lo:hi])
	}
}

func runsSwiGLUGrad[E element](dgate, dup, h, dh, gate, up unsafe.Pointer, n int) {
	dgs, dus, hs, dhs, gs, us := of[E](dgate, n), of[E](dup, n), of[E](h, n), of[E](dh, n), of[E](gate, n), of[E](up, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		sigmoids(&r, gs[lo:hi])
		for i := lo; i < hi; i++ {
			g := load(gs[i])
			dgs[i], dus[i], hs[i] = gatedGrad[E](g, load(us[i]), load(dhs[i]), r[i-lo], g)
		}
	}
}

func runsGeGLU[E element](h, gate, up unsafe.Pointer, n int) {
	hs, gs, us := of[E](h, n), of[E](gate, n), of[E](up, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		for i, g := range gs[lo:hi] {
			x, _ := geluArgument(load(g))
			r[i] = -x
		}
		r.sigmoids(hi - lo)
		gatedBy(&r, hs[lo:hi], gs[lo:hi], us[lo:hi])
	}
}

func runsGeGLUGrad[E element](dgate, dup, h, dh, gate, up unsafe.Pointer, n int) {
	dgs, dus, hs, dhs, gs, us := of[E](dgate, n), of[E](dup, n), of[E](h, n), of[E](dh, n), of[E](gate, n), of[E](up, n)
	var r, slopes run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		for i, g := range gs[lo:hi] {
			r[i], slopes[i] = geluArgument(load(g))
			r[i] = -r[i]
		}
		r.sigmoids(hi - lo)
		for i := lo; i < hi; i++ {
			dgs[i], dus[i], hs[i] = gatedGrad[E](load(gs[i]), load(us[i]), load(dhs[i]), r[i-lo], slopes[i-lo])
		}
	}
}

func runsLimited[E element](h, gate, up unsafe.Pointer, n int, alpha, limit float32) {
	hs, gs, us := of[E](h, n), of[E](gate, n), of[E](up, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		for i := lo; i < hi; i++ {
			g, _ := limited(load(gs[i]), 0, limit)
			r[i-lo] = -float32(alpha * g)
		}
		r.sigmoids(hi - lo)
		for i := lo; i < hi; i++ {
			g, u := limited(load(gs[i]), load(us[i]), limit)
			hs[i] = round[E](float32(g*r[i-lo]) * (u + 1))
		}
	}
}

func runsLimitedGrad[E element](dgate, dup, h, dh, gate, up unsafe.Pointer, n int, alpha, limit float32) {
	dgs, dus, hs, dhs, gs, us := of[E](dgate, n), of[E](dup, n), of[E](h, n), of[E](dh, n), of[E](gate, n), of[E](up, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		for i := lo; i < hi; i++ {
			g, _ := limited(load(gs[i]), 0, limit)
			r[i-lo] = -float32(alpha * g)
		}
		r.sigmoids(hi - lo)
		for i := lo; i < hi; i++ {
			dgate, dup, hidden := limitedGrad(load(gs[i]), load(us[i]), load(dhs[i]), r[i-lo], alpha, limit)
			dgs[i], dus[i], hs[i] = round[E](dgate), round[E](dup), round[E](hidden)
		}
	}
}

func runsGate[E element](y, x, gate unsafe.Pointer, n int) {
	ys, xs, gs := of[E](y, n), of[E](x, n), of[E](gate, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		sigmoids(&r, gs[lo:hi])
		for i := lo; i < hi; i++ {
			ys[i] = round[E](load(xs[i]) * r[i-lo])
		}
	}
}

func runsGateGrad[E element](dx, dgate, dy, x, gate unsafe.Pointer, n int) {
	dxs, dgs, dys, xs, gs := of[E](dx, n), of[E](dgate, n), of[E](dy, n), of[E](x, n), of[E](gate, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		sigmoids(&r, gs[lo:hi])
		for i := lo; i < hi; i++ {
			dy, x, s := load(dys[i]), load(xs[i]), r[i-lo]
			dxs[i] = round[E](dy * s)
			dgs[i] = round[E](float32(dy*x) * float32(s*(1-s)))
		}
	}
}

// lanesSumExp has its loop in assembly, with constants in memory; the elements after the last sixteen are left to Go.
func lanesSumExp(x unsafe.Pointer, n int, max float32) (sum, below float32) {
	var l [2]lanes[float32]
	k := n &^ 15
	sumExpAVX2(x, k, &l, max)
	addExps(&l, after(x, 4*k, n-k), n-k, max)
	return l[0].sum(), l[1].sum()
}

func runsExpMul[E element](dst, x unsafe.Pointer, n int, max, factor float32) {
	ys, xs := of[E](dst, n), of[float32](x, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		for i, x := range xs[lo:hi] {
			r[i] = x - max
		}
		r.exp(hi - lo)
		for i, p := range r[:hi-lo] {
			ys[lo+i] = round[E](p * factor)
		}
	}
}

func runsExpSum[E element](dst, x unsafe.Pointer, n int, scale, max float32) float32 {
	ys, xs := of[E](dst, n), of[float32](x, n)
	var l lanes[float32]
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		for i, x := range xs[lo:hi] {
			r[i] = float32(x*scale) - max
		}
		r.exp(hi - lo)
		for i, p := range r[:hi-lo] {
			l[i%16] += p
			ys[lo+i] = round[E](p)
		}
	}
	return l.sum()
}

func runsScoreGrad[E element](ds, p, s, dp unsafe.Pointer, n int, scale, lse, delta float32) {
	dss, ps, ss, dps := of[E](ds, n), of[E](p, n), of[float32](s, n), of[float32](dp, n)
	var r run
	for lo := 0; lo < n; lo += len(r) {
		hi := min(lo+len(r), n)
		for i, s := range ss[lo:hi] {
			r[i] = float32(s*scale) - lse
		}
		r.exp(hi - lo)
		for i := lo; i < hi; i++ {
			p := r[i-lo]
			dss[i] = round[E](float32(p*(dps[i]-delta)) * scale)
			ps[i] = round[E](p)
		}
	}
}
