package convert

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
)

// convert makes the settings, in the order of docs/run-yaml.md.
func (c *conversion) convert() error {
	if err := c.refuse(); err != nil {
		return err
	}
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
	c.memory()
	return nil
}

// withoutKey is of what Millrace always does.
const withoutKey = "Millrace does so without a key"

// refuse ends where the file asks for something else than Millrace does.
func (c *conversion) refuse() error {
	for _, key := range []string{"stage", "rl"} {
		k, v := c.take(key)
		text, isText := v.(string)
		if k == "" || isText && (text == "sft" || text == "pt") {
			c.dismiss(withoutKey, key)
			continue
		}
		return fmt.Errorf("%s is %s: Millrace does pre-training and supervised fine-tuning, not learning from preferences "+
			"or rewards", k, shown(v))
	}
	if v, ok := c.values["reward_model"].(bool); ok && v {
		return errors.New("reward_model is true: Millrace does pre-training and supervised fine-tuning, not reward models")
	}
	return nil
}

func (c *conversion) model() {
	revisionKey, revision := c.take("model_revision", "revision_of_model")
	if key, v := c.take("model_name_or_path", "base_model", "model_name", "model_id", "model"); key != "" {
		name, from := textOf(v), []string{key}
		if at := textOf(revision); revisionKey != "" && at != "" && at != "main" {
			if repo, isHub := hub.Parse(hub.Model, name); isHub && repo.Revision == hub.Main {
				name, from = name+"@"+at, append(from, revisionKey)
			} else {
				c.decide(given(revisionKey),
					"%s is %s: model names a directory, so have that revision there", revisionKey, shown(revision))
			}
		}
		if textOf(revision) == "main" {
			c.dismiss(withoutKey, revisionKey)
		}
		c.set("model", scalar(name), from, "")
	} else {
		c.set("model", "ORG/NAME", nil, "the file names no model")
		c.decide(nil, "model: a Hugging Face directory, or a hub id")
	}
	if key, v := c.take("tokenizer_name", "tokenizer_name_or_path", "base_model_config", "tokenizer_config"); key != "" &&
		slices.Contains([]string{c.textAt("base_model"), c.textAt("model_name_or_path")}, textOf(v)) {
		c.dismiss("it is the model's own", key)
	} else if key != "" {
		c.decide(given(key),
			"%s is %s: if it is not the model's own tokenizer, name its directory in tokenizer", key, shown(v))
	}
	if key, v := c.take("train_from_scratch", "reinit_weights"); key != "" && isOn(v) {
		c.set("init", "random", []string{key}, "")
	}
	c.template()
	if how := c.adapters(); how != "" {
		c.decide(nil,
			"learning_rate: the file trains an adapter (%s), and Millrace all parameters; about a tenth of its rate "+
				"is usual", how)
	}
}

// adapters says how the file trains less than the whole model; empty if it does not.
func (c *conversion) adapters() string {
	for _, key := range []string{"finetuning_type", "adapter", "lora_r", "lora_rank", "load_in_4bit", "load_in_8bit",
		"use_peft"} {
		switch v := c.values[key].(type) {
		case string:
			if v != "" && v != "full" {
				return plainWord(key) + ": " + shown(v)
			}
		case bool:
			if v {
				return key + ": true"
			}
		case int64, uint64, float64:
			return key + ": " + shown(v)
		}
	}
	return ""
}

// template is for a chat template that is named, which is not the model's own, and for rows of the type alpaca, which
// Axolotl renders without one.
func (c *conversion) template() {
	key, v := c.take("chat_template_jinja", "chat_template", "template")
	text := textOf(v)
	if c.result.Tool == Axolotl && hasAlpaca(c.values["datasets"]) && filepath.Ext(text) == "" {
		c.set("chat_template", "conversations", nil, "as Axolotl does: type alpaca has no chat template")
		if text == "tokenizer_default" {
			c.dismiss("type alpaca has no chat template", key)
		} else if key != "" {
			c.decide(given(key),
				"chat_template: %s is %s; conversations have the model's own template, if it has one", key, shown(v))
		}
		return
	}
	switch {
	case text == "empty":
		c.set("chat_template", "conversations", []string{key}, "")
		c.decide(nil, "chat_template: %s is empty; here alpaca data have the template of Stanford Alpaca, and conversations "+
			"that of the model", key)
	case key == "":
	case text == "auto" || text == "tokenizer_default" || text == "default":
		c.dismiss("the model's own template is used", key)
	case strings.ContainsAny(text, "{\n"):
		c.decide(given(key), "%s has a template as text: write it to a file, and name that in chat_template", key)
	case filepath.Ext(text) == ".jinja" || filepath.Ext(text) == ".j2":
		c.set("chat_template", scalar(text), []string{key}, "")
	default:
		c.decide(given(key),
			"chat_template: %s is %s; here the model's own template is used, if it has one. Look at it with millrace "+
				"preview, or name another one's file", key, shown(v))
	}
}

