#!/bin/sh
# Fetches the chart library uPlot from npm's registry, checks it, and puts its two files and its licence here. The page
# needs no build step and no network: the copies are in the tree, and this script only says where they came from.
#
#     report/page/vendor.sh          # fetch again; git diff then shows nothing
#     report/page/vendor.sh --check  # only compare the copies with the checksums, without a network
set -eu

version=1.6.32
package_sha256=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d
files_sha256='19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f  uPlot.iife.min.js
df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04  uPlot.min.css
8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd  LICENSE.uPlot'

here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" != --check ]; then
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	(cd "$tmp" && npm pack --silent "uplot@$version" >/dev/null)
	echo "$package_sha256  $tmp/uplot-$version.tgz" | sha256sum -c --quiet -
	tar -xzf "$tmp/uplot-$version.tgz" -C "$tmp"
	cp "$tmp/package/dist/uPlot.iife.min.js" "$tmp/package/dist/uPlot.min.css" "$here"
	cp "$tmp/package/LICENSE" "$here/LICENSE.uPlot"
fi
cd "$here"
echo "$files_sha256" | sha256sum -c --quiet -
