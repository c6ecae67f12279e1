"""The rates of one GPU machine that bound a streamed training step, as JSON and as a table: minutes on a borrowed machine.

    python3 rates.py --out rates.json        needs PyTorch with CUDA, and Triton for one figure; no network
    python3 rates.py --cpu --tiny            tries the program out where there is no GPU: its figures mean nothing

Each figure is the median of its repetitions, on random data (zeros draw less power, and run faster):

    link       copies from and to pinned memory by size: each way alone, both at once
    dram       a copy in host memory on all cores: alone, and during each of those
    register   making 1, 16 and 64 GiB of host memory resident, and cudaHostRegister on it
    matmul     bf16 products at the shapes of a 7B model's block: forward, gradient of the input, gradient of the weight; the latter
               written in bf16, written in fp32, and added to an fp32 matrix, which is what millrace does
    attention  causal, grouped queries, forward and backward, at 2k, 8k and 32k: PyTorch's FlashAttention, and cuDNN by PyTorch
    copy       a copy in device memory, by PyTorch and by a Triton kernel

Sections come in the order of --only (default: all of the above). When --budget seconds are over, what is left is skipped and named, and
what was measured is printed. --out is written after each section.
"""

import argparse
import ctypes
import json
import os
import statistics
import threading
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

GIB, MIB = 1 << 30, 1 << 20

# The block of a 7B model (Qwen2.5-7B): hidden, columns of queries, keys and values together, intermediate, heads, heads of keys.
HIDDEN, QKV, INNER, HEADS, KV_HEADS, HEAD_DIM = 3584, 4608, 18944, 28, 4, 128
MADV_HUGEPAGE = 14