// hasAlpaca reports whether one of Axolotl's data sets is of its type alpaca.
func hasAlpaca(datasets any) bool {
	items, _ := datasets.([]any)
	return slices.ContainsFunc(items, func(item any) bool {
		entry, _ := item.(map[string]any)
		return strings.HasPrefix(textOf(entry["type"]), "alpaca")
	})
}

// batch is the size of a step, with the length of rows that it is a multiple of.
func (c *conversion) batch() error {
	length, from := int64(0), []string(nil)
	if key, v := c.take("sequence_len", "cutoff_len", "max_seq_length", "max_seq_len", "max_length", "block_size",
		"max_source_length", "max_packed_sequence_len"); key != "" {
		var ok bool
		if length, ok = count(v); !ok || length > plan.MaxPositionsPerMicroBatch {
			return fmt.Errorf("%s is %s: it must be a whole number of at most %d", key, shown(v), plan.MaxPositionsPerMicroBatch)
		}
		from = []string{key}
		c.set("sequence_len", numeral(float64(length)), from, "")
	} else {
		length = map[Tool]int64{LLaMAFactory: 2048, Axolotl: 512, HFTrainer: 1024}[c.result.Tool]
		if c.result.Tool != HFTrainer {
			c.set("sequence_len", numeral(float64(length)), nil, "the file does not say; %s has %d", c.result.Tool, length)
		} else {
			c.set("sequence_len", numeral(float64(length)), nil, "a guess")
			c.decide(nil, "sequence_len: TrainingArguments do not say how long a sequence is")
		}
	}
	c.overlong()
	if key, n := c.wholeBatch(); key != "" {
		if length > mostBatch/n {
			return fmt.Errorf("%s is %d: that makes a step of more than %d tokens", key, n, int64(mostBatch))
		}
		c.set("batch_tokens", numeral(float64(length*n)), append([]string{key}, from...), "%s x %d positions",
			spelling.Count(int(n), "sequence"), length)
		c.decide(nil, "batch_tokens: rows are packed, so a step has more short examples than before")
		return nil
	}

	perDevice := map[Tool]int64{LLaMAFactory: 8, HFTrainer: 8, Axolotl: 1}[c.result.Tool]
	how, keys := []string{}, []string{}
	total := length
	for _, f := range []struct {
		what  string
		keys  []string
		usual int64
	}{
		{"sequence", []string{"per_device_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size"},
			perDevice},
		{"accumulated step", []string{"gradient_accumulation_steps"}, 1},
	} {
		n := f.usual
		key, v := c.take(f.keys...)
		if key != "" {
			var ok bool
			if n, ok = count(v); !ok {
				n = f.usual
				c.decide(given(key), "batch_tokens: %s is %s; it is taken as %d", key, shown(v), n)
			}
			keys = append(keys, key)
		}
		how = append(how, spelling.Count(int(n), f.what))
		if total > mostBatch/n {
			return fmt.Errorf("%s is %s: that makes a step of more than %d tokens", key, shown(v), int64(mostBatch))
		}
		total *= n
	}
	c.set("batch_tokens", numeral(float64(total)), append(keys, from...), "%s x %d positions, on one device",
		strings.Join(how, " x "), length)
	c.decide(nil,
		"batch_tokens: multiply it by the number of devices that the file was for. Rows are packed, so a step has "+
			"more short examples than before")
	return nil
}

// wholeBatch is the number of sequences of a step where the file gives that for all devices and accumulated steps.
func (c *conversion) wholeBatch() (key string, n int64) {
	keys := []string{"global_batch_size", "effective_batch_size"}
	if c.result.Tool == Axolotl {
		keys = append(keys, "batch_size")
	}
	key, v := c.take(keys...)
	n, ok := count(v)
	if !ok || n == 0 {
		return "", 0
	}
	c.dismiss(key+" has the whole batch", "per_device_train_batch_size", "micro_batch_size", "gradient_accumulation_steps")
	return key, n
}

// mostBatch is the most tokens of a step.
const mostBatch = 1 << 30

