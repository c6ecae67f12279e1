#!/bin/sh
# devices.sh PROGRAM: predicted steps on 1, 2, 4 and 8 GPUs of named machines with 1,500 GiB of host memory. Nothing runs on a GPU.
set -eu
for pair in "llama-3-70b h100-sxm" "llama-3-70b rtx4090-pc-256gb" "llama-3-8b rtx4090-pc-256gb"; do
	shape=${pair% *} machine=${pair#* }
	for tokens in 32768 131072; do
		for devices in 1 2 4 8; do
			echo "$shape $machine, $tokens tokens, $devices GPUs"
			"$1" plan --shape "$shape" --machine "$machine" --devices "$devices" sequence_len=4096 "batch_tokens=$tokens" \
				memory.host=1500GiB | grep -E 'a step takes|limits it|compute waits|visits of layers' | cut -c1-160
		done
	done
done
