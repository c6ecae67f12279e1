package runfile

// What some keys of other trainers have in common.
const (
	useBatchTokens = "use batch_tokens, which is sequences per device x gradient accumulation x sequence_len"
	usePrecision   = "use precision.compute, bf16 or f32"
	useDatasets    = "use datasets, a list such as [{path: train.jsonl, type: alpaca}]"
	useRecompute   = "leave it out: activations are recomputed as far as memory.device asks for it"
	useMemory      = "leave it out, and set memory.device, memory.host and memory.disk"
	noAdapters     = "leave it out: all parameters are trained, without adapters"
	isAlways       = "leave it out: it is always so"
	isLogged       = "leave it out: every step is a record of metrics.jsonl"
	isAutomatic    = "leave it out: it is chosen by itself"
	notSupported   = "leave it out: there is no such thing here"
)

// otherTrainers says what to write for keys of LLaMA-Factory, Axolotl and Hugging Face's Trainer that are called otherwise here.
var otherTrainers = map[string]string{
	"model_name_or_path": "use model", "base_model": "use model", "tokenizer_name": "use tokenizer", "tokenizer_type": isAutomatic,
	"model_type": isAutomatic, "trust_remote_code": "leave it out: no code of a model is ever run", "hub_model_id": notSupported, "push_to_hub": notSupported,

	"dataset": useDatasets, "dataset_dir": useDatasets, "train_file": useDatasets, "dataset_name": useDatasets, "media_dir": notSupported,
	"eval_dataset": "use eval.datasets", "test_datasets": "use eval.datasets", "validation_file": "use eval.datasets",
	"val_set_size": "use val_size", "template": "use chat_template", "max_samples": "use max_samples in each entry of datasets",
	"train_on_inputs": "use train_on_prompt", "mask_history": "use train_on_last_turn", "cutoff_len": "use sequence_len", "max_seq_length": "use sequence_len",
	"max_seq_len": "use sequence_len", "max_length": "use sequence_len", "block_size": "use sequence_len", "model_max_length": "use sequence_len",
	"packing": isAlways, "neat_packing": isAlways, "sample_packing": isAlways, "eval_sample_packing": isAlways, "pad_to_sequence_len": isAlways,
	"group_by_length": isAlways, "overwrite_cache": isAutomatic, "dataset_prepared_path": isAutomatic, "preprocessing_num_workers": isAutomatic,
	"dataloader_num_workers": isAutomatic, "dataset_processes": isAutomatic, "remove_unused_columns": isAutomatic, "special_tokens": isAutomatic,

	"per_device_train_batch_size": useBatchTokens, "gradient_accumulation_steps": useBatchTokens, "micro_batch_size": useBatchTokens,
	"train_batch_size": useBatchTokens, "global_batch_size": useBatchTokens, "batch_size": useBatchTokens,
	"per_device_eval_batch_size": isAutomatic, "eval_batch_size": isAutomatic,
	"num_train_epochs": "use epochs", "num_epochs": "use epochs", "num_steps": "use max_steps", "max_train_steps": "use max_steps", "train_steps": "use max_steps",

	"lr": "use learning_rate", "lr_scheduler_type": "use lr_scheduler", "num_warmup_steps": "use warmup_steps",
	"lr_scheduler_kwargs": notSupported, "cosine_min_lr_ratio": notSupported, "optim": "leave it out, or set precision.moments to 8bit: AdamW is what there is",
	"optimizer": "leave it out, or set precision.moments to 8bit: AdamW is what there is", "adam_beta1": "use adam_betas, such as [0.9, 0.999]",
	"adam_beta2": "use adam_betas, such as [0.9, 0.999]", "adam_epsilon": "use adam_eps", "gradient_clipping": "use max_grad_norm",
	"max_norm": "use max_grad_norm", "data_seed": "use seed",

	"bf16": usePrecision, "fp16": usePrecision, "tf32": usePrecision, "pure_bf16": usePrecision, "fp32": usePrecision, "torch_dtype": usePrecision, "dtype": usePrecision,
	"gradient_checkpointing": useRecompute, "gradient_checkpointing_kwargs": useRecompute, "deepspeed": useMemory, "fsdp": useMemory, "fsdp_config": useMemory,
	"flash_attn": isAlways, "flash_attention": isAlways, "attn_implementation": isAutomatic, "ddp_timeout": "leave it out: one device trains", "local_rank": "leave it out: one device trains",

	"stage": noAdapters, "do_train": "leave it out: the verb says it", "do_eval": "leave it out: eval.datasets says it", "finetuning_type": noAdapters, "adapter": noAdapters,
	"lora_r": noAdapters, "lora_rank": noAdapters, "lora_alpha": noAdapters, "lora_dropout": noAdapters, "lora_target": noAdapters,
	"lora_target_modules": noAdapters, "lora_target_linear": noAdapters, "load_in_8bit": noAdapters, "load_in_4bit": noAdapters, "quantization_bit": noAdapters,
	"freeze_vision_tower": notSupported, "freeze_multi_modal_projector": notSupported, "freeze_language_model": notSupported, "image_max_pixels": notSupported, "video_max_pixels": notSupported,

	"save_steps": "use save.every", "saves_per_epoch": "use save.every", "save_strategy": "use save.every", "save_total_limit": "use save.keep",
	"save_only_model": "leave it out: a checkpoint is what a run continues from", "save_safetensors": isAlways, "load_best_model_at_end": "use save.best",
	"eval_steps": "use eval.every", "evals_per_epoch": "use eval.every", "eval_strategy": "use eval.every", "evaluation_strategy": "use eval.every",
	"eval_on_start": isAlways, "resume_from_checkpoint": "use resume", "auto_resume_from_checkpoints": "use resume", "overwrite_output_dir": "leave it out: choose another output_dir",
	"logging_steps": isLogged, "logging_dir": isLogged, "logging_strategy": isLogged, "logging_first_step": isLogged, "report_to": isLogged, "plot_loss": isLogged,
	"wandb_project": isLogged, "wandb_entity": isLogged, "wandb_name": isLogged, "wandb_watch": isLogged, "wandb_log_model": isLogged, "run_name": "use output_dir",
}
