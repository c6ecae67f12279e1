package objective

import "math"

// lossORPO is -b log s(o), where o is the logarithm of the ratio of both completions' odds, a - log(1-e^a) less q -
// log(1-e^q), at their mean log-probabilities a = u/Lu and q = v/Lv: ORPO (arXiv:2403.07691, equations 4 and 7). Its
// negative log-likelihood is added by the setting nll.
//
// The slope by a is -b s(-o)/(1-e^a). Both factors vanish or grow without end where a token is certain, and their
// quotient does not: with D = e^a (1-e^q) + e^q (1-e^a) it is e^q/D. All is a sum of logarithms here, so that a
// chosen completion of probability 1 has a weight. The slope of a rejected one is infinite there.
func lossORPO(p pair, o *Settings) value {
	a, q := p.u/p.lu, p.v/p.lv
	notA, notQ := logOneMinusExp(a), logOneMinusExp(q)
	d := logAddExp(a+notQ, q+notA)
	return value{
		loss: -o.Beta * (a + notQ - d), // log s(o) = log(e^a (1-e^q) / D)
		du:   -o.Beta * math.Exp(q-d) / p.lu,
		dv:   o.Beta * math.Exp(q+notA-d-notQ) / p.lv,
	}
}
