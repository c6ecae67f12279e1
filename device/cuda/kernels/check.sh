#!/bin/sh
# Proves the kernels without a GPU: runs them in Triton's interpreter, compiles them anew and compares with compiled/, and assembles
# what is there for every architecture. QUICK=1 only assembles, which needs no PyTorch; that compiled/ belongs to the sources, and
# that what it has computes what the CPU does, go test knows without Python.
#
# Needs Python 3.11 or later; PYTHON may name one that has requirements.txt installed, else a virtual environment is made in
# build/kernels-venv (PyTorch without CUDA is enough: point pip at those wheels for a small download).
set -eu
cd "$(dirname "$0")"
QUICK=${QUICK:-}
if [ -z "${PYTHON:-}" ]; then
	venv=../../../build/kernels-venv
	PYTHON=$venv/bin/python
	mkdir -p "$venv"
	wanted=$venv/wanted.txt
	if [ -n "$QUICK" ]; then grep -v '^torch' requirements.txt >"$wanted"; else cp requirements.txt "$wanted"; fi
	if ! cmp -s "$wanted" "$venv/installed.txt" && ! cmp -s requirements.txt "$venv/installed.txt"; then
		python3 -m venv "$venv"
		"$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$wanted"
		cp "$wanted" "$venv/installed.txt"
	fi
fi
export PYTHONDONTWRITEBYTECODE=1
if [ -n "$QUICK" ]; then
	exec "$PYTHON" build.py --assemble
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
"$PYTHON" build.py --check --assemble
