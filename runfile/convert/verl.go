package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/objective"
)

// Prefixes of verl's keys.
const (
	verlActor   = "actor_rollout_ref.actor."
	verlRollout = "actor_rollout_ref.rollout."
)

// isVerl reports whether values are of verl, flat or in their sections.
func isVerl(values map[string]any) bool {
	for key := range values {
		if section, _, _ := strings.Cut(key, "."); section == "actor_rollout_ref" {
			return true
		}
	}
	return false
}

// flatVerl are the settings of verl by keys with dots. Empty mappings, and what stands for values of other keys
// (${...}), are no settings.
func flatVerl(values map[string]any) map[string]any {
	flat := map[string]any{}
	var add func(prefix string, values map[string]any)
	add = func(prefix string, values map[string]any) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			switch v := values[key].(type) {
			case map[string]any:
				add(prefix+key+".", v)
			case string:
				if !strings.HasPrefix(v, "${") && key != "_target_" {
					flat[prefix+key] = v
				}
			default:
				flat[prefix+key] = v
			}
		}
	}
	add("", values)
	return flat
}

// verl makes the settings of a file, or of a command, of verl, whose defaults are those of ppo_trainer.yaml at
// b178a3cd. A round of verl has data.train_batch_size prompts with rollout.n answers each, and makes an update for each
// ppo_mini_batch_size of the prompts.
func (c *conversion) verl() {
	c.goal.kind = rewarded
	c.goal.part("type", rewarded)
	c.configOfVerl()
	loss := c.lossOfVerl()
	c.advantageOfVerl(loss)
	c.divergenceOfVerl()
	c.entropyOfVerl()
	c.correctionOfVerl()
	updates, from := c.roundOfVerl()
	c.samplerOfVerl()
	c.rewardsOfVerl()
	steps, stepsKey := c.countAt(0, "trainer.total_training_steps")
	passes, passesKey := c.numberAt(30, "trainer.total_epochs")
	c.rounds(steps, stepsKey, passes, passesKey)
	c.setLoop(updates, from...)
	c.heldByNone("data.val_files", "trainer.val_before_train", "trainer.val_only")
	if n, key := c.countAt(0, "trainer.test_freq"); n > 0 {
		c.dismiss("the run does not evaluate", key)
	}
}

// configOfVerl is for the file of settings that a command names, over which its words are: verl's own is the default.
func (c *conversion) configOfVerl() {
	key, v := c.take("config_name")
	pathKey, _ := c.take("config_path")
	switch name := strings.TrimSuffix(textOf(v), ".yaml"); {
	case name == "" || name == "ppo_trainer" || name == "ppo_megatron_trainer":
		c.dismiss("it has verl's defaults", given(key, pathKey)...)
	case strings.Contains(name, "multiturn"):
		c.cannot(given(key, pathKey), "config_name is %s, by its name with turns of tools: a run here samples one answer; a "+
			"loop outside can write them into rollouts, with a mask", plainWord(name))
	default:
		c.decide(given(key, pathKey), "config_name is %s: the settings of that file count as well, and are not here; have "+
			"Hydra write the whole (--cfg job), and convert that", plainWord(name))
	}
}

