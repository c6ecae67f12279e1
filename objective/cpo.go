package objective

// CPO (arXiv:2401.08417) is DPO's sigmoid, hinge or ipo without a reference, and the likelihood of the chosen
// completion: a pair has u = log p(chosen) and v = log p(rejected). SimPO reads both by token and asks for a margin.

// lossSimPO is -(1-e) log s(y) - e log s(-y), y = b*(u/Lu - v/Lv) - gamma: SimPO (arXiv:2405.14734).
func lossSimPO(p pair, o *Settings) value {
	loss, slope := logistic(float64(o.Beta*(p.u/p.lu-p.v/p.lv))-*o.Gamma, o.LabelSmoothing)
	return value{loss, o.Beta * slope / p.lu, -o.Beta * slope / p.lv}
}
