package objective

import "slices"

// losses lists all losses that a setting can name. A type has those of its name, in this order.
var losses = []loss{
	{name: "sigmoid", types: []string{dpo, cpo}, smooths: true, of: lossSigmoid},
	{name: "hinge", types: []string{dpo, cpo}, of: lossHinge},
	{name: "ipo", types: []string{dpo, cpo}, averages: true, of: lossIPO},
	{name: "robust", types: []string{dpo}, smooths: true, of: lossRobust},
	{name: "exo_pair", types: []string{dpo}, smooths: true, of: lossEXO},
	{name: "nca_pair", types: []string{dpo}, of: lossNCA},
	{name: "bco_pair", types: []string{dpo}, of: lossBCO},
	{name: "sppo_hard", types: []string{dpo}, of: lossSPPO},
	{name: "apo_zero", types: []string{dpo}, of: lossAPOZero},
	{name: "apo_down", types: []string{dpo}, of: lossAPODown},
	{name: "discopop", types: []string{dpo}, of: lossDiscoPOP},
	{name: "sigmoid_norm", types: []string{dpo}, averages: true, of: lossSigmoidNorm},
	{name: "sft", types: []string{dpo}, likelihood: true},
	{name: "simpo", types: []string{simpo}, smooths: true, averages: true, of: lossSimPO},
	{name: "orpo", types: []string{orpo}, averages: true, of: lossORPO},
	{name: "kto", types: []string{kto}, mismatched: true},
	{name: "apo_zero_unpaired", types: []string{kto}},
}

// loss is a row of the table.
type loss struct {
	name  string // TRL's
	types []string
	// of computes it for a pair; nil: it is of single documents.
	of         func(pair, *Settings) value
	smooths    bool // label_smoothing counts in it
	averages   bool // it reads log-probabilities by token
	likelihood bool // it is the negative log-likelihood of chosen completions
	mismatched bool // it needs an estimate of the divergence from the reference
}

// pair is a pair of completions as a loss reads it.
type pair struct {
	// u is log p(chosen), and v is log p(rejected), sums over the completion in nats, each less that of the
	// reference, if there is one.
	u, v float64
	// lu and lv are the lengths of the completions in tokens, at least 1.
	lu, lv float64
}

// value is the loss of a pair in nats, and its derivatives by u and v.
type value struct {
	loss, du, dv float64
}

// lossesOf lists the names of the losses of a type.
func lossesOf(kind string) (names []string) {
	if kind == policy {
		for _, l := range policyLosses() {
			names = append(names, l.name)
		}
		return names
	}
	for i := range losses {
		if slices.Contains(losses[i].types, kind) {
			names = append(names, losses[i].name)
		}
	}
	return names
}

// lossNamed finds a row; nil: the type has no such loss.
func lossNamed(kind, name string) *loss {
	i := slices.IndexFunc(losses, func(l loss) bool { return l.name == name && slices.Contains(l.types, kind) })
	if i < 0 {
		return nil
	}
	return &losses[i]
}
