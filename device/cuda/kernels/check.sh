#!/bin/sh
# Proves the kernels without a GPU: runs them in Triton's interpreter, compiles them again and compares with compiled/,
# and assembles the PTX in compiled/ for every architecture. QUICK=1 only assembles, which needs no PyTorch, and only a
# twenty-fourth of the kernels, which the commit chooses: other commits have the others, and make night has all. `go test` proves without Python that
# compiled/ belongs to the sources, and that the compiled kernels compute the same as the CPU.
#
# Needs Python 3.11 or later; PYTHON may name one that has both files of requirements installed, else a virtual environment is made in
# build/kernels-venv and used again until they change (PyTorch without CUDA is enough: point pip at those wheels for a small
# download). INSTALL=1 only makes that environment, and fails in one line where packages cannot be installed.
set -eu
cd "$(dirname "$0")"
QUICK=${QUICK:-}
INSTALL=${INSTALL:-}
if [ -z "${PYTHON:-}" ]; then
	venv=../../../build/kernels-venv
	PYTHON=$venv/bin/python
	mkdir -p "$venv"
	wanted=$venv/wanted.txt
	log=$venv/install.log
	tests=requirements-tests.txt
	[ -z "$QUICK" ] || tests=/dev/null
	cat requirements.txt "$tests" >"$wanted"
	if ! cmp -s "$wanted" "$venv/installed.txt" && ! cat requirements.txt requirements-tests.txt | cmp -s - "$venv/installed.txt"; then
		install="$PYTHON -m pip install --quiet --disable-pip-version-check --retries 2"
		python3 -m venv "$venv" >"$log" 2>&1 &&
			$install --only-binary :all: --require-hashes -r requirements.txt >>"$log" 2>&1 &&
			$install -r "$tests" >>"$log" 2>&1 || {
			echo "check.sh: the packages that compile the kernels cannot be installed: $(tail -n 1 "$log");" \
				"all of it is in build/kernels-venv/install.log; PYTHON may name an interpreter that has it" >&2
			exit 1
		}
		cp "$wanted" "$venv/installed.txt"
	fi
fi
[ -z "$INSTALL" ] || exit 0
export PYTHONDONTWRITEBYTECODE=1
if [ -n "$QUICK" ]; then
	commit=$(git rev-parse HEAD 2>/dev/null | cksum | cut -d' ' -f1)
	exec "$PYTHON" share.py "$commit" 24
fi
# Tests are one process each, because that is what two cores are for.
pids=
for test in test_*.py; do
	"$PYTHON" -W ignore -m unittest -q "${test%.py}" &
	pids="$pids $!"
done
failed=0
for pid in $pids; do
	wait "$pid" || failed=1
done
[ "$failed" = 0 ]
"$PYTHON" candidates.py --check
exec "$PYTHON" build.py --check --assemble
