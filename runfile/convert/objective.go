package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
)

// goalKeys are the keys of a trainer that parts of an objective are made of.
type goalKeys struct {
	beta, loss, weights, smoothing, gamma, nll, desirable, undesirable, ldAlpha, sft, bco []string
}

var keysOfGoal = map[Tool]goalKeys{
	LLaMAFactory: {beta: []string{"pref_beta"}, loss: []string{"pref_loss"}, smoothing: []string{"dpo_label_smoothing"},
		gamma: []string{"simpo_gamma"}, desirable: []string{"kto_chosen_weight"},
		undesirable: []string{"kto_rejected_weight"}, ldAlpha: []string{"ld_alpha"}, sft: []string{"pref_ftx"},
		bco: []string{"pref_bco_weight"}},
	Axolotl: {beta: []string{"rl_beta", "dpo_beta"}, loss: []string{"dpo_loss_type"},
		weights: []string{"dpo_loss_weights"}, smoothing: []string{"dpo_label_smoothing"}, gamma: []string{"simpo_gamma"},
		nll: []string{"cpo_alpha"}, desirable: []string{"kto_desirable_weight"},
		undesirable: []string{"kto_undesirable_weight"}, sft: []string{"rpo_alpha"}},
	TRL: {beta: []string{"beta"}, loss: []string{"loss_type"}, weights: []string{"loss_weights"},
		smoothing: []string{"label_smoothing"}, gamma: []string{"simpo_gamma"}, nll: []string{"cpo_alpha", "sft_weight"},
		desirable: []string{"desirable_weight"}, undesirable: []string{"undesirable_weight"},
		ldAlpha: []string{"ld_alpha"}, sft: []string{"rpo_alpha"}},
}

// part adds a key of the objective.
func (g *goal) part(key, value string, from ...string) {
	g.parts = append(g.parts, key+": "+value)
	g.from = append(g.from, given(from...)...)
}

// number adds a key that is a number.
func (g *goal) number(key string, x float64, from ...string) {
	if g.given == nil {
		g.given = map[string]float64{}
	}
	g.given[key] = x
	g.part(key, numeral(x), from...)
}

// amount adds a number that the file has under one of some names. Where it has none, it adds the usual one of the
// trainer, if that is not the one here.
func (c *conversion) amount(key string, names []string, usual, here float64) {
	name, v := c.take(names...)
	x, ok := number(v)
	switch {
	case ok && (x != 0 || key == "center" || key == "nll" || key == "gamma" || key == "ld_alpha"):
		c.goal.number(key, x, name)
	case ok:
		c.decide([]string{name}, "objective.%s: %s is 0, and it must be above 0 here; it is left out", key, name)
	case name != "":
		c.decide([]string{name}, "objective.%s: %s is %s, and no number", key, name, shown(v))
	case usual != here:
		c.goal.number(key, usual)
		c.goal.how = append(c.goal.how, fmt.Sprintf("%s is %s's, and the file does not say", key, c.result.Tool))
	}
}

// objective makes the parts of the objective, except the number of pairs of a step, which batch knows.
func (c *conversion) objective() {
	if c.goal.kind == "" {
		c.dismissGoalKeys()
		return
	}
	if c.goal.kind == rewarded {
		return // with the loop
	}
	names := keysOfGoal[c.result.Tool]
	c.goal.part("type", c.goal.kind)
	switch c.goal.kind {
	case "dpo":
		c.losses(names)
		c.beta(names, 0.1)
		c.smoothing(names)
		c.amount("ld_alpha", names.ldAlpha, 1, 1)
		if c.result.Tool == LLaMAFactory && c.values["ld_alpha"] != nil {
			c.decide(nil, "objective.ld_alpha: LLaMA-Factory takes it for the model and not for the reference; here and in "+
				"TRL it counts in both")
		}
	case "kto":
		c.lossOfLabels()
		c.beta(names, 0.1)
		c.amount("desirable", names.desirable, 1, 1)
		c.amount("undesirable", names.undesirable, 1, 1)
	case "orpo":
		c.takeName(names.loss)
		c.beta(names, 0.1)
		if c.result.Tool != LLaMAFactory {
			c.goal.part("nll_prompt", "true")
			c.goal.how = append(c.goal.how, "as in TRL the likelihood is of prompt and answer")
		}
	case "simpo":
		c.simpo(names)
	case scored:
		c.amount("center", []string{"center_rewards_coefficient"}, 0, 0)
		if c.result.Tool == LLaMAFactory {
			c.goal.how = append(c.goal.how,
				"it writes transformers' ForSequenceClassification, where LLaMA-Factory has a value "+
					"head next to lm_head")
		}
	case "cpo":
		if name, v := c.take(names.loss...); name != "" && textOf(v) != "sigmoid" && c.isKnownLoss(name, textOf(v)) {
			c.goal.part("loss", scalar(textOf(v)), name)
		}
		c.beta(names, 0.1)
		c.smoothing(names)
		c.amount("nll", names.nll, 1, 1)
	}
	c.likelihood(names)
	c.reference()
	c.unlike()
}

