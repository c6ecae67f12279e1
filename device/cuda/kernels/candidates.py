"""Kernels of the program with other tiles, for a card to choose from.

    candidates.py            compiles what is declared here into candidates/, and prints registers, spills and shared memory
    candidates.py --check    fails unless candidates/ is what it compiles to

A compiler says what a kernel takes, and not how fast it is. Each candidate has the arguments of the kernel whose name comes before ".try.", and
takes its place in `gpu-check`'s row variants, which runs the operations that launch it, compares what both compute and prints a line. What
wins on a card is then declared in the kernel's own source, and leaves this list.

The program embeds none of these. They have PTX for each of their targets, and machine code for sm_90a: a driver compiles the others when it
loads them, in about a second each.
"""

import argparse
import dataclasses
import sys

sys.dont_write_bytecode = True

import build
from attention import KERNELS as ATTENTION
from attention_halves import attention_dkdv_halves
from delta import KERNELS as DELTA
from delta_scan import KERNELS as DELTA_SCAN
from experts import KERNELS as EXPERTS
from experts_persistent import expert_matmul_persistent
from matmul import KERNELS as MATMUL
from recurrent import KERNELS as RECURRENT
from sums import CHUNK, KERNELS as SUMS

FOLDER = build.HERE / "candidates"
CODE = "sm_90a"

OWN = {k.name: k for k in ATTENTION + DELTA + DELTA_SCAN + EXPERTS + MATMUL + RECURRENT + SUMS}

CANDIDATES = KERNELS = []  # the second name is that by which build.py finds them
TARGET = {}  # of each


def candidate(name, label, target="sm90a", constants={}, numbers={}, **change):
    """A kernel as it is on a target, with some of its constants, its warps or its stages changed."""
    own = OWN[name].at(target)
    made = dataclasses.replace(own, name=f"{name}.try.{label}", constants={**own.constants, **constants}, numbers={**own.numbers, **numbers},
                               registers=255, held=False, spill=1 << 20, loop=(), **change)
    CANDIDATES.append(made)
    TARGET[made.name] = target


def attend(op, head, target, q, k, warps, stages, cap=""):
    constants = dict(BLOCK_Q=q, BLOCK_K=k)
    if op == "attention_dkdv":
        constants["THREADS"] = 32 * warps
    label = f"{q}x{k}.w{warps}.s{stages}" + ("" if target == "sm90a" else "." + target)
    candidate(f"{op}.bf16{cap}.h{head}.a16", label, target, constants=constants, warps=warps, stages=stages)


# Delta nets: 3% of their limit on the H100, in an earlier form. More columns share what a chunk costs; more warps share its
# registers; with one stage two programs share a multiprocessor's memory, and loads are not under way.
for op in ("delta_scan_terms.bf16", "delta_scan_grad_terms.bf16"):
    for values, stages, warps in ((64, 1, 4), (32, 2, 4), (32, 1, 4), (128, 1, 8)):
        candidate(op, f"{values}.w{warps}.s{stages}", constants=dict(VALUES=values, STAGES=stages), warps=warps, stages=stages)
for op, tiles in {
        "delta_out_terms.bf16": ((32, 32, 4), (64, 64, 4), (64, 32, 8), (128, 32, 8)),
        "delta_grad_values_terms.bf16": ((32, 32, 8), (16, 32, 8), (32, 64, 8)),
        "delta_grad_queries.bf16.a16": ((64, 0, 4), (32, 0, 8)),
        "delta_grad_keys.bf16.a16": ((32, 0, 4), (32, 0, 8), (16, 0, 8)),
        "delta_before.bf16": ((128, 0, 8), (128, 0, 4))}.items():
    for values, part, warps in tiles:
        constants = {c: n for c, n in dict(VALUES=values, PART=part).items() if c in OWN[op].constants}
        candidate(op, f"{values}x{part}.w{warps}", constants=constants, warps=warps)

# Gradients of experts' weights: at 64 x 128 they are bound by the second cache. matmul.tn has 128 x 256.
for m, n, k, warps, stages in ((128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4)):
    candidate("expert_weight_grad.bf16.a16", f"{m}x{n}x{k}.w{warps}.s{stages}", warps=warps, stages=stages,
            constants=dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, ONE_LOOP=1))

# Products of experts by one program for each of an H100's or H200's multiprocessors.
for n, stages in ((256, 3), (256, 4), (128, 4)):
    candidate("expert_matmul.bf16.nt.a16", f"persistent.128x{n}x64.w8.s{stages}", function=expert_matmul_persistent, warps=8, stages=stages,
            constants=dict(BLOCK_N=n), grid=("PROGRAMS",), numbers=dict(PROGRAMS=132))

