package convert

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
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
		how := ""
		if c.family != "" && len(c.result.Cannot) == 0 {
			how = "of type " + c.family
		}
		c.set("model", scalar(name), from, "%s", how)
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
	if c.values["tokenizer_use_mistral_common"] == true {
		c.decide([]string{"tokenizer_use_mistral_common"}, "tokenizer: the file reads tekken.json with mistral-common; the "+
			"model's directory needs a tokenizer.json and a chat template here, or name them in tokenizer and chat_template")
	}
	c.specialTokens()
	c.template()
}

// specialTokens finds tokens that the file gives the model. One for padding changes nothing: there is no padding here.
func (c *conversion) specialTokens() {
	for _, key := range []string{"special_tokens", "tokens"} {
		tokens, isMapping := c.values[key].(map[string]any)
		if !isMapping || isOff(c.values[key]) {
			continue
		}
		var named []string
		for _, name := range slices.Sorted(maps.Keys(tokens)) {
			if name != "pad_token" && !isOff(tokens[name]) {
				named = append(named, plainWord(name)+" "+shown(tokens[name]))
			}
		}
		if len(named) == 0 {
			c.dismiss("nothing is padded", key)
			continue
		}
		c.decide([]string{key}, "%s has %s: here they are what the model's tokenizer says, so compare them, and give the "+
			"model's directory others before training", key, strings.Join(named, ", "))
	}
}

// adapters says how the file trains an adapter instead of the model; empty if it does not.
func (c *conversion) adapters() string {
	said := func(key string) string { return plainWord(key) + ": " + shown(c.values[key]) }
	switch c.result.Tool {
	case LLaMAFactory:
		switch method := c.textAt("finetuning_type"); method {
		case "full", "freeze":
			return ""
		case "":
			return "the file has no finetuning_type, and lora is LLaMA-Factory's default"
		}
		return said("finetuning_type")
	case LLaMAFactoryV1:
		peft, _ := c.values["peft_config"].(map[string]any)
		if name := textOf(peft["name"]); name != "" && name != "freeze" {
			return "peft_config.name: " + plainWord(name)
		}
		return ""
	case Axolotl:
		if isOff(c.values["adapter"]) {
			return ""
		}
		return said("adapter")
	case TRL:
		if isOn(c.values["use_peft"]) {
			return said("use_peft")
		}
		return ""
	}
	for _, key := range []string{"use_peft", "use_lora", "lora_r", "lora_rank", "load_in_4bit", "load_in_8bit"} {
		if !isOff(c.values[key]) {
			return said(key)
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
		length = c.usual.length
		if !c.usual.guessed {
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
		if c.isUnpacked() {
			c.decide(nil, "batch_tokens: rows are packed, so a step has more short examples than before")
		}
		return nil
	}

	how, keys := []string{}, []string{}
	total := length
	for _, f := range []struct {
		what  string
		keys  []string
		usual int64
	}{
		{"sequence", []string{"per_device_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size"},
			c.usual.perDevice},
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
	decide := "batch_tokens: multiply it by the number of devices that the file was for"
	if c.isUnpacked() {
		decide += ". Rows are packed, so a step has more short examples than before"
	}
	c.decide(nil, "%s", decide)
	return nil
}

// isUnpacked reports whether a row of the other trainer has one document, and so a batch as many as rows.
func (c *conversion) isUnpacked() bool {
	for _, key := range []string{"sample_packing", "packing", "neat_packing"} {
		if isOn(c.values[key]) {
			return false
		}
	}
	if strings.HasPrefix(c.textAt("batching_strategy"), "dynamic") { // which fills a batch up to its number of tokens
		return false
	}
	return c.values["stage"] != "pt" || c.values["packing"] == false
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

// overlong keeps what the other trainer does with documents that are longer than a row. By their sources:
//
//   - LLaMA-Factory shortens prompts and responses (infer_seqlen of data/processor/), and cuts the joined texts of stage
//     pt into rows, unless packing is false; its v1 layout cuts the end off (pad_and_truncate of v1/core/utils/).
//   - Axolotl drops them (handle_long_seq_in_dataset of utils/data/utils.py), except texts, of which it makes several rows
//     (prompt_strategies/completion.py).
//   - TRL cuts the end off, and makes several rows with the packing strategies bfd_split and wrapped (trainer/sft_config.py).
//   - run_clm.py of transformers cuts the joined texts into rows.
func (c *conversion) overlong() {
	key, v := c.take("excess_length_strategy")
	strategy := c.textAt("packing_strategy")
	as := fmt.Sprintf("as %s does", c.result.Tool)
	switch {
	case textOf(v) == "drop" || textOf(v) == "truncate":
		c.set("overlong", textOf(v), []string{key}, "")
	case c.result.Tool == LLaMAFactory && c.values["stage"] == "pt" && c.values["packing"] != false,
		c.result.Tool == Axolotl && c.onlyTexts():
		c.set("overlong", "split", nil, "%s", as)
	case c.result.Tool == TRL && isOn(c.values["packing"]) && (strategy == "bfd_split" || strategy == "wrapped"):
		c.set("overlong", "split", []string{"packing_strategy"}, "%s", as)
	case c.result.Tool == Axolotl:
		c.set("overlong", "drop", nil, "%s", as)
	case c.result.Tool == HFTrainer && c.values["block_size"] != nil:
		c.set("overlong", "split", nil, "as run_clm.py does")
	case c.result.Tool == HFTrainer:
		c.set("overlong", "truncate", nil, "a guess")
	default:
		c.set("overlong", "truncate", nil, "%s", as)
	}
	if text := textOf(v); text == "raise" {
		c.decide([]string{key}, "overlong: the file stops at a document that is longer than a row; here it is dropped, and "+
			"millrace preview counts them")
	}
}

// onlyTexts reports whether all data sets of the run have texts without a prompt.
func (c *conversion) onlyTexts() bool {
	for _, s := range c.result.Settings {
		if s.Key == "datasets" {
			return !strings.Contains(strings.ReplaceAll(s.Value, "type: text", ""), "type: ")
		}
	}
	return false
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
	default:
		c.set("epochs", c.usual.epochs, nil, "the file does not say; %s has %s", c.result.Tool, c.usual.epochs)
	}
}

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
		c.decide(nil, "precision: the file computes in fp32. {compute: bf16, master: split} needs less memory, keeps exact fp32 "+
			"master weights, and is faster where the device has fast bf16; millrace probe measures both here")
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
