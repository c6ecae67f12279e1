package convert

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/runfile"
)

// objectiveOf converts a file and returns the value of the objective with the whole result.
func objectiveOf(t *testing.T, name, doc string) (string, *Result) {
	t.Helper()
	r, err := File(name, []byte(doc))
	if err != nil {
		t.Errorf("%q: %v", doc, err)
		return "", &Result{}
	}
	for _, s := range r.Settings {
		if s.Key == "objective" {
			return strings.Join(strings.Fields(s.Value), " "), r
		}
	}
	return "", r
}

// A file for a reward model keeps what its trainer does with long texts and with the rate, where it says nothing.
func TestRewardModels(t *testing.T) {
	for doc, want := range map[string][]string{
		"model_name_or_path: m\ndataset_name: d\noutput_dir: my-reward\nmax_length: 9": {"overlong: drop",
			"learning_rate: 0.0001",
			"type: preference"},
		"model_name_or_path: m\ndataset_name: d\noutput_dir: my-reward\nlora_r: 8\nuse_peft: true\nlearning_rate: 1e-4": {
			"learning_rate: 1e-5"},
		"stage: rm\nmodel_name_or_path: m\ndataset: d": {"overlong: truncate", "a value head"},
		"base_model: m\nreward_model: true\nnum_labels: 1\ndatasets: [{path: d, type: bradley_terry.chat_template}]": {
			"{path: d, type: preference, prompt: input}", "overlong: drop"},
	} {
		r, err := File("a.yaml", []byte(doc))
		if err != nil || len(r.Cannot) > 0 {
			t.Errorf("%q: %v, %q", doc, err, r.Cannot)
			continue
		}
		for _, w := range want {
			if !strings.Contains(r.RunFile, w) {
				t.Errorf("%q: no %q in\n%s", doc, w, r.RunFile)
			}
		}
	}
}