// takeName takes the key of which the type was made.
func (c *conversion) takeName(names []string) {
	name, _ := c.take(names...)
	c.goal.from = append(c.goal.from, given(name)...)
}

// beta adds beta, which Axolotl's section trl may have as well.
func (c *conversion) beta(names goalKeys, usual float64) {
	section, _ := c.values["trl"].(map[string]any)
	if x, ok := number(section["beta"]); ok && c.result.Tool == Axolotl {
		c.used["trl"] = true
		c.goal.number("beta", x, "trl")
		return
	}
	here := 0.1
	if c.goal.kind == "simpo" {
		here = 2
	}
	keys := names.beta
	if c.result.Tool == Axolotl {
		keys = append(slices.Clone(keys), "orpo_alpha")
	}
	c.amount("beta", keys, usual, here)
}

// losses adds the losses of dpo with their weights.
func (c *conversion) losses(names goalKeys) {
	name, v := c.take(names.loss...)
	all, from := list(v), given(name)
	if c.textAt("rl") == "ipo" {
		all, from = []string{"ipo"}, []string{"rl"}
	}
	if slices.Contains(all, "kto_pair") {
		all[slices.Index(all, "kto_pair")] = "apo_zero"
		c.decide(from, "objective.loss: %s is kto_pair, which TRL has no more; apo_zero is the same without its estimate of "+
			"the divergence", name)
	}
	weightsName, w := c.take(names.weights...)
	var weights []float64
	for _, item := range items(w) {
		if x, ok := number(item); ok {
			weights = append(weights, x)
		}
	}
	unknown := false
	for _, l := range all {
		unknown = !c.isKnownLoss(name, l) || unknown
	}
	if unknown {
		return
	}
	if len(all) == 0 {
		all = []string{"sigmoid"}
	}
	if len(weights) != len(all) {
		if len(weights) > 0 {
			c.decide(given(weightsName), "objective.weights: %s has %d numbers for %d losses", weightsName, len(weights),
				len(all))
		}
		weights = slices.Repeat([]float64{1}, len(all))
	} else if len(all) > 1 {
		from = append(from, weightsName)
	} else {
		c.dismiss("there is one loss", given(weightsName)...)
	}
	all, weights, from = c.added(names, all, weights, from)
	c.goal.from = append(c.goal.from, from...)
	if len(all) == 1 && all[0] == "sigmoid" {
		return
	}
	if len(all) == 1 {
		c.goal.part("loss", all[0])
		return
	}
	c.goal.part("loss", "["+strings.Join(all, ", ")+"]")
	if slices.ContainsFunc(weights, func(x float64) bool { return x != 1 }) {
		var texts []string
		for _, x := range weights {
			texts = append(texts, numeral(short(x)))
		}
		c.goal.part("weights", "["+strings.Join(texts, ", ")+"]")
	}
}

// isKnownLoss reports whether the objective has a loss of this name, and says so where it has none.
func (c *conversion) isKnownLoss(key, loss string) bool {
	known := objective.Losses(c.goal.kind)
	if slices.Contains(known, loss) {
		return true
	}
	c.cannot([]string{key}, "%s has %s: Millrace has no such loss of %s; it has %s", key, plainWord(loss), c.goal.kind,
		strings.Join(known, ", "))
	return false
}

// lossOfLabels adds the loss of kto, where it is not the type's own.
func (c *conversion) lossOfLabels() {
	name, v := c.take("loss_type")
	if loss := textOf(v); name != "" && c.isKnownLoss(name, loss) && loss != "kto" {
		c.goal.part("loss", scalar(loss), name)
	}
}

