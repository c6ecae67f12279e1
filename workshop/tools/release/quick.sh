#!/usr/bin/env bash
# make install-check: do the packages of this machine's platform install, and does what they install work? It makes the packages of
# the last commit for linux/amd64 alone, and runs smoke.sh on each of four: the static archive in a root without any
# other file, the wheel in an environment of its own, the files of the Debian package, and the RPM package, installed in
# a directory and removed from it. All have to train the same weights. Each program that they have, of which there are
# two, shows the demo once. Less than a minute of work; make release-check does the rest: all platforms, clean systems,
# reproducible bytes.
set -euo pipefail
cd "$(dirname "$0")/../../.."
fail() {
	printf 'install-check: %s\n' "$*" >&2
	exit 1
}
left_out() { printf 'install-check: %s is left out: %s\n' "$1" "$2"; }
[ "$(uname -sm)" = "Linux x86_64" ] || { left_out "all of it" "it is for Linux on amd64"; exit 0; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd workshop/tools && go run ./release -repository ../.. -out "$work/dist" -only linux/amd64)
(cd "$work/dist" && sha256sum --check --quiet SHA256SUMS)

weights=""
declare -A shown # the way in which a program has shown the demo, by the program's checksum
# tried WAY DIR PROGRAM COMMAND...: smoke.sh in a directory, and the demo unless the same bytes have shown it.
tried() {
	local way=$1 dir=$2 program=$3 sum demo
	shift 3
	mkdir -p "$dir"
	sum=$(workshop/tools/release/smoke.sh "$dir" "$@")
	[ "${weights:=$sum}" = "$sum" ] || fail "$way trained other weights than the first program: $sum, $weights"
	program=$(sha256sum <"$program")
	if [ -z "${shown[$program]:-}" ]; then
		"$@" demo --steps 24 --dir demo >"$dir/demo.txt" || fail "$way: the demo ended with status $?: $(tail -n 3 "$dir/demo.txt")"
		shown[$program]=$way
		demo="and shows the demo"
	else
		demo="and has the program that showed the demo (${shown[$program]})"
	fi
	echo "$way: plans, trains, verifies, exports, generates, $demo; weights $sum"
}
# clean DIR PATH COMMAND...: a command in a directory, with no variable of this shell.
clean() {
	local dir=$1 path=$2
	shift 2
	(cd "$dir" && env -i HOME="$dir" PATH="$path" MILLRACE_CACHE="$dir/cache" "$@")
}
export -f clean # smoke.sh calls it

root=$work/empty
mkdir -p "$root"/{proc,tmp,work,usr/local}
tar -xzf "$work"/dist/millrace-*-linux-amd64-static.tar.gz --strip-components=1 -C "$root/usr/local"
alone=(env -i HOME=/work PATH=/usr/local/bin MILLRACE_CACHE=/work/cache "$(command -v unshare)" --user --map-root-user
	--mount --pid --fork --net --root="$root" --wd=/work --mount-proc=/proc millrace)
if "${alone[@]}" version >/dev/null 2>&1; then
	tried "static archive, in a root without any other file" "$root/work" "$root/usr/local/bin/millrace" "${alone[@]}"
else
	left_out "the root without any other file" "this system does not give a process a root of its own (unshare --user)"
	tried "static archive" "$root/work" "$root/usr/local/bin/millrace" clean "$root/work" "$root/usr/local/bin" millrace
fi

if python3 -m venv "$work/venv" >/dev/null 2>&1; then
	"$work/venv/bin/pip" --disable-pip-version-check install --quiet --no-index "$work"/dist/millrace-*-manylinux*x86_64.whl
	mkdir "$work/wheel-bin"
	mv "$work/venv/bin/millrace" "$work/wheel-bin/" # without Python next to it
	tried "wheel" "$work/wheel" "$work/wheel-bin/millrace" clean "$work/wheel" "$work/wheel-bin" millrace
else
	left_out "the wheel" "there is no python3 with venv and pip"
fi

if command -v dpkg-deb >/dev/null; then
	dpkg-deb --extract "$work"/dist/millrace_*_amd64.deb "$work/deb"
	tried "Debian package" "$work/deb-work" "$work/deb/usr/bin/millrace" clean "$work/deb-work" "$work/deb/usr/bin" millrace
else
	left_out "the Debian package" "dpkg-deb is not installed"
fi

if command -v rpm >/dev/null; then
	rpm=(rpm --dbpath "$work/rpm-database")
	"${rpm[@]}" --install --nodeps --badreloc --relocate "/usr=$work/rpm" "$work"/dist/millrace-*.x86_64.rpm
	"${rpm[@]}" --verify --nodeps millrace || fail "RPM package: rpm --verify finds other files than were packed"
	tried "RPM package" "$work/rpm-work" "$work/rpm/bin/millrace" clean "$work/rpm-work" "$work/rpm/bin" millrace
	"${rpm[@]}" --erase millrace
	[ -z "$(find "$work/rpm" -name '*millrace*')" ] || fail "RPM package: rpm --erase leaves $(find "$work/rpm" -name '*millrace*')"
else
	left_out "the RPM package" "rpm is not installed"
fi
