package convert

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
)

// The names of models tell their model_type; those with an empty one have none that could be trained.
func TestNamed(t *testing.T) {
	for name, want := range map[string]string{
		"meta-llama/Llama-3.2-1B": "llama", "NousResearch/Meta-Llama-3.1-8B": "llama", "huggyllama/llama-7b": "llama",
		"TinyLlama/TinyLlama_v1.1": "llama", "codellama/CodeLlama-7b-hf": "llama", "HuggingFaceTB/SmolLM2-135M": "llama",
		"openlm-research/open_llama_3b_v2": "llama", "01-ai/Yi-34B-Chat": "llama", "models/llama3-8b-pro": "llama",
		"deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "llama", "deepseek-ai/deepseek-llm-7b-base": "llama",
		"meta-llama/Llama-3.2-11B-Vision-Instruct": "mllama", "meta-llama/Llama-4-Scout-17B-16E": "llama4",
		"mistralai/Mistral-7B-v0.1": "mistral", "mistralai/Mistral-Nemo-Base-2407": "mistral",
		"mistralai/Magistral-Small-2507": "mistral", "mistralai/Magistral-Small-2509": "mistral3",
		"mistralai/Ministral-8B-Instruct-2410": "mistral", "mistralai/Ministral-3-3B-Reasoning-2512": "mistral3",
		"mistralai/Mistral-Small-24B-Instruct-2501": "mistral", "mistralai/Mistral-Small-3.1-24B-Instruct-2503": "mistral3",
		"mistralai/Mixtral-8x7B-v0.1": "mixtral", "mistral-community/pixtral-12b": "llava",
		"mistralai/Voxtral-Mini-3B-2507": "voxtral", "mistralai/Devstral-Small-2507": "mistral",
		"Qwen/Qwen-7B": "qwen", "Qwen/Qwen1.5-MoE-A2.7B": "qwen2_moe", "Qwen/Qwen1.5-7B": "qwen2",
		"Qwen/Qwen2.5-7B@main": "qwen2", "Qwen/Qwen2-7B": "qwen2",
		"Qwen/Qwen2-VL-7B-Instruct": "qwen2_vl", "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_5_vl", "Qwen/QwQ-32B": "qwen2",
		"Qwen/Qwen3-4B-Instruct-2507": "qwen3", "/models/Qwen3-0.6B/": "qwen3", "saves/qwen3-4b/full/sft": "qwen3",
		"Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3_moe", "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3_moe",
		"Qwen/Qwen3-VL-4B-Instruct": "qwen3_vl", "Qwen/Qwen3-VL-30B-A3B-Instruct": "qwen3_vl_moe",
		"Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3_next", "Qwen/Qwen3.5-4B": "qwen3_5", "Qwen/Qwen3.5-35B-A3B": "qwen3_5_moe",
		"deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen2", "deepseek-ai/DeepSeek-V3": "deepseek_v3",
		"moonshotai/Kimi-K2-Base": "kimi_k2", "moonshotai/Kimi-Dev-72B": "qwen2",
		"google/gemma-7b": "gemma", "google/gemma-2b": "gemma", "google/gemma-2-2b": "gemma2",
		"google/gemma-3-1b-it": "gemma3_text", "google/gemma-3-270m": "gemma3_text",
		"google/gemma-3-4b-it": "gemma3", "google/gemma-4-E2B-it": "gemma4",
		"google/gemma-3n-E2B-it": "gemma3n", "openai/gpt-oss-20b": "gpt_oss",
		"microsoft/phi-1_5": "phi", "microsoft/phi-2": "phi", "microsoft/Phi-3-mini-4k-instruct": "phi3",
		"microsoft/phi-4": "phi3", "microsoft/Phi-3.5-MoE-instruct": "phimoe",
		"state-spaces/mamba-2.8b": "mamba", "tiiuae/Falcon-H1-0.5B-Instruct": "falcon_h1", "tiiuae/falcon-7b": "falcon",
		"tiiuae/Falcon3-7B-Base": "llama", "tiiuae/Falcon-E-3B-Base-prequantized": "", "some/new-vlm-7b": "",
		"some/x-vl-2b": "", "some/llama-omni-8b": "",
		"some/llama-audio-8b": "", "some/mistral-moe-4x7b": "", "EleutherAI/pythia-1.4b-deduped": "gpt_neox",
		"openai-community/gpt2-xl": "gpt2",
		"zai-org/GLM-4.5-Air":      "glm4_moe", "THUDM/GLM-4-32B-0414": "glm4", "allenai/Olmo-3-7B-Instruct": "olmo3",
		"ibm-granite/granite-4.0-tiny-preview": "granitemoehybrid", "ibm-granite/granite-3.3-8b-instruct": "granite",
	} {
		if row, ok := named(name); !ok || row.Type != want {
			t.Errorf("%s: %q, known %v; want %q", name, row.Type, ok, want)
		}
	}
	for _, name := range []string{"", "m", "ORG/NAME", "../out", "a/b/c", "mistralai/xyz", "Salesforce/xgen-7b-8k-base"} {
		if row, ok := named(name); ok {
			t.Errorf("%s is taken for %q", name, row.Type)
		}
	}
}

