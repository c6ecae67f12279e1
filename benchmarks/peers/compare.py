"""Run `millrace bench` and other programs in turns on the same steps, and print each figure as soon as there is one.

    python3 compare.py --plan one_call.json --pack peers.tar.xz --budget 565 --out compare.json
    python3 compare.py --plan one_call.json --only '*3b*' --out compare.json
    python3 compare.py --millrace ../../bin/millrace --shape qwen2.5-7b --turns 1 --peers resident-bf16 llmq-bf16 --timeout llmq-bf16=40

Each program runs in a process of its own and ends before the next one starts: by itself, or when one of its times is over. A peer that has
not made its first step after --start-timeout is ended, and any program after --timeout; a peer that has made steps by then keeps them. A
turn is each program once; a row is the median over turns of each turn's median step. A program that does not fit, is not installed or fails
has a row that says so, and the others still run. The table comes last, and the programs' own JSON goes to --out, with the last 2,000
characters that a program wrote where it has no figure.

--plan names a file of rows in the order of their value, each with the seconds that it should take. Without it the rows are --ours and
--peers, all on one shape. A row is begun only if the budget has its seconds left: those of the plan, or of --timeout NAME=SECONDS.

Exit status 1: a run of millrace failed, no program gave a figure, or two programs count the FLOPs of the same step differently.
"""

import argparse
import contextlib
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import typing

HERE = pathlib.Path(__file__).resolve().parent
PEERS = ["resident", "resident-bf16", "fsdp-offload", "fsdp-offload-bf16", "zero3-offload", "zero3-offload-bf16",
         "superoffload", "superoffload-noclip", "llmq-bf16", "llmq-fp8"]
FROM_FOLDER = ["megatrain", "slideformer"]
OURS = "millrace"
GIB = 1 << 30
KEPT = 2000  # characters of what a program wrote
STEPPED = re.compile(r"^step 1: ", re.M)  # peer.py writes it after the first step
STARTED = re.compile(r"^start: (.*)$", re.M)  # and this after each part of its start

# What may run during a row: DeepSpeed's host Adam takes a minute of one core to compile, and rows that compute on the GPU
# alone leave the cores idle. peer.py waits for it where it is not done.
MEANWHILE = {"host-adam": "from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()"}


class Row(typing.NamedTuple):
    name: str
    command: list
    sec: float = 1  # of the budget: with fewer left it is not begun
    timeout: float = 300
    start_timeout: float = float("inf")
    meanwhile: str = ""
    needs_gib: float = 0  # of the device; with fewer the row is left out

    @property
    def ours(self):
        return self.name.rpartition(": ")[2].startswith(OURS)


