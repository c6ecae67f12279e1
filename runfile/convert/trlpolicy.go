package convert

import (
	"fmt"
	"slices"
	"strings"
)

// policyOfTRL makes the settings of a file for GRPOTrainer or RLOOTrainer of TRL 1.16.0, whose defaults are those of
// GRPOConfig and RLOOConfig.
func (c *conversion) policyOfTRL() {
	isRLOO := c.goal.isRLOO
	c.goal.part("type", rewarded)
	loss := c.lossOfTRL(isRLOO)
	c.advantageOfTRL(loss, isRLOO)
	usualKL := 0.0
	if isRLOO {
		usualKL = 0.05
	}
	kl, klFrom := c.numberAt(usualKL, "beta")
	correctedKey, corrected := c.take("use_bias_correction_kl")
	plain := correctedKey != "" && isOff(corrected) && !isRLOO
	if c.divergence(kl, plain, klFrom, correctedKey); klFrom == "" && kl > 0 {
		c.goal.how = append(c.goal.how, fmt.Sprintf("the file does not say beta; TRL has %s", numeral(kl)))
	}
	if key, v := c.take("off_policy_mask_threshold"); key != "" {
		if x, ok := number(v); ok && x > 0 {
			c.goal.number("off_policy_threshold", x, key)
		}
	}
	if key, v := c.take("mask_truncated_completions"); isOn(v) {
		c.goal.part("mask_truncated", "true", key)
	}
	if x, key := c.numberAt(1, "top_entropy_quantile"); x == 1 {
		c.dismiss("all tokens count", given(key)...)
	} else {
		c.decide(given(key), "top_entropy_quantile is %s, which changes the result: here all tokens count, and not those of "+
			"high entropy alone", numeral(x))
	}
	c.entropyOfTRL()
	c.samplerOfTRL(loss, isRLOO)
	updates, from := c.roundOfTRL(isRLOO)
	if strings.Contains(strings.Join(c.goal.parts, " "), "max_tokens") || loss == "dr_grpo" {
		c.goal.part("max_tokens", numeral(float64(c.loop.tokens)))
	}
	c.rewardsOfTRL()
	steps, stepsKey := c.countAt(0, "max_steps")
	passes, passesKey := c.numberAt(3, "num_train_epochs")
	c.rounds(steps, stepsKey, passes, passesKey)
	c.setLoop(updates, from...)
	c.heldByNone("eval_strategy", "evaluation_strategy", "eval_steps", "dataset_test_split", "test_split_size",
		"num_generations_eval", "eval_on_start")
}

// entropyOfTRL adds the entropy bonus, with a coefficient that stays as it is.
func (c *conversion) entropyOfTRL() {
	x, key := c.numberAt(0, "entropy_coef")
	if x != 0 {
		c.goal.number("entropy_coef", x, key)
	}
	moves := c.present("entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target")
	c.take(moves...)
	if adaptive, v := c.take("use_adaptive_entropy"); isOn(v) {
		c.decide(append(given(adaptive), moves...), "use_adaptive_entropy is on, which moves entropy_coef towards an "+
			"entropy; here it stays at %s", numeral(x))
	} else {
		c.dismiss("the coefficient of entropies stays as it is", append(moves, given(adaptive)...)...)
	}
}

