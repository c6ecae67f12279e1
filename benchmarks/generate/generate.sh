#!/bin/sh
# generate.sh MODEL PROMPT PROGRAM...: greedy generation by builds of millrace, in turns. The CPU time of a token is that of a
# run of 104 tokens less that of a run of 4, divided by 100.
set -eu
model=$1 prompt=$2
shift 2
for turn in 1 2 3; do
	for program in "$@"; do
		for tokens in 4 104; do
			/usr/bin/time -f "$program: $tokens tokens, %U s user, %S s system" "$program" generate --model "$model" \
				--prompt "$prompt" --max-tokens "$tokens" --temperature 0 --json |
				grep tokens_per_sec
		done
	done
done
