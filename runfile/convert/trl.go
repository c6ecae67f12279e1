package convert

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/data"
)

// namedForTRL are the data sets that TRL's SFT script reads: a split of dataset_name, or a list.
func (c *conversion) namedForTRL(splitKey, usualSplit string) (all entries, from []string) {
	typed, typedBy := c.typeForTRL()
	if key, v := c.take("datasets"); !isOff(v) { // which counts if there is dataset_name as well
		items, _ := v.([]any)
		for i, item := range items {
			values, _ := item.(map[string]any)
			e := entry{}
			e.add("path", textOf(values["path"]))
			e.add("name", textOf(values["name"]))
			split, _, isSlice := strings.Cut(textOf(values["split"]), "[")
			if split != "train" {
				e.add("split", split)
			}
			for _, k := range []string{"data_dir", "data_files", "columns", "fraction"} {
				if !isOff(values[k]) {
					c.decide(nil, "datasets[%d]: %s is %s, which is not translated", i, k, shown(values[k]))
				}
			}
			if isSlice {
				c.decide(nil, "datasets[%d]: split %s is a slice; say it with max_samples", i, shown(values["split"]))
			}
			if len(e) > 0 {
				all = append(all, append(e, typed...))
			}
		}
		return all, append([]string{key}, typedBy...)
	}
	if all, from := c.mixture(splitKey == "dataset_test_split", typed); len(all) > 0 {
		return all, from
	}
	key, v := c.take("dataset_name")
	nameKey, name := c.take("dataset_config", "dataset_config_name")
	givenSplit, split := c.take(splitKey)
	for _, path := range list(v) {
		e := entry{{"path", path}}
		e.add("name", textOf(name))
		if splitName := textOf(split); splitName == "" && usualSplit != "train" {
			e.add("split", usualSplit)
		} else if splitName != "train" {
			e.add("split", splitName)
		}
		all = append(all, append(e, typed...))
	}
	return all, append(given(key, nameKey, givenSplit), typedBy...)
}

// typeForTRL is the type of rows, with its keys, as far as TRL's file says it: TRL finds it in the data. The keys that
// say it are used.
func (c *conversion) typeForTRL() (typed entry, from []string) {
	if compared := c.dataType(); compared != "" {
		typed, from = entry{{"type", string(compared)}}, c.goal.from
		if key, v := c.take("dataset_prompt_column"); compared == promptsType && textOf(v) == "prompt" {
			c.dismiss(withoutKey, key)
		} else if compared == promptsType && key != "" {
			typed.add("prompt", textOf(v))
			from = append(slices.Clone(from), key)
		}
		return typed, from
	}
	fieldKey, field := c.take("dataset_text_field")
	onlyCompletion, completion := c.take("completion_only_loss")
	onlyAssistant, assistant := c.take("assistant_only_loss")
	switch {
	case isOn(assistant):
		return entry{{"type", string(data.Messages)}}, given(onlyAssistant)
	case isOn(completion):
		return entry{{"type", string(data.PromptResponse)}, {"prompt", "prompt"}, {"response", "completion"}},
			given(onlyCompletion)
	case fieldKey != "":
		typed = entry{{"type", string(data.Text)}}
		if textOf(field) != "text" {
			typed.add("field", textOf(field))
		}
		return typed, given(fieldKey)
	}
	return entry{{"type", string(data.Messages)}}, nil
}

// prompts sets whether prompts count in the loss. In TRL those of conversations do, unless assistant_only_loss is on,
// and those of rows with a completion do not, unless completion_only_loss is false.
func (c *conversion) prompts() {
	if key, v := c.take("train_on_prompt", "train_on_inputs"); key != "" && isOn(v) {
		c.set("train_on_prompt", "true", []string{key}, "")
	}
	if c.result.Tool != TRL || c.goal.kind != "" {
		return
	}
	typed, from := c.typeForTRL()
	key, completion := c.take("completion_only_loss")
	switch {
	case key != "" && !isOn(completion) && isOff(completion):
		c.set("train_on_prompt", "true", []string{key}, "the loss is over the whole of a row")
	case typed.value("type") == string(data.Messages) && len(from) == 0:
		c.set("train_on_prompt", "true", nil, "as TRL does without assistant_only_loss: all turns count")
	}
	if len(from) == 0 {
		c.decide(nil, "datasets: the file does not say what its rows are, and %s is a guess. Rows with a text are "+
			"{type: text}; rows with prompt and completion are {type: prompt-response, prompt: prompt, response: completion}, "+
			"and of these prompts do not count in TRL, so take train_on_prompt out", data.Messages)
	}
}
