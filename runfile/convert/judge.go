package convert

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile/othertrainers"
)

// judge finds what makes a training of Millrace something else than what the file asks for.
func (c *conversion) judge() {
	c.judgePurpose()
	c.judgeObjective()
	c.judgeModel()
	c.judgeKeys()
	c.judgeData()
}

// judgeKeys finds keys that ask for what Millrace does not have, and gives each reason once.
func (c *conversion) judgeKeys() {
	asking := map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(c.values)) {
		if row, ok := othertrainers.Lookup(key); ok && row.Refuse && !isOff(c.values[key]) {
			asking[row.Drop] = append(asking[row.Drop], key)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(asking)) {
		if keys := asking[why]; len(keys) == 1 {
			c.cannot(keys, "%s is %s: %s", plainWord(keys[0]), shown(c.values[keys[0]]), why)
		} else {
			c.cannot(keys, "%s: %s", plainList(keys), why)
		}
	}
}

// cannot adds a reason why the file cannot be trained, which keys of it gave.
func (c *conversion) cannot(keys []string, format string, args ...any) {
	for _, key := range keys {
		c.decided[key] = true
	}
	c.result.Cannot = append(c.result.Cannot, fmt.Sprintf(format, args...))
}

// judgePurpose finds files that merge, export, predict or chat, and those that tokenize only.
func (c *conversion) judgePurpose() {
	const notTraining = "and convert makes files for training; name a training file"
	peft, _ := c.values["peft_config"].(map[string]any)
	trains, hasSwitch := isOn(c.values["do_train"]), c.values["do_train"] != nil
	hasData := slices.ContainsFunc([]string{"dataset", "train_dataset", "datasets", "dataset_name", "train_file",
		"pretraining_dataset", "train_data", "data_path"}, func(key string) bool { return !isOff(c.values[key]) })
	switch {
	case !trains && !isOff(c.values["export_dir"]):
		c.cannot([]string{"export_dir"}, "export_dir: the file merges or exports a model, %s", notTraining)
	case !isOff(peft["export_dir"]):
		c.cannot([]string{"peft_config"}, "peft_config.export_dir: the file merges or exports a model, %s", notTraining)
	case !trains && (isOn(c.values["do_predict"]) || isOn(c.values["predict_with_generate"])):
		c.cannot(c.present("do_predict", "predict_with_generate"), "do_predict: the file predicts, %s", notTraining)
	case hasSwitch && !trains:
		c.cannot([]string{"do_train"}, "do_train is %s: the file does not train, %s", shown(c.values["do_train"]),
			notTraining)
	case !trains && !hasData && !isOff(c.values["infer_backend"]):
		c.cannot([]string{"infer_backend"}, "infer_backend: the file is for inference, %s", notTraining)
	case c.result.Tool == LLaMAFactory && !hasData && !hasSwitch && c.values["stage"] == nil:
		c.cannot(nil, "the file has neither stage nor dataset, so it is for inference, %s", notTraining)
	case c.result.Tool == LLaMAFactory && !isOff(c.values["tokenized_path"]) && isOff(c.values["learning_rate"]):
		c.cannot([]string{"tokenized_path"}, "tokenized_path: the file tokenizes data and has no learning rate, %s",
			notTraining)
	}
}

// present lists the keys among some that the file has.
func (c *conversion) present(keys ...string) (all []string) {
	for _, key := range keys {
		if _, ok := c.values[key]; ok {
			all = append(all, key)
		}
	}
	return all
}

// judgeObjective finds what is trained, and refuses classes of models and plugins that ask for something else.
func (c *conversion) judgeObjective() {
	c.judgeGoal()
	class := c.textAt("model_type")
	if c.goal.kind == scored && strings.HasSuffix(class, "ForSequenceClassification") {
		c.dismiss("objective reward makes such a model", "model_type")
	} else if strings.HasSuffix(class, "ForSequenceClassification") || strings.HasSuffix(class, "ForTokenClassification") {
		c.cannot([]string{"model_type"},
			"model_type is %s: Millrace trains language models and reward models, and none that "+
				"classifies",
			shown(class))
	}
	if class := c.textAt("model_class"); c.result.Tool == LLaMAFactoryV1 && class != "" && class != "llm" {
		c.cannot([]string{"model_class"}, "model_class is %s: Millrace trains language models only", shown(class))
	}
	plugins, _ := c.values["plugins"].([]any)
	for _, p := range plugins {
		for word, why := range refusedPlugins {
			if strings.Contains(strings.ToLower(textOf(p)), word) {
				c.cannot([]string{"plugins"}, "plugins has %s: %s", shown(p), why)
			}
		}
	}
}