# What streams, below two thirds of a copy's rate.
for rows, cols, warps in ((16, 64, 4), (32, 64, 4), (8, 128, 4), (16, 128, 8)):
    candidate("causal_conv_grad.bf16.a16", f"{rows}x{cols}.w{warps}", constants=dict(BLOCK_ROWS=rows, BLOCK_COLS=cols), warps=warps)
for chunks, warps in ((4, 1), (4, 2), (8, 4)):
    candidate("sumsq.bf16", f"{chunks}.w{warps}", constants=dict(CHUNKS=chunks), warps=warps, numbers=dict(ELEMENTS=chunks * CHUNK))

# Wide heads, which no card had timed.
for tile in ((128, 64, 8, 2), (128, 64, 8, 1), (64, 32, 4, 2)):
    attend("attention", 256, "sm90a", *tile)
for tile in ((64, 64, 8, 1), (32, 64, 8, 1), (64, 32, 8, 2)):
    attend("attention_dkdv", 256, "sm90a", *tile)
for tile in ((64, 32, 4, 2), (128, 64, 8, 1), (64, 64, 8, 2)):
    attend("attention_dq", 256, "sm90a", *tile)

# A program for dk and one for dv, of as many keys and twice as many.
for q, k, stages in ((64, 64, 2), (32, 128, 2), (64, 128, 1)):
    candidate("attention_dkdv.bf16.h256.a16", f"halves.{q}x{k}.w8.s{stages}", function=attention_dkdv_halves, warps=8, stages=stages,
            constants=dict(BLOCK_Q=q, BLOCK_K=k, THREADS=256), grid=("TWO*kvheads*splits*ceil(rows/BLOCK_K)",), numbers=dict(TWO=2))

# Consumer cards: 100 KiB of shared memory, mma.sync, and 4 to 8 of 48 warps at work. Two programs for a multiprocessor.
for tile in ((64, 32, 4, 2), (128, 32, 4, 1), (64, 64, 4, 2)):
    attend("attention", 128, "sm80", *tile)
for tile in ((32, 64, 4, 1), (32, 64, 4, 2), (64, 64, 4, 1)):
    attend("attention_dkdv", 128, "sm80", *tile)
for tile in ((64, 32, 4, 2), (64, 64, 4, 1)):
    attend("attention_dq", 128, "sm80", *tile)
for form, c in (("nt", "bf16"), ("nn", "bf16"), ("tn", "f32")):
    for m, n, k, warps, stages, group in ((128, 256, 32, 8, 3, 8), (128, 128, 32, 4, 4, 8), (128, 128, 64, 8, 3, 16)):
        candidate(f"matmul.bf16.{c}.{form}.a16", f"{m}x{n}x{k}.w{warps}.s{stages}.g{group}.sm80", "sm80", warps=warps, stages=stages,
                constants=dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=group))


def compiled():
    """The manifest, the PTX and the machine code of all candidates, and a line about each."""
    results = build.in_parallel(build.job, [("candidates.py", k.name, TARGET[k.name], {}) for k in CANDIDATES])
    entries, texts, code, lines = [], [], [], []
    for kernel, (name, target, ptx, launch, figures, made) in zip(CANDIDATES, results):
        figures["cubin_bytes"] = {CODE: len(made[CODE])} if CODE in made else {}
        entries.append(build.entry(name, kernel, {target: (ptx, launch, figures)}))
        texts.append(ptx.encode())
        code += [made[CODE]] if CODE in made else []
        spilled = max(figures["spill_bytes"].values())
        lines.append(f"{name}: {max(figures['registers'].values())} registers, {launch['shared_bytes']} B shared"
                     + (f", {spilled} B spilled" if spilled else ""))
    sums = {CODE: build.sha256(b"".join(code))}
    return {**build.header("candidates.py"), "cubin_sha256": sums, "kernels": entries}, build.pack(texts), build.pack(code), lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    manifest, texts, code, lines = compiled()
    files = {"candidates.json": build.text_of(manifest).encode(), "candidates.ptx.zst": texts, "candidates.cubin.zst": code}
    if args.check:
        stale = [name for name, data in files.items() if (FOLDER / name).read_bytes() != data]
        if stale:
            sys.exit(f"candidates.py: {', '.join(stale)} are not what it compiles to: run candidates.py")
        return
    FOLDER.mkdir(exist_ok=True)
    for name, data in files.items():
        build.write(FOLDER / name, data)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
