package runfile

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// Config is run.yaml. Its keys are the names that users of Hugging Face, Axolotl and LLaMA-Factory know; all have
// defaults but model and datasets.
//
// A key is declared here and nowhere else. The comment of a field is the key's line in docs/run-yaml.md, with links
// from there, and its place is the key's place in files that the program writes. These tags say the rest:
//
//   - default: the value of a run file without the key, as YAML. The zero value needs none.
//   - unset: the text for the docs where a missing key has another meaning than that value.
//   - resume: the rule for a run that continues from a checkpoint. A free key may change, a fixed one may not, and a
//     listed one may where resume_with lists it. Keys in a mapping have the mapping's rule, but [MasterKey].
//   - saved: the setting by which checkpoints record the key.
//   - alters: the settings of checkpoints that follow from the key as well as from the keys that they belong to.
type Config struct {
	// A Hugging Face directory with `config.json` and safetensors files, or a hub id such as `Qwen/Qwen3-0.6B`, or
	// `Qwen/Qwen3-0.6B@REVISION`. A hub id is looked up in the local cache and downloaded if it is not there (see
	// `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` in [the command line](cli.md#environment)).
	Model string `yaml:"model" unset:"required" resume:"fixed"`
	// `pretrained` reads the weights from the model. `random` needs only `config.json`, and `seed` decides the weights.
	Init string `yaml:"init" default:"pretrained" resume:"fixed"`
	// `auto` is the model's `tokenizer.json`. `bytes` is the built-in one: each byte is a token, and token 256 ends a
	// document. Or a path.
	Tokenizer string `yaml:"tokenizer" default:"auto" resume:"fixed"`
	// The Jinja template that turns rows into text. `auto`: the model's template for every type except `text`; a model
	// without a template renders `prompt-response` and `alpaca` plainly. `model`: the same, but a missing template is
	// an error. `conversations`: the model's template for `messages` and `sharegpt` only, and plain text for the other
	// types. Or the path of a template, for every type except `text`. See [data](data.md#chat-templates).
	ChatTemplate string `yaml:"chat_template" default:"auto" resume:"listed" alters:"data steps warmup_steps"`
	// Variables of the chat template, for all rows, samples and the model that is written: a mapping such as
	// `{enable_thinking: false}`. One that the template never reads is an error. See
	// [data](data.md#variables-of-a-template).
	ChatTemplateKwargs data.Kwargs `yaml:"chat_template_kwargs,omitempty,flow" resume:"listed" saved:"chat_template_kwargs" alters:"data steps warmup_steps"`

	// A list of entries, as above; [data](data.md) shows each kind.
	Datasets []data.Source `yaml:"datasets" unset:"required" resume:"listed" saved:"data" alters:"steps warmup_steps"`
	// Prompts count in the loss, too.
	TrainOnPrompt bool `yaml:"train_on_prompt" resume:"listed" alters:"data steps warmup_steps"`
	// In conversations only the last turn of the assistant counts.
	TrainOnLast bool `yaml:"train_on_last_turn,omitempty" resume:"listed" alters:"data steps warmup_steps"`
	// Documents that are held out for evaluation, chosen by `seed`: a share such as `0.05`, or a number from 1 on. It
	// excludes `eval.datasets`.
	ValSize float64 `yaml:"val_size,omitempty" resume:"listed" alters:"data steps warmup_steps"`
	// Positions of a packed row. A row holds several documents; positions restart in each, and attention stays within
	// each.
	SequenceLen int `yaml:"sequence_len" default:"2048" resume:"listed" saved:"sequence_len" alters:"steps warmup_steps"`
	// What happens to a document that is longer than a row: `split` cuts it into several, `drop` leaves it out,
	// `truncate` cuts it off. `auto` splits documents of type `text`, and truncates those of all other types, entry by
	// entry: the second piece of a conversation would be an answer without its question. With objective `reward` it
	// drops them. A run that is resumed keeps what it began with; `auto` did not exist in older versions, whose default
	// was `split`.
	Overlong string `yaml:"overlong" default:"auto" resume:"listed" saved:"overlong" alters:"steps warmup_steps"`
	// Packed positions of an optimizer step; a multiple of `sequence_len`. A larger value does more work per streamed
	// weight. Other trainers' batch is sequences per device x devices x accumulation; times `sequence_len` it is
	// `batch_tokens`.
	BatchTokens int `yaml:"batch_tokens" default:"65536" resume:"listed" saved:"batch_tokens" alters:"steps warmup_steps"`

	Objective Objective `yaml:"objective,omitempty" resume:"fixed" saved:"objective"`
	// A loop of reinforcement learning: a mapping, with objective `policy` and data of `type: prompts`. See [a
	// loop](rl.md#a-loop).
	RL RL `yaml:"rl,omitempty" resume:"listed" saved:"rl"`
	// Optimizer steps. The data start over as often as needed.
	MaxSteps int `yaml:"max_steps,omitempty" unset:"" resume:"listed" saved:"steps" alters:"warmup_steps"`
	// Passes over the data, such as `2.5`. If they end inside a step, that step is the last one: the number of steps is
	// rounded up, as in transformers. It excludes `max_steps`.
	Epochs float64 `yaml:"epochs,omitempty" unset:"'1'" resume:"listed" alters:"steps warmup_steps"`
	// The highest learning rate.
	LearningRate float64 `yaml:"learning_rate" unset:"'1e-5'; '1e-6' where the objective compares, except 'reward'" resume:"listed" saved:"learning_rate"`
	// The rate after the warm-up: `cosine` or `linear` down to `min_learning_rate` at the end, `constant`, or `wsd`
	// (constant, then linear over the last tenth of the steps, rounded down, and at least one). `cosine_with_min_lr`,
	// as transformers calls it, means `cosine`, and needs `min_learning_rate`.
	LRScheduler optim.Shape `yaml:"lr_scheduler" default:"cosine" resume:"listed" saved:"lr_scheduler"`
	// The rate that `cosine`, `linear` and `wsd` fall to. The warm-up begins at zero all the same.
	MinRate float64 `yaml:"min_learning_rate,omitempty" resume:"listed" saved:"min_learning_rate"`
	// Steps from zero to the highest rate. As in transformers, the first step then has rate 0.
	WarmupSteps int `yaml:"warmup_steps,omitempty" resume:"listed" saved:"warmup_steps"`
	// The same as a share of all steps. It excludes `warmup_steps`.
	WarmupRatio float64 `yaml:"warmup_ratio,omitempty" resume:"listed" alters:"warmup_steps"`

	// AdamW's; for matrices. Vectors have none: norms, biases, sinks, `A_log` and scales. transformers' Trainer leaves
	// out norms and biases alone, and so decays sinks and `A_log`.
	WeightDecay float64 `yaml:"weight_decay" unset:"'0.01'; '0' where the objective compares" resume:"listed" saved:"weight_decay"`
	// AdamW's decay of the two moments.
	AdamBetas [2]float64 `yaml:"adam_betas,flow" default:"[0.9, 0.999]" resume:"listed" saved:"adam_betas"`
	// At least 1.2e-38, because updates compute in 32 bits.
	AdamEps float64 `yaml:"adam_eps" default:"1e-8" resume:"listed" saved:"adam_eps"`
	// The norm over all gradients is clipped to this. 0 does not clip, which [saves the memory of
	// gradients](memory.md#what-there-is); then gradients that are not finite end the run.
	MaxGradNorm float64 `yaml:"max_grad_norm" default:"1.0" resume:"listed" saved:"max_grad_norm"`
	// Settings of some tensors, by patterns of their names: a list of entries. See [groups of
	// tensors](#groups-of-tensors).
	Groups []optim.Group `yaml:"groups,omitempty" resume:"fixed" saved:"groups"`
	// A list of patterns of tensor names, such as `["model.layers.3[01].*"]`. What matches none of them is frozen. See
	// [groups of tensors](#groups-of-tensors).
	TrainOnly []string `yaml:"train_only,omitempty,flow" resume:"fixed" saved:"train_only"`
	// The weight of a loss that is least if a model's experts are chosen equally often, in addition to the loss of
	// tokens; Hugging Face models are trained with 0.001 to 0.02. 0: there is no such loss.
	RouterAuxLossCoef float64 `yaml:"router_aux_loss_coef,omitempty" resume:"listed" saved:"router_aux_loss_coef"`
	// Adds the norm of each layer's gradient, before clipping, to [the records of steps](metrics.md#metricsjsonl), which
	// costs nothing, and to that after a save the norms of its weights and of their latest update, for which the
	// weights and moments of the checkpoint are read once.
	LayerNorms bool `yaml:"layer_norms,omitempty" resume:"free"`
	// Decides everything random: the order of the data, held-out documents, and weights with `init: random`.
	Seed uint64 `yaml:"seed" default:"42" resume:"fixed" saved:"seed"`

	Precision Precision `yaml:"precision" resume:"fixed" saved:"precision"`
	Numerics  Sizes     `yaml:"numerics" resume:"fixed"`
	Memory    Memory    `yaml:"memory" resume:"free"`
	// `auto`: all usable GPUs of one kind, else the CPU. Or `cuda` (the first GPU, with several processes on a machine
	// the first of each one's share), `cuda:N`, `cpu`. See [GPUs](install.md#gpus). Several devices share each step, to
	// the bits of one: a list such as `[cuda:0, cuda:2]` names GPUs, and `[cpu, cpu]` divides the cores. See
	// [distributed.md](distributed.md#several-devices).
	Device Names `yaml:"device" default:"auto" resume:"free"`
	// Of a run on several hosts.
	Distributed Distributed `yaml:"distributed" resume:"free"`

	Eval    Eval    `yaml:"eval,omitempty" resume:"listed"`
	Samples Samples `yaml:"samples" resume:"free"`
	Save    Save    `yaml:"save" resume:"free"`
	Stop    Stop    `yaml:"stop" resume:"free"`
	// Whom the run tells when it ends, fails, diverges, becomes slow, or when a drive gets hot or full: a list of entries
	// with a command or a web hook. See [notices](#notices). The `run.yaml` in `output_dir` does not have it.
	Notify []Notice `yaml:"notify,omitempty" resume:"free"`
	// A list of trackers that the run reports to, besides its own records: `tensorboard`, `{mlflow: URL}`. See
	// [trackers](trackers.md).
	ReportTo []Tracker `yaml:"report_to,omitempty" resume:"free"`
	// Gets `run.yaml` (with every key), `run.json` (which run this is, see [checkpoints.md](checkpoints.md#which-run)),
	// `plan.json`, `metrics.jsonl`, `checkpoints/`, `model/` and, with `samples.prompts`, `samples.jsonl`, with
	// `report_to`, `tensorboard/` and `mlflow.json`, and with `--trace`, `trace.json`. A `run.yaml` of your own stays as
	// it is; the file with every key is then `resolved.yaml`. One run at a time writes there. A run that has ended is not
	// overwritten, and starting it again does nothing. It must be
	// [yours](checkpoints.md#whose-directory-a-run-writes-to).
	OutputDir string `yaml:"output_dir" default:"runs/run" resume:"free"`
	// `auto` continues from the newest whole checkpoint in `output_dir`, if there is one, and after a divergence from
	// the newest healthy one; a run that was killed before its first checkpoint starts over with the same sizes.
	// `never` refuses a directory that has a run. Or the path of any run's checkpoint to begin from; started again,
	// such a run continues from its own checkpoints.
	Resume string `yaml:"resume" default:"auto" resume:"free"`
	// A list of keys that may differ from the checkpoint's: `[learning_rate, max_steps]`. See below.
	ResumeWith []string `yaml:"resume_with,omitempty,flow" resume:"free"`
}

