#!/bin/bash
# A command of TRL in a script of a shell.
accelerate launch \
    --config_file examples/accelerate_configs/deepspeed_zero3.yaml \
    examples/scripts/gspo.py \
    --model_name_or_path Qwen/Qwen3-0.6B \
    --output_dir gspo-Qwen3-0.6B \
    --learning_rate 1e-6 \
    --max_completion_length 1024 \
    --log_completions \
    --per_device_train_batch_size 8 \
    --num_generations 8 \
    --importance-sampling-level=sequence \
    --epsilon 3e-4 \
    --epsilon_high 4e-4 \
    --loss_type dapo \
    --gradient_accumulation_steps 2 "$@" # the rest
