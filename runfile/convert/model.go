package convert

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf/hub"
)

func (c *conversion) model() {
	revisionKey, revision := c.take("model_revision", "revision_of_model")
	if key, v := c.take("model_name_or_path", "base_model", "model_name", "model_id", "model",
		"actor_rollout_ref.model.path"); key != "" {
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
	if c.values["tokenizer_use_mistral_common"] == true {
		c.decide([]string{"tokenizer_use_mistral_common"}, "tokenizer: the file reads tekken.json with mistral-common; the "+
			"model's directory needs a tokenizer.json and a chat template here, or name them in tokenizer and chat_template")
	}
	c.specialTokens()
	c.template()
	c.kwargs()
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
	case Verl:
		for _, key := range []string{"actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank"} {
			if !isOff(c.values[key]) {
				return said(key)
			}
		}
		return ""
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

// kwargs is for variables of the chat template, of which LLaMA-Factory has two as keys of their own. With the values that
// are dismissed templates do what they do without the variable.
func (c *conversion) kwargs() {
	all, from := data.Kwargs{}, []string(nil)
	for _, name := range []string{"enable_thinking", "preserve_thinking"} {
		key, v := c.take(name)
		switch {
		case key == "":
		case v == (name == "enable_thinking"):
			c.dismiss("chat templates that know it do that without it", key)
		default:
			all[name], from = v, append(from, key)
		}
	}
	const template = "data.apply_chat_template_kwargs."
	for _, key := range slices.Sorted(maps.Keys(c.values)) {
		if name, isOf := strings.CutPrefix(key, template); isOf && c.result.Tool == Verl {
			c.take(key)
			all[name], from = c.values[key], append(from, key)
		}
	}
	key, v := c.take("chat_template_kwargs")
	switch given, isMap := v.(map[string]any); {
	case key == "":
	case !isMap:
		c.decide([]string{key}, "chat_template_kwargs is %s, not a mapping: write it as one", shown(v))
	default:
		all, from = data.Kwargs(given).Over(all), append(from, key)
	}
	if len(all) == 0 {
		return
	}
	if err := all.Check(); err != nil {
		c.decide(from, "chat_template_kwargs: %v", err)
		return
	}
	c.set("chat_template_kwargs", all.String(), from, "")
}

// hasAlpaca reports whether one of Axolotl's data sets is of its type alpaca.
func hasAlpaca(datasets any) bool {
	items, _ := datasets.([]any)
	return slices.ContainsFunc(items, func(item any) bool {
		entry, _ := item.(map[string]any)
		return strings.HasPrefix(textOf(entry["type"]), "alpaca")
	})
}
