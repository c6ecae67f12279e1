#!/usr/bin/env bash
# One training step in turns: Millrace and PyTorch in fp32 and bf16, then resident and streamed.
#
#   PYTHON=python3 benchmarks/step/run.sh MODEL_DIR OUT_DIR
#
# MODEL_DIR has a config.json (weights are random for Millrace); PYTHON has torch and transformers.
set -euo pipefail
if (($# != 2)); then
	sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
root=$(realpath "$(dirname "$0")/../..") model=$(realpath "$1") out=$(realpath -m "$2")
make -C "$root" build
mkdir -p "$out"
bench() { "$root/bin/millrace" bench --model "$model" --json "$@"; }
torch() { "${PYTHON:-python3}" "$root/benchmarks/torch_step.py" --model "$model" --seq 1024 --batch-tokens 1024 --threads 2 "$@"; }

"$root/bin/millrace" probe | tee "$out/probe.txt"
for turn in 1 2; do
	bench --sequence-len 1024 --batch-tokens 1024 --steps 4 --warmup 1 --compute f32 >"$out/millrace-f32-$turn.json"
	torch --dtype fp32 --steps 4 --warmup 1 >"$out/torch-fp32-$turn.json"
	bench --sequence-len 1024 --batch-tokens 1024 --steps 4 --warmup 1 --compute bf16 >"$out/millrace-bf16-$turn.json"
done
torch --dtype autocast-bf16 --steps 2 --warmup 1 >"$out/torch-autocast.json"
same=(--sequence-len 512 --batch-tokens 2048 --micro-batch 1 --head-chunk 256 --steps 3 --warmup 1 --recompute always)
for turn in 1 2; do
	bench "${same[@]}" >"$out/resident-$turn.json"
	bench "${same[@]}" --memory-device 64MiB >"$out/streamed-$turn.json"
done
grep -H step_sec "$out"/*.json