// namesOnPage are the models that docs/models.md names, as the hub would: of "Gemma 4 E2B, 26B-A4B and 31B" also
// "gemma-4-26b-a4b". Rows without names of their own are left out.
func namesOnPage(t *testing.T) (all []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "models.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `[a-z0-9_]+` \\| ([^|]+) \\|").FindAllStringSubmatch(string(page), -1)
	hubName := func(words string) string { return plainName(strings.ReplaceAll(words, " ", "-")) }
	for _, row := range rows {
		if strings.Contains(row[1], "of its own") || strings.HasPrefix(row[1], "dense models of") || row[1] == "models" {
			continue
		}
		items := regexp.MustCompile(`, and |, | and | to `).Split(row[1], -1)
		of := items[0][:max(strings.LastIndexAny(items[0], " -"), 0)] // of "Gemma 4 E2B": "Gemma 4"
		for i, item := range items {
			if strings.Contains(item, "others of that form") {
				continue
			}
			name := hubName(item)
			if _, known := named(name); i > 0 && !known {
				name = hubName(of + " " + item)
			}
			all = append(all, name)
		}
	}
	return all
}

// convert accepts each model that the page of models names and each shape that plan knows: the list of names says of
// which family a model is, and never that a supported one cannot be trained.
func TestNamesOfSupportedModels(t *testing.T) {
	shapes := slices.DeleteFunc(plan.Shapes(), func(name string) bool { return strings.HasPrefix(name, "dense-") })
	pages := namesOnPage(t)
	if len(shapes) < 30 || len(pages) < 55 {
		t.Fatalf("%d shapes, %d names on the page", len(shapes), len(pages))
	}
	for _, name := range slices.Concat(shapes, pages, []string{"gemma-4-26b-a4b-it"}) {
		c, err := File("file.yaml", []byte("base_model: x/"+name+"\ndatasets: [{path: a/b, type: chat_template}]\n"))
		if err != nil || len(c.Cannot) > 0 {
			t.Errorf("%s is refused: %v %v", name, err, c)
		}
		row, known := named(name)
		if !known || !slices.Contains(model.Families(), row.Type) {
			t.Errorf("%s is taken for %q, known: %v", name, row.Type, known)
		}
	}
}

// Every family that can be trained has names, and its kind is not what a refusal would name.
func TestEveryFamilyHasNames(t *testing.T) {
	for _, family := range model.Families() {
		if !slices.ContainsFunc(names().Families, func(row familyNames) bool { return row.Type == family }) {
			t.Errorf("models.yaml has no row for %s: convert does not know which models are of this family", family)
		}
	}
	for _, row := range names().Families {
		_, isKind := names().Kinds[row.Kind]
		if row.Kind != "" && !isKind || row.Type == "" && row.Kind == "" || len(row.Names) == 0 {
			t.Errorf("%+v", row)
		}
	}
}