class Rates:
    def __init__(self, args):
        self.tiny, self.deadline = args.tiny, time.monotonic() + args.budget
        self.cuda = not args.cpu
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.notes = []

    # --- timing

    def late(self):
        return time.monotonic() > self.deadline

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, work, least=0.15, most=30):
        """Median seconds of work(), which may enqueue on the current stream: timed by events on a GPU, by the clock else."""
        if self.tiny:
            least, most = 0.0, 2
        work()
        self.wait()
        times, begin = [], time.monotonic()
        while len(times) < 3 or time.monotonic() - begin < least and len(times) < most:
            if self.cuda:
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                work()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) / 1e3)
            else:
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
        return statistics.median(times)

    def elapsed(self, *queues, least=0.3):
        """Bytes per second of several queues of work at once. A queue is (work, bytes, stream or None for the host). Each
        queue runs until all have had their time, so that none is measured alone at the end. The middle of its time counts."""
        if self.tiny:
            least = 0.01
        rates = [0.0] * len(queues)
        self.wait()
        stop, threads = threading.Event(), []

        def go(i, work, size, stream):
            marks = []
            while not stop.is_set() or len(marks) < 3:
                if stream is None:
                    work()
                else:
                    with torch.cuda.stream(stream):
                        work()
                    stream.synchronize()
                marks.append(time.perf_counter())
            rates[i] = size * (len(marks) - 1) / (marks[-1] - marks[0])

        for i, queue in enumerate(queues):
            threads.append(threading.Thread(target=go, args=(i, *queue)))
        for t in threads:
            t.start()
        time.sleep(least)
        stop.set()
        for t in threads:
            t.join()
        return rates

    def attempt(self, what, work):
        """The result of work(), or None with a note: one kernel that this PyTorch lacks must not cost the others."""
        try:
            return work()
        except Exception as e:
            note = f"{what}: {type(e).__name__}: {str(e).splitlines()[0][:160]}"
            if note not in self.notes:
                self.notes.append(note)
            return None

    # --- sections

    def pinned(self, size):
        t = torch.empty(size, dtype=torch.uint8, pin_memory=self.cuda)
        return t.random_(0, 255) if size <= 64 * MIB else t.fill_(137)

    def copies(self, size):
        """Ready-made copies each way, with streams of their own."""
        up_host, down_host = self.pinned(size), self.pinned(size)
        up_dev, down_dev = (torch.empty(size, dtype=torch.uint8, device=self.device).random_(0, 255) for _ in range(2))
        streams = [torch.cuda.Stream(), torch.cuda.Stream()] if self.cuda else [None, None]
        times = max(min(256 * MIB // size, 16), 1)  # several to a synchronization, or small ones would measure that

        def up():
            for _ in range(times):
                up_dev.copy_(up_host, non_blocking=True)

        def down():
            for _ in range(times):
                down_host.copy_(down_dev, non_blocking=True)

        return (up, size * times, streams[0]), (down, size * times, streams[1])

    def link(self):
        rows = []
        for size in [MIB] if self.tiny else [4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 512 * MIB]:
            up, down = self.copies(size)
            row = {"bytes": size, "up_bytes_per_sec": self.elapsed(up)[0], "down_bytes_per_sec": self.elapsed(down)[0]}
            row["both_up_bytes_per_sec"], row["both_down_bytes_per_sec"] = self.elapsed(up, down)
            rows.append(row)
        return rows

    def dram(self):
        size = 4 * MIB if self.tiny else GIB
        a, b = torch.empty(size, dtype=torch.uint8).fill_(1), torch.empty(size, dtype=torch.uint8).fill_(2)
        copy = (lambda: b.copy_(a), 2 * size, None)  # read and written
        up, down = self.copies(MIB if self.tiny else 256 * MIB)
        names = ["dram", "up", "down"]
        rows = []
        for used in ([1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]):
            queues = [q for q, on in zip((copy, up, down), used) if on]
            row = {"together": " + ".join(n for n, on in zip(names, used) if on)}
            for name, rate in zip([n for n, on in zip(names, used) if on], self.elapsed(*queues)):
                row[f"{name}_bytes_per_sec"] = rate
            rows.append(row)
        return rows

    def register(self):
        libc = ctypes.CDLL(None, use_errno=True)
        rows = []
        for size in [4 * MIB] if self.tiny else [GIB, 16 * GIB, 64 * GIB]:
            if self.late():
                self.notes.append(f"register: {size / GIB:.0f} GiB left out, the time was over")
                continue
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if size > 0.8 * free:
                self.notes.append(f"register: {size / GIB:.0f} GiB left out, {free / GIB:.0f} GiB are free")
                continue
            t = torch.empty(size, dtype=torch.uint8)
            start = (t.data_ptr() + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
            length = (t.data_ptr() + size - start) // (2 * MIB) * (2 * MIB)
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_HUGEPAGE)
            begin = time.perf_counter()
            t.fill_(1)
            row = {"bytes": length, "populate_sec": time.perf_counter() - begin}
            if self.cuda:
                runtime = torch.cuda.cudart()
                begin = time.perf_counter()
                code = int(runtime.cudaHostRegister(start, length, 0))
                row["register_sec"] = time.perf_counter() - begin
                if code != 0:
                    row["error"] = f"cudaHostRegister: error {code}"
                else:
                    begin = time.perf_counter()
                    runtime.cudaHostUnregister(start)
                    row["unregister_sec"] = time.perf_counter() - begin
            rows.append(row)
            del t
        return rows

    def matrix(self, rows, cols):
        return torch.randn(rows, cols, device=self.device, dtype=torch.float32 if not self.cuda else torch.bfloat16).to(torch.bfloat16)

    def matmul(self):
        shapes = {"qkv": (HIDDEN, QKV), "o": (HIDDEN, HIDDEN), "gate/up": (HIDDEN, 2 * INNER), "down": (INNER, HIDDEN)}
        rows = []
        for positions in [16] if self.tiny else [8192, 32768]:
            for name, (k, n) in shapes.items():
                if self.tiny:
                    k, n = k // 64, n // 64
                x, w, dy = self.matrix(positions, k), self.matrix(n, k), self.matrix(positions, n)
                y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)
                dw32 = torch.zeros(n, k, device=self.device)
                works = {"forward": lambda: torch.mm(x, w.t(), out=y), "dx": lambda: torch.mm(dy, w, out=dx),
                         "dw": lambda: torch.mm(dy.t(), x, out=dw),
                         "dw_fp32": lambda: torch.mm(dy.t(), x, out_dtype=torch.float32, out=dw32),
                         "dw_fp32_added": lambda: torch.addmm(dw32, dy.t(), x, out_dtype=torch.float32, out=dw32)}
                row = {"product": name, "positions": positions, "in": k, "out": n}
                for kind, work in works.items():
                    sec = self.attempt(f"matmul, {kind}", lambda: self.seconds(work))
                    if sec:
                        row[f"{kind}_flops_per_sec"] = 2 * positions * n * k / sec
                rows.append(row)
        return rows

    def attention(self):
        backends = {"FlashAttention" if self.cuda else "PyTorch": SDPBackend.FLASH_ATTENTION if self.cuda else SDPBackend.MATH,
                    "cuDNN": SDPBackend.CUDNN_ATTENTION}
        rows = []
        for length in [16] if self.tiny else [2048, 8192, 32768]:
            for by, backend in backends.items():
                # A backend that knows no grouped queries gets the keys and values of each head of queries.
                row = self.attempt(f"attention, {by}", lambda: self.attend(length, by, backend, KV_HEADS))
                row = row or self.attempt(f"attention, {by}", lambda: self.attend(length, by, backend, HEADS))
                if row:
                    rows.append(row)
        return rows

    def attend(self, length, by, backend, kv_heads):
        batch = 1 if self.tiny else 32768 // length
        q, k, v = (torch.randn(batch, h, length, HEAD_DIM, device=self.device).to(torch.bfloat16).requires_grad_()
                   for h in (HEADS, kv_heads, kv_heads))

        def forward():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads != HEADS)

        out = forward()
        dout = torch.randn_like(out)

        def backward():
            torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        pairs = batch * length * (length + 1) // 2
        product = 2 * pairs * HEADS * HEAD_DIM
        with torch.no_grad():
            forward_sec = self.seconds(forward)
        backward_sec = self.seconds(backward)
        return {"by": by, "sequence_len": length, "sequences": batch, "heads_of_keys": kv_heads,
                "forward_sec": forward_sec, "backward_sec": backward_sec,
                "forward_flops_per_sec": 2 * product / forward_sec, "backward_flops_per_sec": 5 * product / backward_sec}

    def copy(self):
        size = MIB if self.tiny else 2 * GIB
        a, b = (torch.empty(size, dtype=torch.uint8, device=self.device).random_(0, 255) for _ in range(2))
        rows = [{"by": "PyTorch", "bytes_per_sec": 2 * size / self.seconds(lambda: b.copy_(a))}]
        if self.cuda:
            if triton is None:
                self.notes.append("copy: Triton is not installed")
                return rows
            words, block = size // 4, 4096
            source, target = a.view(torch.int32), b.view(torch.int32)
            sec = self.seconds(lambda: copy_words[(words // block,)](source, target, block))
            rows.append({"by": "Triton", "bytes_per_sec": 2 * size / sec, "equal": bool(torch.equal(a, b))})
        return rows


if triton is not None:

    @triton.jit
    def copy_words(source, target, block: tl.constexpr):
        """Copies 32-bit words, `block` of them a program."""
        at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        tl.store(target + at, tl.load(source + at))


def table(name, rows):
    """Rows as Markdown: rates in GB/s and TFLOP/s, sizes in MiB, times in ms."""
    scale = {"bytes_per_sec": ("GB/s", 1e9), "flops_per_sec": ("TFLOP/s", 1e12), "sec": ("ms", 1e-3), "bytes": ("MiB", MIB)}
    columns = list(dict.fromkeys(key for row in rows for key in row))
    heads, units = [], {}
    for key in columns:
        for suffix, (unit, by) in scale.items():
            if key == suffix or key.endswith("_" + suffix):
                units[key] = by
                heads.append(f"{key.removesuffix(suffix).rstrip('_') or ''} {unit}".strip().replace("_", " "))
                break
        else:
            heads.append(key.replace("_", " "))
    lines = [f"\n## {name}\n", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [f"{row[k] / units[k]:.2f}" if k in units and k in row else str(row.get(k, "")) for k in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


SECTIONS = ["link", "dram", "matmul", "attention", "copy", "register"]


def main():
    p = argparse.ArgumentParser(description="Rates of one GPU machine.")
    p.add_argument("--out", default="", help="file for the JSON")
    p.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    p.add_argument("--budget", type=float, default=220, help="seconds after which no section begins")
    p.add_argument("--cpu", action="store_true", help="no GPU: tries the program out")
    p.add_argument("--tiny", action="store_true", help="tiny sizes: tries the program out")
    args = p.parse_args()
    if not args.cpu and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU; --cpu --tiny tries the program out without one")
    r = Rates(args)
    result = {"device": torch.cuda.get_device_name() if r.cuda else "CPU: these figures mean nothing", "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version(), "threads": torch.get_num_threads(), "sections": {}, "section_sec": {}, "notes": r.notes}
    print(f"{result['device']}, PyTorch {result['torch']}, cuDNN {result['cudnn']}, {result['threads']} threads on the host", flush=True)
    for name in args.only:
        if r.late():
            r.notes.append(f"{name}: left out, the time was over")
            continue
        begin = time.monotonic()
        rows = r.attempt(name, getattr(r, name))
        if rows is not None:
            result["sections"][name] = rows
            print(table(name, rows), flush=True)
        if r.cuda:
            torch.cuda.empty_cache()
        result["section_sec"][name] = round(time.monotonic() - begin, 1)
        if args.out:
            with open(args.out, "w") as f:
                json.dump(result, f, indent=2)
    print()
    for note in r.notes:
        print("note:", note)
    print("seconds:", ", ".join(f"{name} {sec}" for name, sec in result["section_sec"].items()))
    if not args.out:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
