#!/usr/bin/env bash
# make release-check: is a release reproducible, and does each way to install it give a program that works on a clean
# system without a network?
#
# It builds the release twice, in two directories and with two caches, and compares all bytes. Then it installs each
# package in a root of its own and runs smoke.sh there, without a network; all programs of a platform must train the
# same weights, to the bit. It has to be root, for chroot, and needs debootstrap; Debian is fetched once and kept in
# build/roots. The release stays in build/release-check/dist. Left out, with a line that says so: the container
# without docker, podman or buildah; arm64 without qemu-aarch64-static. Programs for macOS are only built.
set -euo pipefail
cd "$(dirname "$0")/../../.."
repository=$PWD out=$PWD/build/release-check roots=$PWD/build/roots
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg # the mirror is asked over http: what it sends has to be signed

say() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }
fail() {
	printf 'release-check: %s\n' "$*" >&2
	exit 1
}
[ "$(id -u)" = 0 ] || fail "chroot needs root: run sudo --preserve-env=PATH make release-check"
command -v debootstrap >/dev/null || fail "debootstrap makes the clean systems, and is not installed: apt-get install debootstrap"
[ "$(uname -m)" = x86_64 ] || fail "the programs that are tried are those for amd64, and this machine is $(uname -m)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
rm -rf "$out"
mkdir -p "$out" "$roots"
table=$work/table.txt

# timed COMMAND...: runs it and sets seconds.
timed() {
	local begin=$EPOCHREALTIME
	"$@"
	seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begin }")
}

# row WAY PACKAGE ROOT: adds what was measured to the table.
row() {
	printf '| %s | %.1f | %s | %.1f | %s |\n' "$1" "$(stat -c %s "$2" | awk '{ print $1 / 1e6 }')" "$install_seconds" \
		"$(awk "BEGIN { print ($(bytes "$3") - $bytes_before) / 1e6 }")" "$seconds" | tee -a "$table"
}
bytes() { (cd "$1" && du -sb --exclude=./work --exclude=./dist . | cut -f1); }

# inside ROOT COMMAND...: runs a command in a root, with its own processes and without a network.
inside() {
	local root=$1
	shift
	env -i HOME=/root PATH="${INSIDE_PATH:-/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin}" MILLRACE_CACHE=/work/cache "$(command -v unshare)" \
		--mount --pid --fork --net --ipc --kill-child --root="$root" --wd=/work --mount-proc=/proc "$@"
}

export -f inside # smoke.sh calls it

# tried ROOT WAY PROGRAM...: smoke.sh in a root.
tried() {
	local root=$1 way=$2
	shift 2
	inside "$root" "$@" version | tee "$work/version.txt"
	grep -q "^millrace $version, commit $commit, " "$work/version.txt" || fail "$way: the version is not $version, commit $commit"
	timed workshop/tools/release/smoke.sh "$root/work" inside "$root" "$@" >"$work/weights.txt"
	echo "weights $(cat "$work/weights.txt")"
	if [ "$way" != arm64 ]; then # the demo starts the program again, which the emulator does not do
		inside "$root" "$@" demo --steps 24 --dir demo >"$work/demo.txt" || fail "$way: the demo: $(tail -n 3 "$work/demo.txt")"
	fi
	[ "${weights:=$(cat "$work/weights.txt")}" = "$(cat "$work/weights.txt")" ] || fail "$way: trained other weights than the first program"
}

# empty ROOT: a system without a file.
empty() { mkdir -p "$1"/{proc,tmp,work,usr/local}; }

