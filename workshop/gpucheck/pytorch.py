"""Compare the gradients that millrace computes with PyTorch's, parameter by parameter.

    python3 pytorch.py --millrace ./millrace --work DIR --device cuda:0
    python3 pytorch.py --millrace ./millrace --work DIR --device cpu --tiny

A model of two layers, as wide as one of 7B parameters, is written to DIR/model with random weights, and DIR/tokens.json has two
sequences. `millrace grad` and PyTorch compute loss and gradients of them on the same device. The reference is PyTorch in fp32 without
TF32. The yardstick is PyTorch again under autocast to bf16, which errs by its rounding. An error is |g - reference| / |reference| over
a parameter.

Exit status 0: the losses agree within 1e-3, relatively, and no error is larger than twice the yardstick's, or twice 1e-2 where that is
smaller. 1: they differ, or millrace failed. 3: PyTorch or transformers is missing, or the time was over; one line says which.
"""

import argparse
import json
import math
import pathlib
import struct
import subprocess
import sys
import time

# What no bf16 gradient is better than, relatively; and for --compute f32 what sums in another order explain.
FLOOR = {"bf16": 1e-2, "f32": 1e-4}

WIDE = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 8192}
TINY = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512}
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 2, "hidden_act": "silu",
          "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": False,
          "use_sliding_window": False, "torch_dtype": "bfloat16"}


def say(text):
    print(text, flush=True)


def give_up(why):
    say(f"not compared: {why}")
    sys.exit(3)


def fail(why):
    say(f"FAIL: {why}")
    sys.exit(1)


try:
    import torch
    import transformers
except ImportError as e:
    give_up(str(e))

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def write_safetensors(path, tensors):
    """Tensors by name, all of them bf16."""
    header, at = {}, 0
    for name, t in tensors.items():
        size = 2 * t.numel()
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.cpu().contiguous().view(torch.int16).numpy().data)


def read_safetensors(path):
    """Yields (name, tensor), one at a time."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            f.seek(8 + length + begin)
            yield name, torch.frombuffer(bytearray(f.read(end - begin)), dtype=DTYPES[entry["dtype"]]).view(entry["shape"])


def write_model(folder, config, device):
    """A Hugging Face directory with random weights: (configuration of transformers, weights in bf16 by name)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    settings = transformers.Qwen2Config.from_pretrained(folder)
    with torch.device("meta"):
        names = transformers.Qwen2ForCausalLM(settings).state_dict()
    generator = torch.Generator(device).manual_seed(1)
    std = 0.02 * (WIDE["hidden_size"] / config["hidden_size"]) ** 0.5  # attention scores vary as much at each width
    weights = {}
    for name, meta in names.items():
        noise = std * torch.randn(meta.shape, generator=generator, device=device)
        weights[name] = (noise + 1 if name.endswith("norm.weight") else noise).to(torch.bfloat16)
    write_safetensors(folder / "model.safetensors", weights)
    return settings, weights


def write_tokens(path, vocab, length):
    """Two sequences; the beginning of one has no labels, and a tenth of the other's positions."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(vocab, (2, length), generator=generator)
    labels = ids.clone()
    labels[0, : length // 8] = -100
    labels[1, torch.rand(length, generator=generator) < 0.1] = -100
    path.write_text(json.dumps({"input_ids": ids.tolist(), "labels": labels.tolist()}))
    return ids, labels


def by_pytorch(model, ids, labels, autocast):
    """(loss, gradients by name)."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=autocast):
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters()}


