package convert

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/runfile"
)

var update = flag.Bool("update", false, "write the golden files of this package")

func read(t testing.TB, name string) []byte {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// Files in the forms of the three trainers, and the run files that come of them.
func TestFiles(t *testing.T) {
	for name, tool := range map[string]Tool{"llamafactory.yaml": LLaMAFactory, "llamafactory-lora.yaml": LLaMAFactory,
		"axolotl.yml": Axolotl, "trainer.json": HFTrainer, "trl.yaml": TRL, "llamafactory-v1.yaml": LLaMAFactoryV1,
		"llamafactory-dpo.yaml": LLaMAFactory, "axolotl-orpo.yml": Axolotl, "axolotl-kto.yml": Axolotl, "trl-dpo.yaml": TRL,
		"simpo.yaml": TRL, "trl-grpo.yaml": TRL, "trl-rloo.yaml": TRL, "trl-gspo.sh": TRL, "verl-dapo.sh": Verl,
		"verl-ppo.sh": Verl, "verl.yaml": Verl} {
		t.Run(name, func(t *testing.T) {
			doc := read(t, name)
			r, err := File(name, doc)
			if err != nil {
				t.Fatal(err)
			}
			if r.Tool != tool {
				t.Errorf("taken for a file of %s", r.Tool)
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(r.RunFile), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(string(read(t, name+".golden")), r.RunFile); d != "" {
				t.Errorf("-want +got; after a change that is meant, run go test ./runfile/convert -update\n%s", d)
			}
			everyKeyIsSaid(t, name, doc, r)
			if !slices.IsSortedFunc(r.Settings, func(a, b Setting) int { return runfile.Order(a.Key) - runfile.Order(b.Key) }) {
				t.Errorf("the settings are not in the order of the keys of a run file: %+v", r.Settings)
			}
			for line := range strings.Lines(r.RunFile) {
				if len(line) > width+1 {
					t.Errorf("a line of %d characters: %s", len(line), line)
				}
			}
		})
	}
}

// Sections begin with keys of a run file, in their order.
func TestSections(t *testing.T) {
	for i, key := range sections {
		if runfile.Order(key) < 0 || sectionOf(key) != i+1 {
			t.Errorf("section %d begins with %s", i+1, key)
		}
	}
}

// everyKeyIsSaid finds keys of the input that the result is silent about.
func everyKeyIsSaid(t *testing.T, name string, doc []byte, r *Result) {
	t.Helper()
	c := &conversion{name: name, decided: map[string]bool{}}
	if err := c.read(doc); err != nil {
		t.Fatal(err)
	}
	for key := range c.values {
		if !strings.Contains(r.RunFile, plainWord(key)) {
			t.Errorf("nothing is said of %s", key)
		}
	}
}

func TestValues(t *testing.T) {
	r, err := File("a.yaml", read(t, "llamafactory.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := runfile.Parse([]byte(r.RunFile))
	if err != nil {
		t.Fatal(err)
	}
	if c.BatchTokens != 4096 || c.SequenceLen != 2048 || c.Epochs != 3 || c.WarmupRatio != 0.1 || c.LearningRate != 1e-5 ||
		c.ValSize != 0.1 || c.Eval.Every != 500 ||
		c.Save.Every != 500 || len(c.Datasets) != 2 || c.Datasets[1].Name != "alpaca_en_demo" ||
		c.Datasets[1].MaxSamples != 1000 || c.WeightDecay != 0 ||
		c.Model != "Qwen/Qwen2.5-7B-Instruct" || c.OutputDir != "saves/qwen2.5-7b/full/sft" || c.Overlong != "truncate" {
		t.Errorf("%+v", c)
	}
}

func TestRefusals(t *testing.T) {
	for doc, want := range map[string]string{
		"":                         "not a mapping",
		"[1, 2]":                   "not a mapping",
		"hello":                    "not a mapping",
		"a: [":                     "line 1",
		"model: m\ndatasets: []\n": "a run file of Millrace already",
		"x: 1\n":                   "of 1 key, LLaMA-Factory, Axolotl, TRL and Hugging Face's Trainer have 0",
		"compute_environment: LOCAL_MACHINE\nnum_processes: 8\n": "this is a file of accelerate",
		"zero_optimization: {stage: 3}\nfp16: {}\n":              "this is a file of DeepSpeed",
		"lr: 1\nx: 1\ny: 2\n":                                    "of 3 keys, LLaMA-Factory, Axolotl, TRL",
		"base_model: m\nrl: dpo\nrl_beta: -1\n":                  "not one that Millrace takes: objective.beta is -1",
		"base_model: m\nlearning_rate: -1\n":                     "not one that Millrace takes: learning_rate",
		"base_model: m\nsequence_len: many\n":                    "sequence_len is many",
		"base_model: m\nmicro_batch_size: 1e9":                   "micro_batch_size is",
		"cutoff_len: 99999999999\n":                              "cutoff_len is 99999999999",
		"base_model: \"a\x1bb\"\n":                               "control character",
	} {
		_, err := File("a.yaml", []byte(doc))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", doc, err, want)
		}
	}
}

// A file of strange values is refused, or becomes a run file that is read.
func FuzzFile(f *testing.F) {
	for _, name := range []string{"llamafactory.yaml", "llamafactory-lora.yaml", "llamafactory-v1.yaml", "axolotl.yml",
		"trainer.json", "trl.yaml", "llamafactory-dpo.yaml", "axolotl-orpo.yml",
		"axolotl-kto.yml", "trl-dpo.yaml", "simpo.yaml", "trl-grpo.yaml", "verl.yaml", "trl-gspo.sh", "verl-dapo.sh"} {
		f.Add(read(f, name))
	}
	f.Add([]byte("base_model: \"a # b\"\ndatasets: [{path: \"x: y\", type: {field_output: \"}\"}}, 3, text]\n" +
		"\"k\\ney\": 1"))
	f.Add([]byte("a: &a [*a]\nbase_model: *a"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		r, err := File("a\nb", doc)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		if _, err := runfile.Parse([]byte(r.RunFile)); err != nil {
			t.Errorf("%v in\n%s", err, r.RunFile)
		}
	})
}

// A value that asks for something is in a setting, or is to be decided about, or is dismissed with its reason.
func TestNoValueIsLost(t *testing.T) {
	for doc, want := range map[string][]string{
		"cutoff_len: 64\nglobal_batch_size: 256\nper_device_train_batch_size: 2": {
			"batch_tokens: 16384", "per_device_train_batch_size: global_batch_size has the whole batch"},
		"base_model: m\nsequence_len: 64\nbatch_size: 128\nmicro_batch_size: 4": {"batch_tokens: 8192"},
		"per_device_train_batch_size: 1\nvalidation_split_percentage: 5":        {"val_size: 0.05"},
		"dataset_name: d\nmax_train_samples: 100": {
			"max_train_samples is 100, and is not converted: it belongs to datasets"},
		"stage: sft\nval_size: 0.1\neval_dataset: e\nmax_samples: 7": {"val_size: the file names data for it",
			"{path: data, name: e, max_samples: 7}"},
		"base_model: m\ngenerate_samples: true\ngeneration_max_new_tokens: 50\ngeneration_do_sample: false": {
			"samples: {max_tokens: 50, temperature: 0}", "name the texts in samples.prompts"},
		"base_model: m\ngeneration_temperature: 0.7": {"generation_temperature: the file does not ask for samples"},
		"base_model: m\nevals_per_epoch: 4":          {"evals_per_epoch: the file names no data to evaluate on"},
		"max_steps: 10\nnum_train_epochs: 2":         {"num_train_epochs: max_steps is set"},
		"learning_rate: 1e-4\nfp32: true":            {"compute: f32, master: f32}  # fp32"},
		"learning_rate: 1e-4\nsave_strategy: epoch\nsave_steps: 500": {
			"save.every: by save_strategy, save_steps the file saves once an epoch"},
		"learning_rate: 1e-4\nsave_strategy: best": {"save.every: by save_strategy"},
		"base_model: m": {"compute: bf16, master: split}", "warmup_ratio: 0.03"},
		"base_model: m\nbf16: full\nwarmup_steps: 5":    {"compute: bf16", "warmup_steps: 5"},
		"base_model: m\nbf16: false\nwarmup_ratio: 0.1": {"compute: f32", "warmup_ratio: 0.1"},
		"base_model: m\ndatasets: [{path: d, type: chat_template, message_field_role: from}]": {
			"tags: {role_tag: from, content_tag: content}"},
		"train_dataset: d.yaml\nmodel: m": {"d.yaml lists data sets, and cannot be read here", "lr_scheduler: constant",
			"weight_decay: 0.01", "learning_rate: 0.0001"},
		"model_name_or_path: m\ndataset_name: d\nassistant_only_loss: true": {
			"- {path: d, type: messages} sequence_len: 1024", "learning_rate: 2e-5", "compute: bf16"},
		"model_name_or_path: m\ndataset_name: d\ncompletion_only_loss: true": {
			"- {path: d, type: prompt-response, prompt: prompt, response: completion} sequence_len: 1024"},
		"model_name_or_path: m\ndataset_name: d\ncompletion_only_loss: false":  {"train_on_prompt: true"},
		"model_name_or_path: m\ndataset_name: d\nmax_length: 64\nfp16: true":   {"train_on_prompt: true", "sequence_len: 64"},
		"model_name_or_path: m\ndataset_name: d\ndataset_text_field: body":     {"type: text, field: body} sequence_len"},
		"model_name_or_path: m\ndataset_name: d\neval_strategy: steps":         {"{path: d, split: test, type: messages}"},
		"model_name_or_path: m\ndataset_name: d\nbf16: false":                  {"compute: f32"},
		"model_name_or_path: m\ndatasets: [{path: d, name: x}]\nmax_length: 9": {"{path: d, name: x, type: messages}"},
		"max_length: 9\nuse_peft: true\nlearning_rate: 2e-4":                   {"learning_rate: 2e-5 # a tenth of 0.0002"},
		"max_length: 9\nuse_peft: false\nlora_r: 8\nlearning_rate: 2e-4":       {"learning_rate: 0.0002 lr"},
		"max_length: 9\npacking: true\npacking_strategy: wrapped":              {"overlong: split"},
		"max_length: 9\npacking: true":                                         {"overlong: truncate # as TRL does"},
		"base_model: m\nadapter: qlora\nlearning_rate: 3e-4":                   {"learning_rate: 3e-5"},
		"base_model: m\nadapter:\nlora_r: 8\nlearning_rate: 3e-4":              {"learning_rate: 0.0003"},
		"stage: sft\nlearning_rate: 1e-4":                                      {"lora is LLaMA-Factory's default"},
		"stage: sft\nfinetuning_type: freeze\nlearning_rate: 1e-4":             {"learning_rate: 0.0001"},
		"stage: pt\nlearning_rate: 1e-4":                                       {"overlong: split"},
		"stage: pt\npacking: false\nlearning_rate: 1e-4":                       {"overlong: truncate"},
		"base_model: m\ndatasets: [{path: d, type: completion}]":               {"overlong: split"},
		"base_model: m\ndatasets: [{path: d, type: alpaca}]":                   {"overlong: drop"},
		"base_model: m\nexcess_length_strategy: raise":                         {"the file stops at a document"},
		"train_file: t\nblock_size: 9":                                         {"overlong: split"},
		"base_model: m\nneftune_noise_alpha: 5\nuse_eaft: true\nunfrozen_parameters: [a]": {
			"neftune_noise_alpha is 5, use_eaft is true, which changes the result: the loss is the cross entropy",
			"unfrozen_parameters is [\"a\"], which changes the result: name the tensors that are trained in train_only"},
		"base_model: m\nreinit_weights: true":           {"init: random # reinit_weights"},
		"max_steps: 9\nuse_cpu: true\nlearning_rate: 1": {"device: cpu # use_cpu"},
		"max_steps: 9\nno_cuda: false\nseed: 3":         {"no_cuda: it is off"},
		"base_model: m\nneftune_noise_alpha: 0":         {"neftune_noise_alpha: it is off"},
		"base_model: m\nspecial_tokens: {pad_token: x}": {"special_tokens: nothing is padded"},
		"base_model: m\nspecial_tokens: {eos_token: x}": {"special_tokens has eos_token x"},
		"learning_rate: 1e-4\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-5}": {
			"lr_scheduler: cosine # lr_scheduler_type", "min_learning_rate: 1e-5 # lr_scheduler_kwargs: min_lr is 1e-5"},
		"learning_rate: 3e-4\nlr_scheduler_type: cosine\nlr_scheduler_kwargs: '{\"min_lr_rate\": 0.1}'": {
			"min_learning_rate: 3e-5 # lr_scheduler_kwargs: min_lr_rate is 0.1"},
		"max_steps: 9\nlearning_rate: 2e-4\nuse_peft: true\nlr_scheduler_kwargs: {min_lr: 2e-5}\nmax_length: 8": {
			"learning_rate: 2e-5 # a tenth", "min_learning_rate: 2e-6 # lr_scheduler_kwargs"},
		"base_model: m\nlearning_rate: 2e-5\ncosine_min_lr_ratio: 0.1": {"min_learning_rate: 2e-6"},
		"base_model: m\nlearning_rate: 2e-5\ncosine_min_lr_ratio: 1": {
			"min_learning_rate: 2e-5 # cosine_min_lr_ratio: 1 of learning_rate"},
		"base_model: m\nlearning_rate: 2e-5\ncosine_min_lr_ratio: 0.1\nlr_scheduler: constant": {"constant has no end"},
		"max_steps: 9\nlr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {min_lr_ratio: 0.5}": {
			"min_learning_rate: 2.5e-5 # lr_scheduler_kwargs: min_lr_ratio is 0.5"},
		"base_model: m\nval_set_size: 0.1\neval_steps: 9\nearly_stopping_patience: 3": {
			"save: {best: true}", "stop: {patience: 3}"},
		"base_model: m\nval_set_size: 0.1\nevals_per_epoch: 9\nearly_stopping_patience: 3": {
			"early_stopping_patience is 3, and it needs eval.every"},
		"base_model: m\nlearning_rate: 1\nlr_scheduler: cosine\nlr_scheduler_kwargs: {num_cycles: 2}": {
			"the file has lr_scheduler_kwargs"},
		"max_steps: 9\nlr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 50}": {
			"lr_scheduler: wsd", "wsd falls in a line over the last tenth of the steps; the file has warmup_stable_decay with"},
		"base_model: m\ndatasets: [{path: d, type: alpaca_chat.load_qa}]": {"prompt: question, response: answer"},
		"base_model: m\ndatasets: [{path: d, type: chat_template, roles_to_train: [user], train_on_eos: last}]": {
			"roles_to_train has user", "train_on_eos is last"},
		"model_name_or_path: m\nstage: sft\ntemplate: qwen3\nenable_thinking: false\npreserve_thinking: true": {
			`chat_template_kwargs: {"enable_thinking": false, "preserve_thinking": true} # enable_thinking, preserve_thinking`},
		"model_name_or_path: m\nstage: sft\nenable_thinking: true\npreserve_thinking: false": {
			"chat templates that know it do that without it"},
		"base_model: m\ndatasets: [{path: d, type: chat_template}]\nchat_template_kwargs: {enable_thinking: false, effort: low}": {
			`chat_template_kwargs: {"effort": "low", "enable_thinking": false}`},
		"base_model: m\ndatasets: [{path: d, type: chat_template}]\nchat_template_kwargs: {bos_token: x}": {
			"chat_template_kwargs: bos_token has its value from"},
		"train_file: a\nvalidation_file: b\ndataset_text_field: body": {
			"  - {path: b, type: text, field: body}"},
	} {
		r, err := File("a.yaml", []byte(doc))
		if err != nil {
			t.Errorf("%q: %v", doc, err)
			continue
		}
		text := strings.ReplaceAll(r.RunFile, "\n#     ", " ")
		for _, want := range want {
			if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(want), " ")) {
				t.Errorf("%q has no %q:\n%s", doc, want, r.RunFile)
			}
		}
		var said []string
		for _, s := range r.Settings {
			said = append(said, s.From...)
		}
		for _, l := range r.LeftOut {
			for _, key := range l.Keys {
				if slices.Contains(said, key) {
					t.Errorf("%q: %s is in a setting and left out", doc, key)
				}
			}
		}
	}
}
