#!/bin/sh
# The plans behind README.md, one after the other: run.sh [millrace]
set -eu
millrace=${1:-millrace}
plan() {
	echo "== $*"
	"$millrace" plan --shape "$1" --machine "$2" --set precision.moments="$3" --set batch_tokens="$4" --set max_steps=1000
	echo
}
plan dense-123b h200-1.5tb 8bit 65536
plan dense-123b h200-1.5tb f32 65536
plan llama-3-70b rtx4090-pc-256gb 8bit 65536
plan llama-3-70b rtx4090-pc-256gb f32 65536
plan llama-3-70b rtx4090-pc-128gb 8bit 65536
plan dense-123b rtx4090-pc-256gb 8bit 65536
plan dense-123b rtx4090-pc-128gb 8bit 32768
plan qwen2.5-14b rtx3090-pc-24gb-128gb 8bit 65536
plan qwen2.5-14b rtx3090-pc-24gb-128gb f32 65536
plan qwen2.5-32b rtx3090-pc-24gb-128gb 8bit 65536
plan qwen2.5-32b rtx3090-pc-24gb-128gb f32 65536
plan qwen2.5-1.5b rtx2060-laptop-6gb 8bit 65536
plan qwen2.5-1.5b rtx2060-laptop-6gb f32 65536
