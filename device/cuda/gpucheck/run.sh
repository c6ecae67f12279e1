#!/usr/bin/env bash
# Starts the check in this script's folder: README.md says what it does. BUDGET=300 OUT=folder ONLY='kernels bench*' are
# the flags --budget, --out and --only.
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/gpucheck" ] || chmod +x "$here/gpucheck" # some ways to copy files lose this
exec "$here/gpucheck" "$@"
