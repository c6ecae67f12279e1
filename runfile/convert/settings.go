package convert

import (
	"fmt"
	"strings"
)

// convert makes the settings, in the order of docs/run-yaml.md.
func (c *conversion) convert() error {
	c.model()
	c.datasets()
	if err := c.batch(); err != nil {
		return err
	}
	c.length()
	c.rate()
	c.optimizer()
	c.precision()
	c.output()
	if c.result.Tool == LLaMAFactoryV1 {
		c.v1()
	}
	c.memory()
	return nil
}

// withoutKey is of what Millrace always does.
const withoutKey = "Millrace does so without a key"

func (c *conversion) optimizer() {
	optim, _ := c.values["optim_config"].(map[string]any)
	if x, ok := number(optim["wd"]); ok {
		c.set("weight_decay", numeral(x), []string{"optim_config"}, "wd")
	} else {
		c.copyNumber("weight_decay", c.usual.weightDecay, "weight_decay")
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
	c.copyNumber("adam_eps", "", "adam_epsilon", "adam_eps")
	c.copyNumber("max_grad_norm", "", "max_grad_norm", "gradient_clipping", "max_norm")
	c.copyNumber("seed", "", "seed", "data_seed")
}

// copyNumber sets a key to the number of one of the other trainer's; to the usual one, where that is not "", if the
// file has no number.
func (c *conversion) copyNumber(key, usual string, from ...string) {
	k, v := c.take(from...)
	if x, ok := number(v); ok {
		c.set(key, numeral(x), []string{k}, "")
	} else if usual != "" {
		c.set(key, usual, nil, "the file does not say; %s has %s", c.result.Tool, usual)
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
	if key, v := c.take("use_cpu", "no_cuda"); key != "" && isOn(v) {
		c.set("device", "cpu", []string{key}, "")
	}
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
