package objective

import "math"

// total adds numbers and keeps what rounding leaves. So the mean of n equal losses is that loss to the last bit, and
// a step that is cut anywhere has the same loss, unless it is halfway between two float64s to some 100 bits: then it
// may be either.
type total struct {
	high, low float64
}

// add adds a number: Knuth's two-sum has the error of the addition exactly.
func (t *total) add(x float64) {
	sum := t.high + x
	y := sum - t.high
	t.low += (t.high - (sum - y)) + (x - y)
	t.high = sum
}

// times is t*factor/divisor.
func (t total) times(factor, divisor float64) total {
	product := t.high * factor
	rest := math.FMA(t.high, factor, -product) + float64(t.low*factor)
	quotient := product / divisor
	rest += math.FMA(-quotient, divisor, product)
	return total{quotient, rest / divisor}
}

// plus is the sum of both.
func (t total) plus(u total) total {
	t.add(u.high)
	t.low += u.low
	return t
}

// rounded is the sum as a float64, and its rest. An infinite or NaN sum has no rest.
func (t total) rounded() (sum, rest float64) {
	sum = t.high + t.low
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return t.high, 0
	}
	return sum, (t.high - sum) + t.low
}

// sigmoid is s(x) = 1/(1+exp(-x)).
func sigmoid(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}

// logSigmoid is log s(x). It is -x less a tiny number where s(x) is 0 in float64.
func logSigmoid(x float64) float64 {
	if x >= 0 {
		return -math.Log1p(math.Exp(-x))
	}
	return x - math.Log1p(math.Exp(x))
}

// logOneMinusExp is log(1-exp(a)) for a <= 0: the log-probability of the contrary.
func logOneMinusExp(a float64) float64 {
	if a > -math.Ln2 {
		return math.Log(-math.Expm1(a))
	}
	return math.Log1p(-math.Exp(a))
}

// logAddExp is log(exp(a)+exp(b)).
func logAddExp(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(a, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
