"""Run `millrace bench` and the peers in turns on the same shape and tokens, and print each figure as soon as there is one.

    python3 compare.py --millrace ../../bin/millrace --shape qwen2.5-1.5b --sequence-len 2048 --tokens 32768 --out compare.json
    python3 compare.py --millrace ./millrace --shape qwen2.5-7b --turns 1 --budget 120 --peers resident-bf16 fsdp-offload-bf16

Each program runs in a process of its own and ends before the next one starts: by itself, or after --timeout seconds, or when --budget is
over. A turn is each program once; a row is the median over turns of each turn's median step. --ours gives flags to millrace and may be
repeated, for a row each. A program that does not fit, is not installed or fails has a row that says so, and the others still run. The
table comes last, and the programs' own JSON goes to --out.

Exit status 1: a run of millrace failed, no program gave a figure, or two programs count the FLOPs of a step differently.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PEERS = ["resident", "resident-bf16", "fsdp-offload", "fsdp-offload-bf16", "zero3-offload", "zero3-offload-bf16",
         "superoffload", "superoffload-noclip"]
FROM_FOLDER = ["megatrain", "slideformer"]
GIB = 1 << 30


def arguments(argv=None):
    p = argparse.ArgumentParser(description="millrace and its peers in turns.")
    p.add_argument("--millrace", default="", help="the program; it needs no Go. Default: bin/millrace of this checkout, or the one on PATH")
    p.add_argument("--shape", default="")
    p.add_argument("--model", default="", help="or a directory with config.json")
    p.add_argument("--sequence-len", type=int, default=2048)
    p.add_argument("--tokens", type=int, default=32768)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--turns", type=int, default=2)
    p.add_argument("--peers-only", action="store_true", help="leave millrace out, where it has been measured already")
    p.add_argument("--ours", action="append", metavar="FLAGS", help="such as '--stream always'; may be repeated")
    p.add_argument("--peers", nargs="*", choices=PEERS + FROM_FOLDER, help="default: all but those that need --peer-dir and have none")
    p.add_argument("--peer-dir", action="append", default=[], metavar="NAME=FOLDER", help="a clone of megatrain or slideformer; may be repeated")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--timeout", type=float, default=300, help="seconds that one program may take")
    p.add_argument("--budget", type=float, default=float("inf"), help="seconds after which the running program is ended, and no other begins")
    p.add_argument("--out", default="", help="file for all results as JSON")
    args = p.parse_args(argv)
    if bool(args.shape) == bool(args.model):
        p.error("give one of --shape and --model")
    args.folders = dict(entry.partition("=")[::2] for entry in args.peer_dir)
    for name, folder in args.folders.items():
        if name not in FROM_FOLDER or not folder:
            p.error(f"--peer-dir {name}={folder}: it takes NAME=FOLDER, and the names are {' and '.join(FROM_FOLDER)}")
    if args.peers is None:
        args.peers = PEERS + list(args.folders)
    args.ours = [] if args.peers_only else args.ours or [""]
    built = HERE.parents[1] / "bin" / "millrace"
    args.millrace = args.millrace or (str(built) if built.exists() else shutil.which("millrace") or "millrace")
    args.deadline = time.monotonic() + args.budget
    return args


def commands(args):
    """The programs, by the names of their rows."""
    what = ["--shape", args.shape] if args.shape else ["--model", args.model]
    step = ["--sequence-len", str(args.sequence_len), "--tokens", str(args.tokens), "--steps", str(args.steps), "--warmup", str(args.warmup)]
    for flags in args.ours:
        yield f"millrace {flags}".strip(), [args.millrace, "bench", "--json", "--device", args.device, *what, *step, *shlex.split(flags)]
    for peer in args.peers:
        folder = ["--peer-dir", args.folders[peer]] if peer in args.folders else []
        yield peer, [sys.executable, str(HERE / "peer.py"), "--peer", peer, "--device", args.device, *folder, *what, *step]


def run(name, command, args):
    """The result of one process, or the reason why it has no result. No process that it started outlives it."""
    left = args.deadline - time.monotonic()
    if left < 1:
        return {"skipped": f"left out, the budget of {args.budget:.0f} s was over"}
    print(f"--- {name}", file=sys.stderr, flush=True)
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:  # a pipe could fill
        try:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | {"PYTHONUNBUFFERED": "1"}, start_new_session=True)
        except OSError as e:
            return {"failed": str(e)}
        late = ""
        try:
            process.wait(min(args.timeout, left))
        except subprocess.TimeoutExpired:
            late = f"it took more than {args.timeout:.0f} s" if args.timeout < left else f"ended, the budget of {args.budget:.0f} s was over"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        said = err.read()
        sys.stderr.write(said[-2000:])
        if late:
            return {"skipped": late}
        try:
            return json.loads(out.read())
        except json.JSONDecodeError:
            lines = said.strip().splitlines() or ["no output"]
            return {"failed": f"exit status {process.returncode}: {lines[-1][:200]}"}


HEAD = ["program", "numbers", "step, s (turns)", "tokens/s", "model TFLOP/s", "executed TFLOP/s", "device GiB", "host GiB", "notes"]


def row(name, turns):
    """The cells of a program's row, of the results of its turns."""
    good = [r for r in turns if "step_sec" in r]
    if not good:
        why = turns[0].get("skipped") or "FAILED: " + turns[0]["failed"]
        return [name, why] + [""] * (len(HEAD) - 2)
    sec, first = statistics.median(r["step_sec"] for r in good), good[0]
    numbers = first.get("precision") or f"fp32 masters, {first['compute'].lower()} compute, {first['moments']} moments"
    if first.get("alias"):
        numbers += "; ALIASED LAYERS, no training"
    rates = [f"{x:.1f}" for x in (first["tokens"] / sec, first["model_flops"] / sec / 1e12, first["executed_flops"] / sec / 1e12)]
    memory = [f"{max(r[key] for r in good) / GIB:.1f}" for key in ("device_bytes", "peak_rss_bytes")]
    steps = ", ".join(f"{r['step_sec']:.3f}" for r in good)
    return [name, numbers, f"{sec:.3f} ({steps})", *rates, *memory, "; ".join(first.get("notes", []))]


