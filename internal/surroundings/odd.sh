#!/bin/sh
# Runs quick tests where everything that a process inherits is odd: descriptors, umask, limits, locale, proxies, a home that cannot be
# written, a directory for temporary files with a long and odd name, one core, no IPv6, and, for root, as another user as well. For root
# they run twice more as in a container: a file system that cannot be written except a directory of temporary files and a /dev/shm of
# 64 MiB, no /proc/sys, no HOME, as root and as a user for whom the system has no name. The tests are built first, in the surroundings of the
# caller, as the go command needs its cache, and with GOFLAGS that some systems have for all builds: without paths of sources, for one.
# TURNS=3 runs every third of the packages, from one that the commit chooses.
set -eu
cd "$(dirname "$0")/../.."
go=${GO:-go}
work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-odd-XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
lanes=$(nproc 2>/dev/null || echo 1)

# Those that take longest come first.
packages="cmd/millrace checkpoint data/template hf store hf/hub timeline runfile/convert runfile vfs report trace tensor
	internal/surroundings internal/below internal/blame internal/cores internal/terminal"
if [ "${TURNS:-1}" -gt 1 ] && commit=$(git rev-parse HEAD 2>/dev/null); then
	number=$(echo "$commit" | cksum | cut -d' ' -f1) all=$packages packages=
	for package in $all; do
		[ $((number % TURNS)) != 0 ] || packages="$packages $package"
		number=$((number + 1))
	done
fi
flags='-trimpath -mod=mod -count=1'
GOFLAGS=$flags CGO_ENABLED=0 $go test -vet=off -c -o "$work/" $(printf './%s ' $packages)

long=$(printf '%0120d' 0 | tr 0 x)
odd="$work/a 'directory' of \"\$odd\" näme;/$long/$long"
mkdir -p "$odd" "$work/tmp"
chmod -R 755 "$work"
chmod 1777 "$odd"

# tests_of PACKAGE is a pattern of its tests: of the program's those that start processes with limits, full outputs and other homes, and its texts.
tests_of() {
	case $1 in
	cmd/millrace) echo '^(TestHelp|TestPanicOfTheMainGoroutine|TestTrainPrintsSummary)$|^TestHostile$/^cases$/^(limit_of_open_files|no_home|C_locale|standard_output|a_cache)' ;;
	*) echo . ;;
	esac
}

# odd_tests TEST ARGUMENTS... is one binary in the odd surroundings. Its arguments before -- are for the command that wraps it.
odd_tests() {
	(
		cd "$1"
		binary="$work/$(basename "$1").test"
		run=$(tests_of "$1") short=-test.short
		[ "$1" != cmd/millrace ] || short=''
		shift
		umask 077
		ulimit -c 0
		ulimit -n 256
		exec 7</dev/null 8</dev/null 9</dev/null
		env HOME=/proc XDG_CACHE_HOME=/proc TMPDIR="$odd" LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8 TZ=Pacific/Chatham TERM=dumb COLUMNS=20 NO_COLOR=1 \
			HTTP_PROXY=http://127.0.0.1:1 HTTPS_PROXY=http://127.0.0.1:1 http_proxy=http://127.0.0.1:1 https_proxy=http://127.0.0.1:1 ALL_PROXY=socks5://127.0.0.1:1 \
			GOFLAGS="$flags" HF_HOME=/proc HF_ENDPOINT=http://127.0.0.1:1 HF_TOKEN=secret HF_HUB_OFFLINE=1 MILLRACE_CACHE=/proc GOGC=50 GOMAXPROCS=1 MAKEFLAGS=--jobserver-auth=7,8 \
			"$@" "$binary" $short -test.run "$run" -test.timeout 20m
	)
}

# What a container is, in a mount namespace of its own. $0 is a directory for temporary files.
in_namespace='mount --make-rprivate / && mount -t tmpfs none /proc/sys && mount -t tmpfs -o size=1g,mode=1777 none "$0" &&
	mount -t tmpfs -o size=64m,mode=1777 none /dev/shm && mount -o remount,bind,ro / && exec "$@"'
# container_tests PACKAGE WRAPPER... is one binary as in a container.
container_tests() {
	(
		cd "$1"
		package=$1 binary="$work/$(basename "$1").test"
		shift
		unshare -m sh -c "$in_namespace" "$work/tmp" env -u HOME -u XDG_CACHE_HOME TMPDIR="$work/tmp" "$@" "$binary" -test.short -test.run "$(tests_of "$package")" -test.timeout 20m
	)
}

one_core=
if command -v taskset >/dev/null && taskset -c 0 true 2>/dev/null; then one_core=yes; fi
another_user=
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then another_user='setpriv --reuid=65534 --regid=65534 --clear-groups'; fi
no_ipv6=
if [ "$(id -u)" = 0 ] && unshare -n true 2>/dev/null && command -v ip >/dev/null; then no_ipv6=yes; fi
container=
if [ "$(id -u)" = 0 ] && [ -n "$another_user" ] && unshare -m sh -c "$in_namespace" "$work/tmp" true 2>/dev/null; then container=yes; fi
no_name='setpriv --reuid=54321 --regid=54321 --clear-groups'

# tried PACKAGE WHAT COMMAND...: notes the package if the command fails, and shows what it printed.
tried() {
	what="$1$2" log="$work/log-$lane"
	shift 2
	"$@" >"$log" 2>&1 || { cat "$log"; echo "$what" >>"$work/failed"; }
}
# package_tests PACKAGE: one package in all surroundings.
package_tests() {
	core=
	if [ -n "$one_core" ] && taskset -c "$lane" true 2>/dev/null; then core="taskset -c $lane"; fi
	tried "$1" "" odd_tests "$1" $core
	case $1 in hf/hub | internal/below | vfs | checkpoint | runfile)
		[ -z "$another_user" ] || tried "$1" "(another-user)" odd_tests "$1" $another_user ;;
	esac
	if [ -n "$container" ]; then
		tried "$1" "(container)" container_tests "$1"
		tried "$1" "(container,no-name)" container_tests "$1" $no_name
	fi
	case $1 in hf/hub)
		[ -z "$no_ipv6" ] || tried "$1" "(no-IPv6)" odd_tests "$1" \
			unshare -n sh -c 'ip link set lo up; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; exec "$@"' sh ;;
	esac
}
# Each lane has a core, and takes the next package that no other lane has taken.
lane=0
while [ "$lane" -lt "$lanes" ]; do
	for package in $packages; do
		if mkdir "$work/$(basename "$package").taken" 2>/dev/null; then
			package_tests "$package"
			touch "$work/$(basename "$package").ended"
		fi
	done &
	lane=$((lane + 1))
done
wait
for package in $packages; do
	[ -e "$work/$(basename "$package").ended" ] || echo "$package(its lane ended)" >>"$work/failed"
done
[ ! -e "$work/failed" ] || { echo "odd surroundings: failed:" $(cat "$work/failed") >&2; exit 1; }
echo "the quick tests of" $packages "pass in odd surroundings${one_core:+, on one core}${another_user:+, as another user}${no_ipv6:+, without IPv6}${container:+, in a container as root and as a user without a name}"