// Objective says what a run trains its model for.
type Objective struct {
	// `sft`: the next token. From pairs (datasets of `type: preference`): `dpo`, `simpo`, `cpo`, `orpo`, and a model that
	// scores texts, `reward`. From completions that are wanted or not (`type: binary`): `kto`. `dft`: the next token, each
	// weighted by its own probability. See [preferences](preferences.md). `distill`: what a teacher expects there, see
	// [distillation](distillation.md). `policy`: answers that were sampled, with rewards (`type: rollouts`), see
	// [reinforcement learning](rl.md).
	Type string `yaml:"type" default:"sft"`
	// A loss of `dpo`, `kto` or `policy` by its name in TRL; of `dpo` also a list of losses, which are added. See
	// [losses of pairs](preferences.md#losses) and [of a policy](rl.md#losses).
	Loss Losses `yaml:"loss,omitempty,flow" unset:"'sigmoid' of 'dpo', 'kto' of 'kto', 'dapo' of 'policy'"`
	// A factor for each loss of a list.
	Weights []float64 `yaml:"weights,omitempty,flow" unset:"1 each"`
	// How strongly the model is held to the reference; of `simpo` the scale of its rewards, of `orpo` the share of the
	// odds ratio.
	Beta float64 `yaml:"beta,omitempty" unset:"'0.1', of 'simpo' '2'"`
	// The share of pairs whose labels are taken to be wrong, of the losses `sigmoid`, `robust` and `exo_pair`.
	LabelSmoothing float64 `yaml:"label_smoothing,omitempty"`
	// The weight of the chosen completion's own likelihood, of `cpo` and `simpo`.
	NLL optim.Setting `yaml:"nll,omitempty" unset:"'1' of 'cpo', else '0'"`
	// That likelihood is of prompt and completion, of `orpo`: as in TRL. Else it is of the completion.
	NLLPrompt bool `yaml:"nll_prompt,omitempty"`
	// The margin of rewards that `simpo` asks for; of the loss `ppo` the discount of what comes a token later.
	Gamma optim.Setting `yaml:"gamma,omitempty" unset:"'1'"`
	// The weight of completions that are wanted, of `kto`.
	Desirable optim.Setting `yaml:"desirable,omitempty" unset:"'1'"`
	// The weight of those that are not.
	Undesirable optim.Setting `yaml:"undesirable,omitempty" unset:"'1'"`
	// The weight of tokens that the longer side of a pair has more than the other one, of `dpo` (LD-DPO).
	LDAlpha optim.Setting `yaml:"ld_alpha,omitempty" unset:"'1'"`
	// The coefficient of the squared sum of a pair's scores in the loss, of `reward`: it holds their mean at 0.
	Center optim.Setting `yaml:"center,omitempty" unset:"'0'"`
	// The model that `dpo`, `kto` and `policy` compare with: `start`, as the run begins; a model's directory or hub id;
	// `none`, which finds all completions equally likely; of `policy` also `data`, where rows have `ref`. It is [evaluated
	// once](preferences.md#the-reference), before the first step.
	Reference string `yaml:"reference,omitempty" unset:"'start'"`
	// Pairs of a step at most, of `kto` twos of answers. A step has as many as fit into `batch_tokens`; 0: no other bound.
	PairsPerStep int `yaml:"pairs_per_step,omitempty"`
	// The model that `distill` learns from: its directory or hub id. It is [evaluated
	// once](distillation.md#the-teachers-evaluation), before the first step. `none`: the data have what it says
	// (`type: distill`).
	Teacher string `yaml:"teacher,omitempty"`
	// The teacher's likeliest tokens at each place that `distill` compares one by one; all others are taken together.
	TopK int `yaml:"top_k,omitempty" unset:"'64'"`
	// The share of the divergence from the teacher in the loss of `distill`; the rest is the next token's.
	Share optim.Setting `yaml:"share,omitempty" unset:"'1'"`
	// Divides the logits of model and teacher before `distill` compares both, from 0.1 to 100: above 1 unlikely tokens
	// count for more. Only with a `share` of 1. See [temperature](distillation.md#temperature).
	Temperature optim.Setting `yaml:"temperature,omitempty" unset:"'1'"`
	// How far a ratio may be below and above 1 before `policy` no longer learns from a token; of `cispo` the second number
	// is the largest ratio itself, and of `dppo` and `ref_kl` both are of a probability. See [losses](rl.md#losses).
	Clip []float64 `yaml:"clip,omitempty,flow" unset:"'[0.2, 0.28]' of 'dapo'"`
	// The largest ratio of answers that are worse than expected, of `policy`; 0: no bound.
	Delta optim.Setting `yaml:"delta,omitempty" unset:"'0'"`
	// How strongly `policy` is held to the reference: the coefficient of the divergence from it. With 0 there is no
	// reference.
	KL optim.Setting `yaml:"kl,omitempty" unset:"'0'"`
	// The estimate of that divergence is not multiplied by the ratio: TRL's `use_bias_correction_kl: false`.
	KLPlain bool `yaml:"kl_plain,omitempty"`
	// The coefficient of the squared distance to the sampler, of the losses `dppo` and `ref_kl`.
	KLTau optim.Setting `yaml:"kl_tau,omitempty" unset:"'0.001'"`
	// The temperatures of the loss `sapo`, for answers that are better and worse than expected.
	Taus []float64 `yaml:"taus,omitempty,flow" unset:"'[1, 1.05]'"`
	// How `policy` makes advantages of rewards: `group`, `batch`, `none`, `rloo`, `reinforce++`, `maxrl` or `gdpo`; `gae`
	// of `ppo`. See [advantages](rl.md#advantages).
	Advantage string `yaml:"advantage,omitempty" unset:"'group', of 'dr_grpo' 'none', of 'rloo' 'rloo', of 'ppo' 'gae'"`
	// Factors of rewards by their names; 1 of those that are not named. With it `reward` of rows is not read.
	RewardWeights map[string]float64 `yaml:"reward_weights,omitempty,flow" unset:"1 each"`
	// Where the log-probabilities before the first update with an answer come from, of `policy`. `now`: no update came
	// before, so that each ratio is 1. `start`: the model as it was before the first step with these data, which costs an
	// evaluation of them. `data`: `old` of the rows, or in a loop what its own sampler has said. `sampler`: their
	// `logprobs`. The default of a loop of several steps a round is [another](rl.md#a-loop).
	Old string `yaml:"old,omitempty" unset:"'now'"`
	// What `policy` does where the sampler's log-probabilities are not the model's: `token_truncate`, `token_mask`,
	// `sequence_truncate`, `sequence_mask` or `none`. See [the sampler's correction](rl.md#the-samplers-correction).
	Correction string `yaml:"correction,omitempty" unset:"'token_truncate', of 'rloo', 'dppo' and 'ref_kl' 'none'"`
	// The largest ratio to the sampler.
	CorrectionMax optim.Setting `yaml:"correction_max,omitempty" unset:"'2' of 'token_truncate', else '3'"`
	// The least one.
	CorrectionMin optim.Setting `yaml:"correction_min,omitempty" unset:"'0'"`
	// The divisor of a token's loss, of `policy`: `answers`, the number of answers times the tokens of its own;
	// `tokens`, those of all answers of the step; `max_tokens`, the number of answers times that key.
	Normalizer string `yaml:"normalizer,omitempty" unset:"follows 'loss'"`
	// The most tokens of an answer, for that normalizer.
	MaxTokens int `yaml:"max_tokens,omitempty" unset:"'rl.max_tokens' of a loop"`
	// Answers that were cut off (`finish: length`) do not count in the loss of `policy`, nor in its divisor `tokens`;
	// their rewards do.
	MaskTruncated bool `yaml:"mask_truncated,omitempty"`
	// DeepSeek-V3.2's mask, TRL's `off_policy_mask_threshold`: of an answer that is worse than expected `policy` learns
	// nothing where the mean of its sampler's log-probabilities less the model's is above this; 0: no bound. See
	// [answers that are too far](rl.md#answers-that-are-too-far).
	OffPolicyThreshold optim.Setting `yaml:"off_policy_threshold,omitempty" unset:"'0'"`
	// What `policy` leaves out where model and sampler disagree too much: verl's `rollout_rs`, such as `token_k2` or
	// `seq_mean_k3`.
	Rejection string `yaml:"rejection,omitempty" unset:"nothing"`
	// The largest divergence that it allows; of `k1` the largest ratio, and 1 by it the least.
	RejectionMax optim.Setting `yaml:"rejection_max,omitempty" unset:""`
	// The critic of the loss `ppo`: `shared`, a row of numbers that makes a value of what the head reads. See
	// [PPO](rl.md#ppo).
	Critic string `yaml:"critic,omitempty" unset:"'shared' of 'ppo'"`
	// How far a token's advantage looks ahead, from 0 (to the value of the next token) to 1 (to the reward), of `ppo`.
	Lambda optim.Setting `yaml:"lambda,omitempty" unset:"'0.95'"`
	// The share of the values' loss in the loss of `ppo`.
	VFCoef optim.Setting `yaml:"vf_coef,omitempty" unset:"'0.1'"`
	// How far a value may be from that before the first update before `ppo` no longer learns from it; 0: any distance.
	ClipValue optim.Setting `yaml:"clip_value,omitempty" unset:"'0.2'"`
	// An entropy bonus: this times the mean entropy at the tokens of answers is taken from the loss of `policy`, so that
	// answers stay different. TRL's `entropy_coef`; 0: none. See [the entropy bonus](rl.md#the-entropy-bonus).
	EntropyCoef optim.Setting `yaml:"entropy_coef,omitempty" unset:"'0'"`
	// Groups of answers of a step at most, of `policy`. A step has as many as fit into `batch_tokens`; 0: no other bound.
	GroupsPerStep int `yaml:"groups_per_step,omitempty"`
}