def arguments(argv=None):
    p = argparse.ArgumentParser(description="millrace and its peers in turns.")
    p.add_argument("--plan", default="", help="a file of rows, such as one_call.json")
    p.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="of the names of the plan's rows")
    p.add_argument("--millrace", default="", help="the program; it needs no Go. Default: bin/millrace of this checkout, or the one on PATH")
    p.add_argument("--shape", default="", help="a shape that `millrace bench` knows. With --plan it replaces the shapes of all rows")
    p.add_argument("--model", default="", help="or a directory with config.json")
    p.add_argument("--sequence-len", type=int, help="2048, or the plan's")
    p.add_argument("--tokens", type=int, help="32768, or the plan's")
    p.add_argument("--steps", type=int, help="3, or the plan's")
    p.add_argument("--warmup", type=int, help="1, or the plan's")
    p.add_argument("--turns", type=int, help="2; with --plan 1")
    p.add_argument("--peers-only", action="store_true", help="leave millrace out, where it has been measured already")
    p.add_argument("--ours", action="append", metavar="FLAGS", help="such as '--stream always'; may be repeated")
    p.add_argument("--peers", nargs="*", choices=PEERS + FROM_FOLDER, help="default: all but those that need --peer-dir and have none")
    p.add_argument("--peer-dir", action="append", default=[], metavar="NAME=FOLDER", help="a clone of one of these; may be repeated")
    p.add_argument("--site", default="", metavar="FOLDER", help="with Python packages that peers need and this Python does not have")
    p.add_argument("--pack", default="", metavar="FILE", help="what pack.sh made: packages and MegaTrain")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--device-has", type=int, metavar="GIB", help="rows that need more are left out; default: what nvidia-smi says")
    p.add_argument("--memory-host", type=int, default=0, metavar="GIB", help="of the host, where the system reports less than there is")
    p.add_argument("--timeout", action="append", default=[], metavar="[NAME=]SECONDS",
                   help="that a program may take; may be repeated. Default: 300, or 1.5 times the plan's and 10")
    p.add_argument("--start-timeout", action="append", default=[], metavar="[NAME=]SECONDS",
                   help="until a peer has made its first step. Default: none, or the plan's seconds of the row")
    p.add_argument("--budget", type=float, default=float("inf"),
                   help="seconds, after which the running program is ended and no other begins")
    p.add_argument("--out", default="", help="file for all results as JSON")
    args = p.parse_args(argv)
    if args.device_has is None:
        args.device_has = device_gib() if args.device == "cuda" else 0
    if not args.plan and bool(args.shape) == bool(args.model):
        p.error("give --plan, or one of --shape and --model")
    if args.plan and (args.peers or args.ours):
        p.error("--plan has rows of its own, and --only chooses among them")
    args.folders = dict(entry.partition("=")[::2] for entry in args.peer_dir)
    for name, folder in args.folders.items():
        if name not in FROM_FOLDER or not folder:
            p.error(f"--peer-dir {name}={folder}: it takes NAME=FOLDER, and the names are {' and '.join(FROM_FOLDER)}")
    for name in ("timeout", "start_timeout"):
        try:
            setattr(args, name, limits(getattr(args, name)))
        except ValueError:
            p.error(f"--{name.replace('_', '-')} takes seconds, or NAME=SECONDS, where a name is a program's or a row's")
    built = HERE.parents[1] / "bin" / "millrace"
    args.millrace = args.millrace or (str(built) if built.exists() else shutil.which("millrace") or "millrace")
    args.turns = args.turns or (1 if args.plan else 2)
    args.deadline = time.monotonic() + args.budget
    return args


def limits(given):
    """Seconds by pattern, the pattern of a plain number being "*"."""
    found = {}
    for entry in given:
        name, named, sec = entry.rpartition("=")
        found[name if named else "*"] = float(sec)
    return found


def limit(of, program, name, default):
    """The seconds that a program's or row's own limit says, else those for all, else the default; and whether it is its own."""
    for pattern, sec in of.items():
        if pattern != "*" and (fnmatch.fnmatch(program, pattern) or fnmatch.fnmatch(name, pattern)):
            return sec, True
    return of.get("*", default), False


def unpack(args, folder):
    """Takes packages and MegaTrain from the pack, into a folder of this run."""
    if args.pack:
        with tarfile.open(args.pack) as tar:
            tar.extractall(folder, filter="data")
        args.site = args.site or str(pathlib.Path(folder) / "site")
        args.folders.setdefault("megatrain", str(pathlib.Path(folder) / "megatrain"))


def rows(args):
    """The rows, in the order in which they run."""
    if args.plan:
        plan = json.loads(pathlib.Path(args.plan).read_text())
        for entry in plan["rows"]:
            row = planned(args, {k: v for k, v in plan.items() if k != "rows"} | entry)
            if any(fnmatch.fnmatch(row.name, pattern) for pattern in args.only) and not (row.ours and args.peers_only):
                yield row
        return
    peers = PEERS + list(args.folders) if args.peers is None else args.peers
    for flags in [] if args.peers_only else args.ours or [""]:
        yield made(args, OURS, flags, f"{OURS} {flags}".strip(), {})
    for peer in peers:
        yield made(args, peer, "", peer, {})


def planned(args, entry):
    """A row of a plan. Its seconds bound it: half as many again, and 10, until it ends, and as many until a peer's first step."""
    program, flags = entry["program"], entry.get("flags", "")
    name = f"{entry['shape']}, {entry['tokens']} tokens: {program} {flags}".strip()
    return made(args, program, flags, name, entry)


