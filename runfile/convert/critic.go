package convert

import (
	"slices"
	"strings"
)

// hasCritic reports whether a file of verl has advantages of a critic, which is what it has where it does not say.
func (c *conversion) hasCritic() bool {
	name := textOf(c.values["algorithm.adv_estimator"])
	return name == "" || name == "gae"
}

// keysOfCritic are the keys of the file that are about a critic, sorted. They count as used.
func (c *conversion) keysOfCritic() (all []string) {
	for key := range c.values {
		if strings.HasPrefix(key, "critic.") || key == "trainer.critic_warmup" || key == "trainer.max_critic_ckpt_to_keep" {
			all = append(all, key)
		}
	}
	slices.Sort(all)
	c.take(all...)
	return all
}

// criticOfVerl adds PPO's critic, which verl has as a model of its own with an optimizer of its own, and which shares
// the policy's blocks here.
func (c *conversion) criticOfVerl() {
	for _, of := range []struct {
		key, there  string
		usual, here float64
	}{{"gamma", "algorithm.gamma", 1, 1}, {"lambda", "algorithm.lam", 1, 0.95},
		{"clip_value", "critic.cliprange_value", 0.5, 0.2}} {
		x, from := c.numberAt(of.usual, of.there)
		if from == "" && x != of.here {
			c.goal.how = append(c.goal.how, "the file does not say "+of.there+"; verl has "+numeral(x))
		}
		if x != of.here {
			c.goal.number(of.key, x, from)
		} else {
			c.goal.from = append(c.goal.from, given(from)...)
		}
	}
	all := c.keysOfCritic()
	c.decide(c.present("critic.model.path", "critic.optim.lr"), "objective.critic: verl's critic is a model of its own "+
		"(critic.model.path), with a rate of its own (critic.optim.lr, 1e-5 where the file has none); here it is a row of "+
		"numbers at the end of the policy, whose blocks both share: it learns at learning_rate, and vf_coef (0.1) is the "+
		"share of its loss")
	if x, key := c.numberAt(0, "trainer.critic_warmup"); x > 0 {
		c.decide(given(key), "%s is %s, steps in which the critic alone learns; here it learns with the policy from the "+
			"first step on", key, numeral(x))
	}
	if key, v := c.take("critic.loss_agg_mode"); key != "" && textOf(v) != "token-mean" {
		c.decide(given(key), "%s is %s; here the critic's loss has the divisor of the policy's", key, shown(v))
	}
	rest := slices.DeleteFunc(all, func(key string) bool {
		return c.decided[key] || slices.Contains(c.goal.from, key)
	})
	c.dismiss("the critic shares the policy's blocks and its steps", rest...)
}

// penaltyOfVerl adds the divergence of a file with a critic: of the rewards of tokens, as here, or of the loss.
func (c *conversion) penaltyOfVerl() {
	lossOn, inLoss := c.take(verlActor + "use_kl_loss")
	rewardOn, inReward := c.take("algorithm.use_kl_in_reward")
	ofLoss, ofLossKey := c.numberAt(0.001, verlActor+"kl_loss_coef")
	ofReward, ofRewardKey := c.numberAt(0.001, "algorithm.kl_ctrl.kl_coef")
	lossKind, _ := c.take(verlActor + "kl_loss_type")
	kindKey, kind := c.take("algorithm.kl_penalty")
	controlKey, control := c.take("algorithm.kl_ctrl.type")
	rest := c.present("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl")
	c.take(rest...)
	const none = "the file has no divergence from a reference of this form"
	lossKeys := given(lossOn, ofLossKey, lossKind)
	rewardKeys := append(given(rewardOn, ofRewardKey, kindKey, controlKey), rest...)
	switch {
	case isOn(inLoss) && isOn(inReward):
		c.cannot(append(lossKeys, rewardKeys...), "%s and algorithm.use_kl_in_reward are on: Millrace has one divergence, "+
			"of the rewards of tokens where there is a critic", lossOn)
	case isOn(inLoss):
		c.divergence(ofLoss, false, ofLossKey)
		c.decide(given(lossOn, lossKind), "objective.kl: %s has the divergence in the loss; with a critic it is in the "+
			"rewards of tokens here, as by algorithm.use_kl_in_reward", lossOn)
		c.dismiss(none, rewardKeys...)
	case isOn(inReward):
		c.divergence(ofReward, false, rewardOn, ofRewardKey)
		if of := textOf(kind); of != "" && of != "kl" && of != "k1" {
			c.decide(given(kindKey), "objective.kl: %s is %s; here the penalty is the difference of log-probabilities (kl)",
				kindKey, shown(kind))
		} else {
			c.goal.from = append(c.goal.from, given(kindKey)...)
		}
		if textOf(control) == "adaptive" {
			c.decide(append(rest, controlKey), "objective.kl: %s is adaptive; here the coefficient stays", controlKey)
		} else {
			c.dismiss("the coefficient stays", append(rest, given(controlKey)...)...)
		}
		c.dismiss(none, lossKeys...)
	default:
		c.dismiss(none, append(lossKeys, rewardKeys...)...)
	}
}