// items are the entries of a list.
func items(v any) []any { all, _ := v.([]any); return all }

// added are losses with those that keys of their own add: the likelihood of chosen answers, and bco_pair, which
// LLaMA-Factory takes the weighted mean with.
func (c *conversion) added(names goalKeys, all []string, weights []float64, from []string) ([]string, []float64,
	[]string) {
	name, v := c.take(names.bco...)
	if x, ok := number(v); ok && x > 0 {
		for i := range weights {
			weights[i] /= 1 + x
		}
		all, weights, from = append(all, "bco_pair"), append(weights, x/(1+x)), append(from, name)
		c.decide(nil, "objective.loss: LLaMA-Factory's bco subtracts a running mean of rewards; bco_pair does not, as in "+
			"TRL")
	}
	name, v = c.take(names.sft...)
	if x, ok := number(v); ok && x > 0 {
		all, weights, from = append(all, "sft"), append(weights, x), append(from, name)
	}
	return all, weights, from
}

// smoothing adds label_smoothing where the loss reads it: sigmoid does here, in LLaMA-Factory and in CPO, and no more
// in TRL's DPO.
func (c *conversion) smoothing(names goalKeys) {
	name, v := c.take(names.smoothing...)
	x, ok := number(v)
	if !ok || x <= 0 {
		return
	}
	losses := c.goal.losses()
	settings := objective.Settings{Type: c.goal.kind, LabelSmoothing: x, Losses: losses}
	if _, err := objective.New(settings); err != nil {
		c.decide([]string{name}, "objective.label_smoothing: %s is %s, which the loss does not read; it is left out", name,
			shown(v))
		return
	}
	c.goal.number("label_smoothing", x, name)
	isSigmoid := c.goal.kind == "dpo" && (len(losses) == 0 || slices.Contains(losses, "sigmoid"))
	if isSigmoid && c.result.Tool != LLaMAFactory {
		c.decide(nil, "objective.label_smoothing: with sigmoid it is cDPO, as in older versions of TRL; 1.16 does not read "+
			"it there, so leave it out to do as that does")
	}
}

// losses lists the names of losses among the parts.
func (g *goal) losses() []string {
	for _, p := range g.parts {
		if names, ok := strings.CutPrefix(p, "loss: "); ok {
			return strings.Split(strings.Trim(names, "[]"), ", ")
		}
	}
	return nil
}

// simpo adds the parts of SimPO. The scripts of its authors have the margin as a share of beta.
func (c *conversion) simpo(names goalKeys) {
	name, ratio := c.take("gamma_beta_ratio")
	share, isShare := number(ratio)
	lossName, loss := c.take(names.loss...)
	c.goal.from = append(c.goal.from, given(lossName)...)
	if textOf(loss) == "hinge" {
		c.cannot([]string{lossName}, "loss_type is hinge: simpo has the sigmoid alone here")
	}
	if isShare {
		c.beta(names, 2)
		beta, isGiven := c.goal.given["beta"]
		if !isGiven {
			beta = 2
		}
		c.goal.number("gamma", short(share*beta), name)
		c.goal.how = append(c.goal.how, fmt.Sprintf("gamma is %s of beta", numeral(share)))
		c.amount("nll", []string{"sft_weight"}, 0, 0)
	} else {
		c.beta(names, 0.1)
		c.amount("gamma", names.gamma, 0.5, 1)
		if c.result.Tool == LLaMAFactory {
			return
		}
		c.amount("nll", names.nll, 1, 0)
	}
	c.smoothing(names)
}

// likelihood adds the likelihood of the chosen answer that LLaMA-Factory's pref_ftx asks for, where it is not in the
// losses of dpo, and says how the means differ.
func (c *conversion) likelihood(names goalKeys) {
	name, v := c.take(names.sft...)
	x, ok := number(v)
	isOn := ok && x > 0
	switch {
	case isOn && c.goal.kind == "kto":
		c.decide([]string{name}, "objective: %s is %s, and kto adds no likelihood here", name, shown(v))
		return
	case isOn && c.goal.kind == "orpo":
		c.goal.number("nll", 1+x, name)
	case isOn && c.goal.kind == "simpo":
		c.goal.number("nll", x, name)
	}
	if c.result.Tool == LLaMAFactory && (isOn || c.goal.kind == "orpo") {
		c.goal.how = append(c.goal.how, "the likelihood is a mean over the tokens of a step, where LLaMA-Factory takes that "+
			"of each answer and then of the answers")
	}
}