// RL says how a run samples answers to prompts, and what judges them.
type RL struct {
	// Prompts of a round. A round samples answers to them, scores these, and trains on them.
	PromptsPerStep int `yaml:"prompts_per_step,omitempty" unset:"'64'"`
	// Answers to each prompt. They are a group, and each is compared with the others.
	Samples int `yaml:"samples,omitempty" unset:"'8'"`
	// Tokens of an answer at most. Prompt and answer have `sequence_len` tokens at most in any case.
	MaxTokens int `yaml:"max_tokens,omitempty" unset:"'1024'"`
	// The sampler divides logits by it. 1 samples from the model as it is trained.
	Temperature float64 `yaml:"temperature,omitempty" unset:"'1'"`
	// Sample among the most likely tokens that have this probability together; 1: all. Only all of them are the model's
	// own distribution.
	TopP float64 `yaml:"top_p,omitempty" unset:"'1'"`
	// Sample among the k most likely tokens; 0: all.
	TopK int `yaml:"top_k,omitempty"`
	// `own` is the run itself. A mapping names [a server](rl.md#a-server): `{url: http://127.0.0.1:30000, engine: sglang,
	// dir: /dev/shm/policy}`.
	Sampler Sampler `yaml:"sampler,omitempty,flow" unset:"'own'"`
	// A list of what judges answers, such as `[{name: math, command: [python3, score.py]}]`. See
	// [rewards](rl.md#rewards).
	Reward []Reward `yaml:"reward,omitempty"`
	// How often a round trains on its answers.
	Iterations int `yaml:"iterations,omitempty" unset:"'1'"`
	// Answers of weights that are more steps older than those of the round are left out. Only a server has such answers.
	MaxStaleness int `yaml:"max_staleness,omitempty"`
	// Prompts of a round at most where groups whose answers all have the same reward are replaced by those of further
	// prompts; 0: such groups stay.
	MaxGroups int `yaml:"max_groups,omitempty"`
	// The memory that the reference of `objective` may take besides the run.
	ReferenceMemory ModelMemory `yaml:"reference_memory,omitempty,flow" resume:"free"`
}

