#!/usr/bin/env bash
# The real run: SmolLM2-135M-Instruct learns GSM8K with a quarter of its weights' size as device memory.
#
#   benchmarks/smollm2_gsm8k.sh MODEL.gguf GSM8K_DIR [OUT_DIR] [millrace train flags...]
#
# Imports the GGUF file, evaluates on all of test.jsonl, trains as examples/smollm2-gsm8k/run.yaml says, and evaluates again. If
# PYTHON names an interpreter with torch and transformers, it also loads the exported directory there and compares the logits of
# some examples. OUT_DIR (build/smollm2-gsm8k) gets results.json and all that was made; what was imported before is used again.
set -euo pipefail
if (($# < 2)); then
	sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
root=$(realpath "$(dirname "$0")/..")
gguf=$(realpath "$1") data=$(realpath "$2") out=$(realpath -m "${3:-$root/build/smollm2-gsm8k}")
shift $(($# < 3 ? $# : 3))
cd "$root"
make build
millrace=bin/millrace model=$out/model run=$out/run

say() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

mkdir -p "$out"
if [[ ! -e $model ]]; then
	say "import"
	$millrace import "$gguf" "$model"
fi
# Without the chat template, and with long documents split, as all figures of this benchmark were measured.
set_flags=(--set "model=$model" --set "output_dir=$run" --set eval.datasets=[] --set chat_template=conversations --set overlong=split "$@"
	--set "datasets=[{path: $data/train.jsonl, type: prompt-response, prompt: question, response: answer}]")
config=examples/smollm2-gsm8k/run.yaml
evaluate() {
	$millrace eval --model "$1" --data "$data/test.jsonl" --type prompt-response --prompt question --response answer --chat-template conversations \
		--sequence-len 512 --memory-device 64MiB --json
}

say "plan"
$millrace plan $config "${set_flags[@]}" | tee "$out/plan.txt"
say "held-out loss before"
evaluate "$model" | tee "$out/before.json"
say "training"
rm -rf "$run"
$millrace train $config "${set_flags[@]}" --trace --json | tee "$out/train.json"
say "held-out loss after"
evaluate "$run/model" | tee "$out/after.json"

printf '{"machine": "%s", "cores": %d, "commit": "%s",\n"before": %s,\n"train": %s,\n"after": %s}\n' \
	"$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" \
	"$(cat "$out/before.json")" "$(cat "$out/train.json")" "$(cat "$out/after.json")" >"$out/results.json"

if [[ -n ${PYTHON:-} ]]; then
	say "the exported model in transformers"
	$millrace preview $config "${set_flags[@]}" --json --limit 4 >"$out/examples.jsonl"
	"$PYTHON" - "$out" <<'END'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/examples.jsonl")]
rows = [row for row in rows if "summary" not in row]
json.dump({key: [row[key] for row in rows] for key in ("input_ids", "labels")}, open(sys.argv[1] + "/tokens.json", "w"))
END
	$millrace grad --model "$run/model" --tokens "$out/tokens.json" --logits --out "$out/logits.safetensors"
	"$PYTHON" model/modeltest/compare_logits.py "$run/model" "$out/tokens.json" "$out/logits.safetensors"
fi
say "done: $out/results.json"