// A model whose family package model has can be trained, and no other: the answer changes with the list there.
func TestFamiliesAreAsked(t *testing.T) {
	for _, row := range names().Families {
		if row.Type == "" {
			continue
		}
		r, err := File("a.yaml", []byte("base_model: org/unnamed\nmodel_type: "+row.Type+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if trains := slices.Contains(model.Families(), row.Type); trains == (len(r.Cannot) > 0) {
			t.Errorf("%s: it can be trained: %v, and convert says %q", row.Type, trains, r.Cannot)
		}
	}
}

// What Millrace cannot train, and why.
func TestCannot(t *testing.T) {
	for _, c := range [][2]string{
		{"base_model: RWKV/rwkv-7b", "of type rwkv, with state-space or linear-attention layers: Millrace"},
		{"base_model: mosaicml/mpt-7b", "by its name a model of type mpt: Millrace trains"},
		{"base_model: TheBloke/Llama-2-7B-GPTQ", "by its name with quantized weights"},
		{"base_model: x/Llama-3-70B-Instruct-AWQ", "by its name with quantized weights"},
		{"base_model: unsloth/llama-3-8b-bnb-4bit", "by its name with quantized weights"},
		{"base_model: x/llama-3-8b-lora", "by its name an adapter"},
		{"base_model: m\nis_falcon_derived_model: true", "is_falcon_derived_model is true, which makes it a falcon model"},
		{"base_model: m\nmodel_type: BloomForCausalLM",
			"model_type is BloomForCausalLM, which makes it a bloom model"},
		{"base_model: x/llama-7b\nmodel_type: MptForCausalLM", "model_type is MptForCausalLM"},
		{"base_model: m\nmodel_type: AutoModelForSequenceClassification", "none that classifies"},
		{"base_model: m\nprocessor_type: AutoProcessor", "processor_type is AutoProcessor: Millrace trains on text only"},
		{"stage: sft\nimage_max_pixels: 9\nvideo_max_pixels: 9",
			"image_max_pixels, video_max_pixels: Millrace trains on text only"},
		{"stage: sft\ndataset: mllm_demo,identity", "dataset has mllm_demo, by its name with images"},
		{"stage: ppo\n", "stage is ppo: of trainings with rewards convert knows GRPO and RLOO of TRL, and verl's"},
		{"base_model: m\nrl: grpo\n", "rl is grpo"},
		{"base_model: m\nprocess_reward_model: true\n", "process_reward_model is true"},
		{"base_model: m\nplugins: [axolotl.integrations.diffusion.DiffusionPlugin]", "no diffusion"},
		{"base_model: m\nplugins: [axolotl.integrations.kd.KDPlugin]\nkd_trainer: true",
			"Millrace distils with objective: {type: distill}"},
		{"base_model: m\nqat: {weight_dtype: int4}", "does not prepare them for being quantized"},
		{"base_model: m\nlora_model_dir: out", "the file continues an adapter"},
		{"base_model: m\ndatasets: [{path: d}]", "its rows are tokens already"},
		{"base_model: m\ndatasets: [{path: d, type: input_output}]", "whose rows mark the parts that count"},
		{"stage: sft\ndo_predict: true\nfinetuning_type: lora", "the file predicts"},
		{"stage: sft\ndo_train: false", "the file does not train"},
		{"model_name_or_path: m\ntemplate: x\nexport_dir: o", "the file merges or exports a model"},
		{"model_name_or_path: m\ntemplate: x\ninfer_backend: vllm", "the file is for inference"},
		{"model_name_or_path: m\ntemplate: x", "the file has neither stage nor dataset"},
		{"model: m\npeft_config: {name: lora, export_dir: o}", "the file merges or exports a model"},
		{"model: m\ntrain_dataset: data/v1_dpo_demo.yaml", "by its name preferences"},
		{"model: m\ntrain_dataset: d\nmodel_class: cls", "Millrace trains language models only"},
		{"model_name_or_path: m\nnum_generations: 8\nloss_type: luspo", "loss_type is luspo"},
		{"model_name_or_path: m\nloss_type: cispo\nimportance_sampling_level: sequence", "with the loss cispo"},
		{"actor_rollout_ref: {actor: {policy_loss: {loss_mode: gspo}}}\nalgorithm: {adv_estimator: gae}",
			"advantages are of a critic"},
		{"actor_rollout_ref: {actor: {use_kl_loss: true}}\nalgorithm: {use_kl_in_reward: true}", "has one divergence"},
		{"actor_rollout_ref: {model: {path: m}}\nalgorithm: {adv_estimator: remax}", "is remax: Millrace has no"},
		{"actor_rollout_ref: {actor: {policy_loss: {loss_mode: gpg}}}\nalgorithm: {adv_estimator: grpo}",
			"loss_mode is gpg: Millrace has no such loss"},
		{"actor_rollout_ref: {model: {path: m}}\nalgorithm: {adv_estimator: grpo, use_kl_in_reward: true}",
			"use_kl_in_reward is on"},
		{"actor_rollout_ref: {model: {path: m}}\nconfig_name: gsm8k_multiturn_grpo\nalgorithm: {adv_estimator: grpo}",
			"by its name with turns of tools"},
		{"actor_rollout_ref: {rollout: {multi_turn: {enable: true}}}\nalgorithm: {adv_estimator: grpo}", "no turns of tools"},
		{"actor_rollout_ref: {model: {path: m}}\ndata: {train_files: geo3k/train.parquet}\nalgorithm: {adv_estimator: grpo}",
			"by its name with images"},
		{"model_name_or_path: m\ndataset_name: d\noutput_dir: x-ppo", "the file is for ppo, by the name"},
		{"model_name_or_path: m\ndataset_name: d\nloss_type: [sigmoid, aot]",
			"loss_type has aot: Millrace has no such loss of dpo"},
		{"stage: kto\nloss_type: bco", "loss_type has bco: Millrace has no such loss of kto; it has kto"},
	} {
		doc, want := c[0], c[1]
		r, err := File("a.yaml", []byte(doc))
		if err != nil {
			t.Errorf("%q: %v", doc, err)
			continue
		}
		if all := strings.Join(r.Cannot, "; "); !strings.Contains(all, want) {
			t.Errorf("%q: %q, want %q", doc, all, want)
		}
		if !strings.Contains(r.RunFile, "# Millrace cannot train what that file asks for:") {
			t.Errorf("%q: the run file does not say it:\n%s", doc, r.RunFile)
		}
	}
}

// What Millrace can train, with nothing that a refusal could be made of. About a model that is not known, the user
// decides.
func TestCan(t *testing.T) {
	for doc, decides := range map[string]bool{
		"base_model: NousResearch/Llama-3.2-1B\nmodel_type: LlamaForCausalLM\nis_llama_derived_model: true": false,
		"base_model: x/llama-3-70b-fp16\nlora_model_dir:\nprocessor_type:\nrl:\nreward_model: false":        false,
		"base_model: x/some-model\nmodel_type: MistralForCausalLM":                                          false,
		"base_model: x/some-model\nmodel_type: AutoModelForCausalLM":                                        true,
		"model_name_or_path: Qwen/Qwen3-8B\ndataset_name: d\nloss_type: nll\nmax_length: 9":                 false,
		"base_model: Qwen/Qwen3-8B\ndo_train: true\nimage_max_pixels:":                                      false,
		"base_model: Qwen/Qwen3-8B\ndatasets: [{path: org/multimodality-papers, type: alpaca}]":             false,
	} {
		r, err := File("a.yaml", []byte(doc))
		if err != nil {
			t.Errorf("%q: %v", doc, err)
			continue
		}
		notKnown := strings.Contains(strings.Join(r.Decide, "\n"), "model: it is not known")
		if len(r.Cannot) > 0 || notKnown != decides {
			t.Errorf("%q: cannot %q, decide %q", doc, r.Cannot, r.Decide)
		}
	}
}

// A directory that is here is judged by its config.json, whatever its name says.
func TestLocalModel(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, file, text, want string }{
		{"mixtral-8x7b", "config.json", `{"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64,
			"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
			"max_position_embeddings": 64}`, ""},
		{"llama-3-8b", "config.json", `{"model_type": "mpt"}`, "\"model_type\""},
		{"llama-2-7b", "config.json", `{`, "config.json"},
		{"llama-3-1b", "adapter_config.json", `{}`, "the directory has an adapter"},
	} {
		model := filepath.Join(dir, c.name)
		if err := os.Mkdir(model, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(model, c.file), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := File("a.yaml", []byte("base_model: "+model+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(r.Cannot, "; "); (all == "") != (c.want == "") || !strings.Contains(all, c.want) {
			t.Errorf("%s: %q, want %q", c.name, all, c.want)
		}
	}
}
