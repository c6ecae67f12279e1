package convert

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/runfile/othertrainers"
)

// Keys that only one trainer has.
var (
	keysOfV1 = []string{"train_dataset", "dist_config", "kernel_config", "optim_config", "quant_config", "init_config",
		"lr_scheduler_config", "model_class", "sample_backend", "batching_strategy"}
	keysOfTRL = []string{"dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming",
		"dataset_kwargs", "max_length", "packing_strategy", "eval_packing", "assistant_only_loss",
		"completion_only_loss", "chat_template_path", "model_init_kwargs", "truncation_mode", "shuffle_dataset",
		"use_peft", "bnb_4bit_quant_type", "bnb_4bit_quant_storage", "use_bnb_nested_quant", "lora_target_parameters",
		"lora_modules_to_save", "accelerate_config", "reward_funcs", "num_generations", "max_completion_length",
		"reward_model_name_or_path", "precompute_ref_log_probs", "beta", "loss_type", "max_prompt_length", "dataset_mixer",
		"dataset_mixture", "cpo_alpha", "desirable_weight", "undesirable_weight"}
	keysOfScripts = []string{"do_train", "dataset_config_name", "train_file", "block_size", "config_name",
		"model_type"} // of run_clm.py and its like
	keysOfAccelerate = []string{"compute_environment", "distributed_type", "main_training_function", "num_machines",
		"machine_rank", "rdzv_backend", "downcast_bf16"}
	keysOfDeepSpeed = []string{"zero_optimization", "train_micro_batch_size_per_gpu"}
)

// toolOf tells by its keys which trainer a file is of.
func toolOf(values map[string]any) (Tool, error) {
	has := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { _, ok := values[k]; return ok })
	}
	peft, _ := values["peft_config"].(map[string]any)
	switch {
	case has("base_model"):
		return Axolotl, nil
	case has("model") && (has(keysOfV1...) || peft["name"] != nil) && !has("datasets", "model_name_or_path"):
		return LLaMAFactoryV1, nil
	case has("finetuning_type", "stage", "cutoff_len", "template", "dataset_dir"):
		return LLaMAFactory, nil
	case has(keysOfAccelerate...) && !has("model_name_or_path"):
		return "", errors.New("this is a file of accelerate: it says how processes are started, and not what they train; " +
			"name the training file that is started with it")
	case has(keysOfDeepSpeed...):
		return "", errors.New("this is a file of DeepSpeed: it says how memory is divided, and not what is trained; " +
			"name the training file that names it")
	case has(keysOfTRL...), has("model_name_or_path") && has("dataset_name") && !has(keysOfScripts...):
		return TRL, nil
	}
	known := 0
	for key := range values {
		if _, ok := othertrainers.Lookup(key); ok || runfile.Order(key) >= 0 {
			known++
		}
	}
	switch {
	case has("model") && has("datasets"):
		return "", errors.New("this is a run file of Millrace already; use it with millrace train")
	case 2*known <= len(values): // some other program's
		return "", fmt.Errorf("of %s, LLaMA-Factory, Axolotl, TRL and Hugging Face's Trainer have %d; name a file of one "+
			"of them",
			spelling.Count(len(values), "key"), known)
	}
	return HFTrainer, nil
}

// usual has the defaults of a trainer, for what its file does not say.
type usual struct {
	length      int64 // of a sequence
	guessed     bool  // the trainer has no length of its own
	perDevice   int64 // sequences
	epochs      string
	rate        string
	schedule    string
	weightDecay string
	bf16        bool // the file must turn it off
}

// usualOf are the defaults of the trainers, from their sources: hparams/ and v1/config/ of LLaMA-Factory 0.9.6.dev0
// (ff6d4d1), utils/schemas/ of Axolotl 0.18.0 (067b021), trainer/sft_config.py and base_config.py of TRL
// 1.10.0.dev0 (f2cd577), which are those of 1.16.0 as well, and training_args.py of transformers 5.23.0. The v1
// layout of LLaMA-Factory has torch's AdamW, and a rate that stays (v1/core/base_trainer.py).
// Those of verl are of ppo_trainer.yaml (b178a3c).
var usualOf = map[Tool]usual{
	LLaMAFactory:   {2048, false, 8, "3", "5e-5", "linear", "0", false},
	LLaMAFactoryV1: {2048, false, 1, "3", "1e-4", "constant", "0.01", true},
	Axolotl:        {512, false, 1, "1", "5e-5", "cosine", "0", true},
	TRL:            {1024, false, 8, "3", "2e-5", "linear", "0", true},
	Verl:           {1024, false, 256, "30", "1e-6", "constant", "0.01", true},
	HFTrainer:      {1024, true, 8, "3", "5e-5", "linear", "0", false},
}