// lossOfVerl adds the loss, with its clip and its divisor.
func (c *conversion) lossOfVerl() (loss string) {
	modeKey, mode := c.take(verlActor+"policy_loss.loss_mode", verlActor+"loss_mode")
	aggregateKey, aggregate := c.take(verlActor + "loss_agg_mode")
	both, bothKey := c.numberAt(0.2, verlActor+"clip_ratio")
	low, lowKey := c.numberAt(both, verlActor+"clip_ratio_low")
	high, highKey := c.numberAt(both, verlActor+"clip_ratio_high")
	clip := []float64{low, high}
	divisor := map[string]string{"": "tokens", "token-mean": "tokens", "seq-mean-token-mean": "answers",
		"seq-mean-token-sum-norm": "max_tokens"}[textOf(aggregate)]
	if divisor == "" {
		c.decide(given(aggregateKey), "objective.normalizer: %s is %s, the mean over answers of the sums of their tokens; "+
			"here sums are divided by max_tokens as well, which AdamW does not notice, and max_grad_norm does", aggregateKey,
			shown(aggregate))
		divisor = "max_tokens"
	}
	switch of := textOf(mode); of {
	case "", "vanilla":
		if loss = "dapo"; c.hasCritic() {
			loss = "ppo"
		} else if divisor == "answers" {
			loss = "grpo"
		} else if divisor == "max_tokens" {
			loss = "dr_grpo"
		}
	case "gspo":
		loss = of
	case "sapo", "cispo":
		loss = of
		if of == "cispo" {
			clip[1]++ // verl's bound is 1 + clip_ratio_high
		}
	default:
		loss = "dapo"
		c.cannot([]string{modeKey}, "%s is %s: Millrace has no such loss; it has vanilla, gspo, sapo and cispo of verl's",
			modeKey, shown(mode))
	}
	if c.hasCritic() && loss != "ppo" {
		c.cannot(given(modeKey), "%s is %s, and advantages are of a critic (gae): Millrace has a critic with the loss "+
			"vanilla of verl's alone", modeKey, shown(mode))
		loss = "ppo"
	}
	c.goal.from = append(c.goal.from, given(modeKey, aggregateKey)...)
	c.clipped(loss, clip, bothKey, lowKey, highKey)
	if divisor != (objective.Settings{Type: rewarded, Losses: []string{loss}}).Resolved().Normalizer {
		c.goal.part("normalizer", divisor)
	}
	if divisor == "max_tokens" {
		tokens, _ := c.countAt(512, "data.max_response_length")
		c.goal.part("max_tokens", numeral(float64(tokens)))
		if x, key := c.numberAt(0, verlActor+"loss_scale_factor"); x > 0 {
			c.decide(given(key), "objective.max_tokens: %s is %s, which divides the sums in its place", key, numeral(x))
		}
	}
	if x, key := c.numberAt(3, verlActor+"clip_ratio_c"); slices.Contains([]string{"dapo", "grpo", "dr_grpo", "ppo"},
		loss) {
		if c.goal.number("delta", x, key); key == "" {
			c.goal.how = append(c.goal.how, "verl bounds ratios of answers that are worse than expected at 3 (clip_ratio_c)")
		}
	} else {
		c.dismiss("the loss does not read it", given(key)...)
	}
	better, betterKey := c.numberAt(1, verlActor+"tau_pos")
	worse, worseKey := c.numberAt(1.05, verlActor+"tau_neg")
	if loss == "sapo" && (better != 1 || worse != 1.05) {
		c.goal.part("taus", fmt.Sprintf("[%s, %s]", numeral(better), numeral(worse)), betterKey, worseKey)
	} else {
		c.dismiss(withoutKey, given(betterKey, worseKey)...)
	}
	return loss
}

// advantageOfVerl adds how advantages follow from rewards.
func (c *conversion) advantageOfVerl(loss string) {
	key, v := c.take("algorithm.adv_estimator")
	stdKey, std := c.take("algorithm.norm_adv_by_std_in_grpo")
	how := "group"
	switch of := textOf(v); of {
	case "grpo":
		if stdKey != "" && isOff(std) {
			how = "none"
		}
	case "rloo", "rloo_vectorized":
		how = "rloo"
	case "gdpo":
		how = of
	case "reinforce_plus_plus_baseline":
		how = "reinforce++"
	case "gae", "":
		c.goal.from = append(c.goal.from, given(key)...)
		c.dismiss("advantages of a critic are always whitened", given(stdKey)...)
		c.criticOfVerl()
		return
	default:
		c.cannot([]string{key}, "%s is %s: Millrace has no such advantage; it has grpo, rloo, gdpo and "+
			"reinforce_plus_plus_baseline of verl's", key, shown(v))
	}
	c.advantage(loss, how, key, stdKey)
	for _, k := range []string{"algorithm.gamma", "algorithm.lam"} {
		if _, from := c.numberAt(1, k); from != "" {
			c.dismiss("these advantages do not read it", from)
		}
	}
	c.dismiss("these advantages need no critic", c.keysOfCritic()...)
}

// divergenceOfVerl adds the divergence from the reference, which verl has in the loss or in the rewards.
func (c *conversion) divergenceOfVerl() {
	if c.hasCritic() {
		c.penaltyOfVerl()
		return
	}
	key, v := c.take(verlActor + "use_kl_loss")
	kl, klKey := c.numberAt(0.001, verlActor+"kl_loss_coef")
	kindKey, kind := c.take(verlActor + "kl_loss_type")
	if !isOn(v) {
		c.dismiss("the file has no divergence from a reference", given(key, klKey, kindKey)...)
	} else {
		c.divergence(kl, true, key, klKey)
		switch of := textOf(kind); of {
		case "", "low_var_kl", "k3":
			c.goal.from = append(c.goal.from, given(kindKey)...)
		default:
			c.decide(given(kindKey), "objective.kl: %s is %s; here the estimate is low_var_kl (kl_plain: true), or that times "+
				"the ratio, whose gradient is that of the divergence", kindKey, shown(kind))
		}
	}
	inReward, on := c.take("algorithm.use_kl_in_reward")
	keys := c.present("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon",
		"algorithm.kl_ctrl.target_kl", "algorithm.kl_penalty")
	c.take(keys...)
	if isOn(on) {
		c.cannot(append(keys, inReward), "algorithm.use_kl_in_reward is on, with advantages of groups: Millrace has the "+
			"divergence in the loss (objective.kl) of these, and in rewards of tokens with a critic alone (gae)")
	} else {
		c.dismiss("algorithm.use_kl_in_reward is off", append(keys, given(inReward)...)...)
	}
}

