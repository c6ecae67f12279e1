#!/usr/bin/env bash
# One training step of a Gemma 3 and of a hybrid Qwen3.5, both with random weights, in turns: Millrace and PyTorch.
#
#   PYTHON=python3 benchmarks/step/families.sh OUT_DIR
#
# PYTHON has torch 2.9.0 and transformers 5.24.0.
set -euo pipefail
if (($# != 1)); then
	sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
here=$(realpath "$(dirname "$0")") out=$(realpath -m "$1")
root=$here/../..
make -C "$root" build
mkdir -p "$out"
for turn in 1 2 3; do
	for model in gemma3_text qwen3_5_text; do
		"$root/bin/millrace" bench --model "$here/$model" --sequence-len 1024 --tokens 2048 --steps 2 --warmup 1 --json \
			>"$out/millrace-$model-$turn.json"
		"${PYTHON:-python3}" "$root/benchmarks/torch_step.py" --model "$here/$model" --random --seq 1024 --batch-tokens 2048 \
			--dtype autocast-bf16 --steps 2 --warmup 1 --threads 2 >"$out/torch-$model-$turn.json"
	done
done
grep -H -E 'step_sec|peak_rss_bytes' "$out"/*.json
