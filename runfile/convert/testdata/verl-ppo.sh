# PPO with a critic, after examples/ppo_trainer of verl.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_ctrl.kl_coef=0.002 \
    algorithm.lam=0.97 \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=1024 \
    data.max_prompt_length=512 \
    data.max_response_length=512 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=1024 \
    actor_rollout_ref.actor.use_kl_loss=False \
    critic.optim.lr=1e-5 \
    critic.model.path=Qwen/Qwen2.5-3B-Instruct \
    critic.ppo_micro_batch_size_per_gpu=32 \
    trainer.critic_warmup=0 \
    trainer.total_training_steps=100
