#!/usr/bin/env bash
# Checks a GPU with what lies beside this script. Details go to $OUT (default gpu-check.out here); a table comes last, and the exit
# status is 1 if anything failed. GPU=cuda:1 checks another one than the first; ONLY='laws train*' runs some checks only; LIMIT is how
# many seconds one may take.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-$PWD/gpu-check.out} GPU=${GPU:-cuda:0} ONLY=${ONLY:-*} LIMIT=${LIMIT:-1500}
mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd)
cd "$here" || exit 1
export MILLRACE_CACHE=$OUT/cache
table=$OUT/table.txt

# check NAME: runs the function of this name (- is _) in a process of its own, with its output in a file, and adds a row.
check() {
	local name=$1 begin end status result log=$OUT/$1.log
	begin=$(date +%s.%N)
	echo "== $name" >&2
	timeout --kill-after=10 "$LIMIT" bash "$here/run.sh" --row "${name//-/_}" >"$log" 2>&1
	status=$?
	if [[ $status -eq 0 ]]; then
		result=pass
		grep -q -- '^ *--- SKIP: TestGPU[A-Za-z]*/cuBLASLt' "$log" && result='pass (cuBLASLt is not installed)'
	else
		result=FAIL
		[[ $status -eq 124 || $status -eq 137 ]] && result="FAIL: ended after $LIMIT s"
		failed=1
		grep -v '^ *--- PASS' "$log" | tail -n 15 | sed 's/^/   /' >&2
	fi
	end=$(date +%s.%N)
	awk -v n="$name" -v r="$result" -v a="$begin" -v b="$end" 'BEGIN {printf "%-22s %7.1f s  %s\n", n, b-a, r}' >>"$table"
}

# tests NAME: a test of the test binary, which gives up with what all goroutines do shortly before it would be ended.
tests() { MILLRACE_GPU=1 ./cuda.test -test.v -test.timeout "$((LIMIT > 60 ? LIMIT - 30 : LIMIT))s" -test.run "^$1\$"; }

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

driver_bad_input() { tests TestGPUBadInput; }
devicetest() { tests TestGPUConformance; }
repeats() { tests TestGPURepeats; }
laws() { tests TestGPUTraining; }
probe() { ./millrace probe --device "$GPU" --path none; }

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
train() {
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

if [[ ${1:-} == --row ]]; then
	"$2"
	exit
fi

all=(bad-input driver-bad-input devicetest repeats laws parity streamed resumed train probe)
read -ra patterns <<<"$ONLY"
rows=()
for name in "${all[@]}"; do
	for pattern in "${patterns[@]}"; do
		# shellcheck disable=SC2053 # patterns are wanted
		[[ $name == $pattern ]] && rows+=("$name") && break
	done
done
if [[ ${#rows[@]} -eq 0 ]]; then
	echo "run.sh: ONLY is '$ONLY', and the rows are ${all[*]}" >&2
	exit 1
fi
: >"$table"
failed=0
{
	cat built-from.txt
	uname -srm
	command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
	lscpu | grep -E '^(Model name|CPU\(s\))'
} >"$OUT/machine.txt" 2>/dev/null

write_model || exit 1
# Where the GPU cannot be opened at all, why is one line, and not the end of ten logs.
if ! timeout "$LIMIT" ./millrace plan "$OUT/run.yaml" >"$OUT/open.log" 2>&1; then
	failed=1
	printf '%-22s %9s  %s\n' open '' "FAIL: $(tail -n 1 "$OUT/open.log")" >>"$table"
	rows=()
fi
for name in ${rows[@]+"${rows[@]}"}; do
	check "$name"
done

echo
cat "$OUT/machine.txt"
echo
cat "$table"
exit $failed
