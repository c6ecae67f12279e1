#!/bin/sh
# devices.sh PROGRAM: predicted steps on 1, 2, 4 and 8 GPUs of named machines, with state in host memory. Nothing runs on a GPU.
set -eu
for shape in llama-3-70b llama-3-8b; do
	for machine in h100-x8-2tb rtx4090-x8-1.5tb; do
		for tokens in 32768 131072; do
			for devices in 1 2 4 8; do
				echo "$shape $machine, $tokens tokens, $devices GPUs"
				"$1" plan --shape "$shape" --machine "$machine" --devices "$devices" sequence_len=4096 "batch_tokens=$tokens" \
					memory.disk=none | grep -E 'a step takes|limits it|compute waits|visits of layers' | cut -c1-200
			done
		done
	done
done
