#!/usr/bin/env bash
# Packs what peers need and a machine without a network may not have, into one file (default bin/peers.tar.xz), which is not committed:
# DeepSpeed as a pure wheel with its small dependencies, MegaTrain's Python files, and LLMQ.
#
#     benchmarks/peers/pack.sh [FILE]             # LLMQ is compiled: 10 to 20 minutes of two cores
#     LLMQ=no benchmarks/peers/pack.sh            # without LLMQ
#
# It is for Python 3.12 and a PyTorch of CUDA 13 (2.11) on x86-64 Linux. The pyllmq of the package index is built against CUDA 12, and its
# libcublasLt.so.12 has some 700 MB; so LLMQ is built against CUDA 13 here, whose libraries come with PyTorch. Needs a network, git, tar,
# and for LLMQ g++ 12 or newer.
#
#   PYTHON            a Python 3.12 with venv and headers; default python3.12
#   MEGATRAIN, LLMQ   clones to take instead of GitHub's; they may be bare
#   SOURCES           a folder with json, fmt, nanobind, cudnn-fe, cli11 or catch2, which LLMQ's build fetches otherwise
#   ARCHITECTURES     of GPUs, as CMake names them; default 90 (H100, H200)
#   KEEP              a folder for what is downloaded and built, kept for the next time
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:-$here/../../bin/peers.tar.xz}")
python=${PYTHON:-python3.12}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || {
	echo "pack.sh: $python is no Python 3.12: name one with PYTHON" >&2
	exit 1
}
work=$(realpath -m "${KEEP:-$(mktemp -d)}")
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
rm -rf "$work/pack"
mkdir -p "$work/pack/site" "$work/pack/megatrain" "$(dirname "$out")"
[ -d "$work/venv" ] || "$python" -m venv "$work/venv"
pip() { "$work/venv/bin/pip" --disable-pip-version-check "$@" -q; }

# files NAME REPOSITORY COMMIT CLONE [FOLDER]: prints a tar of a commit's files, from a clone or from GitHub.
files() {
	local clone=$4
	if [ -z "$clone" ]; then
		clone=$work/$1.git
		git init -q --bare "$clone"
		git -C "$clone" fetch -q --depth 1 "https://github.com/$2" "$3"
	fi
	git -C "$clone" archive --prefix="${5:+$5/}" "$3${5:+:$5}"
}

# MegaTrain: its package alone; the repository has builds for another processor.
files megatrain DLYuanGod/MegaTrain 919520f07182c0d4d3e9765b2f915702e71c11a4 "${MEGATRAIN:-}" infinity |
	tar x -C "$work/pack/megatrain" --wildcards '*.py'

# DeepSpeed: there is no wheel. DS_BUILD_OPS=0 leaves its operators to be compiled where they are used.
if ! ls "$work"/wheels/deepspeed-0.19.8-*.whl >/dev/null 2>&1; then
	pip install setuptools wheel packaging
	echo 'deepspeed==0.19.8 --hash=sha256:9e491abd0827ea5c389dd702e15e11e13d83d904bac4a20d6c2a4cb37207a9af' >"$work/deepspeed.txt"
	DS_BUILD_OPS=0 pip wheel --no-deps --no-build-isolation --require-hashes --no-binary :all: -w "$work/wheels" -r "$work/deepspeed.txt"
fi
pip download --no-deps --only-binary :all: --require-hashes -d "$work/wheels" -r "$here/pack.txt"
for wheel in "$work"/wheels/*.whl; do
	"$work/venv/bin/python" -m zipfile -e "$wheel" "$work/pack/site"
done

# LLMQ, with the versions of CUDA's libraries that PyTorch 2.11.0 names.
if [ "${LLMQ:-}" != no ]; then
	pip install nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85 \
		nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88 nvidia-nvtx==13.0.85 nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 \
		nvidia-nccl-cu13==2.28.9 nvidia-curand==10.4.0.35 cmake==4.4.5 ninja==1.13.2
	nvidia=$work/venv/lib/python3.12/site-packages/nvidia
	ln -sfn lib "$nvidia/cu13/lib64" # where CMake and nvcc look
	for library in cu13/lib/libcudart.so.13 cu13/lib/libcublas.so.13 cu13/lib/libcublasLt.so.13 cu13/lib/libnvrtc.so.13 \
		cu13/lib/libcurand.so.10 cudnn/lib/libcudnn.so.9 nccl/lib/libnccl.so.2; do
		ln -sf "$(basename "$library")" "$nvidia/${library%.so.*}.so" # the wheels have no name to link by
	done
	mkdir -p "$work/llmq"
	files llmq IST-DASLab/llmq b77d969164ace12364abdd7ccf5c3b4608a84b62 "${LLMQ:-}" | tar x -C "$work/llmq"
	given=()
	for name in json fmt nanobind cudnn-fe cli11 catch2; do
		[ -z "${SOURCES:-}" ] || [ ! -d "$SOURCES/$name" ] || given+=("-DFETCHCONTENT_SOURCE_DIR_${name^^}=$SOURCES/$name")
	done
	PATH=$work/venv/bin:$PATH
	export CUDACXX=$nvidia/cu13/bin/nvcc CUDNN_INCLUDE_PATH=$nvidia/cudnn/include CUDNN_LIBRARY_PATH=$nvidia/cudnn/lib
	export NCCL_INCLUDE_DIR=$nvidia/nccl/include NCCL_LIB_DIR=$nvidia/nccl/lib
	# Without NVML and cuFile, as with them, a step is the same; so the library loads where there is no driver.
	cmake -S "$work/llmq" -B "$work/llmq-build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-90}" \
		-DCUDAToolkit_ROOT="$nvidia/cu13" -DPython_EXECUTABLE="$work/venv/bin/python" -DPYTHON_BINDING=ON -DUSE_MPI=OFF -DUSE_CUFILE=OFF \
		-DUSE_NVML=OFF -DBUILD_TESTS=OFF -DSKBUILD=ON -DCUDNN_FRONTEND_BUILD_SAMPLES=OFF -DCUDNN_FRONTEND_BUILD_TESTS=OFF \
		-DCUDNN_FRONTEND_BUILD_PYTHON_BINDINGS=OFF "${given[@]}" >"$work/llmq.log"
	cmake --build "$work/llmq-build" --target _pyllmq -j "$(nproc)" >>"$work/llmq.log"
	cmake --install "$work/llmq-build" --prefix "$work/llmq-install" --strip >>"$work/llmq.log"
	cp -r "$work/llmq-install/pyllmq" "$work/pack/site/"
	cp "$work/llmq/LICENSE" "$work/pack/site/pyllmq/"
	rm -rf "$work/pack/site/pyllmq/scripts" "$work/pack/site/pyllmq/tests"
fi

find "$work/pack" -name __pycache__ -prune -exec rm -rf {} +
tar -C "$work/pack" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - site megatrain | xz -9e >"$out"
echo "$out: $(awk -v n="$(stat -c %s "$out")" 'BEGIN {printf "%.1f MiB", n / 1048576}')"
