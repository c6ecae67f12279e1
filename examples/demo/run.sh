#!/usr/bin/env bash
# make demo: trains a model on the text that every machine with Go has, with its state on disk since memory has room for a third
# of it; kills the run with kill -9, resumes it, and compares the result, bit for bit, with a run that has all in memory.
# About two minutes on two cores; no network, no Python. Everything it writes is below build/demo.
set -euo pipefail
cd "$(dirname "$0")/../.."
millrace=bin/millrace out=build/demo config=examples/demo/run.yaml
set_flags=("$@")                           # such as --set learning_rate=1e-3
export MILLRACE_CACHE=$PWD/$out/cache      # so that nothing is left elsewhere
cores=$(getconf _NPROCESSORS_ONLN)
export GOMAXPROCS=$((cores < 4 ? cores : 4)) # each worker takes memory of its own, and the budget is for four

say() { printf '\n== %s\n\n' "$*"; }
fail() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

rm -rf "$out"
mkdir -p "$out/text/train" "$out/text/held-out"
source_root=$(${GO:-go} env GOROOT)/src

# copy TO PACKAGE...: the packages' own sources, without tests; as .txt, so that they are no packages of this module.
copy() {
	local to=$1 package file
	shift
	for package in "$@"; do
		for file in "$source_root/$package"/*.go; do
			case $file in *_test.go) continue ;; esac
			mkdir -p "$to/$package"
			cp "$file" "$to/$package/$(basename "$file").txt"
		done
	done
}
copy "$out/text/train" bytes strings errors io sort
copy "$out/text/held-out" unicode/utf16

# quietly: some of the steps.
quietly() { awk '!/^step/ || n++ % 10 == 0 || /eval loss/ { print; fflush() }'; }

say "the plan: 337 MiB of state in a process of 112 MiB"
$millrace plan $config "${set_flags[@]}"

say "training until a checkpoint is there, then kill -9"
$millrace train $config "${set_flags[@]}" >"$out/killed.txt" 2>"$out/killed.log" &
victim=$!
trap 'kill -9 $victim 2>/dev/null || true' EXIT
until compgen -G "$out/run/checkpoints/step-*" >/dev/null; do
	kill -0 $victim 2>/dev/null || fail "the run ended before it had a checkpoint: $(tail -n 1 "$out/killed.log")"
	sleep 0.1
done
sleep 3 # into the steps that will have to be done again
kill -9 $victim
wait $victim 2>/dev/null || true
trap - EXIT
quietly <"$out/killed.log"
tail -n 1 "$out/killed.log" | sed 's/^/killed after /'

say "what is left of it"
$millrace checkpoint list "$out/run"
$millrace checkpoint verify "$out/run"

say "the same command again: it resumes"
$millrace train $config "${set_flags[@]}" 2>&1 >"$out/summary.txt" | quietly

say "the same run with all in memory, and never stopped"
$millrace train $config "${set_flags[@]}" --set memory.device=auto --set memory.host=auto --set memory.disk=none \
	--set save.every=100 --set output_dir=$out/in-memory 2>&1 >"$out/summary-in-memory.txt" | quietly

say "exact weights (fp32) of both, by hash"
for run in run in-memory; do
	last=$(ls -d "$out/$run"/checkpoints/step-* | tail -n 1)
	$millrace export --checkpoint "$last" --model examples/demo/model --out "$out/$run-f32" --dtype f32 >"$out/export.txt"
	cat "$out/$run-f32"/*.safetensors | sha256sum | cut -d' ' -f1 >"$out/$run.sha256"
	echo "$(cat "$out/$run.sha256")  $last"
done
cmp -s "$out/run.sha256" "$out/in-memory.sha256" || fail "the weights differ: that is a bug"
echo "The run that was killed, resumed and kept on disk has the same weights, to the bit."

say "a sample: it has read 26 KB and knows some letters that follow each other, not yet Go"
$millrace generate --model "$out/run/model" --tokenizer bytes --prompt $'// Read reads' --max-tokens 80 --temperature 0.5

say "summary of the run on disk, since it resumed"
cat "$out/summary.txt"
say "and of the one in memory"
grep -E '^(speed|peak|lanes)' "$out/summary-in-memory.txt"
echo
echo "$out/run has plan.json, metrics.jsonl, checkpoints and the model, which transformers can load."