// ModelMemory bounds the memory that a second model of a loop takes besides the run: one that judges, or a reference.
type ModelMemory struct {
	// The device's memory that a [reference](rl.md#a-reference) of a loop takes besides the run. Its weights stream within
	// that.
	Device Bytes `yaml:"device,omitempty" unset:"required with a reference on a GPU"`
	// The host's memory that it takes: its weights, and for the program some 70 MiB, or 1 GiB with an NVIDIA GPU.
	Host Bytes `yaml:"host,omitempty" unset:"required with a reference"`
}

// Precision has the types that are computed in and kept.
type Precision struct {
	// Type of activations and of the operands of matrix products; sums are fp32. `f32` is the reference.
	Compute string `yaml:"compute" default:"bf16"`
	// With `bf16`: `split`, fp32 master weights as a bf16 half and a 16-bit rest, or `split24`, 24 bits of them with an
	// 8-bit rest, to which each update [rounds at random](numerics.md#a-master-of-24-bits): one byte less for each
	// parameter. With `f32`: `f32`. `precision: {compute: f32}` alone computes and keeps everything in fp32. Another
	// combination is an error.
	Master string `yaml:"master" unset:"follows 'compute'"`
	// AdamW's moments: `f32`, or `8bit` (codes of a dynamic map in blocks of 256, with fp32 scales;
	// [numerics](numerics.md#moments-in-codes) says how they are rounded): 8.03 instead of 14 bytes per parameter.
	// [Experiments](numerics.md#moments-in-4-bits): `8+4` has second moments in 4 bits (7.55 bytes), `4bit` both (7.06).
	Moments string `yaml:"moments" default:"f32"`
}