// Preferences of other trainers become the objective that does the same, and a file that learns the next token none.
func TestObjectives(t *testing.T) {
	const lf, axolotl, trl = "stage: dpo\nper_device_train_batch_size: 4\n", "base_model: m\nmicro_batch_size: 4\n",
		"model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 4\n"
	for _, c := range []struct{ doc, want string }{
		{lf, "{type: dpo, pairs_per_step: 4}"},
		{lf + "pref_loss: sigmoid\npref_beta: 0.3\ndpo_label_smoothing: 0.1",
			"{type: dpo, beta: 0.3, label_smoothing: 0.1, pairs_per_step: 4}"},
		{lf + "pref_loss: hinge", "{type: dpo, loss: hinge, pairs_per_step: 4}"},
		{lf + "pref_loss: ipo", "{type: dpo, loss: ipo, pairs_per_step: 4}"},
		{lf + "pref_loss: kto_pair", "{type: dpo, loss: apo_zero, pairs_per_step: 4}"},
		{lf + "pref_loss: orpo\npref_ftx: 0.5", "{type: orpo, nll: 1.5, pairs_per_step: 4}"},
		{lf + "pref_loss: simpo", "{type: simpo, beta: 0.1, gamma: 0.5, pairs_per_step: 4}"},
		{lf + "pref_loss: simpo\npref_beta: 2\nsimpo_gamma: 1.2\npref_ftx: 0.2",
			"{type: simpo, beta: 2, gamma: 1.2, nll: 0.2, pairs_per_step: 4}"},
		{lf + "pref_ftx: 0.5", "{type: dpo, loss: [sigmoid, sft], weights: [1, 0.5], pairs_per_step: 4}"},
		{lf + "pref_bco_weight: 0.25", "{type: dpo, loss: [sigmoid, bco_pair], weights: [0.8, 0.2], pairs_per_step: 4}"},
		{lf + "ld_alpha: 0.5\nref_model: sft", "{type: dpo, ld_alpha: 0.5, reference: sft, pairs_per_step: 4}"},
		{lf + "ref_model: m\nmodel_name_or_path: m", "{type: dpo, pairs_per_step: 4}"},
		{axolotl + "rl: dpo\nrl_beta: 0.2\ngradient_accumulation_steps: 8", "{type: dpo, beta: 0.2, pairs_per_step: 32}"},
		{axolotl + "rl: dpo\ntrl: {beta: 0.3}\nrl_beta: 0.2", "{type: dpo, beta: 0.3, pairs_per_step: 4}"},
		{axolotl + "rl: ipo\ndpo_label_smoothing: 0.1", "{type: dpo, loss: ipo, pairs_per_step: 4}"},
		{axolotl + "rl: orpo\norpo_alpha: 0.2", "{type: orpo, beta: 0.2, nll_prompt: true, pairs_per_step: 4}"},
		{axolotl + "rl: simpo\nrl_beta: 2\nsimpo_gamma: 1", "{type: simpo, beta: 2, gamma: 1, nll: 1, pairs_per_step: 4}"},
		{axolotl + "rl: simpo\nrl_beta: 2\nsimpo_gamma: 1\ncpo_alpha: 0",
			"{type: simpo, beta: 2, gamma: 1, nll: 0, pairs_per_step: 4}"},
		{axolotl + "rl: dpo\ndpo_loss_type: [sigmoid, sft]\ndpo_loss_weights: [1, 0.3]\nbatch_size: 64",
			"{type: dpo, loss: [sigmoid, sft], weights: [1, 0.3], pairs_per_step: 64}"},
		{axolotl + "rl: dpo\nrpo_alpha: 0.5", "{type: dpo, loss: [sigmoid, sft], weights: [1, 0.5], pairs_per_step: 4}"},
		{trl + "loss_type: robust\nlabel_smoothing: 0.1\nbeta: 0.5",
			"{type: dpo, loss: robust, beta: 0.5, label_smoothing: 0.1, pairs_per_step: 4}"},
		{trl + "loss_type: sigmoid\ncpo_alpha: 0.5", "{type: cpo, nll: 0.5, pairs_per_step: 4}"},
		{trl + "loss_type: simpo", "{type: simpo, beta: 0.1, gamma: 0.5, nll: 1, pairs_per_step: 4}"},
		{trl + "beta: 2.5\ngamma_beta_ratio: 0.4", "{type: simpo, beta: 2.5, gamma: 1, pairs_per_step: 4}"},
		{trl + "gamma_beta_ratio: 0.4", "{type: simpo, gamma: 0.8, pairs_per_step: 4}"},
		{trl + "output_dir: my-orpo\nbeta: 0.2", "{type: orpo, beta: 0.2, nll_prompt: true, pairs_per_step: 4}"},
		{trl + "reference_free: true\nref_model: r", "{type: dpo, reference: none, pairs_per_step: 4}"},
		{"stage: kto\npref_beta: 0.2\nkto_rejected_weight: 1.3",
			"{type: kto, beta: 0.2, undesirable: 1.3}"},
		{axolotl + "rl: kto\nkto_desirable_weight: 0.2", "{type: kto, desirable: 0.2}"},
		{trl + "loss_type: apo_zero_unpaired\nbeta: 0.3", "{type: kto, loss: apo_zero_unpaired, beta: 0.3}"},
		{trl + "desirable_weight: 1.2\nref_model: r", "{type: kto, desirable: 1.2, reference: r}"},
		{"stage: rm\nper_device_train_batch_size: 4", "{type: reward, pairs_per_step: 4}"},
		{axolotl + "reward_model: true\nmodel_type: AutoModelForSequenceClassification\ncenter_rewards_coefficient: 0.01",
			"{type: reward, center: 0.01, pairs_per_step: 4}"},
		{axolotl + "reward_model: false", ""},
		{trl + "output_dir: my-reward\ncenter_rewards_coefficient: 0.0", "{type: reward, center: 0, pairs_per_step: 4}"},
		{trl + "output_dir: my-rm", "{type: reward, pairs_per_step: 4}"},
		{trl + "output_dir: my-sft\nmax_length: 9", ""},
		{trl + "loss_type: dft", ""},
		{trl + "loss_type: nll\nmax_length: 9", ""},
		{trl + "packing: true\noutput_dir: before-dpo", ""},
		{"stage: sft\npref_beta: 0.1", ""},
	} {
		got, r := objectiveOf(t, "run.yaml", c.doc)
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.doc, got, c.want)
		}
		if len(r.Cannot) > 0 {
			t.Errorf("%q: %q", c.doc, r.Cannot)
		}
	}
}

