#!/usr/bin/env bash
# Unpacks the archive in this script's folder and runs it: README.md says what it does. BUDGET=300 OUT=folder
# ONLY='kernels bench*' are the flags --budget, --out and --only.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
tar -xzf "$here/gpucheck.tar.gz" -C "$dir" || exit 1
"$dir/gpucheck" "$@" &
pid=$!
trap 'kill -TERM $pid; wait $pid; exit 130' INT TERM HUP
wait $pid