// Sizes are cuts that set the order of sums, and with it the last bits of a result. A size that is auto is chosen so
// that the run fits its memory budgets; the run.yaml in the output directory has the chosen sizes.
type Sizes struct {
	// Rows that one operation sees; a divisor of `batch_tokens / sequence_len`.
	MicroBatch Auto `yaml:"micro_batch" default:"auto"`
	// Positions whose logits are computed together.
	HeadChunk Auto `yaml:"head_chunk" default:"auto"`
	// Positions that a block's norms, projections and MLP take at once; attention sees a whole micro-batch. A multiple
	// of 8. See [long context](memory.md#long-context).
	BlockChunk Auto `yaml:"block_chunk" default:"auto"`
	// Groups of consecutive micro-batches of a step; a divisor of `batch_tokens / sequence_len`. The gradients of each
	// are summed by themselves, and then added in the order of groups. `auto` is the number of
	// [hosts](distributed.md#several-hosts), which is 1 without a launcher of several. See [groups of
	// micro-batches](numerics.md#groups-of-micro-batches).
	Groups Auto `yaml:"groups" default:"auto"`
	// Type in which the sums of groups are added, and pass from [host](distributed.md#sums-in-bf16) to host: `f32`, or
	// `bf16` for half of those bytes. With `bf16` the sum of each group is rounded first, on one host as well.
	// `numerics.groups` must be 2 or more then.
	Exchange Exchange `yaml:"exchange,omitempty" unset:"'f32'"`
}