def line(cells):
    return "| " + " | ".join(cells) + " |"


def verdict(results):
    """A sentence on the first fault of the results, {name: [result of each turn]}, or an empty string."""
    flops = {r["model_flops"]: name for name, turns in results.items() for r in turns if "step_sec" in r}
    if not flops:
        return "no program gave a figure"
    if len(flops) > 1:
        return "programs count the FLOPs of a step differently: " + ", ".join(f"{name} {n}" for n, name in flops.items())
    for name, turns in results.items():
        for r in turns:
            if name.startswith("millrace") and "failed" in r:
                return f"{name}: {r['failed']}"
    return ""


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running program is ended, too
    results = {}
    print(line(HEAD) + "\n" + "|---" * len(HEAD) + "|", flush=True)
    for _ in range(args.turns):
        for name, command in commands(args):
            turns = results.setdefault(name, [])
            if turns and "step_sec" not in turns[-1]:
                continue  # it would be again
            turns.append(run(name, command, args))
            print(line(row(name, turns[-1:])), flush=True)
            if args.out:  # each time, so that nothing is lost when the machine goes away
                pathlib.Path(args.out).write_text(json.dumps(results, indent=2) + "\n")
    if args.turns > 1:
        print("\n" + "\n".join([line(HEAD), "|---" * len(HEAD) + "|", *(line(row(*item)) for item in results.items())]))
    wrong = verdict(results)
    if wrong:
        sys.exit(f"compare.py: {wrong}")


if __name__ == "__main__":
    main()
