package convert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile/othertrainers"
)

// datasets makes the settings of what is trained on, and of what is held out.
func (c *conversion) datasets() {
	sets, from := c.sources()
	if len(sets) == 0 {
		sets = []entry{{{"path", "train.jsonl"}, {"type", string(cmp.Or(c.dataType(), data.Messages))}}}
		c.decide(nil, "datasets: the file names no data; docs/data.md shows each kind of entry")
	}
	how := ""
	if dir := sets[0].value("path"); sets[0].value("type") == "" {
		how = "as dataset_info.json in " + plainWord(dir) + " describes them"
	}
	c.set("datasets", sets.yaml(""), from, "%s", how)
	c.prompts()
	if c.goal.kind == rewarded {
		return // it has no held-out data
	}
	held, heldFrom := c.held()
	key, v := c.take("val_size", "val_set_size", "test_split_size")
	if mixture, _ := c.values["dataset_mixture"].(map[string]any); key == "" && !isNothing(c.evalStrategy()) {
		if v = mixture["test_split_size"]; v != nil {
			key = "dataset_mixture"
		}
	}
	percentKey, percent := c.take("validation_split_percentage")
	share, isShare := number(v)
	hundredths, isPercent := number(percent)
	switch {
	case len(held) > 0:
		c.set("eval", "\n  datasets:"+held.yaml("  "), heldFrom, "")
		c.dismiss("the file names data for it", given(key, percentKey)...)
	case isShare && share > 0:
		c.set("val_size", numeral(share), []string{key}, "")
	case isPercent && hundredths > 0:
		c.set("val_size", numeral(hundredths/100), []string{percentKey}, "")
	}
	if key, _ := c.take("interleave_probs"); key != "" {
		c.decide(given(key),
			"datasets: %s mixed them by probabilities; weight in an entry says how often each of its documents comes "+
				"in an epoch", key)
	}
}

// entry is a data set, its keys in order.
type entry [][2]string

func (e entry) value(key string) string {
	for _, kv := range e {
		if kv[0] == key {
			return kv[1]
		}
	}
	return ""
}

// add adds a key that has a value.
func (e *entry) add(key, value string) {
	if value != "" {
		*e = append(*e, [2]string{key, value})
	}
}

type entries []entry

// yaml is a list, in lines that begin with an indent.
func (all entries) yaml(indent string) string {
	var b strings.Builder
	for _, e := range all {
		var parts []string
		for _, kv := range e {
			value := kv[1]
			if !slices.Contains([]string{"tags", "max_samples", "weight"}, kv[0]) { // which are YAML already
				value = scalar(value)
			}
			parts = append(parts, kv[0]+": "+value)
		}
		fmt.Fprintf(&b, "\n%s  - {%s}", indent, strings.Join(parts, ", "))
	}
	return b.String()
}

// sources are the data sets to train on.
func (c *conversion) sources() (all entries, from []string) {
	if key, v := c.take("datasets"); key != "" && c.result.Tool != TRL {
		return c.listed(key, v), []string{key}
	}
	if key, v := c.take("pretraining_dataset"); key != "" {
		if path, ok := v.(string); ok {
			return entries{{{"path", path}, {"type", string(data.Text)}}}, []string{key}
		}
		all := c.listed(key, v)
		return all, []string{key}
	}
	switch c.result.Tool {
	case LLaMAFactoryV1:
		return c.listedByV1(c.take("train_dataset"))
	case TRL:
		return c.namedForTRL("dataset_train_split", "train")
	case Verl:
		filesKey, files := c.take("data.train_files")
		promptKey, prompt := c.take("data.prompt_key")
		return entriesOfPrompts(list(files), cmp.Or(textOf(prompt), "prompt")), given(filesKey, promptKey)
	case LLaMAFactory:
		key, v := c.take("dataset")
		dirKey, dir := c.take("dataset_dir")
		all, limit := c.registered(key, v, dir)
		return all, given(key, dirKey, limit)
	}
	return c.plain(c.take("dataset_name", "dataset", "train_file", "train_data", "data_path"))
}

// plain are data sets that scripts of Hugging Face's Trainer name, with what is said of their rows.
func (c *conversion) plain(key string, v any) (all entries, from []string) {
	nameKey, name := c.take("dataset_config_name")
	fieldKey, field := c.take("dataset_text_field")
	for _, path := range list(v) {
		e := entry{{"path", path}}
		e.add("name", textOf(name))
		if fieldKey != "" {
			e.add("type", string(data.Text))
			if textOf(field) != "text" {
				e.add("field", textOf(field))
			}
		} else {
			e.add("type", string(data.Messages))
			c.decide(nil, "datasets: the type of %s is not in the file; messages is a guess", plainWord(path))
		}
		all = append(all, e)
	}
	return all, given(key, nameKey, fieldKey)
}