// Memory are the budgets. Without a value MaxWritePerDay is no limit, Recompute and Gradients are auto, and RatedWrites
// is trace.AssumedRatingBytes.
type Memory struct {
	// Limit of device memory, such as `20GiB` or `500MB`. Case does not matter, and `8G` is `8GB`: 8,000,000,000 bytes,
	// which holds whether GB or GiB was meant. `auto` is all that the device has. On the CPU, `auto` streams nothing
	// and uses weights in place.
	Device Bytes `yaml:"device" unset:"'auto'"`
	// Limit of host memory for the whole process, data and program included. `auto` is 90% of free memory and respects
	// cgroup limits. A size may exceed the memory that is free now: see [machines that
	// grow](memory.md#machines-that-grow).
	Host Bytes `yaml:"host" unset:"'auto'"`
	// Limit of disk space for state that does not fit in `memory.host`: a size, or `auto` for 90% of the free space,
	// less the space that [checkpoints](checkpoints.md#space) on the same drive need.
	Disk Bytes `yaml:"disk" default:"none"`
	// A directory for that state, on the fastest drive, or a list of directories on [several
	// drives](memory.md#several-drives), which then work at once; those of a list must be there. Runs may share it: each
	// has a directory of its own there, such as `gsm8k-3f2a91bc`, with files `*.extent` and a file `lock`, and deletes
	// them when it begins and ends. A run that is started again removes the files that it left when it was killed, those
	// of [all its hosts](distributed.md#what-hosts-share-and-what-is-their-own) that it finds there. Checkpoints cost no
	// copy if the directory is in the file system of `output_dir`.
	Path Paths `yaml:"path,omitempty,flow" unset:"'state' in 'output_dir'"`
	// `auto` keeps activations for the backward pass in spare memory. `always` keeps only the layers' inputs. It
	// changes no bit.
	Recompute string `yaml:"recompute,omitempty" unset:"'auto'"`
	// Clipping needs the norm of all gradients before the first update. `keep` has them wait for it, in host memory or
	// on disk: 2 bytes a parameter. `twice` keeps none: it [computes each gradient
	// twice](memory.md#gradients-computed-twice), for the norm and for the update. `auto` takes what is predicted to be
	// faster. It changes no bit.
	Gradients string `yaml:"gradients,omitempty" unset:"'auto'"`
	// A size, such as `2TB`. The run pauses between steps, so that it writes no more than that in a day, counted from
	// its start or resume. The disk tier and checkpoints count together. With [several
	// drives](memory.md#several-drives) it holds for each. A run is at most one step ahead.
	MaxWritePerDay Bytes `yaml:"max_write_per_day,omitempty" unset:"'none'"`
	// The bytes that the drive's maker warrants to be written to it in its life, such as `1200TB`: the TBW of its data
	// sheet, of several drives that of each. `plan`, the first lines of a run, its summary and reports say which part of
	// them the run takes.
	RatedWrites Bytes `yaml:"rated_writes,omitempty" unset:"'600TB', as many drives of 1 TB have"`
}

// UsesDisk reports whether state may be on disk.
func (m *Memory) UsesDisk() bool { return m.Disk.N > 0 || m.Disk.IsAuto() }

// Distributed sets how the hosts of a run work together.
type Distributed struct {
	// How long a host waits for a message of another one, such as `90s`, `10m` or `1h`, at least `1m`. Then the run
	// ends, with a line that names the host which is missing. Where a step is long, hosts wait for four
	// steps of the slowest one, since gradients come late in a step; reading, tokenizing, loading and writing models
	// may take longer than it as well.
	Timeout Duration `yaml:"timeout" default:"10m"`
}

// Eval is the evaluation during training.
type Eval struct {
	// Held-out data, entries as above. The run evaluates before the first and after the last step. `val_size` takes
	// them out of `datasets` instead.
	Datasets []data.Source `yaml:"datasets,omitempty"`
	// Also evaluate every n steps.
	Every int `yaml:"every,omitempty"`
	// The `eval_set` whose loss decides which model is the best (`save.best`), and when the run stops early
	// (`stop.patience`). See [evaluation sets](#evaluation-sets).
	Best string `yaml:"best,omitempty" unset:"the loss over all sets"`
}

