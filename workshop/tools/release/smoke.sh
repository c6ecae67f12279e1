#!/usr/bin/env bash
# smoke.sh DIR MILLRACE...: does an installed program plan, train, verify, export and generate? DIR is where it runs,
# as seen from here; the rest is the command that runs it there. Prints a checksum of the exact weights that it
# trained, which is the same for all programs of a platform.
set -euo pipefail
dir=$1
shift
# Relative to the directory in which the program runs.
rm -rf "${dir:?}"/{config,run}.* "$dir"/{model,out,exported,text.txt}
mkdir -p "$dir/model"
cat >"$dir/model/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 128,
 "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu", "attention_bias": false,
 "max_position_embeddings": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": 256}
JSON
cat >"$dir/run.yaml" <<'YAML'
model: model
init: random
tokenizer: bytes
datasets: [{path: text.txt, type: text}]
sequence_len: 64
batch_tokens: 256
max_steps: 8
learning_rate: 1e-3
device: cpu
numerics: {micro_batch: 1, head_chunk: 64}
memory: {device: 6MiB, host: 256MiB, disk: auto}
save: {every: 4}
output_dir: out
YAML
for i in {1..400}; do echo "Line $i of a text that a model can learn."; done >"$dir/text.txt"

failed() {
	echo "smoke: $*" >&2
	exit 1
}
"$@" plan run.yaml >"$dir/run.plan"
grep -q 'device memory' "$dir/run.plan" || failed "plan has no line of device memory"
"$@" train run.yaml >"$dir/run.summary" 2>"$dir/run.log" || failed "train: $(tail -n 3 "$dir/run.log")"
grep -q 'step  *8/8' "$dir/run.log" || failed "train did not report step 8"
"$@" checkpoint verify out >"$dir/run.verify"
"$@" export --checkpoint out/checkpoints/step-000008 --model model --out exported --dtype f32 >"$dir/run.export"
[ -n "$("$@" generate --model exported --tokenizer bytes --prompt Line --max-tokens 4 --temperature 0)" ] || failed "generate wrote nothing"
sum=(sha256sum)
command -v sha256sum >/dev/null || sum=(shasum -a 256) # macOS
cat "$dir"/exported/*.safetensors | "${sum[@]}" | cut -d' ' -f1
