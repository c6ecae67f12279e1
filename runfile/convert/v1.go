package convert

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/runfile"
)

// listedByV1 are the data sets of LLaMA-Factory's v1 layout: those of a list in a file, or one by itself
// (v1/core/data_engine.py).
func (c *conversion) listedByV1(key string, v any) (all entries, from []string) {
	name := textOf(v)
	if name == "" {
		return nil, nil
	}
	if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" {
		c.decide(nil, "%s: the type of %s is not in the file; messages is a guess", key, plainWord(name))
		return entries{{{"path", name}, {"type", string(data.Messages)}}}, []string{key}
	}
	doc, err := below.ReadFile(name, runfile.MaxBytes)
	var sets map[string]any
	if err == nil {
		sets, err = runfile.Mapping(doc)
	}
	if err != nil {
		c.decide(nil, "%s: %s lists data sets, and cannot be read here; call convert in the directory that the path "+
			"begins in, or write an entry of each", key, plainWord(name))
		return entries{{{"path", name}, {"type", string(data.Messages)}}}, []string{key}
	}
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		values, _ := sets[set].(map[string]any)
		if textOf(values["path"]) == "" {
			c.decide(nil, "%s: %s has no path", key, plainWord(set))
			continue
		}
		e := entry{{"path", textOf(values["path"])}}
		if split := textOf(values["split"]); split != "train" {
			e.add("split", split)
		}
		switch converter := textOf(values["converter"]); converter {
		case "alpaca", "sharegpt":
			e.add("type", converter)
		case "pair":
			c.cannot([]string{key}, "%s: %s has pairs of answers, which this layout of LLaMA-Factory trains reward models "+
				"on: %s", key, plainWord(set), olderLayout)
			e.add("type", string(data.Messages))
		default:
			e.add("type", string(data.Messages))
			c.decide(nil, "%s: %s has messages in LLaMA-Factory's own form; their text has to be in content", key,
				plainWord(set))
		}
		if n, ok := count(values["size"]); ok {
			e.add("max_samples", fmt.Sprint(n))
		}
		if x, ok := number(values["weight"]); ok && x > 0 {
			e.add("weight", numeral(x))
		}
		all = append(all, e)
	}
	return all, []string{key}
}

// v1 says what the sections of the v1 layout ask for that no setting has.
func (c *conversion) v1() {
	section := func(key string) map[string]any { values, _ := c.values[key].(map[string]any); return values }
	if peft := section("peft_config"); textOf(peft["name"]) == "freeze" {
		c.decide([]string{"peft_config"}, "peft_config is %s, which changes the result: name the tensors that are trained "+
			"in train_only, or those that are not in groups", shown(peft))
	}
	if optim := section("optim_config"); len(optim) > 0 {
		c.decide([]string{"optim_config"}, "optim_config is %s: AdamW is the only optimizer here, and the learning rate "+
			"may have to change with it", shown(optim))
	}
	if schedule := section("lr_scheduler_config"); len(schedule) > 0 {
		c.decide([]string{"lr_scheduler_config"}, "lr_scheduler: it was %s; constant is LLaMA-Factory's own, so name one",
			shown(schedule))
	}
	if template := c.textAt("custom_chat_template"); template != "" {
		c.decide([]string{"custom_chat_template"}, "custom_chat_template has a template as text: write it to a file, and "+
			"name that in chat_template")
	}
}
