package objective

import "math"

// The losses of direct preference optimization.
//
// A pair has u = log p(chosen) - log p_ref(chosen) and v, the same of the rejected completion: sums over the tokens
// of the completion, in nats. Lu and Lv are their lengths. b is beta, e is label smoothing, z = b*(u-v), and s(x) =
// 1/(1+exp(-x)). The loss of a step is the mean over its pairs. Each function returns the loss of a pair with its
// derivatives by u and v, in the form that keeps its digits where z is large.
//
// The names and formulas are those of TRL 1.16.0, except that label smoothing counts in sigmoid.

// ofDifference is a loss that reads u-v alone, by its value and its slope in z = b*(u-v).
func ofDifference(loss, slope, beta float64) value {
	return value{loss, beta * slope, -beta * slope}
}

// logistic is -(1-e) log s(y) - e log s(-y), with its slope in y. Since log s(y) - log s(-y) = y, that is -log s(y) +
// e*y.
func logistic(y, e float64) (loss, slope float64) {
	return float64(e*y) - logSigmoid(y), e - sigmoid(-y)
}

// lossSigmoid is -(1-e) log s(z) - e log s(-z): DPO (arXiv:2305.18290), and with e > 0 Mitchell's conservative DPO.
// TRL has no label smoothing here.
func lossSigmoid(p pair, o *Settings) value {
	loss, slope := logistic(o.Beta*(p.u-p.v), o.LabelSmoothing)
	return ofDifference(loss, slope, o.Beta)
}

// lossHinge is max(0, 1-z): SLiC (arXiv:2305.10425) as RSO has it (arXiv:2309.06657).
func lossHinge(p pair, o *Settings) value {
	z := o.Beta * (p.u - p.v)
	if z >= 1 {
		return value{}
	}
	return ofDifference(1-z, -1, o.Beta)
}

// lossIPO is (u/Lu - v/Lv - 1/(2b))^2: IPO (arXiv:2310.12036), by token as its authors meant it. b is their tau.
func lossIPO(p pair, o *Settings) value {
	x := p.u/p.lu - p.v/p.lv - 1/(2*o.Beta)
	return value{x * x, 2 * x / p.lu, -2 * x / p.lv}
}

// lossRobust is (-(1-e) log s(z) + e log s(-z)) / (1-2e): robust DPO (arXiv:2403.00409).
func lossRobust(p pair, o *Settings) value {
	z, e := o.Beta*(p.u-p.v), o.LabelSmoothing
	loss := (float64(e*logSigmoid(-z)) - float64((1-e)*logSigmoid(z))) / (1 - 2*e)
	slope := -(float64((1-e)*sigmoid(-z)) + float64(e*sigmoid(z))) / (1 - 2*e)
	return ofDifference(loss, slope, o.Beta)
}

// lossEXO is the divergence of (p, 1-p), p = s(z), from (1-e, e): EXO for pairs (arXiv:2402.00856, equation 16).
func lossEXO(p pair, o *Settings) value {
	z, e := o.Beta*(p.u-p.v), o.LabelSmoothing
	yes, no := sigmoid(z), sigmoid(-z)
	logOdds := math.Log1p(-e) - math.Log(e)
	loss := float64(yes*(logSigmoid(z)-math.Log1p(-e))) + float64(no*(logSigmoid(-z)-math.Log(e)))
	return ofDifference(loss, yes*no*(z-logOdds), o.Beta)
}

// lossNCA is -log s(b*u) - 1/2 log s(-b*u) - 1/2 log s(-b*v): NCA for pairs (arXiv:2402.05369).
func lossNCA(p pair, o *Settings) value {
	x, y := o.Beta*p.u, o.Beta*p.v
	return value{
		loss: -logSigmoid(x) - float64(0.5*logSigmoid(-x)) - float64(0.5*logSigmoid(-y)),
		du:   o.Beta * (float64(0.5*sigmoid(x)) - sigmoid(-x)),
		dv:   o.Beta * 0.5 * sigmoid(y),
	}
}

// lossBCO is -log s(b*u) - log s(-b*v): BCO for pairs, without its shift (arXiv:2404.04656).
func lossBCO(p pair, o *Settings) value {
	x, y := o.Beta*p.u, o.Beta*p.v
	return value{-logSigmoid(x) - logSigmoid(-y), -o.Beta * sigmoid(-x), o.Beta * sigmoid(y)}
}

// lossSPPO is (u - 1/(2b))^2 + (v + 1/(2b))^2: SPPO with hard probabilities (arXiv:2405.00675, equation 4.7).
func lossSPPO(p pair, o *Settings) value {
	x, y := p.u-1/(2*o.Beta), p.v+1/(2*o.Beta)
	return value{float64(x*x) + float64(y*y), 2 * x, 2 * y}
}

// lossAPOZero is 1 - s(b*u) + s(b*v): APO-zero (arXiv:2408.06266, equation 7), for chosen completions that are better
// than the model's own.
func lossAPOZero(p pair, o *Settings) value {
	x, y := o.Beta*p.u, o.Beta*p.v
	return value{sigmoid(-x) + sigmoid(y), -o.Beta * sigmoid(x) * sigmoid(-x), o.Beta * sigmoid(y) * sigmoid(-y)}
}

// lossAPODown is s(b*u) + 1 - s(z): APO-down (arXiv:2408.06266, equation 8), for chosen completions that are worse.
func lossAPODown(p pair, o *Settings) value {
	x, z := o.Beta*p.u, o.Beta*(p.u-p.v)
	atX, atZ := sigmoid(x)*sigmoid(-x), sigmoid(z)*sigmoid(-z)
	return value{sigmoid(x) + sigmoid(-z), o.Beta * (atX - atZ), o.Beta * atZ}
}

// discoPOPTau is the temperature of DiscoPOP's mixture; TRL's default.
const discoPOPTau = 0.05

// lossDiscoPOP is -(1-m) log s(z) + m exp(-z), m = s(z/tau): DiscoPOP (arXiv:2406.08414, equation 5). m exp(-z) is
// taken as one exponential: its factors are 0 and infinite where z is far below 0, and it is 0 there.
func lossDiscoPOP(p pair, o *Settings) value {
	z := o.Beta * (p.u - p.v)
	m, rest, logS := sigmoid(z/discoPOPTau), sigmoid(-z/discoPOPTau), logSigmoid(z)
	mixed := math.Exp(logSigmoid(z/discoPOPTau) - z)
	slope := float64(rest*(float64(m*logS)+mixed))/discoPOPTau - float64(rest*sigmoid(-z)) - mixed
	return ofDifference(mixed-float64(rest*logS), slope, o.Beta)
}

// lossSigmoidNorm is -log s(b*(u/Lu - v/Lv)): DPO by token, as Tulu 3 has it (arXiv:2411.15124).
func lossSigmoidNorm(p pair, o *Settings) value {
	loss, slope := logistic(o.Beta*(p.u/p.lu-p.v/p.lv), 0)
	return value{loss, o.Beta * slope / p.lu, -o.Beta * slope / p.lv}
}