# copy BASE ROOT: a clean system, and the packages in /dist.
copy() {
	cp -a --reflink=auto "$roots/$1" "$2"
	mkdir -p "$2"/{work,dist}
	cp "$work"/dist/*amd64* "$work"/dist/*x86_64* "$2/dist"
}

say "the release, twice"
for n in one two/of-another-length; do
	mkdir -p "$work/$n"
	git clone --quiet "$repository" "$work/$n/source"
	git -C "$work/$n/source" describe --exact-match --tags --match 'v*' >/dev/null 2>&1 || git -C "$work/$n/source" tag v0.0.1-rc.1
done
release() { (cd "$1/source/workshop/tools" && go run ./release -repository ../.. -out "$2"); }
timed release "$work/one" "$work/dist"
echo "built in $seconds s"
(
	export GOCACHE=$work/go-cache TZ=Asia/Tokyo LC_ALL=C
	umask 077
	release "$work/two/of-another-length" "$work/dist-two" >/dev/null
)
rm -rf "$work/go-cache"
diff -r "$work/dist" "$work/dist-two" || fail "the second release has other bytes"
rm -rf "$work/dist-two"
(cd "$work/dist" && sha256sum --check --quiet SHA256SUMS)
grep -q x509roots "$work"/dist/*-linux-amd64-static.cdx.json || fail "the static program has no certificates of its own"
cp -r "$work/dist" "$out/"
echo "the same bytes"
cd "$work/dist"
static=$(echo millrace-*-linux-amd64-static.tar.gz)
version=${static#millrace-} version=${version%-linux-amd64-static.tar.gz}
cd "$repository"
commit=$(git -C "$work/one/source" rev-parse HEAD)
weights=""

say "clean systems"
if [ ! -d "$roots/debian" ]; then
	[ -r "$keyring" ] || fail "$keyring has the keys that Debian's packages are signed with, and is not there: apt-get install debian-archive-keyring"
	debootstrap --force-check-gpg --keyring="$keyring" --variant=minbase bookworm "$roots/debian.part" "$mirror" >"$work/debootstrap.log" || fail "debootstrap: $(tail -n 3 "$work/debootstrap.log")"
	mv "$roots/debian.part" "$roots/debian"
fi
# with NAME PACKAGE: a root that also has a package of Debian.
with() {
	[ ! -d "$roots/$1" ] || return 0
	cp -a "$roots/debian" "$roots/$1.part"
	cp /etc/resolv.conf "$roots/$1.part/etc/"
	chroot "$roots/$1.part" sh -c "apt-get update && apt-get install --yes --no-install-recommends $2" >"$work/$1.log" 2>&1 ||
		fail "apt-get install $2: $(tail -n 3 "$work/$1.log")"
	mv "$roots/$1.part" "$roots/$1"
}
with python python3-venv
with rpm rpm
du -sm "$roots"/*

say "archive of the static program, in a root without any other file"
root=$work/empty
empty "$root"
bytes_before=$(bytes "$root")
timed tar -xzf "$work/dist/$static" --strip-components=1 -C "$root/usr/local"
install_seconds=$seconds
tried "$root" "static archive" millrace
row "archive, static" "$work/dist/$static" "$root"

say "archive of the program with GPU support, in Debian"
root=$work/archive
copy debian "$root"
archive=millrace-$version-linux-amd64.tar.gz
bytes_before=$(bytes "$root")
timed inside "$root" tar -xzf "/dist/$archive" --strip-components=1 -C /usr/local
install_seconds=$seconds
tried "$root" archive millrace
row "archive" "$root/dist/$archive" "$root"
inside "$root" sh -c "tar -tzf /dist/$archive | grep -v '/\$' | cut -d/ -f2- | sed 's|^|/usr/local/|' | xargs rm"
[ -z "$(find "$root/usr/local" -name '*millrace*' ! -type d)" ] || fail "the archive's files are still there"

say "Debian package"
root=$work/deb
copy debian "$root"
deb=$(basename "$work"/dist/*_amd64.deb)
bytes_before=$(bytes "$root")
timed inside "$root" dpkg --install "/dist/$deb"
install_seconds=$seconds
[ -z "$(inside "$root" dpkg --verify millrace)" ] || fail "dpkg --verify finds other files than were packed"
tried "$root" deb millrace
row "Debian package" "$root/dist/$deb" "$root"
# shellcheck disable=SC2016 # for the bash inside
[ "$(inside "$root" bash -c '. /usr/share/bash-completion/completions/millrace; COMP_WORDS=(millrace pl) COMP_CWORD=1; _millrace; echo "${COMPREPLY[*]}"')" = plan ] ||
	fail "bash does not complete millrace pl"
inside "$root" dpkg --purge millrace
[ -z "$(find "$root/usr" "$root/etc" -name '*millrace*')" ] || fail "dpkg --purge leaves $(find "$root/usr" "$root/etc" -name '*millrace*')"

say "RPM package, in Debian with rpm, whose database lacks glibc"
root=$work/rpm
copy rpm "$root"
rpm=$(basename "$work"/dist/*.x86_64.rpm)
bytes_before=$(bytes "$root")
timed inside "$root" rpm --install --nodeps "/dist/$rpm"
install_seconds=$seconds
inside "$root" rpm --verify --nodeps millrace || fail "rpm --verify finds other files than were packed"
tried "$root" rpm millrace
row "RPM package" "$root/dist/$rpm" "$root"
inside "$root" rpm --erase millrace
[ -z "$(find "$root/usr" "$root/etc" -name '*millrace*')" ] || fail "rpm --erase leaves $(find "$root/usr" "$root/etc" -name '*millrace*')"

say "wheel, in Debian with Python"
root=$work/wheel
copy python "$root"
wheel=$(basename "$work"/dist/*manylinux*x86_64.whl)
inside "$root" python3 -m venv /opt/venv
bytes_before=$(bytes "$root")
timed inside "$root" /opt/venv/bin/pip install --quiet --no-index --find-links=/dist millrace --pre
install_seconds=$seconds
mv "$root/usr/bin/python3" "$root/usr/bin/python3.away" # nothing of Python is used to run it
mv "$root/usr/bin/python3.11" "$root/usr/bin/python3.11.away"
INSIDE_PATH=/opt/venv/bin:/usr/bin:/bin tried "$root" wheel millrace
mv "$root/usr/bin/python3.11.away" "$root/usr/bin/python3.11"
mv "$root/usr/bin/python3.away" "$root/usr/bin/python3"
row "wheel" "$root/dist/$wheel" "$root"
inside "$root" /opt/venv/bin/pip install --quiet --no-index --no-deps --only-binary=:all: --platform=musllinux_1_1_x86_64 --target=/opt/musl \
	"/dist/$(basename "$work"/dist/*musllinux*x86_64.whl)"
cmp "$root/opt/musl/bin/millrace" "$work/empty/usr/local/bin/millrace" || fail "the wheel for musl has another program than the static archive"
inside "$root" /opt/venv/bin/pip uninstall --quiet --yes millrace
[ -z "$(find "$root/opt/venv" -name '*millrace*')" ] || fail "pip uninstall leaves $(find "$root/opt/venv" -name '*millrace*')"

say "container"
engine=
for e in docker podman buildah; do
	if command -v $e >/dev/null && $e info >/dev/null 2>&1; then
		engine=$e
		break
	fi
done
mkdir -p "$work/container/work" "$work/container/cache"
case $engine in
"") echo "left out: neither docker, podman nor buildah works here" ;;
buildah)
	export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
	timed buildah build --quiet --timestamp "$(git -C "$repository" log -1 --format=%ct)" -f Containerfile --build-arg VERSION="$version" --build-arg TARGETARCH=amd64 -t millrace-check "$work/dist"
	install_seconds=$seconds
	container=$(buildah from millrace-check)
	in_container() { buildah run --network=none --user "$(id -u):$(id -g)" --volume "$work/container/work:/work" --volume "$work/container/cache:/cache" "$container" -- millrace "$@"; }
	;;
*)
	timed $engine build --quiet -f Containerfile --build-arg VERSION="$version" --build-arg TARGETARCH=amd64 -t millrace-check "$work/dist"
	install_seconds=$seconds
	in_container() { $engine run --rm --network=none --user "$(id -u):$(id -g)" --volume "$work/container/work:/work" --volume "$work/container/cache:/cache" millrace-check "$@"; }
	;;
esac
if [ -n "$engine" ]; then
	export -f in_container
	export engine container work
	in_container version
	timed workshop/tools/release/smoke.sh "$work/container/work" in_container >"$work/weights.txt"
	[ "$weights" = "$(cat "$work/weights.txt")" ] || fail "container: trained other weights than the first program"
	bytes_before=0
	row "container ($engine)" "$work/dist/$static" "$work/empty/usr"
	if [ "$engine" = buildah ]; then buildah rm "$container" >/dev/null; fi
	$engine rmi millrace-check >/dev/null
fi

say "go install"
# As from proxy.golang.org, but from files: this commit as v0.0.1, and the modules that it needs from what is
# downloaded.
go -C workshop/tools run ./goproxy "$work/proxy" "$work/one/source" v0.0.1
modules=$(go env GOMODCACHE)/cache/download
go_install() {
	env -i HOME="$work/go-home" PATH="$PATH" GOPROXY="file://$work/proxy,file://$modules" GOSUMDB=off GOFLAGS=-modcacherw GOTOOLCHAIN=local CGO_ENABLED=0 \
		unshare --net go install github.com/millrace/millrace/cmd/millrace@v0.0.1
}
timed go_install
install_seconds=$seconds
root=$work/go-install
copy debian "$root"
bytes_before=$(bytes "$root")
cp "$work/go-home/go/bin/millrace" "$root/usr/local/bin/"
inside "$root" millrace version | tee "$work/version.txt"
grep -q '^millrace v0.0.1, ' "$work/version.txt" || fail "go install: the version is not v0.0.1"
timed workshop/tools/release/smoke.sh "$root/work" inside "$root" millrace >"$work/weights.txt"
[ "$weights" = "$(cat "$work/weights.txt")" ] || fail "go install: trained other weights than the first program"
row "go install" "$work/proxy/github.com/millrace/millrace/@v/v0.0.1.zip" "$root"
rm -rf "$work/go-home"

say "arm64"
if qemu=$(command -v qemu-aarch64-static); then
	root=$work/arm64
	empty "$root"
	bytes_before=$(bytes "$root")
	timed tar -xzf "$work/dist/millrace-$version-linux-arm64-static.tar.gz" --strip-components=1 -C "$root/usr/local"
	install_seconds=$seconds
	cp "$qemu" "$root/qemu"
	weights="" tried "$root" arm64 /qemu /usr/local/bin/millrace
	rm "$root/qemu"
	row "archive, static, arm64 (emulated)" "$work/dist/millrace-$version-linux-arm64-static.tar.gz" "$root"
else
	echo "left out: qemu-aarch64-static is not installed"
fi

say "all ways work"
printf '| way | package, MB | install, s | installed, MB | smoke test, s |\n|---|---|---|---|---|\n'
cat "$table"
