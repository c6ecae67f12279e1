#!/usr/bin/env bash
# 8-bit moments against fp32 ones: the same fine-tuning twice, and how far the losses are apart.
#
#   benchmarks/moments8.sh MODEL_DIR DATA.jsonl [OUT_DIR] [millrace train flags...]
#
# MODEL_DIR has weights and a tokenizer; DATA.jsonl has a prompt and a response in each line, by default under "question" and
# "answer" ($PROMPT, $RESPONSE). The last 64 lines are held out. Seed, data and order are the same, so all that differs is how the
# moments are kept. $STEPS (100) steps of 512 positions; exit status 1 if a loss of the second run is more than 1% off. OUT_DIR
# (build/moments8) gets both runs, the curves in curves.tsv and results.md.
set -euo pipefail
if (($# < 2)); then
	sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
root=$(realpath "$(dirname "$0")/..")
model=$(realpath "$1") data=$(realpath "$2") out=$(realpath -m "${3:-$root/build/moments8}")
shift $(($# < 3 ? $# : 3))
steps=${STEPS:-100} fields="type: prompt-response, prompt: ${PROMPT:-question}, response: ${RESPONSE:-answer}"
millrace=${MILLRACE:-}
if [[ -z $millrace ]]; then
	make -C "$root" build
	millrace=$root/bin/millrace
fi
mkdir -p "$out"
head -n -64 "$data" >"$out/train.jsonl"
tail -n 64 "$data" >"$out/held-out.jsonl"
cat >"$out/run.yaml" <<END
model: $model
datasets: [{path: $out/train.jsonl, $fields}]
eval: {datasets: [{path: $out/held-out.jsonl, $fields}]}
chat_template: conversations
sequence_len: 256
overlong: split
batch_tokens: 512
max_steps: $steps
learning_rate: 2e-5
lr_scheduler: constant
END

for moments in f32 8bit; do
	printf '\n== moments in %s (after %d s)\n' "$moments" "$SECONDS" >&2
	rm -rf "$out/$moments"
	"$millrace" train "$out/run.yaml" --set "output_dir=$out/$moments" --set "precision.moments=$moments" --json "$@" >"$out/$moments.json"
	sed -n 's/.*"step":\([1-9][0-9]*\),"loss":\([^,]*\),.*/\1\t\2/p' "$out/$moments/metrics.jsonl" >"$out/$moments.tsv"
done
paste "$out/f32.tsv" <(cut -f 2 "$out/8bit.tsv") >"$out/curves.tsv" # step, fp32, 8-bit

number() { sed -n "s/.*\"$2\": *\([-+.e0-9]*\).*/\1/p" "$out/$1.json" | head -n 1; }
awk -v steps="$steps" -v before="$(number f32 eval_loss_before)" \
	-v f32="$(number f32 eval_loss_after)" -v eight="$(number 8bit eval_loss_after)" '
	NF != 3 { print "step " NR ": one of the runs has no loss"; failed = 1; exit 1 }
	NR > steps - 10 { a += $2; b += $3; n++ }
	{ d = $3 / $2 - 1; if (d < 0) d = -d; if (d > worst) { worst = d; at = $1 } }
	END {
		if (failed) exit 1
		if (NR != steps || n == 0) { print "the runs have " NR " steps in common, not " steps; exit 1 }
		printf "| loss | fp32 moments | 8-bit moments | ratio |\n|---|---|---|---|\n"
		printf "| held out, before | %.4f | %.4f | |\n", before, before
		printf "| mean of the last %d steps | %.4f | %.4f | %.4f |\n", n, a / n, b / n, b / a
		printf "| held out, after %d steps | %.4f | %.4f | %.4f |\n", steps, f32, eight, eight / f32
		printf "\nfarthest apart in one step: %.2f%%, in step %d\n", 100 * worst, at
		off = b / a - 1; if (off < 0) off = -off
		held = eight / f32 - 1; if (held < 0) held = -held
		exit off > 0.01 || held > 0.01
	}' "$out/curves.tsv" | tee "$out/results.md"