// lossOfTRL adds the loss, with its clip.
func (c *conversion) lossOfTRL(isRLOO bool) (loss string) {
	key, v := c.take("loss_type")
	levelKey, level := c.take("importance_sampling_level")
	ofSequence := textOf(level) == "sequence"
	if loss = textOf(v); key == "" {
		loss = "dapo"
	}
	normalizer := ""
	switch of := loss; {
	case isRLOO:
		loss = "rloo"
	case of == "luspo":
		c.cannot([]string{key}, "loss_type is luspo: Millrace has no loss of whole answers by their length")
		loss = "gspo"
	case ofSequence && (of == "dapo" || of == "bnpo"):
		loss, normalizer = "gspo", "tokens"
	case ofSequence && of == "dr_grpo":
		loss, normalizer = "gspo", "max_tokens"
	case ofSequence && of == "grpo":
		loss = "gspo"
	case ofSequence:
		c.cannot([]string{levelKey}, "importance_sampling_level is sequence with the loss %s: Millrace has ratios of whole "+
			"answers with grpo, dapo, bnpo and dr_grpo (objective.loss: gspo)", plainWord(of))
	}
	c.goal.kind = rewarded
	if !c.isKnownLoss(key, loss) {
		loss = "dapo"
	}
	c.goal.from = append(c.goal.from, given(key, levelKey)...)
	low, lowKey := c.numberAt(0.2, "epsilon")
	high, highKey := c.numberAt(low, "epsilon_high")
	c.clipped(loss, []float64{low, high}, lowKey, highKey)
	if normalizer != "" {
		c.goal.part("normalizer", normalizer)
	}
	if x, key := c.numberAt(0, "delta"); key != "" && x > 0 {
		c.goal.number("delta", x, key)
	}
	better, betterKey := c.numberAt(1, "sapo_temperature_pos")
	worse, worseKey := c.numberAt(1.05, "sapo_temperature_neg")
	switch {
	case loss != "sapo":
		c.dismiss("the loss is not sapo", given(betterKey, worseKey)...)
	case better != 1 || worse != 1.05:
		c.goal.part("taus", fmt.Sprintf("[%s, %s]", numeral(better), numeral(worse)), betterKey, worseKey)
	default:
		c.goal.from = append(c.goal.from, given(betterKey, worseKey)...)
	}
	for key, usual := range map[string]float64{"vespo_k_pos": 2, "vespo_lambda_pos": 3, "vespo_k_neg": 3,
		"vespo_lambda_neg": 2} {
		if x, from := c.numberAt(usual, key); loss != "vespo" || x == usual {
			c.dismiss(withoutKey, given(from)...)
		} else {
			c.decide(given(from), "objective.loss: %s is %s, and vespo has %s here", key, numeral(x), numeral(usual))
		}
	}
	return loss
}

// advantageOfTRL adds how advantages follow from rewards.
func (c *conversion) advantageOfTRL(loss string, isRLOO bool) {
	scaleKey, scale := c.take("scale_rewards")
	sumKey, sum := c.take("multi_objective_aggregation")
	normalizes, normalized := c.take("normalize_advantages")
	if isOn(normalized) {
		c.decide(given(normalizes), "objective.advantage: %s is on, and Millrace does not whiten advantages of rloo; "+
			"reinforce++ whitens those of R - mean", normalizes)
	}
	rangeKey, clip := c.take("reward_clip_range")
	if !isOff(clip) {
		c.decide(given(rangeKey), "rl.reward: %s is %s, and rewards are not clipped here: have their program do it", rangeKey,
			shown(clip))
	}
	how := "group"
	switch text := strings.ToLower(textOf(scale)); {
	case isRLOO:
		how = "rloo"
	case textOf(sum) == "normalize_then_sum":
		how = "gdpo"
	case text == "batch":
		how = "batch"
	case scaleKey != "" && (text == "none" || text == "false"):
		how = "none"
	}
	c.advantage(loss, how, scaleKey, sumKey)
}