// Samples are texts that the model writes during training.
type Samples struct {
	// A list of texts that the model continues before the first and after the last step, such as `["Dear Sir or
	// Madam"]`. In a run whose data have the chat template a user says each, and it may be a list of messages:
	// `[{role: user, content: Hello}]`. See [samples](#samples).
	Prompts []data.Prompt `yaml:"prompts,omitempty"`
	// The path of a file with more of them, an object in each line: `{"prompt": "text"}` or `{"messages": [...]}`.
	PromptsFile string `yaml:"prompts_file,omitempty"`
	// The model also writes every n steps.
	Every int `yaml:"every,omitempty"`
	// Tokens of a text at most.
	MaxTokens int `yaml:"max_tokens" default:"128"`
	// 0 takes the most likely token each time.
	Temperature float64 `yaml:"temperature" default:"0.8"`
	// Choose among the k most likely tokens only; 0: all.
	TopK int `yaml:"top_k,omitempty"`
	// Choose among the most likely tokens that have this probability together; 1: all.
	TopP float64 `yaml:"top_p" default:"0.95"`
	// Seed of the choices, which are the same after each step: what changes in a text is the model.
	Seed uint64 `yaml:"seed" default:"42"`
}

// Save are the checkpoints. A run that is interrupted, or that ends for a reason that left its state whole, saves in
// any case.
type Save struct {
	// Save a [checkpoint](checkpoints.md) every n steps; 0 saves by time only.
	Every int `yaml:"every,omitempty"`
	// Save n minutes after the latest save began; 0 does not save by time.
	Minutes float64 `yaml:"minutes" default:"30"`
	// Save after the last step, before the model is written.
	AtEnd bool `yaml:"at_end" default:"true"`
	// How many of the newest checkpoints stay; 0 keeps all.
	Keep int `yaml:"keep" default:"2"`
	// Save after each evaluation with the lowest loss so far, keep that checkpoint, and write its model as
	// `model-best/` at the end.
	Best bool `yaml:"best,omitempty"`
	// An existing directory on another disk. A save that fails in `output_dir` is tried there, and `resume: auto` looks
	// there, too. Runs may share it: each has a directory of its own there, such as `gsm8k-3f2a91bc`.
	Fallback string `yaml:"fallback,omitempty"`
}

// Stop says when a run ends before its last step.
type Stop struct {
	// End the run, with status 1, after n steps in a row whose gradient norm or loss is not finite, or whose loss is
	// above `stop.loss_above`. 0 never ends it.
	UnhealthySteps int `yaml:"unhealthy_steps" default:"10"`
	// A loss above this is unhealthy; 0: any finite loss is healthy.
	LossAbove float64 `yaml:"loss_above,omitempty"`
	// Early stopping: end the run well, with status 0 and its model, after n evaluations in a row whose loss is not
	// below the lowest one before. 0 never does. See [early stopping](#early-stopping).
	Patience int `yaml:"patience,omitempty"`
}

// Defaults is the configuration that a file changes.
func Defaults() Config {
	c := undecided()
	c.decide()
	return c
}

// undecided is the configuration that a file changes, before what follows from other keys is known.
var undecided = sync.OnceValue(func() Config {
	var c Config
	setDefaults(reflect.ValueOf(&c).Elem())
	c.LearningRate, c.WeightDecay = undecidedNumber, undecidedNumber
	return c
})

// undecidedNumber is the value of a key that has none yet: a NaN that no file can have.
var undecidedNumber = math.Float64frombits(0x7ff8_0000_0000_0dec)

// isUndecided reports whether a number is that one.
func isUndecided(x float64) bool { return math.Float64bits(x) == math.Float64bits(undecidedNumber) }

// setDefaults gives the fields of a struct the values of their tags.
func setDefaults(v reflect.Value) {
	for f, field := range v.Fields() {
		if text, ok := f.Tag.Lookup("default"); ok {
			if err := yaml.Unmarshal([]byte(text), field.Addr().Interface()); err != nil {
				panic(err) // the tag is wrong
			}
		} else if field.Kind() == reflect.Struct {
			setDefaults(field)
		}
	}
}

// The rules of the tag resume.
const (
	resumeFree   = "free"
	resumeListed = "listed"
	resumeFixed  = "fixed"
)

// SettledBy lists, for each setting that a checkpoint names and that may change, the keys of a run file that change it.
// Messages name the first key. Settings without an entry cannot change: the model, its precision and the seed.
var SettledBy = settledBy()

func settledBy() map[string][]string {
	by := map[string][]string{}
	for _, tag := range []string{"saved", "alters"} {
		for f := range reflect.TypeFor[Config]().Fields() {
			for _, setting := range strings.Fields(f.Tag.Get(tag)) {
				if f.Tag.Get("resume") == resumeListed {
					by[setting] = append(by[setting], yamlName(f))
				}
			}
		}
	}
	return by
}