// reference adds the model that is compared with, if it is not the one that the run begins with.
func (c *conversion) reference() {
	compares := c.goal.kind == "dpo" || c.goal.kind == "kto"
	name, v := c.take("ref_model")
	free, isFree := c.take("reference_free")
	switch {
	case compares && isOn(isFree):
		c.goal.part("reference", runfile.ReferenceNone, free)
		c.dismiss(free+" is on", given(name)...)
	case name == "":
	case !compares:
		c.dismiss(c.goal.kind+" has no reference", name)
	case slices.Contains([]string{c.textAt("model_name_or_path"), c.textAt("base_model")}, textOf(v)):
		c.dismiss("the reference is the model at its start", name)
	default:
		c.goal.part("reference", scalar(textOf(v)), name)
	}
	if name, v := c.take("ref_model_adapters", "ref_adapter_name"); name != "" && compares {
		c.decide([]string{name}, "objective.reference: %s is %s, an adapter: merge it into its model, and name that", name,
			shown(v))
	}
}

// unlike lists things that the trainer does and the run does not.
func (c *conversion) unlike() {
	if name, v := c.take("f_divergence_type"); name != "" {
		if strings.HasSuffix(textOf(v), "reverse_kl") {
			c.dismiss(withoutKey, name)
		} else {
			c.cannot([]string{name}, "%s is %s: Millrace has the reverse KL divergence alone", name, shown(v))
		}
	}
	if name, v := c.take("discopop_tau"); name != "" {
		if x, _ := number(v); x == 0.05 || !slices.Contains(c.goal.losses(), "discopop") {
			c.dismiss(withoutKey, name)
		} else {
			c.decide([]string{name}, "objective.loss: %s is %s, and discopop has 0.05 here", name, shown(v))
		}
	}
	if name, v := c.take("alpha"); name != "" && c.result.Tool == TRL && !isOff(v) {
		c.cannot([]string{name}, "alpha is %s, AlphaPO: Millrace has no rewards of this form", shown(v))
	}
	if name, v := c.take("truncation_mode"); textOf(v) == "keep_start" {
		c.dismiss(withoutKey, name)
	} else if name != "" {
		c.decide([]string{name}, "overlong: %s is %s; here a side that is longer than sequence_len loses its end", name,
			shown(v))
	}
	c.dismiss("prompt and answer have one length together, sequence_len, and the end is cut off, as in TRL 1.16",
		"max_prompt_length", "max_prompt_len", "max_completion_length", "max_target_length")
	beta, gamma := c.goal.given["beta"], c.goal.given["gamma"]
	if c.goal.kind == "simpo" && beta > 0 && gamma/beta > 2 {
		c.decide(nil, "objective.gamma: %s at a beta of %s asks for %s nats a token; SimPO's authors have 0.1 to 0.8, "+
			"at a beta from 2 to 10", numeral(gamma), numeral(beta), numeral(short(gamma/beta)))
	}
}

// dismissGoalKeys says why keys of preferences need no setting where the file has none.
func (c *conversion) dismissGoalKeys() {
	if c.result.Tool == TRL && !isOff(c.values["label_smoothing"]) {
		return
	}
	for _, k := range keysOfGoal {
		for _, names := range [][]string{k.beta, k.weights, k.gamma, k.nll, k.desirable, k.undesirable, k.ldAlpha, k.sft,
			k.bco, {"pref_loss", "dpo_loss_type", "dpo_label_smoothing", "orpo_alpha", "ref_model"}} {
			c.dismiss("the file does not train on preferences", c.present(names...)...)
		}
	}
}

// setObjective makes the setting, in a line if it has room there.
func (c *conversion) setObjective() {
	g := c.goal
	if g.kind == "" {
		return
	}
	value := "{" + strings.Join(g.parts, ", ") + "}"
	if len("objective: "+value) > width {
		value = "\n  " + strings.Join(g.parts, "\n  ")
	}
	var from []string
	for _, key := range g.from {
		if !slices.Contains(from, key) {
			from = append(from, key)
		}
	}
	c.set("objective", value, from, "%s", strings.Join(g.how, "; "))
}