// held are the data sets to evaluate on.
func (c *conversion) held() (all entries, from []string) {
	if key, v := c.take("test_datasets"); key != "" {
		return c.listed(key, v), []string{key}
	}
	if c.result.Tool == TRL && !isNothing(c.evalStrategy()) {
		return c.namedForTRL("dataset_test_split", "test")
	}
	key, v := c.take("eval_dataset", "validation_file")
	switch {
	case key == "":
		return nil, nil
	case c.result.Tool == LLaMAFactoryV1:
		return c.listedByV1(key, v)
	case c.result.Tool == LLaMAFactory:
		all, limit := c.registered(key, v, c.values["dataset_dir"])
		return all, given(key, limit)
	}
	return c.plain(key, v)
}

// evalStrategy says when the file evaluates.
func (c *conversion) evalStrategy() any {
	if v := c.values["eval_strategy"]; v != nil {
		return v
	}
	return c.values["evaluation_strategy"]
}

// registered are data sets by their names in LLaMA-Factory's registry. limit is the key that bounds each of them.
func (c *conversion) registered(key string, v, dir any) (all entries, limit string) {
	limit, most := c.take("max_samples")
	path := textOf(dir)
	if path == "" {
		path = "data"
	}
	isElsewhere := path == "ONLINE" || strings.HasPrefix(path, "REMOTE:")
	for _, name := range list(v) {
		e := entry{{"path", path}, {"name", name}}
		if isElsewhere {
			guess := cmp.Or(c.dataType(), data.Alpaca)
			e = entry{{"path", name}, {"type", string(guess)}}
			c.decide(given(key),
				"%s: the type of %s is in a registry that is not here; %s is a guess", plainWord(key), plainWord(name), guess)
		}
		if n, ok := count(most); ok {
			e.add("max_samples", fmt.Sprint(n))
		}
		all = append(all, e)
	}
	return all, limit
}

// listed are entries as Axolotl has them.
func (c *conversion) listed(key string, v any) (all entries) {
	items, ok := v.([]any)
	if !ok {
		c.decide(given(key), "%s: it is not a list of entries", key)
	}
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", key, i)
		switch values := item.(type) {
		case map[string]any:
			all = append(all, c.axolotl(at, values))
		case string:
			guess := cmp.Or(c.dataType(), data.Alpaca)
			all = append(all, entry{{"path", values}, {"type", string(guess)}})
			c.decide(nil, "%s: its type is not in the file; %s is a guess", at, guess)
		default:
			c.decide(nil, "%s: it is neither a name nor an entry", at)
		}
	}
	return all
}

// axolotl makes an entry of Axolotl's.
func (c *conversion) axolotl(at string, values map[string]any) entry {
	e := entry{}
	used := map[string]bool{"path": true, "type": true}
	text := func(key string) string {
		used[key] = true
		s, _ := values[key].(string)
		return s
	}
	path := textOf(values["path"])
	if files := list(values["data_files"]); len(files) > 0 {
		used["data_files"] = true
		if textOf(values["ds_type"]) != "" || path == "" || path == "json" || path == "parquet" {
			path = files[0]
			if len(files) > 1 {
				c.decide(nil,
					"%s: of its data_files only the first is here; make an entry of each, or a pattern such as data/*.jsonl",
					at)
			}
		} else {
			c.decide(nil, "%s: data_files names files of %s; name them with glob", at, plainWord(path))
		}
	}
	if path == "" {
		path = "train.jsonl"
		c.decide(nil, "%s: it has no path", at)
	}
	e.add("path", path)
	e.add("name", text("name"))
	if split := text("split"); split != "train" {
		if before, _, isSlice := strings.Cut(split, "["); isSlice {
			c.decide(nil, "%s: split %s is a slice; say it with max_samples", at, plainWord(split))
			split = strings.TrimPrefix(before, "train")
		}
		e.add("split", split)
	}
	e.add("revision", text("revision"))
	c.axolotlType(at, &e, values, text)
	c.turns(at, values, used)
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if used[k] || values[k] == nil {
			continue
		}
		if row, ok := othertrainers.LookupEntry(k); ok && row.Drop != "" {
			c.result.LeftOut = append(c.result.LeftOut, LeftOut{[]string{at + "." + k}, row.Drop})
		} else {
			c.decide(nil, "%s: %s is %s, which is not translated", at, plainWord(k), shown(values[k]))
		}
	}
	return e
}