// samplerOfTRL adds what samples, and the correction for it.
func (c *conversion) samplerOfTRL(loss string, isRLOO bool) {
	key, v := c.take("use_vllm")
	modeKey, mode := c.take("vllm_mode")
	urlKey, url := c.take("vllm_server_base_url")
	hostKey, host := c.take("vllm_server_host")
	portKey, port := c.take("vllm_server_port")
	usesVLLM := isOn(v)
	if address := textOf(url); usesVLLM && (textOf(mode) == "server" || address != "") {
		if address == "" {
			name, at := textOf(host), textOf(port)
			if name == "" || name == "0.0.0.0" {
				name = "127.0.0.1"
			}
			if at == "" {
				at = "8000"
			}
			address = "http://" + name + ":" + at
		}
		c.loop.part("sampler", "{url: "+scalar(address)+", engine: vllm, dir: /dev/shm/policy}", key, modeKey, urlKey,
			hostKey, portKey)
		c.decide(nil, "rl.sampler: TRL's server takes weights by NCCL; here it is vLLM's own, which reads them from dir: "+
			"start it as docs/rl.md says")
	} else {
		c.dismiss("the run samples itself; rl.sampler names a server", given(key, modeKey, urlKey, hostKey, portKey)...)
	}
	onKey, on := c.take("vllm_importance_sampling_correction")
	howKey, how := c.take("vllm_importance_sampling_mode")
	most, mostKey := c.numberAt(3, "vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap")
	least, leastKey := c.numberAt(0, "vllm_importance_sampling_clip_min")
	from := given(onKey, howKey, mostKey, leastKey)
	switch correction := textOf(how); {
	case isRLOO:
		c.dismiss("RLOO has no such correction", from...)
	case !usesVLLM || onKey != "" && isOff(on):
		c.goal.part("correction", "none", from...)
		if !usesVLLM {
			c.goal.how = append(c.goal.how, "TRL corrects for vLLM alone")
		}
	default:
		if correction == "" {
			correction = "sequence_mask"
			c.goal.how = append(c.goal.how, "the file does not say the correction; TRL has sequence_mask at 3")
		}
		if loss == "vespo" && strings.HasPrefix(correction, "sequence") {
			c.decide(nil, "objective.correction: the file has %s, which vespo does not take here", plainWord(correction))
			correction = "token_truncate"
		}
		c.goal.part("correction", scalar(correction), from...)
		if correction != "token_truncate" && most != 3 || correction == "token_truncate" && most != 2 {
			c.goal.number("correction_max", most)
		}
		if least > 0 {
			c.goal.number("correction_min", least)
		}
	}
	for _, s := range []struct {
		key    string
		usual  float64
		writes string
	}{{"temperature", 1, "temperature"}, {"top_p", 1, "top_p"}, {"top_k", 0, "top_k"}, {"min_p", 0, ""},
		{"repetition_penalty", 1, ""}} {
		x, from := c.numberAt(s.usual, s.key)
		switch {
		case from == "" || x == s.usual || s.key == "top_k" && x < 0:
			c.dismiss(withoutKey, given(from)...)
		case s.writes == "":
			c.decide(given(from), "%s is %s, which changes the result: the run samples without it", s.key, numeral(x))
		default:
			c.loop.part(s.writes, numeral(x), from)
		}
	}
}

// roundOfTRL adds what a round samples, and returns how many updates it makes with its answers.
func (c *conversion) roundOfTRL(isRLOO bool) (updates float64, from []string) {
	l := &c.loop
	usual := int64(8)
	if isRLOO {
		usual = 2
	}
	samples, samplesKey := c.countAt(usual, "num_generations")
	each, eachKey := c.countAt(8, "per_device_train_batch_size")
	accumulated, accumulatedKey := c.countAt(1, "gradient_accumulation_steps")
	steps, stepsKey := c.countAt(accumulated, "steps_per_generation")
	all, allKey := c.countAt(each*steps, "generation_batch_size")
	if allKey != "" {
		steps = max(all/each, 1)
	}
	l.samples, l.prompts = samples, max((all+samples-1)/samples, 1)
	if l.prompts*samples != all {
		c.decide(nil, "rl.prompts_per_step: %d answers of a round on one device are no whole number of groups of %d", all,
			samples)
	}
	l.part("prompts_per_step", numeral(float64(l.prompts)), eachKey, accumulatedKey, stepsKey, allKey)
	l.part("samples", numeral(float64(samples)), samplesKey)
	l.how = append(l.how, fmt.Sprintf("a round of TRL has %d answers on one device", all))
	c.decide(nil, "rl.prompts_per_step: multiply it, and batch_tokens, by the number of devices that the file was for")
	tokens, tokensKey := c.countAt(512, "max_completion_length")
	prompt, promptKey := c.countAt(512, "max_prompt_length")
	whole, wholeKey := c.countAt(tokens+prompt, "vllm_max_model_length", "vllm_max_model_len")
	l.tokens, l.length = tokens, max(whole, tokens+1)
	l.part("max_tokens", numeral(float64(tokens)), tokensKey)
	if l.from = append(l.from, given(promptKey, wholeKey)...); promptKey == "" && wholeKey == "" {
		c.decide(nil, "sequence_len: the file does not say how long a prompt is, and 512 tokens is a guess; longer ones are "+
			"left out")
	}
	if n, key := c.countAt(1, "num_iterations"); n > 1 {
		l.part("iterations", numeral(float64(n)), key)
	} else {
		c.dismiss("one pass over the answers of a round", given(key)...)
	}
	return float64(steps) / float64(accumulated), given(stepsKey, allKey)
}