// MasterKey is the one key of precision that resume_with may list: a split master may be kept in other bits than the
// checkpoint's, see [OtherMaster].
const MasterKey = "precision.master"

// OtherMaster compares two texts of the setting precision, as [Config.Settings] has them. It returns both masters where
// nothing else differs and both are in halves.
func OtherMaster(saved, wanted string) (was, is string, ok bool) {
	a, b := strings.Fields(saved), strings.Fields(wanted)
	if len(a) != 3 || len(b) != 3 || a[0] != b[0] || a[2] != b[2] {
		return "", "", false
	}
	inHalves := func(s string) bool {
		m, err := optim.ParseMaster(s)
		return err == nil && m.Low() != tensor.Invalid
	}
	return a[1], b[1], a[1] != b[1] && inHalves(a[1]) && inHalves(b[1])
}

// listed are the keys that resume_with may list, sorted.
func listed() (keys []string) {
	keys = append(keys, MasterKey)
	for f := range reflect.TypeFor[Config]().Fields() {
		if f.Tag.Get("resume") == resumeListed {
			keys = append(keys, yamlName(f))
		}
	}
	slices.Sort(keys)
	return keys
}

// Settings returns what changes the numbers of a run, as checkpoints record it: texts by the names of settings. The
// rates have all steps of the run, and the fingerprint is that of its data.
func (c *Config) Settings(rates optim.Schedule, fingerprint string) map[string]string {
	all := map[string]string{}
	for f, field := range reflect.ValueOf(*c).Fields() {
		if saved := f.Tag.Get("saved"); saved != "" {
			all[saved] = settingText(field)
		}
	}
	all["steps"], all["data"] = strconv.Itoa(rates.Steps), fingerprint
	all["lr_scheduler"], all["warmup_steps"] = string(rates.Shape), strconv.Itoa(rates.WarmupSteps)
	if c.MinRate == 0 { // older checkpoints have no such setting
		delete(all, "min_learning_rate")
	}
	if c.RouterAuxLossCoef == 0 {
		delete(all, "router_aux_loss_coef")
	}
	if c.Objective.IsNextToken() {
		delete(all, "objective")
	} else {
		all["objective"] = c.Objective.String()
	}
	if delete(all, "rl"); c.RL.Asked() {
		loop := c.RL
		loop.ReferenceMemory = ModelMemory{} // which changes no bit
		all["rl"] = loop.String()
	}
	if len(c.ChatTemplateKwargs) == 0 {
		delete(all, "chat_template_kwargs")
	}
	if len(c.Groups) == 0 {
		delete(all, "groups")
	}
	if len(c.TrainOnly) == 0 {
		delete(all, "train_only")
	}
	if c.Numerics.Groups > 1 { // a size like the others; older versions do not know it, and are to refuse it
		all["numerics.groups"] = strconv.Itoa(int(c.Numerics.Groups))
	}
	if c.Numerics.Exchange != "" { // as with groups
		all["numerics.exchange"] = string(c.Numerics.Exchange)
	}
	if c.Overlong == string(data.SplitLong) { // which once was the default, and had no name
		delete(all, "overlong")
	}
	return all
}

// settingText writes a value as checkpoints have it: the values of a list or a mapping with spaces between them.
func settingText(v reflect.Value) string {
	var parts []string
	switch v.Kind() {
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case reflect.Struct:
		for _, field := range v.Fields() {
			parts = append(parts, settingText(field))
		}
	case reflect.Array:
		for i := range v.Len() {
			parts = append(parts, settingText(v.Index(i)))
		}
	default:
		return fmt.Sprint(v)
	}
	return strings.Join(parts, " ")
}

// maxAskedBytes bounds the text of a value that Asked returns as it is.
const maxAskedBytes = 200

// Asked returns the values of the keys that decide the numbers of a run, as texts by key: those that may not change
// without being listed in resume_with, or not at all. A long value is its first bytes and its checksum. Of
// [Sizes] only the type of sums is among them, since a plan chooses the others.
func (c *Config) Asked() map[string]string {
	all := map[string]string{"numerics.exchange": string(c.Numerics.Exchange)}
	for f, field := range reflect.ValueOf(*c).Fields() {
		rule, name := f.Tag.Get("resume"), yamlName(f)
		changesNumbers := f.Tag.Get("saved") != "" || f.Tag.Get("alters") != ""
		if rule == resumeFree || rule == resumeListed && !changesNumbers || name == "numerics" {
			continue
		}
		doc, err := yaml.MarshalWithOptions(field.Interface(), yaml.Flow(true))
		if err != nil {
			doc = fmt.Append(nil, field.Interface()) // a value that was read is written
		}
		text := strings.TrimSpace(string(doc))
		if len(text) > maxAskedBytes {
			text = fmt.Sprintf("%s... (%016x)", strings.ToValidUTF8(text[:maxAskedBytes/4], ""), xxh3.HashString(text))
		}
		all[name] = text
	}
	return all
}

// MayChange reports whether resume_with may list a key, and whether it does.
func (c *Config) MayChange(key string) (may, isListed bool) {
	may = slices.Contains(listed(), key)
	return may, may && slices.Contains(c.ResumeWith, key)
}
