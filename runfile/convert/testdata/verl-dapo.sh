#!/usr/bin/env bash
set -xeuo pipefail

MODEL_PATH=${MODEL_PATH:-"Qwen/Qwen3-8B"}
CKPTS_DIR=${CKPTS_DIR:-"${HOME}/ckpts/dapo"}
if [ "$ENGINE" = "vllm" ]; then
    export VLLM_USE_V1=1
    temperature=1.0
fi
n_resp_per_prompt=16
train_prompt_bsz=512
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
overlong_buffer_len=$((1024 * 4))
actor_tokens=$(((max_prompt_length + max_response_length) * 2))
use_dynamic_bsz=True
TRAIN_FILES="['$HOME/data/dapo-math-17k.parquet']"

cat > note.txt << END
data.train_batch_size=1 data.max_prompt_length=1 data.max_response_length=1
END

DATA=(
    data.train_files="${TRAIN_FILES}"
    data.prompt_key=prompt
    data.truncation='left' # of prompts
    data.train_batch_size=${train_prompt_bsz}
    data.gen_batch_size=$((train_prompt_bsz * 3))
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}
    +data.apply_chat_template_kwargs.enable_thinking=False
)
OPTIM="actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.weight_decay=0.1"

python3 -m recipe.dapo.main_dapo "${DATA[@]}" $OPTIM \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    algorithm.filter_groups.enable=True \
    algorithm.filter_groups.max_num_gen_batches=10 \
    algorithm.rollout_correction.rollout_is=token \
    algorithm.rollout_correction.rollout_rs=seq_mean_k3 \
    algorithm.rollout_correction.rollout_rs_threshold=0.01 \
    actor_rollout_ref.model.path="${MODEL_PATH}" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.rollout.n=${n_resp_per_prompt} \
    actor_rollout_ref.rollout.temperature=${temperature} \
    actor_rollout_ref.rollout.name=$ENGINE \
    actor_rollout_ref.actor.use_dynamic_bsz=${use_dynamic_bsz} \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${actor_tokens} \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    reward_model.reward_manager=dapo \
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=${overlong_buffer_len} \
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \
    +reward_model.reward_kwargs.max_resp_len=${max_response_length} \
    trainer.default_local_dir="${CKPTS_DIR}" \
    trainer.project_name=DAPO \
    trainer.val_before_train=False \
    trainer.save_freq=5 \
    trainer.total_epochs=10 \
    trainer.some_new_key=7 2>&1 | tee log.txt