// rewardsOfTRL adds what judges answers.
func (c *conversion) rewardsOfTRL() {
	key, v := c.take("reward_funcs")
	weightsKey, w := c.take("reward_weights")
	names, weights := list(v), items(w)
	if text, isText := w.(string); isText {
		for _, word := range list(text) {
			weights = append(weights, word)
		}
	}
	modelKey, model := c.take("reward_model_name_or_path")
	if name := textOf(model); name != "" {
		names = append(names, name)
	}
	weight := func(i int) float64 {
		if i < len(weights) {
			if x, ok := number(weights[i]); ok {
				return x
			}
		}
		return 1
	}
	programs := false
	for i, name := range names {
		switch last := name[strings.LastIndex(name, ".")+1:]; {
		case strings.Contains(name, "/"):
			c.loop.judge(c, name[strings.LastIndex(name, "/")+1:], name, weight(i))
		case strings.Contains(last, "overlong"):
			c.loop.reward(last, "type: length", weight(i))
		default:
			programs = true
			c.loop.reward(last, "command: [python3, trl_judge.py, "+scalar(functionOf(name))+"]", weight(i))
		}
	}
	if len(names) == 0 {
		c.loop.reward("reward", "command: [python3, trl_judge.py, \"rewards:reward\"]", 1)
		c.decide(nil, "rl.reward: the file names no rewards, and the script that reads it has them")
	}
	if c.loop.from = append(c.loop.from, given(key, weightsKey, modelKey)...); programs || len(names) == 0 {
		c.askForRewards()
	}
	if key, v := c.take("system_prompt"); key != "" {
		c.decide(given(key), "datasets: %s is %s: write it into the prompts, as a message of the role system", key, shown(v))
	}
}

// functionsOfTRL names the functions that its package rewards has.
var functionsOfTRL = []string{"accuracy_reward", "reasoning_accuracy_reward", "think_format_reward"}

// functionOf is a function of Python as module:name, the module of a bare name being rewards.
func functionOf(name string) string {
	switch i := strings.LastIndex(name, "."); {
	case slices.Contains(functionsOfTRL, name):
		return "trl.rewards:" + name
	case i > 0:
		return name[:i] + ":" + name[i+1:]
	}
	return "rewards:" + name
}

// heldByNone says that a run that learns from rewards has no held-out data.
func (c *conversion) heldByNone(keys ...string) {
	var asked []string
	for _, key := range keys {
		k, v := c.take(key)
		switch {
		case k != "" && (isNothing(v) || isOff(v)):
			c.dismiss("the run does not evaluate", k)
		case k != "":
			asked = append(asked, k)
		}
	}
	if len(asked) > 0 {
		c.decide(asked, "eval: the file evaluates (%s); a policy has no held-out loss, and the rewards of new answers tell "+
			"how it goes", strings.Join(asked, ", "))
	}
}

// entriesOfPrompts are data sets of prompts, by the key of the prompt in their rows.
func entriesOfPrompts(paths []string, key string) (all entries) {
	for _, path := range paths {
		e := entry{{"path", path}, {"type", promptsType}}
		if key != "prompt" {
			e.add("prompt", key)
		}
		all = append(all, e)
	}
	return all
}

const promptsType = "prompts"