// A file of TRL says what it is for by its own name, or its directory's, where no key does.
func TestGoalByName(t *testing.T) {
	const doc = "model_name_or_path: m\ndataset_name: d\nbeta: 0.1\n"
	for name, want := range map[string]string{"orpo.yaml": "orpo", "recipes/m/orpo/config_full.yaml": "orpo",
		"/x/dpo/full/a100.yaml": "dpo", "orpo/dpo.yaml": "dpo", "cpo/config.yaml": "cpo"} {
		if got, r := objectiveOf(t, name, doc); !strings.Contains(got, "type: "+want+",") ||
			strings.Contains(strings.Join(r.Decide, "\n"), "is a guess; orpo") {
			t.Errorf("%s: %s %q", name, got, r.Decide)
		}
	}
	if got, r := objectiveOf(t, "config.yaml", doc); !strings.HasPrefix(got, "{type: dpo,") ||
		!strings.Contains(strings.Join(r.Decide, "\n"), "objective: TRL's command says what a file is for") {
		t.Errorf("%s %q", got, r.Decide)
	}
	if got, _ := objectiveOf(t, "config_sft.yaml", doc); got != "" {
		t.Errorf("a file of sft has %s", got)
	}
}

// A step has room for the pairs of the file, both sides of each.
func TestPairsFit(t *testing.T) {
	_, r := objectiveOf(t, "a.yaml", "stage: dpo\ncutoff_len: 512\nper_device_train_batch_size: 2\n"+
		"gradient_accumulation_steps: 8\nfinetuning_type: full\nlearning_rate: 8e-6\n")
	c, err := runfile.Parse([]byte(r.RunFile))
	if err != nil {
		t.Fatal(err)
	}
	if c.BatchTokens != 2*8*2*512 || c.Objective.PairsPerStep != 16 || c.LearningRate != 8e-6 {
		t.Errorf("%d tokens, %d pairs, rate %v", c.BatchTokens, c.Objective.PairsPerStep, c.LearningRate)
	}
}

// Rates of adapters become a tenth, within the range that is usual for preferences.
func TestComparedRate(t *testing.T) {
	for there, here := range map[string]string{"2e-4": "5e-6", "2e-5": "2e-6", "5e-6": "5e-7", "1e-6": "5e-7",
		"3e-7": "3e-7"} {
		_, r := objectiveOf(t, "a.yaml", "base_model: m\nrl: dpo\nadapter: lora\nlearning_rate: "+there+"\n")
		if want := "\nlearning_rate: " + here + " "; !strings.Contains(r.RunFile, want) {
			t.Errorf("%s: no %q in\n%s", there, want, r.RunFile)
		}
	}
}

// A run file says where its run differs.
func TestPreferencesThatDiffer(t *testing.T) {
	const trl = "model_name_or_path: m\ndataset_name: d\nloss_type: sigmoid\n"
	for doc, want := range map[string]string{
		"stage: dpo\npref_bco_weight: 0.1":                           "a running mean of rewards",
		"stage: dpo\npref_loss: kto_pair":                            "pref_loss is kto_pair, which TRL has no more",
		"stage: dpo\nld_alpha: 0.5":                                  "for the model and not for the reference",
		"stage: dpo\npref_loss: simpo":                               "asks for 5 nats a token",
		"stage: dpo\npref_ftx: 1":                                    "the likelihood is a mean over the tokens of a step",
		"stage: dpo\nref_model: r\nref_model_adapters: a":            "ref_model_adapters is a, an adapter",
		"stage: dpo\npref_loss: hinge\ndpo_label_smoothing: 0.1":     "which the loss does not read",
		trl + "label_smoothing: 0.1":                                 "1.16 does not read it there",
		trl + "truncation_mode: keep_end":                            "a side that is longer than sequence_len loses its end",
		trl + "max_prompt_length: 128":                               "max_prompt_length: prompt and answer have one length",
		trl + "precompute_ref_log_probs: true":                       "the reference is always evaluated once",
		trl + "loss_weights: [1, 2]":                                 "loss_weights has 2 numbers for 1 losses",
		trl + "beta: 0":                                              "beta is 0, and it must be above 0 here",
		trl + "use_weighting: true":                                  "use_weighting is true: Millrace has no weights",
		trl + "sync_ref_model: true":                                 "so it cannot follow the model",
		trl + "f_divergence_type: js_divergence":                     "f_divergence_type is js_divergence: Millrace has",
		trl + "f_divergence_type: reverse_kl":                        "f_divergence_type: Millrace does so without a key",
		"model_name_or_path: m\ndataset_name: d\nloss_type: alphapo": "no rewards of this form",
	} {
		_, r := objectiveOf(t, "a.yaml", doc)
		text := strings.Join(strings.Fields(strings.ReplaceAll(r.RunFile, "\n#", " ")), " ")
		if !strings.Contains(text, want) {
			t.Errorf("%q has no %q:\n%s", doc, want, r.RunFile)
		}
	}
}

