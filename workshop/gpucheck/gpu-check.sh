#!/usr/bin/env bash
# Packs what checks a GPU into a folder (default bin/gpucheck): the program gpucheck, an archive with a test binary, the program, scripts and
# what they read, and run.sh. Copy the folder to a machine with a GPU, which needs neither Go nor a network nor tar, but gzip, and start run.sh there.
#
# The binaries load the driver at run time, so they are linked dynamically, to glibc alone. TAGS=standin builds them for a rehearsal.
# TREE=1 leaves out what the tree has anyway, for a folder that travels in the tree.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$root/bin/gpucheck}
cd "$root"

# The folder may have to travel together with the tracked tree, in one transfer of 64 MiB, with up to 12 MiB of other programs to compare
# with (benchmarks/peers packs 4.9 MiB).
limit=$((52 << 20))

rm -rf "$out"
mkdir -p "$out"
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
export CGO_ENABLED=0
build=(-tags "kernelfiles ${TAGS:-}" -ldflags='-s -w')
go test -c "${build[@]}" -o "$packed/cuda.test" ./device/cuda
go build "${build[@]}" -o "$packed/millrace" ./cmd/millrace
go build "${build[@]}" -o "$out/gpucheck" ./workshop/gpucheck
# Files that are read are where they are in the tree, of which this folder is one: golden files are found below the module's root.
printf 'module gpucheck\n' >"$packed/go.mod"
shared=(device/cuda/kernels/compiled device/cuda/kernels/candidates model/modeltest/testdata* benchmarks/peers benchmarks/gpu-rates plan/shapes)
if [ "${TREE:-}" = 1 ]; then
	printf '%s\n' "${shared[@]}" >"$packed/tree.txt"
else
	cp -r --parents "${shared[@]}" "$packed/"
fi
mkdir -p "$packed/data"
cp workshop/gpucheck/*.py workshop/gpucheck/README.md "$packed/"
cat docs/*.md README.md ARCHITECTURE.md CONTRIBUTING.md >"$packed/data/text.txt"
{
	git describe --always --dirty 2>/dev/null || echo unknown
	go version
} >"$packed/built-from.txt"
"$out/gpucheck" pack "$packed" "$out/files.tar.zst"
gzip -9n "$out/gpucheck" # run.sh unpacks it
cp workshop/gpucheck/{run,call-a,call-b}.sh workshop/gpucheck/README.md "$out/"

mib() { awk -v n="$1" 'BEGIN {printf "%.1f MiB", n / 1048576}'; }
folder=$(du -sb "$out" | cut -f1)
echo "$out: $(mib "$folder"); on a machine with a GPU: $(basename "$out")/run.sh"
if [ -z "${TAGS:-}" ] && [ "${TREE:-}" = 1 ] && tracked=$(git ls-files -z 2>/dev/null | du -cb --files0-from=- 2>/dev/null | tail -1 | cut -f1) && [ "$tracked" -gt 0 ]; then
	echo "with the tracked tree: $(mib $((folder + tracked))), of $(mib "$limit") that they may have"
	if [ $((folder + tracked)) -gt "$limit" ]; then
		echo "gpu-check.sh: the folder and the tracked tree are too large to travel together: see what has grown" >&2
		exit 1
	fi
fi