// overlong keeps what the other trainer does with documents that are longer than a row.
func (c *conversion) overlong() {
	key, v := c.take("excess_length_strategy")
	switch {
	case textOf(v) == "drop" || textOf(v) == "truncate":
		c.set("overlong", textOf(v), []string{key}, "")
	case c.values["stage"] == "pt" || c.values["pretraining_dataset"] != nil: // documents are cut into rows, as here
	case c.result.Tool == Axolotl:
		c.set("overlong", "drop", nil, "as Axolotl does")
	default:
		c.set("overlong", "truncate", nil, "as %s does", c.result.Tool)
	}
}

func (c *conversion) length() {
	key, v := c.take("max_steps", "max_train_steps", "num_steps", "train_steps")
	steps, ok := count(v)
	epochs, e := c.take("num_train_epochs", "num_epochs", "epochs")
	switch passes, isNumber := number(e); {
	case ok:
		c.set("max_steps", numeral(float64(steps)), []string{key}, "")
		c.dismiss(key+" is set", given(epochs)...)
	case isNumber && passes > 0:
		c.set("epochs", numeral(passes), []string{epochs}, "")
	case c.result.Tool == Axolotl:
		c.set("epochs", "1", nil, "the file does not say; Axolotl has 1")
	default:
		c.set("epochs", "3", nil, "the file does not say; %s has 3", c.result.Tool)
	}
}

func (c *conversion) rate() {
	key, v := c.take("learning_rate", "lr")
	if x, ok := number(v); ok {
		c.set("learning_rate", numeral(x), []string{key}, "")
	} else {
		c.set("learning_rate", "5e-5", nil, "the file does not say; Trainer has 5e-5")
		c.decide(given(key), "learning_rate: the file does not say")
	}
	c.schedule()
	steps, n := c.take("warmup_steps", "num_warmup_steps")
	ratio, r := c.take("warmup_ratio")
	x, isSteps := number(n)
	share, isRatio := number(r)
	switch {
	case isSteps && x >= 1:
		c.set("warmup_steps", numeral(math.Ceil(x)), []string{steps}, "")
		c.dismiss(steps+" is set", given(ratio)...)
	case isSteps && x > 0:
		c.set("warmup_ratio", numeral(x), []string{steps}, "below 1 it is a share of all steps")
		c.dismiss(steps+" is set", given(ratio)...)
	case isRatio && share > 0:
		c.set("warmup_ratio", numeral(share), []string{ratio}, "")
	case c.result.Tool == Axolotl && steps == "" && ratio == "":
		c.set("warmup_ratio", "0.03", nil, "the file does not say; Axolotl has 0.03, and at most 100 steps")
	}
}

// schedules are the learning-rate schedules of the other trainers that Millrace has, and what comes next to others.
var schedules = map[string]struct {
	name string
	same bool
}{
	"linear": {"linear", true}, "cosine": {"cosine", true}, "constant": {"constant", true},
	"constant_with_warmup": {"constant", true},
	"warmup_stable_decay":  {"wsd", false}, "polynomial": {"linear", false}, "inverse_sqrt": {"constant", false},
	"reduce_lr_on_plateau": {"constant", false},
}

func (c *conversion) schedule() {
	usual := "linear"
	if c.result.Tool == Axolotl {
		usual = "cosine"
	}
	key, v := c.take("lr_scheduler_type", "lr_scheduler")
	name := textOf(v)
	s, known := schedules[name]
	switch {
	case key == "":
		c.set("lr_scheduler", usual, nil, "the file does not say; %s has %s", c.result.Tool, usual)
	case known && s.same:
		c.set("lr_scheduler", s.name, []string{key}, "")
	default:
		if !known {
			s.name = "cosine"
		}
		c.set("lr_scheduler", s.name, []string{key}, "it was %s, which Millrace does not have", shown(v))
		c.decide(given(key), "lr_scheduler: it was %s; %s is the nearest one here", shown(v), s.name)
	}
}

func (c *conversion) optimizer() {
	c.copyNumber("weight_decay", "0", "weight_decay")
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
	case c.result.Tool == Axolotl && !said:
		parts = append(parts, "compute: bf16", "master: split")
		how = append(how, "the file does not say; Axolotl takes bf16 where the device has it")
	default:
		parts, from = append(parts, "compute: f32", "master: f32"), append(from, given(whole)...)
		how = append(how, "the file does not ask for bf16")
		c.decide(nil, "precision: the file computes in fp32. {compute: bf16, master: split} is faster and keeps exact fp32 "+
			"master weights")
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
