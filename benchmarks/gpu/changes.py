"""What each change is predicted to give on the first card: plans by the rates of call 4, and again with one rate after the other changed.

    python3 benchmarks/gpu/changes.py --millrace bin/millrace

Nothing here runs on a GPU. A row has all changes of the rows above it. "measured" rates are those of the card and its host, "derived" ones what a
measured step leaves for them, "predicted" ones are of kernels that no card has run, and "assumed" ones are aims.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
GIB = 1 << 30


def rates():
    """The probe of call 4, with what the same call measured of delta nets and of updates with 8-bit moments."""
    call = json.loads((HERE / "h100/4-results.json").read_text())
    speeds = {r["name"]: r for r in call["speeds"]["rows"]}
    delta, grad = speeds["gated delta net"], speeds["gradient of gated delta net"]
    machine = dict(call["probe"], name="call 4", device_memory=85017493504, host_memory=135148564480, adamw8_bytes_per_sec=49e9)
    machine["operations"] = [dict(operation=name, compute="bf16", head_dim=128, flops_per_sec=1e12 * row["tflops"])
                             for name, row in (("gated_delta", delta), ("gated_delta_grad", grad))]
    return machine


def faster_deltas(machine, forward, grad):
    for entry, times in zip(machine["operations"], (forward, grad)):
        entry["flops_per_sec"] *= times


# Name, kind, and what it does to the machine and to the memory of the device in GiB.
CHANGES = (
    ("call 4's rates", "measured", lambda m, s: None),
    ("`memory.device: auto`, 78.6 GiB in place of 70", "measured", lambda m, s: s.update(device=78.6)),
    ("products at the step's own 697 TFLOP/s in place of 670", "derived", lambda m, s: m.update(bf16_flops_per_sec=697e12)),
    ("delta nets 3.05 and 2.35 times as fast", "predicted", lambda m, s: faster_deltas(m, 1.83 / 0.6, 7.06 / 3.0)),
    ("the host's AdamW at 200 GB/s, 150 under copies, uploads 50 under it", "assumed", lambda m, s: m.update(
        adamw_bytes_per_sec=200e9, adamw_under_copies_bytes_per_sec=150e9, upload_under_adamw_bytes_per_sec=50e9)),
)

MODELS = (
    ("qwen2.5-7b, auto", "qwen2.5-7b", dict(host=115), ()),
    ("qwen2.5-7b, always", "qwen2.5-7b", dict(host=115), ("--stream", "always")),
    ("qwen3.5-4b, auto", "qwen3.5-4b", dict(host=115), ()),
    ("qwen3.5-27b, auto, a host of 512 GiB", "qwen3.5-27b", dict(host=480), ()),
    ("qwen2.5-14b, auto, 8-bit moments", "qwen2.5-14b", dict(host=117), ("--set", "precision.moments=8bit")),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="millrace")
    args = parser.parse_args()
    for title, shape, size, more in MODELS:
        machine, sizes = rates(), dict(device=70, **size)
        machine["host_memory"] = max(machine["host_memory"], (sizes["host"] + 32) * GIB)
        print(f"\n{title}:\n\n| change | | s | tokens/s | fetch, compute, drain, update busy, s | the longest waits |\n|---|---|---|---|---|---|")
        for name, kind, change in CHANGES:
            if "delta" in name and "qwen3.5" not in shape:
                continue
            change(machine, sizes)
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump(machine, file)
                file.flush()
                run = subprocess.run([args.millrace, "plan", "--json", "--shape", shape, "--machine", file.name, "--set", f"memory.device={sizes['device']}GiB",
                                      "--set", f"memory.host={sizes['host']}GiB", "--set", "sequence_len=2048", "--set", "batch_tokens=32768", *more],
                                     capture_output=True, text=True)
            if run.returncode:
                raise SystemExit(f"{title}, {name}: {run.stderr.strip()}")
            plan = json.loads(run.stdout)
            lanes = plan["predicted"]["lane_sec"]
            stalls = "; ".join(f"{s['sec']:.3f} before {s['before']} for {s['for']}" for s in plan["forecast"]["stalls"][:2])
            print(f"| {name} | {kind} | {plan['predicted']['step_sec']:.2f} | {plan['forecast']['tokens_per_sec']:.0f} | "
                  + ", ".join(f"{lanes[k]:.2f}" for k in ("fetch", "compute", "drain", "update")) + f" | {stalls} |")


if __name__ == "__main__":
    main()