// entropyOfVerl adds the entropy bonus, which verl divides as it does the loss.
func (c *conversion) entropyOfVerl() {
	x, key := c.numberAt(0, verlActor+"entropy_coeff", verlActor+"entropy_coef")
	if x == 0 {
		return
	}
	c.goal.number("entropy_coef", x, key)
	if of, v := c.take(verlActor + "loss_agg_mode"); of != "" && textOf(v) != "token-mean" {
		c.decide([]string{of, key}, "objective.entropy_coef: %s is %s, by which verl also divides entropies; here the "+
			"bonus is of their mean over all tokens", of, shown(v))
	}
}

// correctionOfVerl adds the correction for the sampler, and what is rejected.
func (c *conversion) correctionOfVerl() {
	const at = "algorithm.rollout_correction."
	key, v := c.take(at + "rollout_is")
	most, mostKey := c.numberAt(2, at+"rollout_is_threshold")
	switch of := textOf(v); {
	case isOff(v):
		c.goal.part("correction", "none", given(key)...)
		c.dismiss("nothing is corrected", given(mostKey)...)
		c.goal.how = append(c.goal.how, "verl corrects for its sampler with rollout_is alone")
	default:
		if of == "sequence" {
			c.goal.part("correction", "sequence_truncate")
		}
		if c.goal.from = append(c.goal.from, given(key, mostKey)...); most != 2 || of == "sequence" {
			c.goal.number("correction_max", most)
		}
	}
	key, v = c.take(at + "rollout_rs")
	boundKey, bound := c.take(at + "rollout_rs_threshold")
	modes := list(v)
	switch x, ok := number(bound); {
	case isOff(v):
		c.dismiss("nothing is rejected", given(key, boundKey)...)
	case len(modes) == 1 && ok:
		c.goal.part("rejection", scalar(modes[0]), key)
		c.goal.number("rejection_max", x, boundKey)
		c.goal.how = append(c.goal.how, "verl's divisors leave out what is rejected, and those here do not")
	default:
		c.decide(given(key, boundKey), "objective.rejection: %s is %s at %s; here it is one of them, with one bound", key,
			shown(v), shown(bound))
	}
}

// roundOfVerl adds what a round samples, and returns how many updates it makes with its answers.
func (c *conversion) roundOfVerl() (updates float64, from []string) {
	l := &c.loop
	prompts, promptsKey := c.countAt(1024, "data.train_batch_size")
	samples, samplesKey := c.countAt(1, verlRollout+"n")
	tokens, tokensKey := c.countAt(512, "data.max_response_length")
	prompt, promptKey := c.countAt(512, "data.max_prompt_length")
	mini, miniKey := c.countAt(256, verlActor+"ppo_mini_batch_size")
	l.prompts, l.samples, l.tokens, l.length = prompts, samples, tokens, tokens+prompt
	l.part("prompts_per_step", numeral(float64(prompts)), promptsKey)
	l.part("samples", numeral(float64(samples)), samplesKey)
	l.part("max_tokens", numeral(float64(tokens)), tokensKey)
	l.from = append(l.from, given(promptKey)...)
	if n, key := c.countAt(1, verlActor+"ppo_epochs"); n > 1 {
		l.part("iterations", numeral(float64(n)), key)
	} else {
		c.dismiss("one pass over the answers of a round", given(key)...)
	}
	if key, v := c.take("algorithm.filter_groups.enable"); isOn(v) {
		batches, batchesKey := c.countAt(0, "algorithm.filter_groups.max_num_gen_batches")
		each, eachKey := c.countAt(prompts, "data.gen_batch_size")
		if batches == 0 {
			batches = 10
			c.decide(nil, "rl.max_groups: the file samples until a round is full, and 10 batches of prompts is a guess")
		}
		l.part("max_groups", numeral(float64(max(batches*each, prompts))), key, batchesKey, eachKey)
	} else {
		keys := c.present("algorithm.filter_groups.max_num_gen_batches", "data.gen_batch_size")
		c.take(keys...)
		c.dismiss("all groups are trained on", append(keys, given(key)...)...)
	}
	return float64(prompts) / float64(mini), given(miniKey)
}

