#!/usr/bin/env bash
# make demo: trains a model whose weights do not fit into the device's memory budget, on text that every machine with Go has.
# About two minutes on two cores; no network, no Python. Everything it writes is below build/demo.
set -euo pipefail
cd "$(dirname "$0")/../.."
millrace=bin/millrace out=build/demo config=examples/demo/run.yaml
set_flags=("$@")                           # such as --set max_steps=20
export MILLRACE_CACHE=$PWD/$out/cache      # so that nothing is left elsewhere

say() { printf '\n== %s\n\n' "$*"; }

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
copy "$out/text/train" bytes strings errors fmt io io/fs os path path/filepath net/http net/url net/mail go/ast go/parser \
	go/printer go/types text/template encoding/json encoding/xml encoding/csv log log/slog sync mime archive/tar archive/zip
copy "$out/text/held-out" bufio

say "the plan"
$millrace plan $config "${set_flags[@]}"

say "one example as the model sees it"
$millrace preview $config --limit 1 "${set_flags[@]}" | tail -n 12

say "training (every 25th step)"
$millrace train $config "${set_flags[@]}" 2>&1 >"$out/summary.txt" |
	awk '!/^step/ || n++ % 25 == 0 || /eval loss/ { print; fflush() }'

say "a sample: it has read 180 KB and knows which letters follow which, not yet Go"
$millrace generate --model "$out/run/model" --tokenizer bytes --prompt $'// Read reads' --max-tokens 120 --temperature 0.5

say "summary"
cat "$out/summary.txt"
echo
echo "$out/run has plan.json, metrics.jsonl and the model, which transformers can load."