// refusedPlugins maps parts of the names of Axolotl's plugins to the reason why Millrace refuses their training.
var refusedPlugins = map[string]string{
	".kd.":            "Millrace distils with objective: {type: distill}, from other files (docs/distillation.md)",
	".diffusion.":     "Millrace trains models that predict the next token, and no diffusion",
	".llm_compressor": "Millrace changes all weights, so sparse ones would not stay so",
	".nemo_gym":       noRewards,
	".mora":           "Millrace trains all parameters and has no adapters of this kind",
}

// judgeModel asks package model whether it has the family of the model.
func (c *conversion) judgeModel() {
	key, v := c.take("model_name_or_path", "base_model", "model_name", "model_id", "model",
		"actor_rollout_ref.model.path")
	name := textOf(v)
	if name == "" {
		return
	}
	supported := func(modelType string) bool { return slices.Contains(model.Families(), modelType) }
	trains := "Millrace trains " + strings.Join(model.Families(), ", ")
	if reason, known := c.localModel(name); known {
		if reason != "" {
			c.cannot([]string{key}, "%s is %s: %s", key, shown(name), reason)
		}
		return
	}
	last := plainName(name[strings.LastIndex(strings.TrimRight(name, "/"), "/")+1:])
	switch {
	case names().quantized.MatchString(last):
		c.cannot([]string{key}, "%s is %s, by its name with quantized weights: Millrace trains whole ones; name the model "+
			"that it was made of", key, shown(name))
	case names().adapters.MatchString(last):
		c.cannot([]string{key}, "%s is %s, by its name an adapter: Millrace reads whole models; merge it into its model "+
			"first",
			key, shown(name))
	}
	row, known := named(name)
	if known && !supported(row.Type) {
		c.cannot([]string{key}, "%s is %s, by its name %s: %s", key, shown(name), row.describe(), trains)
	}
	for _, said := range c.saidTypes() {
		switch {
		case known && strings.HasPrefix(row.Type, said.modelType): // the name says it more exactly
		case !supported(said.modelType):
			c.cannot([]string{said.key}, "%s is %s, which makes it a %s model: %s", said.key, shown(c.values[said.key]),
				said.modelType, trains)
			known = true
		case !known:
			row, known = familyNames{Type: said.modelType}, true
		}
	}
	if !known {
		c.decide(nil, "model: it is not known whether %s can be trained. %s; model_type in its config.json says what it is",
			plainWord(name), trains)
	}
	c.family = row.Type
}

// localModel judges a directory that is here, by its config.json. known is false if it has no config.json.
func (c *conversion) localModel(dir string) (reason string, known bool) {
	exists := func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err == nil && info.Mode().IsRegular()
	}
	switch {
	case exists("config.json"):
		m, err := model.Read(dir)
		if err != nil {
			return strings.Join(strings.Fields(terminal.Text(err.Error())), " "), true
		}
		c.family = m.Type
		return "", true
	case exists("adapter_config.json"):
		return "the directory has an adapter; merge it into its model first, and name that", true
	}
	return "", false
}

// saidType is a model_type that a key of the file says or implies.
type saidType struct{ key, modelType string }

// derived are the switches of Axolotl that name a family.
var derived = map[string]string{"is_falcon_derived_model": "falcon", "is_llama_derived_model": "llama",
	"is_mistral_derived_model": "mistral", "is_qwen_derived_model": "qwen"}

// saidTypes are the model types that keys of the file say.
func (c *conversion) saidTypes() (all []saidType) {
	for _, key := range slices.Sorted(maps.Keys(derived)) {
		if isOn(c.values[key]) {
			all = append(all, saidType{key, derived[key]})
		}
	}
	for _, key := range []string{"model_type", "cls_model_config"} {
		if modelType := typeOfClass(c.textAt(key)); modelType != "" {
			all = append(all, saidType{key, modelType})
		}
	}
	return all
}

// imageWords are of data sets with images, videos or sound.
var imageWords = regexp.MustCompile(
	`(^|[^a-z])(mllm|llava|geo3k|geometry3k|multimodal|vqa|vsft|rlhf_v|webvid|librispeech)($|[^a-z])`)

// judgeData finds data that are not text.
func (c *conversion) judgeData() {
	for _, key := range []string{"dataset", "train_dataset", "dataset_name", "datasets", "data.train_files"} {
		for _, set := range setNames(c.values[key]) {
			if imageWords.MatchString(strings.ToLower(set)) {
				c.cannot([]string{key}, "%s has %s, by its name with images or sound: Millrace trains on text only", key,
					shown(set))
			}
		}
	}
}

// setNames are the names of data sets in a value of any form.
func setNames(v any) (all []string) {
	items, isList := v.([]any)
	if !isList {
		return list(v)
	}
	for _, item := range items {
		switch e := item.(type) {
		case string:
			all = append(all, e)
		case map[string]any:
			all = append(all, textOf(e["path"]))
		}
	}
	return all
}