def made(args, program, flags, name, entry):
    shape = "" if args.model else args.shape or entry.get("shape", "")
    numbers = {"sequence-len": 2048, "tokens": 32768, "steps": 3, "warmup": 1}
    step = []
    for key, default in numbers.items():
        of = key.replace("-", "_")
        value = getattr(args, of)
        step += [f"--{key}", str(entry.get(of, default) if value is None else value)]
    what = ["--shape", shape] if shape else ["--model", args.model]
    host = ["--memory-host", str(args.memory_host)] if args.memory_host else []
    if program == OURS:
        host = [x + "GiB" if x.isdigit() else x for x in host]
        command = [args.millrace, "bench", "--json", "--device", args.device, *what, *step, *host, *shlex.split(flags)]
    else:
        folder = ["--peer-dir", args.folders[program]] if program in args.folders else []
        command = [sys.executable, str(HERE / "peer.py"), "--peer", program, "--device", args.device, *folder, *host, *what, *step]
    sec = entry.get("sec", 1)
    timeout, own = limit(args.timeout, program, name, 1.5 * sec + 10 if "sec" in entry else 300)
    start_timeout, _ = limit(args.start_timeout, program, name, sec if "sec" in entry else float("inf"))
    if program == OURS:
        start_timeout = float("inf")  # it does not say when it has made its first step
    return Row(name, command, timeout if own else sec, timeout, start_timeout, entry.get("meanwhile", ""), entry.get("device_gib", 0))


def device_gib():
    """What the first GPU has, by nvidia-smi; 0 where it does not say."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                              timeout=20, check=True).stdout
        return int(said.split()[0]) >> 10
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def environment(args):
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    if args.site:
        env["PYTHONPATH"] = os.pathsep.join([args.site, *filter(None, [env.get("PYTHONPATH")])])
    return env


def run(row, args):
    """The result of one process, or the reason why it has no result. No process that it started outlives it."""
    left = args.deadline - time.monotonic()
    if left < row.sec:
        return {"skipped": f"left out: it takes {row.sec:.0f} s, and of the budget of {args.budget:.0f} s {max(left, 0):.0f} s were left"}
    if 0 < args.device_has < row.needs_gib:
        return {"skipped": f"left out: it needs {row.needs_gib:.0f} GiB of the device"}
    print(f"--- {row.name}", file=sys.stderr, flush=True)
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:  # a pipe could fill
        began = time.monotonic()
        try:
            process = subprocess.Popen(row.command, stdout=out, stderr=err, env=environment(args), start_new_session=True)
        except OSError as e:
            return {"failed": str(e)}
        try:
            late = wait(process, err, row, min(row.timeout, left))
        finally:
            end(process)
        said = read(err)
        sys.stderr.write(said[-KEPT:])
        result = last_object(read(out))
        parts = [m.strip() for m in STARTED.findall(said)]
        if late and result and "step_sec" in result:
            result.setdefault("notes", []).append(f"ended after {result['steps']} of its steps: {late}")
            return result | {"wall_sec": time.monotonic() - began}
        if late:
            where = f" ({', '.join(parts)}; then it was ended)" if parts else ""
            return {"skipped": late + where, "stderr": said[-KEPT:]}
        if result is None:
            lines = said.strip().splitlines() or ["no output"]
            return {"failed": f"exit status {process.returncode}: {lines[-1][:200]}", "stderr": said[-KEPT:]}
        if "step_sec" not in result:
            result["stderr"] = said[-KEPT:]
        return result | {"wall_sec": time.monotonic() - began}


def wait(process, err, row, most):
    """Waits for the process, and says which of its times was over, or nothing."""
    first = min(row.start_timeout, most)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(first)
        return ""
    if first < most:
        if not STEPPED.search(read(err)):
            return f"it had made no step after {first:.0f} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(most - first)
            return ""
    return f"it took more than {row.timeout:.0f} s" if most == row.timeout else "the budget was over"


def end(process):
    """Ends a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def unlock():
    """Removes the locks of compilations that were ended: PyTorch waits for it without end."""
    root = pathlib.Path(os.environ.get("TORCH_EXTENSIONS_DIR") or pathlib.Path.home() / ".cache" / "torch_extensions")
    for lock in [*root.glob("*/lock"), *root.glob("*/*/lock")]:  # below a folder for each version of Python, or not
        lock.unlink(missing_ok=True)