// turns finds turns that count in the loss and do not here.
func (c *conversion) turns(at string, values map[string]any, used map[string]bool) {
	others := slices.DeleteFunc(list(values["roles_to_train"]), func(role string) bool {
		return slices.Contains([]string{"assistant", "gpt", "model"}, role)
	})
	if len(others) > 0 {
		used["roles_to_train"] = true
		c.decide(nil, "%s: roles_to_train has %s; only turns of the assistant count here, or with train_on_prompt all of "+
			"them",
			at, plainList(others))
	}
	for _, key := range []string{"train_on_eos", "train_on_eot"} {
		if text := textOf(values[key]); text != "" && text != "turn" {
			used[key] = true
			c.decide(nil, "%s: %s is %s; the end of each turn that counts counts here", at, key, shown(values[key]))
		}
	}
}

// loaders are the forms of Axolotl's alpaca types whose rows have other keys: of the prompt, the response and the
// system message.
var loaders = map[string][3]string{"load_qa": {"question", "answer"}, "load_camel_ai": {"message_1", "message_2"},
	"load_open_orca": {"question", "response", "system_prompt"}}

// axolotlType adds the type of an entry and the keys of its rows.
func (c *conversion) axolotlType(at string, e *entry, values map[string]any, text func(string) string) {
	if c.goal.kind != "" {
		c.comparedType(at, e, values, text)
		return
	}
	if custom, ok := values["type"].(map[string]any); ok {
		e.add("type", string(data.Alpaca))
		e.add("prompt", textOf(custom["field_instruction"]))
		e.add("response", textOf(custom["field_output"]))
		e.add("input", textOf(custom["field_input"]))
		e.add("system", textOf(custom["field_system"]))
		c.decide(nil,
			"%s: its type has a format of its own; alpaca renders with the model's chat template, or with Stanford's",
			at)
		return
	}
	name, loader, _ := strings.Cut(textOf(values["type"]), ".")
	name, _, _ = strings.Cut(name, ":")
	switch name {
	case "input_output":
		c.cannot(nil, "%s has type input_output, whose rows mark the parts that count: Millrace has no such rows; make "+
			"messages of them", at)
	case "stepwise_supervised", "bradley_terry":
		c.cannot(nil, "%s has type %s: %s", at, name, noRewards)
	case "":
		if !strings.HasPrefix(at, "pretraining_dataset") {
			c.cannot(nil, "%s has no type, so its rows are tokens already: Millrace reads text and makes tokens itself", at)
		}
	}
	switch name {
	case "alpaca", "alpaca_chat", "alpaca_instruct", "alpaca_w_system":
		e.add("type", string(data.Alpaca))
		if keys, ok := loaders[loader]; ok {
			e.add("prompt", keys[0])
			e.add("response", keys[1])
			e.add("system", keys[2])
		} else if loader != "" && loader != "load" {
			c.decide(nil, "%s: type %s has keys of its own; name them with prompt, response, input and system", at,
				shown(values["type"]))
		}
	case "completion", "pretrain", "":
		e.add("type", string(data.Text))
		for _, key := range []string{"field", "text_column"} {
			if field := text(key); field != "text" {
				e.add("field", field)
			}
		}
	case "sharegpt":
		e.add("type", string(data.ShareGPT))
	case "chat_template":
		c.conversations(e, values, text)
	default:
		e.add("type", string(data.Alpaca))
		c.decide(nil, "%s: type %s has rows of its own form, so alpaca is a wrong guess until you write them as a type of "+
			"docs/data.md", at, shown(values["type"]))
	}
}

// conversations adds the keys of Axolotl's type chat_template: messages where turns have role and content, else
// sharegpt with tags.
func (c *conversion) conversations(e *entry, values map[string]any, text func(string) string) {
	role, content := text("message_field_role"), text("message_field_content")
	if mapped, ok := values["message_property_mappings"].(map[string]any); ok {
		text("message_property_mappings")
		role, content = textOf(mapped["role"]), textOf(mapped["content"])
	}
	role, content = cmp.Or(role, "role"), cmp.Or(content, "content")
	list := text("field_messages")
	if role == "role" && content == "content" {
		e.add("type", string(data.Messages))
		if list != "messages" {
			e.add("messages", list)
		}
	} else {
		e.add("type", string(data.ShareGPT))
		if list == "" {
			list = "messages" // as Axolotl has it
		}
		if list != "conversations" {
			e.add("messages", list)
		}
		if role != "from" || content != "value" {
			e.add("tags", fmt.Sprintf("{role_tag: %s, content_tag: %s}", scalar(role), scalar(content)))
		}
		e.add("system", text("field_system"))
	}
	e.add("tools", text("field_tools"))
}
