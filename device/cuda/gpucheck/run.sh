#!/usr/bin/env bash
# Checks a GPU with what lies beside this script. Details go to $OUT (default gpu-check.out here); a table comes last, and the exit
# status is 1 if anything failed. GPU=cuda:1 checks another one than the first; ONLY='laws train*' runs some checks only.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-$PWD/gpu-check.out}
GPU=${GPU:-cuda:0}
ONLY=${ONLY:-*}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
cd "$here" || exit 1
export MILLRACE_CACHE=$OUT/cache
table=$OUT/table.txt
: >"$table"
failed=0

# check NAME COMMAND...: runs it with its output in a file, and adds a row.
check() {
	local name=$1 begin end result log pattern wanted=
	shift
	for pattern in $ONLY; do
		# shellcheck disable=SC2053 # patterns are wanted
		[[ $name == $pattern ]] && wanted=1
	done
	[[ $wanted ]] || return 0
	log=$OUT/$name.log
	begin=$(date +%s.%N)
	echo "== $name" >&2
	if "$@" >"$log" 2>&1; then
		result=pass
		grep -q -- '^ *--- SKIP: TestGPU[A-Za-z]*/cuBLASLt' "$log" && result='pass (cuBLASLt is not installed)'
	else
		result=FAIL
		failed=1
		grep -v '^ *--- PASS' "$log" | tail -n 15 | sed 's/^/   /' >&2
	fi
	end=$(date +%s.%N)
	awk -v n="$name" -v r="$result" -v a="$begin" -v b="$end" 'BEGIN {printf "%-22s %7.1f s  %s\n", n, b-a, r}' >>"$table"
}

tests() { MILLRACE_GPU=1 ./cuda.test -test.v -test.timeout 20m -test.run "^$1\$"; }

# run NAME KEY=VALUE...: trains a small model of random weights on the text that is here.
run() {
	local name=$1 set=()
	shift
	for kv in "$@"; do set+=(--set "$kv"); done
	rm -rf "${OUT:?}/runs/$name"
	./millrace train "$OUT/run.yaml" --json "${set[@]}" --set "output_dir=$OUT/runs/$name" || return 1
}

losses() { sed -E 's/.*"loss":([^,}]*).*/\1/' "$OUT/runs/$1/metrics.jsonl"; }

write_model() {
	mkdir -p "$OUT/model" || return 1
	cat >"$OUT/model/config.json" <<-'JSON'
		{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 320, "hidden_size": 512, "intermediate_size": 1536,
		 "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu",
		 "attention_bias": false, "max_position_embeddings": 1024, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
		 "tie_word_embeddings": true, "torch_dtype": "bfloat16", "initializer_range": 0.02}
	JSON
	cat >"$OUT/run.yaml" <<-YAML
		model: $OUT/model
		init: random
		tokenizer: bytes
		datasets: [{path: $here/data/text.txt, type: text}]
		sequence_len: 256
		batch_tokens: 2048
		max_steps: 20
		learning_rate: 1e-3
		warmup_steps: 2
		device: $GPU
		numerics: {micro_batch: 4, head_chunk: 256}
		memory: {recompute: always}
		save: {every: 0}
		resume: never
	YAML
}

# The CPU and the GPU add in other orders: losses agree within a hundredth.
parity() {
	run cpu device=cpu && run gpu && paste <(losses cpu) <(losses gpu) |
		awk 'BEGIN {worst = 0} {d = $2/$1-1; if (d < 0) d = -d; if (d > worst) worst = d; n++; print NR, $1, $2, d}
		     END {print "largest relative difference:", worst; exit !(n == 20 && worst <= 0.01)}'
}

# A budget that has the weights streamed changes no bit.
streamed() {
	run resident && run streamed "memory.device=${STREAMED:-60MiB}" || return 1
	cmp "$OUT/runs/resident/model/model.safetensors" "$OUT/runs/streamed/model/model.safetensors" &&
		diff <(losses resident) <(losses streamed) && ! cmp -s "$OUT/runs/resident/plan.json" "$OUT/runs/streamed/plan.json"
}

# A run that is stopped and goes on ends with the same bits.
resumed() {
	run whole max_steps=12 && run halves max_steps=12 save.every=6 resume=auto || return 1
	rm -rf "$OUT/runs/halves/model" "$OUT/runs/halves/checkpoints/step-000012"
	./millrace train "$OUT/run.yaml" --set max_steps=12 --set save.every=6 --set resume=auto --set "output_dir=$OUT/runs/halves" &&
		cmp "$OUT/runs/whole/model/model.safetensors" "$OUT/runs/halves/model/model.safetensors"
}

# Training works: the loss falls by more than a third.
train_longer() {
	run longer max_steps=150 batch_tokens=8192 && losses longer |
		awk 'NR == 1 {first = $1} {last = $1} END {print "loss", first, "->", last; exit !(last < 0.66*first)}'
}

# What a user may get wrong is one line and the right exit status.
bad_input() {
	local ok=0
	# refuse WANT COMMAND...: status 2, and one line on standard error, which has WANT. Notes on the device may come before it.
	refuse() {
		local want=$1 said notes status
		shift
		said=$("$@" 2>&1 >/dev/null)
		status=$?
		echo "$status: $said"
		notes=$(grep -c -E '^millrace: device cuda:[0-9]+: (the driver is compiling|[0-9]+ kernels were|matrix products run)' <<<"$said")
		if [[ $status -ne 2 || $(($(wc -l <<<"$said") - notes)) -ne 1 || $(tail -n 1 <<<"$said") != *"$want"* ]]; then
			echo "   wanted status 2 and one line with: $want"
			ok=1
		fi
	}
	refuse 'there is no such GPU' ./millrace plan "$OUT/run.yaml" --set device=cuda:77
	refuse 'CUDA_VISIBLE_DEVICES is ""' env CUDA_VISIBLE_DEVICES= ./millrace plan "$OUT/run.yaml"
	refuse 'memory.device' ./millrace plan "$OUT/run.yaml" --set memory.device=1MiB
	refuse 'is not the number of a GPU' ./millrace plan "$OUT/run.yaml" --set device=cuda:first
	env CUDA_VISIBLE_DEVICES= ./millrace plan "$OUT/run.yaml" --set device=auto | grep -m1 CPU || ok=1
	return $ok
}

{
	cat built-from.txt
	uname -srm
	nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>&1
	lscpu 2>/dev/null | grep -E '^(Model name|CPU\(s\))'
} >"$OUT/machine.txt"

write_model || exit 1
check bad-input bad_input
check driver-bad-input tests TestGPUBadInput
check devicetest tests TestGPUConformance
check repeats tests TestGPURepeats
check laws tests TestGPUTraining
check parity parity
check streamed streamed
check resumed resumed
check train train_longer
check probe ./millrace probe --device "$GPU" --path none

echo
cat "$OUT/machine.txt"
echo
cat "$table"
exit $failed
