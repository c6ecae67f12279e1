#!/bin/sh
# hosts.sh PROGRAM: predicted steps of 2, 4 and 8 named machines with one GPU each. Nothing runs on a GPU.
set -eu
for tokens in 32768 131072; do # of a host
	for shape in llama-3-70b llama-3-8b; do
		for machine in h100-sxm rtx4090-pc-256gb; do
			for network in 10Gb 25Gb 100Gb; do
				for hosts in 2 4 8; do
					echo "$shape $machine, $hosts hosts, $network, $tokens tokens a host"
					"$1" plan --shape "$shape" --machine "$machine" --hosts "$hosts" --network "$network" sequence_len=4096 \
						"batch_tokens=$((hosts * tokens))" --rehearse |
						grep -E 'a step takes|limits it|sent to|^one host|^rehearsed|^network' | cut -c1-200
				done
			done
		done
	done
done