def by_millrace(args, work, seconds):
    """Returns the loss, and leaves the gradients in the file grads.safetensors of the folder work."""
    command = [args.millrace, "grad", "--json", "--model", str(work / "model"), "--tokens", str(work / "tokens.json"),
               "--out", str(work / "grads.safetensors"), "--device", args.device, "--compute", args.compute]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        fail(f"millrace grad did not end within {seconds:.0f} s")
    except OSError as e:
        fail(f"millrace cannot be started: {e}")
    sys.stderr.write(done.stderr[-2000:])
    if done.returncode != 0:
        fail(f"millrace grad ended with status {done.returncode}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout)["loss"]


def relative(g, reference):
    """|g - reference| / |reference|, summed in fp64. A gradient that is not finite, or of another shape, is infinitely wrong."""
    if g.shape != reference.shape:
        return math.inf
    difference = (g.to(reference.device).double() - reference.double()).norm()
    error = float(difference / reference.double().norm())
    return error if math.isfinite(error) else math.inf


def compare(args, work, reference, yardstick):
    """Prints a line for each parameter, and returns the names of those that are wrong."""
    say(f"{'parameter':44} {'elements':>11} {'millrace':>10} {'PyTorch bf16':>12} {'allowed':>10}")
    wrong, missing, worst = [], set(reference), (0.0, "")
    for name, g in read_safetensors(work / "grads.safetensors"):
        if name not in reference:
            if name != "loss":
                wrong.append(f"{name} (PyTorch has no such parameter)")
            continue
        missing.discard(name)
        error = relative(g, reference[name])
        theirs = relative(yardstick[name], reference[name]) if yardstick else math.nan
        allowed = 2 * max(FLOOR[args.compute], theirs)  # a NaN is not larger than the floor
        ok = error <= allowed
        worst = max(worst, (error / allowed, name))
        if not ok:
            wrong.append(name)
        say(f"{name:44} {g.numel():11} {error:10.2e} {theirs:12.2e} {allowed:10.2e}{'' if ok else '  FAIL'}")
    if worst[1]:
        say(f"nearest to what is allowed: {worst[1]}, {100 * worst[0]:.0f} % of it")
    return wrong + [f"{name} (millrace wrote no gradient)" for name in sorted(missing)]


def main():
    p = argparse.ArgumentParser(description="Compares the gradients of millrace and of PyTorch.")
    p.add_argument("--millrace", required=True, help="the program")
    p.add_argument("--work", required=True, help="folder for the model (1 GB) and the gradients (2 GB)")
    p.add_argument("--device", default="cuda:0", help="cuda:N or cpu, for both programs")
    p.add_argument("--reference", help="PyTorch's device, if it is another one")
    p.add_argument("--compute", choices=list(FLOOR), default="bf16")
    p.add_argument("--tiny", action="store_true", help="a tiny model: tries the program out")
    p.add_argument("--budget", type=float, default=300, help="seconds")
    args = p.parse_args()
    deadline = time.monotonic() + args.budget
    args.reference = args.reference or args.device
    if args.reference.startswith("cuda") and not torch.cuda.is_available():
        give_up("PyTorch finds no GPU")
    transformers.logging.set_verbosity_error()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device, work = torch.device(args.reference), pathlib.Path(args.work)
    config = CONFIG | (TINY if args.tiny else WIDE)
    length = 48 if args.tiny else 1024
    say(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {args.device}: two layers, hidden size "
        f"{config['hidden_size']}, 2 sequences of {length} tokens")

    settings, weights = write_model(work / "model", config, device)
    ids, labels = (t.to(device) for t in write_tokens(work / "tokens.json", config["vocab_size"], length))
    say(f"model written, {deadline - time.monotonic():.0f} s left")
    torch.cuda.empty_cache()  # millrace takes what is free
    ours = by_millrace(args, work, deadline - time.monotonic())
    say(f"millrace: loss {ours:.6f}, {deadline - time.monotonic():.0f} s left")
    if time.monotonic() > deadline:
        give_up(f"the {args.budget:.0f} s were over")

    with device:
        model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa").float()
    model.load_state_dict(weights)
    loss, reference = by_pytorch(model, ids, labels, autocast=False)
    yardstick = {}
    say(f"PyTorch fp32: loss {loss:.6f}")
    if args.compute == "bf16":
        rounded, yardstick = by_pytorch(model, ids, labels, autocast=True)
        say(f"PyTorch bf16: loss {rounded:.6f}, {deadline - time.monotonic():.0f} s left")
    wrong = compare(args, work, reference, yardstick)
    apart = abs(ours / loss - 1)
    say(f"losses: {apart:.1e} apart, relatively")
    if not apart <= 1e-3:
        wrong.append("the loss")
    if wrong:
        fail(", ".join(wrong))
    say(f"pass: {len(reference)} gradients")


if __name__ == "__main__":
    main()
