#!/usr/bin/env bash
# Packs what checks a GPU into a folder (default bin/gpucheck): test binaries, the program, what they read, and run.sh. Copy the
# folder to a machine with a GPU, which needs neither Go nor a network, and start run.sh there.
#
# The binaries load the driver at run time, so they are linked dynamically, to glibc alone.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
out=${1:-$root/bin/gpucheck}
cd "$root"

rm -rf "$out"
mkdir -p "$out/model/modeltest" "$out/data"
export CGO_ENABLED=0
go test -c -ldflags='-s -w' -o "$out/cuda.test" ./device/cuda
go build -ldflags='-s -w' -o "$out/millrace" ./cmd/millrace
# Golden files are found below the module's root: the folder is one.
printf 'module gpucheck\n' >"$out/go.mod"
cp -r model/modeltest/testdata "$out/model/modeltest/"
cat docs/*.md README.md ARCHITECTURE.md CONTRIBUTING.md >"$out/data/text.txt"
cp device/cuda/gpucheck/run.sh device/cuda/gpucheck/README.md "$out/"
{
	git describe --always --dirty 2>/dev/null || echo unknown
	go version
} >"$out/built-from.txt"

echo "$out: $(du -sh "$out" | cut -f1); on a machine with a GPU: $(basename "$out")/run.sh"
