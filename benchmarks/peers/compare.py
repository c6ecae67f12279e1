"""Run `millrace bench` and the peers in turns on the same shape and tokens, and print one table.

    python3 compare.py --millrace ../../bin/millrace --shape qwen2.5-1.5b --sequence-len 2048 --tokens 32768 --out compare.json

Each program runs in a process of its own and ends before the next one starts. A turn is each program once; a figure is the median over
turns of each turn's median step. --ours gives flags to millrace and may be repeated, for a row each. A peer that does not
fit, or is not installed, has a row that says so. The programs' own JSON goes to --out.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PEERS = ["resident", "resident-bf16", "fsdp-offload", "fsdp-offload-bf16", "zero3-offload"]
GIB = 1 << 30


def arguments(argv=None):
    p = argparse.ArgumentParser(description="millrace and its peers in turns.")
    p.add_argument("--millrace", default="millrace", help="the program; it needs no Go")
    p.add_argument("--shape", default="")
    p.add_argument("--model", default="", help="or a directory with config.json")
    p.add_argument("--sequence-len", type=int, default=2048)
    p.add_argument("--tokens", type=int, default=32768)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--turns", type=int, default=2)
    p.add_argument("--ours", action="append", metavar="FLAGS", help="such as '--stream always'; may be repeated")
    p.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--timeout", type=float, default=300, help="seconds that one program may take")
    p.add_argument("--out", default="", help="file for all results as JSON")
    args = p.parse_args(argv)
    if bool(args.shape) == bool(args.model):
        p.error("give one of --shape and --model")
    args.ours = args.ours or [""]
    return args


def commands(args):
    """The programs, by the names of their rows."""
    what = ["--shape", args.shape] if args.shape else ["--model", args.model]
    step = ["--sequence-len", str(args.sequence_len), "--tokens", str(args.tokens), "--steps", str(args.steps), "--warmup", str(args.warmup)]
    device = "cuda" if args.device == "cuda" else "cpu"
    for flags in args.ours:
        yield f"millrace {flags}".strip(), [args.millrace, "bench", "--json", "--device", device, *what, *step, *shlex.split(flags)]
    for peer in args.peers:
        yield peer, [sys.executable, str(HERE / "peer.py"), "--peer", peer, "--device", args.device, *what, *step]


def run(name, command, timeout):
    """The result of one process, or why there is none."""
    print(f"--- {name}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout, check=False,
                              env=os.environ | {"PYTHONUNBUFFERED": "1"})
    except subprocess.TimeoutExpired:
        return {"skipped": f"it took more than {timeout:.0f} s"}
    except OSError as e:
        return {"skipped": str(e)}
    sys.stderr.write(done.stderr[-2000:])
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return {"skipped": f"exit status {done.returncode}: {lines[-1][:200]}"}


def table(results):
    """A Markdown table of {name: [result of each turn]}, in the order of the names."""
    lines = ["| program | numbers | step, s (turns) | tokens/s | model TFLOP/s | executed TFLOP/s | device GiB | host GiB |",
             "|---|---|---|---|---|---|---|---|"]
    flops = None
    for name, turns in results.items():
        good = [r for r in turns if "skipped" not in r]
        if not good:
            lines.append(f"| {name} | {turns[0]['skipped'] if turns else 'did not run'} | | | | | | |")
            continue
        sec = statistics.median(r["step_sec"] for r in good)
        first = good[0]
        flops = flops or first["model_flops"]
        if first["model_flops"] != flops:
            raise SystemExit(f"{name} counts {first['model_flops']} FLOPs a step, and the program before it {flops}: this is a bug")
        numbers = first.get("precision") or f"fp32 masters, {first['compute'].lower()} compute, {first['moments']} moments"
        if first.get("alias"):
            numbers += "; ALIASED LAYERS, no training"
        rates = " | ".join(f"{x:.1f}" for x in (first["tokens"] / sec, flops / sec / 1e12, first["executed_flops"] / sec / 1e12))
        memory = " | ".join(f"{max(r[key] for r in good) / GIB:.1f}" for key in ("device_bytes", "peak_rss_bytes"))
        steps = ", ".join(f"{r['step_sec']:.3f}" for r in good)
        lines.append(f"| {name} | {numbers} | {sec:.3f} ({steps}) | {rates} | {memory} |")
    return "\n".join(lines)


def main():
    args = arguments()
    results = {}
    for _ in range(args.turns):
        for name, command in commands(args):
            turns = results.setdefault(name, [])
            if turns and "skipped" in turns[-1]:
                continue  # it would be again
            turns.append(run(name, command, args.timeout))
            if args.out:  # each time, so that nothing is lost when the machine goes away
                pathlib.Path(args.out).write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
