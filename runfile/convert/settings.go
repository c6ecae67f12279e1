package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// copied are the settings that are made of one value, by the keys that package othertrainers lists for them.
var copied = map[string]func(v any) (value string, ok bool){
	"init": onAs("random"), "train_on_last_turn": onAs("true"), "device": onAs("cpu"), "adam_eps": asNumber,
	"max_grad_norm": asNumber, "seed": asNumber,
}

// onAs returns a value for switches that are on.
func onAs(value string) func(any) (string, bool) {
	return func(v any) (string, bool) { return value, isOn(v) }
}

// copy makes a setting of one value, if that can be read.
func (c *conversion) copy(key string, read func(v any) (string, bool)) bool {
	from, v := c.takeFor(key)
	value, ok := read(v)
	if ok {
		c.set(key, value, []string{from}, "")
	}
	return ok
}

func asNumber(v any) (string, bool) {
	x, ok := number(v)
	return numeral(x), ok
}

// convert makes the settings, in any order, except that some look at those before them.
func (c *conversion) convert() error {
	for _, key := range slices.Sorted(maps.Keys(copied)) {
		c.copy(key, copied[key])
	}
	c.model()
	c.datasets()
	if c.goal.kind == rewarded {
		c.policy()
	} else {
		c.objective()
		if err := c.batch(); err != nil {
			return err
		}
		c.setObjective()
		c.length()
	}
	c.rate()
	c.optimizer()
	c.precision()
	if c.result.Tool == Verl {
		c.outputOfVerl()
		return nil
	}
	c.output()
	c.trackers()
	c.samples()
	if c.result.Tool == LLaMAFactoryV1 {
		c.v1()
	}
	c.memory()
	return nil
}

// withoutKey is the reason for keys that ask for something that Millrace always does.
const withoutKey = "Millrace does so without a key"

func (c *conversion) optimizer() {
	optim, _ := c.values["optim_config"].(map[string]any)
	if x, ok := number(optim["wd"]); ok {
		c.set("weight_decay", numeral(x), []string{"optim_config"}, "wd")
	} else if !c.copy("weight_decay", asNumber) {
		usual := c.usual.weightDecay
		c.set("weight_decay", usual, nil, "the file does not say; %s has %s", c.result.Tool, usual)
	}
	if betas := items(c.values[verlActor+"optim.betas"]); len(betas) == 2 {
		c.take(verlActor + "optim.betas")
		if x1, ok := number(betas[0]); ok {
			if x2, ok := number(betas[1]); ok {
				c.set("adam_betas", fmt.Sprintf("[%s, %s]", numeral(x1), numeral(x2)), []string{verlActor + "optim.betas"}, "")
			}
		}
		return
	}
	b1, v1 := c.take("adam_beta1")
	b2, v2 := c.take("adam_beta2")
	x1, ok1 := number(v1)
	x2, ok2 := number(v2)
	if ok1 || ok2 {
		if !ok1 {
			x1 = 0.9
		}
		if !ok2 {
			x2 = 0.999
		}
		c.set("adam_betas", fmt.Sprintf("[%s, %s]", numeral(x1), numeral(x2)), given(b1, b2), "")
	}
}

func (c *conversion) precision() {
	var parts, from, how []string
	half, whole, said := "", "", false // the key that asks for 16 bits, and the one that asks for 32
	for _, key := range []string{"bf16", "bfloat16", "pure_bf16", "fp16", "float16"} {
		k, v := c.take(key)
		said = said || k != ""
		switch {
		case k == "" || !isOn(v):
		case half == "":
			half = k
		default:
			c.dismiss(half+" is on", k)
		}
	}
	for _, key := range []string{"torch_dtype", "dtype"} {
		k, v := c.take(key)
		if c.result.Tool == TRL { // it is that of the weights as they are loaded, and bf16 computes
			c.dismiss("master weights are exact", given(k)...)
			continue
		}
		said = said || k != ""
		switch is16 := strings.Contains(textOf(v), "16"); {
		case k == "":
		case is16 && half == "":
			half = k
		case is16:
			c.dismiss(half+" is on", k)
		default:
			whole = k
		}
	}
	if k, v := c.take("fp32", "float32"); k != "" && isOn(v) {
		said, whole = true, k
	}
	switch {
	case half != "":
		parts, from = append(parts, "compute: bf16", "master: split"), append(from, half)
		if strings.HasPrefix(half, "fp") || strings.HasPrefix(half, "float") {
			how = append(how, "bf16 instead of fp16, which needs a scaled loss")
		}
	case c.usual.bf16 && !said:
		parts = append(parts, "compute: bf16", "master: split")
		how = append(how, fmt.Sprintf("the file does not say; %s takes bf16", c.result.Tool))
	default:
		parts, from = append(parts, "compute: f32", "master: f32"), append(from, given(whole)...)
		how = append(how, "the file does not ask for bf16")
		c.decide(nil, "precision: the file computes in fp32. {compute: bf16, master: split} needs less memory, keeps "+
			"exact fp32 master weights, and is faster where the device has fast bf16; millrace probe measures both here")
	}
	if key, v := c.take("optim", "optimizer"); key != "" {
		name := textOf(v)
		if strings.Contains(name, "8bit") {
			parts, from = append(parts, "moments: 8bit"), append(from, key)
		}
		if strings.Contains(name, "adamw") || name == "adam" {
			c.dismiss(withoutKey, key)
		} else {
			c.decide(given(key),
				"%s is %s: AdamW is the only optimizer here, and the learning rate may have to change with it", key,
				shown(v))
		}
	}
	c.set("precision", "{"+strings.Join(parts, ", ")+"}", from, "%s", strings.Join(how, ", "))
}

func (c *conversion) memory() {
	for _, key := range []string{"deepspeed", "fsdp", "fsdp_config", "gradient_checkpointing", "load_in_4bit",
		"load_in_8bit", "quantization_bit"} {
		if v := c.values[key]; v != nil && v != false && v != "" {
			c.decide(nil, "memory: %s saved memory. Here set memory.device, such as 20GiB, and memory.host or memory.disk, and "+
				"ask millrace plan", key)
			return
		}
	}
}

// textOf is a value that is text, or how it is written.
func textOf(v any) string {
	switch s := v.(type) {
	case nil:
		return ""
	case string:
		return s
	}
	return fmt.Sprint(v)
}

func (c *conversion) textAt(key string) string { return textOf(c.values[key]) }

// given are the keys of those that are.
func given(keys ...string) (all []string) {
	for _, k := range keys {
		if k != "" {
			all = append(all, k)
		}
	}
	return all
}