// Axolotl's types of pairs have the keys of their rows.
func TestComparedTypes(t *testing.T) {
	for entry, want := range map[string]string{
		"type: chatml.intel":   "{path: d, type: preference}",
		"type: chatml.icr":     "{path: d, type: preference, prompt: input}",
		"type: llama3.ultra":   "{path: d, type: preference}",
		"type: chatml.argilla": "{path: d, type: preference, chosen: chosen_response, rejected: rejected_response}",
		"type: chat_template.default, field_messages: talk, field_chosen: good, field_rejected: bad": "{path: d, " +
			"type: preference, messages: talk, chosen: good, rejected: bad}",
		"type: chat_template.default, message_property_mappings: {role: who, content: what}": "{path: d, type: preference, " +
			"tags: {role_tag: who, content_tag: what}}",
		"type: {field_prompt: q, field_chosen: a, field_rejected: rejected}": "{path: d, " +
			"type: preference, prompt: q, chosen: a}",
		"type: chatml.intel}, other, {path: e, type: chatml.ultra": "{path: other, type: preference}",
		"type: zephyr.nectar": "type zephyr.nectar has rows of its own form",
	} {
		_, r := objectiveOf(t, "a.yaml", "base_model: m\nrl: dpo\ndatasets: [{path: d, "+entry+"}]\n")
		if !strings.Contains(r.RunFile, want) {
			t.Errorf("%s has no %q:\n%s", entry, want, r.RunFile)
		}
	}
}

// A file that names no data gets an entry of the type that its objective needs.
func TestNoDataOfPreferences(t *testing.T) {
	for doc, want := range map[string]string{"base_model: m\nrl: dpo\n": "preference", "stage: kto\n": "binary",
		"base_model: m\n": "messages"} {
		if _, r := objectiveOf(t, "a.yaml", doc); !strings.Contains(r.RunFile, "{path: train.jsonl, type: "+want+"}") {
			t.Errorf("%q:\n%s", doc, r.RunFile)
		}
	}
}

// The alignment handbook's mixtures of data sets.
func TestMixtures(t *testing.T) {
	const trl = "model_name_or_path: m\nloss_type: sigmoid\neval_strategy: steps\neval_steps: 9\n"
	for doc, want := range map[string][]string{
		"dataset_mixer: {a: 1.0}\ndataset_splits: [train_prefs, test_prefs]": {
			"- {path: a, split: train_prefs, type: preference}\n", "    - {path: a, split: test_prefs, type: preference}\n"},
		"dataset_mixer: {a: 0.5}\ndataset_splits: [train]\ndataset_configs: [c]": {
			"- {path: a, name: c, type: preference, weight: 0.5}\n"},
		"dataset_mixture: {datasets: [{id: a, config: c, split: s, weight: 0.25}], test_split_size: 200}": {
			"- {path: a, name: c, split: s, type: preference, weight: 0.25}\n", "val_size: 200 "},
	} {
		_, r := objectiveOf(t, "a.yaml", trl+doc+"\n")
		for _, want := range want {
			if !strings.Contains(r.RunFile, want) {
				t.Errorf("%s has no %q:\n%s", doc, want, r.RunFile)
			}
		}
	}
}