// samplerOfVerl adds how the run samples: itself, whatever engine verl has in its own processes.
func (c *conversion) samplerOfVerl() {
	for _, s := range []struct {
		key   string
		usual float64
	}{{"temperature", 1}, {"top_p", 1}, {"top_k", -1}} {
		x, from := c.numberAt(s.usual, verlRollout+s.key)
		if from == "" || x == s.usual || s.key == "top_k" && x <= 0 {
			c.dismiss(withoutKey, given(from)...)
			continue
		}
		c.loop.part(s.key, numeral(x), from)
	}
	if key, v := c.take(verlRollout + "multi_turn.enable"); isOn(v) {
		c.cannot([]string{key}, "%s is on: a run here samples one answer, and no turns of tools; a loop outside can write "+
			"them into rollouts, with a mask", key)
	}
}

// rewardsOfVerl adds what judges answers: a function of the file's, a model, or verl's own by the name of the data.
func (c *conversion) rewardsOfVerl() {
	fileKey, file := c.take("custom_reward_function.path", "reward.custom_reward_function.path")
	nameKey, name := c.take("custom_reward_function.name", "reward.custom_reward_function.name")
	modelOn, on := c.take("reward_model.enable", "reward.reward_model.enable")
	modelKey, model := c.take("reward_model.model.path", "reward_model.model_path", "reward.reward_model.model_path")
	managerKey, _ := c.take("reward_model.reward_manager", "reward.reward_manager.name")
	l := &c.loop
	l.from = append(l.from, given(fileKey, nameKey, managerKey)...)
	switch path := textOf(file); {
	case path != "":
		function := textOf(name)
		if function == "" {
			function = "compute_score"
		}
		l.reward(function, "command: [python3, "+scalar(path)+"]", 1)
		c.decide(nil, "rl.reward: %s is a function of %s; have the file call it for each line of JSON by the contract of "+
			"docs/rl.md", plainWord(function), plainWord(path))
	case isOn(on):
	case strings.Contains(strings.ToLower(textOf(c.values["data.train_files"])), "gsm8k"):
		l.reward("gsm8k", "type: number, column: reward_model.ground_truth", 1)
		l.how = append(l.how, "verl's gsm8k wants ####, and type number also takes a last number without it")
	default:
		l.reward("score", "command: [python3, judge.py]", 1)
		c.decide(nil, "rl.reward: verl chooses a function by data_source of the rows; write judge.py, which calls "+
			"default_compute_score of verl for each line of JSON by the contract of docs/rl.md")
	}
	if isOn(on) {
		l.judge(c, "model", textOf(model), 1)
		l.from = append(l.from, given(modelOn, modelKey)...)
	} else {
		c.dismiss("reward_model.enable is off", given(modelOn, modelKey)...)
	}
	const buffer = "reward_model.reward_kwargs.overlong_buffer_cfg."
	key, v := c.take(buffer+"enable", "reward.reward_kwargs.overlong_buffer_cfg.enable")
	if !isOn(v) {
		var keys []string
		for k := range c.values {
			if strings.Contains(k, "reward_kwargs.") {
				keys = append(keys, k)
			}
		}
		c.take(keys...)
		c.dismiss("long answers lose no reward", keys...)
		return
	}
	prefix := strings.TrimSuffix(key, "enable")
	cache, cacheKey := c.countAt(l.tokens/5, prefix+"len")
	factor, factorKey := c.numberAt(1, prefix+"penalty_factor")
	most, mostKey := c.countAt(l.tokens, strings.Replace(prefix, "overlong_buffer_cfg.", "max_resp_len", 1))
	logKey, _ := c.take(prefix + "log")
	c.dismiss("each reward is in the records", given(logKey)...)
	l.reward("length", fmt.Sprintf("type: length, max: %d, cache: %d", most, cache), factor)
	l.from = append(l.from, given(key, cacheKey, factorKey, mostKey)...)
}

// outputOfVerl sets the directory and the checkpoints.
func (c *conversion) outputOfVerl() {
	dirKey, dir := c.take("trainer.default_local_dir")
	nameKey, name := c.take("trainer.experiment_name")
	projectKey, _ := c.take("trainer.project_name")
	if path := textOf(dir); path != "" && (!strings.Contains(path, "$") || nameKey == "") {
		c.set("output_dir", scalar(path), given(dirKey), "")
		c.dismiss(dirKey+" names the run", given(nameKey, projectKey)...)
	} else if text := textOf(name); text != "" {
		c.set("output_dir", scalar("runs/"+text), given(nameKey, dirKey), "")
		c.dismiss(nameKey+" names the run", given(projectKey)...)
	}
	var parts, from []string
	if n, key := c.countAt(0, "trainer.save_freq"); n > 0 {
		parts, from = append(parts, fmt.Sprintf("every: %d", n)), append(from, key)
	}
	if n, key := c.countAt(0, "trainer.max_actor_ckpt_to_keep"); n > 0 {
		parts, from = append(parts, fmt.Sprintf("keep: %d", n)), append(from, key)
	}
	if len(parts) > 0 {
		c.set("save", "{"+strings.Join(parts, ", ")+"}", from, "")
	}
}
