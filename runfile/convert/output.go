package convert

import (
	"fmt"
	"strings"
)

// output makes the settings of evaluation, of saving and of the directory.
func (c *conversion) output() {
	if c.goal.kind != rewarded {
		c.evaluation()
	}
	c.saving()
	if key, v := c.take("output_dir"); key != "" {
		c.set("output_dir", scalar(textOf(v)), []string{key}, "")
		c.dismiss(key+" names the run", "run_name")
	} else if key, v := c.take("run_name"); key != "" {
		c.set("output_dir", scalar("runs/"+textOf(v)), []string{key}, "")
	}
	c.take("run_name")
	if key, v := c.take("resume_from_checkpoint", "auto_resume_from_checkpoints"); isOn(v) {
		c.dismiss("a run continues from its newest checkpoint", key)
	} else if !isOff(v) {
		c.decide(given(key),
			"%s is %s: a checkpoint of another trainer cannot be continued; name its model directory in model to "+
				"begin from its weights", key, shown(v))
	}
}

// hasHeldOut reports whether the file evaluates on something.
func (c *conversion) hasHeldOut() bool {
	return c.setting("val_size") != nil || c.setting("eval") != nil
}

// samples sets the keys of samples but the prompts, which such a file does not name.
func (c *conversion) samples() {
	asks, on := c.take("generate_samples")
	others := []string{"num_generation_samples", "generation_prompt_ratio", "generation_do_sample"}
	for _, key := range others {
		c.take(key)
	}
	var parts, from []string
	for _, s := range [][2]string{{"max_tokens", "generation_max_new_tokens"},
		{"temperature", "generation_temperature"}, {"top_k", "generation_top_k"}, {"top_p", "generation_top_p"}} {
		key, v := c.take(s[1])
		value, ok := asNumber(v)
		if chooses, said := c.values["generation_do_sample"]; said && isOff(chooses) && s[0] == "temperature" {
			value, ok = "0", true
		}
		if from = append(from, given(key)...); ok {
			parts = append(parts, s[0]+": "+value)
		}
	}
	if !isOn(on) {
		c.dismiss("the file does not ask for samples", append(from, c.present(others...)...)...)
		return
	}
	from = append(from, c.present(others...)...)
	c.decide(append(from, asks), "samples: the file has the model continue beginnings of its data; name the texts in "+
		"samples.prompts, and in samples.every after how many steps")
	if len(parts) > 0 {
		c.set("samples", "{"+strings.Join(parts, ", ")+"}", append(from, asks), "")
	}
}

// evaluatesEvery reports whether the run evaluates after a number of steps.
func (c *conversion) evaluatesEvery() bool {
	s := c.setting("eval")
	return s != nil && strings.Contains(s.Value, "every: ")
}

// evaluation sets eval.every. The data are in eval already, if there are any.
func (c *conversion) evaluation() {
	key, v := c.take("eval_steps")
	strategyKey, strategy := c.take("eval_strategy", "evaluation_strategy")
	perEpoch, n := c.take("evals_per_epoch")
	steps, ok := count(v)
	wanted := !isNothing(strategy) || perEpoch != "" && !isNothing(n) || strategyKey == "" && ok
	switch {
	case !c.hasHeldOut():
		if wanted && (strategyKey != "" && textOf(strategy) != "no" || ok) {
			c.decide(given(strategyKey, perEpoch, key),
				"eval: the file evaluates, and names no data for it; set val_size or eval.datasets")
		} else {
			c.dismiss("the file names no data to evaluate on", given(strategyKey, perEpoch)...)
		}
	case ok && textOf(strategy) != "no" && textOf(strategy) != "epoch":
		every := fmt.Sprintf("every: %d", steps)
		if s := c.setting("eval"); s != nil {
			s.Value += "\n  " + every
			s.From = append(s.From, given(key, strategyKey)...)
		} else {
			c.set("eval", "{"+every+"}", given(key, strategyKey), "")
		}
	case wanted && textOf(strategy) != "no":
		c.decide(given(strategyKey, perEpoch, key),
			"eval.every: by %s the file evaluates once an epoch, or at a share of the run; set a number of steps, or "+
				"leave it to before the first and after the last one",
			strings.Join(given(strategyKey, perEpoch, key), ", "))
	}
}

func isNothing(v any) bool { return v == nil || v == "no" || v == false || v == "" }

// saving sets save.
func (c *conversion) saving() {
	var parts, from []string
	add := func(part string, keys ...string) { parts, from = append(parts, part), append(from, given(keys...)...) }
	strategyKey, strategy := c.take("save_strategy")
	perEpoch, n := c.take("saves_per_epoch")
	key, v := c.take("save_steps")
	steps, ok := count(v)
	switch name := textOf(strategy); {
	case name == "no":
		add("minutes: 0", strategyKey)
		c.dismiss(strategyKey+" is no", given(key, perEpoch)...)
	case ok && name != "epoch" && name != "best":
		add(fmt.Sprintf("every: %d", steps), key, strategyKey)
	case name == "epoch" || name == "best" || perEpoch != "" && !isNothing(n) || key != "":
		c.decide(given(strategyKey, perEpoch, key),
			"save.every: by %s the file saves once an epoch, or at a share of the run; set a number of steps, or "+
				"leave it to every 30 minutes and the end",
			strings.Join(given(strategyKey, perEpoch, key), ", "))
	}
	key, v = c.takeFor("save.keep")
	if n, ok := count(v); ok {
		add(fmt.Sprintf("keep: %d", n), key)
	}
	early, patience := c.takeFor("stop.patience")
	if key, v := c.takeFor("save.best"); c.hasHeldOut() {
		if isOn(v) {
			add("best: true", key)
		} else if early != "" { // which ends with the best model in all of them
			add("best: true", early)
		}
	}
	if len(parts) > 0 {
		c.set("save", "{"+strings.Join(parts, ", ")+"}", from, "")
	}
	parts, from = nil, nil
	key, v = c.takeFor("stop.loss_above")
	if x, ok := number(v); ok && x > 0 {
		add("loss_above: "+numeral(x), key)
	}
	key, v = c.takeFor("stop.unhealthy_steps")
	if n, ok := count(v); ok {
		add(fmt.Sprintf("unhealthy_steps: %d", n), key)
	}
	if n, ok := count(patience); ok && c.evaluatesEvery() {
		add(fmt.Sprintf("patience: %d", n), early)
	} else if ok {
		c.decide(given(early), "stop.patience: %s is %d, and it needs eval.every, a number of steps", early, n)
	}
	if len(parts) > 0 {
		c.set("stop", "{"+strings.Join(parts, ", ")+"}", from, "")
	}
}