def read(file):
    """All of a file that another process writes to: its place in the file is shared with that process."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def last_object(said):
    """What a program printed: one JSON object, or the last complete one of several, each on a line of its own."""
    for text in [said, *reversed(said.splitlines())]:
        with contextlib.suppress(json.JSONDecodeError):
            if isinstance(found := json.loads(text), dict):
                return found
    return None


HEAD = ["program", "numbers", "stores between steps", "clipping", "step, s (turns)", "tokens/s", "model TFLOP/s", "executed TFLOP/s",
        "device GiB", "host GiB", "notes"]


def stores(result):
    """The type of masters and moments, and bytes a parameter with gradients."""
    if "masters" in result:
        return f"{result['state_bytes']} bytes: {result['masters']} masters, {result['moments']} moments"
    size = {"f32": "14", "8bit": "8.03"}[result["moments"]]  # README.md of the repository has how they come about
    return f"{size} bytes: fp32 masters, {result['moments'].replace('f32', 'fp32')} moments"


def cells(name, turns):
    """The cells of a program's row, of the results of its turns."""
    good = [r for r in turns if "step_sec" in r]
    if not good:
        why = turns[0].get("skipped") or "FAILED: " + turns[0]["failed"]
        return [name, why] + [""] * (len(HEAD) - 2)
    sec, first = statistics.median(r["step_sec"] for r in good), good[0]
    numbers = first.get("precision") or f"fp32 masters, {first['compute'].lower()} compute, {first['moments']} moments"
    if first.get("alias"):
        numbers += "; ALIASED LAYERS, no training"
    clipping = first.get("clipping") or ("none" if "--max-grad-norm 0" in name else "exact")
    rates = [f"{x:.1f}" for x in (first["tokens"] / sec, first["model_flops"] / sec / 1e12, first["executed_flops"] / sec / 1e12)]
    memory = [f"{max(r[key] for r in good) / GIB:.1f}" for key in ("device_bytes", "peak_rss_bytes")]
    steps = ", ".join(f"{r['step_sec']:.3f}" for r in good)
    notes = list(first.get("notes", []))
    if "start_sec" in first:
        notes.append("start: " + ", ".join(f"{part} {took:.1f} s" for part, took in first["start_sec"].items()))
    return [name, numbers, stores(first), clipping, f"{sec:.3f} ({steps})", *rates, *memory, "; ".join(notes)]


def line(texts):
    return "| " + " | ".join(texts) + " |"


def verdict(results):
    """A sentence on the first fault of the results, {name: [result of each turn]}, or an empty string."""
    measured = [(name, r) for name, turns in results.items() for r in turns if "step_sec" in r]
    if not measured:
        return "no program gave a figure"
    flops = {}
    for name, r in measured:
        other, count = flops.setdefault((r["model"], r["tokens"], r["sequence_len"]), (name, r["model_flops"]))
        if count != r["model_flops"]:
            return f"programs count the FLOPs of a step differently: {other} {count}, {name} {r['model_flops']}"
    for name, turns in results.items():
        for r in turns:
            if Row(name, []).ours and "failed" in r:
                return f"{name}: {r['failed']}"
    return ""


def run_all(all_rows, args):
    """Runs the rows, prints and stores each result, and returns {name: [result of each turn]}."""
    results, meanwhile = {}, []
    print(line(HEAD) + "\n" + "|---" * len(HEAD) + "|", flush=True)
    try:
        for _ in range(args.turns):
            for row in all_rows:
                turns = results.setdefault(row.name, [])
                if turns and "step_sec" not in turns[-1]:
                    continue  # it would be again
                if row.meanwhile and not turns:
                    command = [sys.executable, "-c", MEANWHILE[row.meanwhile]]
                    meanwhile.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(args),
                                                      start_new_session=True))
                turns.append(run(row, args))
                if "step_sec" not in turns[-1] and all(process.poll() is not None for process in meanwhile):
                    unlock()
                print(line(cells(row.name, turns[-1:])), flush=True)
                if args.out:  # each time, so that nothing is lost when the machine goes away
                    pathlib.Path(args.out).write_text(json.dumps(results, indent=2) + "\n")
    finally:
        for process in meanwhile:
            end(process)
        if meanwhile:
            unlock()
    return results


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running program is ended, too
    with tempfile.TemporaryDirectory() as folder:
        unpack(args, folder)
        results = run_all(list(rows(args)), args)
    if args.turns > 1:
        print("\n" + "\n".join([line(HEAD), "|---" * len(HEAD) + "|", *(line(cells(*item)) for item in results.items())]))
    wrong = verdict(results)
    if wrong:
        sys.exit(f"compare.py: {wrong}")


if __name__ == "__main__":
    main()
