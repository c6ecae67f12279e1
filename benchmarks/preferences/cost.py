"""Trains a small model in turns with and without an objective on the same answers, and compares seconds and memory.

    python cost.py MILLRACE TRAIN.jsonl DIR [TURNS]

Both models have the width 512. In `large` the head has the share of a step's arithmetic that it has in Llama 3 8B (2HV is 1.6%
of 8N), in `small` that of Qwen2.5-0.5B (6.9%). The tokenizer is trained on the answers (tokenizers 0.22). Supervised tuning
sees each side of a pair as a row by itself. The reference's log-probabilities come from the cache in all turns but the first,
which is left out.
"""

import json
import os
import statistics
import subprocess
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

millrace, source, out = sys.argv[1:4]
turns = int(sys.argv[4]) if len(sys.argv) > 4 else 5
SHAPES = {"large": (8192, 18, False), "small": (32768, 14, True)}  # rows of the vocabulary, blocks, tied embeddings
STEPS = 3


def text(messages):
    return "\n".join(m["content"] for m in messages)


def write(name, value):
    with open(os.path.join(out, name), "w") as f:
        f.write(value)


rows = [{k: text(v) for k, v in json.loads(line).items()} for line in open(source)]
for shape in SHAPES:
    os.makedirs(os.path.join(out, shape), exist_ok=True)
write("pairs.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
write("answers.jsonl", "".join(json.dumps({"prompt": r["prompt"], "response": r[side]}) + "\n" for r in rows
                               for side in ("chosen", "rejected")))

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.train_from_iterator((t for r in rows for t in r.values()), trainers.BpeTrainer(
    vocab_size=4096, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
for shape, (vocab, layers, tied) in SHAPES.items():
    tokenizer.save(os.path.join(out, shape, "tokenizer.json"))
    write(f"{shape}/tokenizer_config.json", json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}))
    write(f"{shape}/config.json", json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1792,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": vocab,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": tied, "eos_token_id": 0, "bos_token_id": 0, "initializer_range": 0.02}))


def run(shape, kind):
    """Seconds of each step but the first, and the peak of memory in bytes."""
    data = "{path: pairs.jsonl, type: preference}" if kind == "dpo" else "{path: answers.jsonl, type: prompt-response}"
    where = f"out-{shape}-{kind}"
    subprocess.run(["rm", "-rf", where], cwd=out, check=True)
    write("run.yaml", f"model: {shape}\ninit: random\ndatasets: [{data}]\n" +
          ("objective: {type: dpo}\n" if kind == "dpo" else "") +
          f"learning_rate: 1e-6\nwarmup_steps: 0\nsequence_len: 512\nbatch_tokens: 4096\nmax_steps: {STEPS}\n"
          f"output_dir: {where}\n")
    subprocess.run([millrace, "train", "run.yaml"], cwd=out, check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line) for line in open(os.path.join(out, where, "metrics.jsonl"))]
    steps = [s for s in steps if s["step"] > 1 and s["step_sec"]]
    return [s["step_sec"] for s in steps], max(s["host_peak_bytes"] for s in steps)


for shape in SHAPES:
    run(shape, "dpo")
    seconds, bytes_ = {"sft": [], "dpo": []}, {}
    for _ in range(turns):
        for kind in seconds:
            each, bytes_[kind] = run(shape, kind)
            seconds[kind] += each
    middle = {kind: statistics.median(s) for kind, s in seconds.items()}
    print(f"{shape}: sft {middle['sft']:.2f} s a step and {bytes_['sft'] / 1e9:.3f} GB, dpo {middle['dpo']:.2f} s "
          f"and {bytes_['dpo'] / 1e9:.3f} GB: {middle['dpo'] / middle['sft']:.3f} and {bytes_['dpo'] / bytes_['sft']:.3f}", flush=True)
