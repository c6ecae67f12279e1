package main

// The quotient by SqrtBC2, a constant, takes four multiplications, since divisions and roots share one slow unit: with
// z the rounded 1/c, and zz the rounded rest, q = x*z + x*zz is one of the two numbers next to x/c, x - c*q is exact,
// and q + (x - c*q)*z is x/c correctly rounded (Markstein, "Computation of elementary functions on the IBM RISC
// System/6000 processor", 1990; Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division
// when the divisor is known in advance", 2004). That holds where all of it is finite, for roots of normal numbers and c
// up to 1.

// Where z and zz are on the stack.
const (
	inverseAt, inverseRestAt = "inverse-8(SP)", "inverseRest-16(SP)"
	inverseBytes             = 16
)

// invert writes 1/SqrtBC2, in two parts, to the stack.
func (a *asm) invert() {
	a.f("MOVL $0x3f800000, R11")
	a.f("VMOVD R11, X0")
	a.f("VMOVSS %d(%s), X1", sqrtBC2, a.address["s"])
	a.f("VDIVSS X1, X0, X2")
	a.f("VMOVSS X2, %s", inverseAt)
	a.f("VFNMADD231SS X1, X2, X0") // 1 - c*z, exactly
	a.f("VMULSS X2, X0, X0")
	a.f("VMOVSS X0, %s", inverseRestAt)
}

// quotient is x/c in q, and loses x; z and rest are 1/c in two parts. c is asked for when rest is no longer needed.
func (a *asm) quotient(x, q, z, rest reg, c func() reg) {
	a.f("VMULPS %s, %s, %s", a.v(rest), a.v(x), a.v(q))
	a.f("VFMADD231PS %s, %s, %s", a.v(z), a.v(x), a.v(q))
	a.f("VFNMADD231PS %s, %s, %s", a.v(c()), a.v(q), a.v(x))
	a.f("VFMADD231PS %s, %s, %s", a.v(z), a.v(x), a.v(q))
}

// bySqrtBC2 frees a root and is the root divided by SqrtBC2. AVX-512 does it by quotient, and divides where a result is
// not finite; AVX2 does it for weights that are not finite, and divides at once.
func (a *asm) bySqrtBC2(root reg) reg {
	c, done := a.field("s", sqrtBC2)
	defer done()
	if a.w == ymm {
		a.div(root, c)
		return root
	}
	x, q, finite := a.copy(root), a.take(), a.unique("finite")
	a.quotient(x, q, a.inMemory(inverseAt), a.inMemory(inverseRestAt), func() reg { return c })
	a.f("VCMPPS $5, %s, %s, K2", a.v(a.bits(0x7f800000)), a.v(q)) // not less than infinity
	a.f("KORTESTW K2, K2")
	a.f("JEQ %s", finite)
	a.f("VDIVPS %s, %s, %s", a.v(c), a.v(root), a.v(q))
	a.label(finite)
	a.free(x, root)
	return q
}
