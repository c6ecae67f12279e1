#!/usr/bin/env bash
# Starts the check in this script's folder: README.md says what it does. BUDGET=300 OUT=folder ONLY='kernels bench*' are
# the flags --budget, --out and --only.
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -x "$here/gpucheck" ]; then
	gzip -dc "$here/gpucheck.gz" >"$here/gpucheck" && chmod +x "$here/gpucheck" || exit 1
fi
exec "$here/gpucheck" "$@"
