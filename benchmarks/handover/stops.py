"""Checks that transformers asks and stops as a run of millrace trained it: of the directory that the run wrote, alone.

    pip install transformers==5.24.0 torch
    python stops.py --millrace ./millrace --work DIR TEMPLATE.jinja...

For each chat template it makes a small random base model that has the template's special tokens, no template and another
end, trains it on six conversations with chat_template until it has learned them, and moves the directory away from
everything else. Then tokenizer.apply_chat_template and model.generate have to give each answer and stop after it, and so
does millrace chat, which is given the directory. Prints Markdown. Ends with status 1 if one does not.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

import tokenizers
import torch
import transformers

PINNED = "5.24.0"
END = "<base_end>"
OWN_END = {"gptoss": "<|return|>"}  # templates that end only the last turn with the model's own end
SPECIAL = re.compile(r"<\|[\w\"]+\|?>|<\w+\|>|<｜[^｜]+｜>|\[/?[A-Z_]+\]|</?s>")
ROWS = [("2+3?", "It is 5."), ("2+4?", "It is 6."), ("3+4?", "7, I think."), ("Red?", "A colour."), ("Up?", "Not down."),
        ("Who?", "Me.")]


def base_model(directory, source, end):
    """A random model with the special tokens of a template, and words of it, so that what it says in each prompt is short."""
    tokens = sorted(set(SPECIAL.findall(source)) | {"<s>"})
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4096, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    t.train_from_iterator([source], trainer)
    t.add_special_tokens([end] + tokens)
    bos = next((x for x in ("<|begin_of_text|>", "<bos>", "<s>") if x in tokens), "<s>")
    tok = transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token=end, bos_token=bos)
    tok.save_pretrained(directory)
    c = transformers.LlamaConfig(vocab_size=len(tok), hidden_size=96, intermediate_size=192, num_hidden_layers=2,
                                 num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=2048,
                                 eos_token_id=tok.eos_token_id, bos_token_id=None, pad_token_id=None,
                                 initializer_range=0.05)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(c).save_pretrained(directory)


def run(args, *command, **more):
    done = subprocess.run([args.millrace, *command], capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(done.stderr.splitlines()[-1])
    return done


def check(args, path):
    work = args.work / path.stem
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    base_model(work / "base", path.read_text(), OWN_END.get(path.stem, END))
    rows = work / "rows.jsonl"
    rows.write_text("".join(json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]})
                            + "\n" for q, a in ROWS))
    config = work / "run.yaml"
    config.write_text(f"""model: {work / 'base'}
chat_template: {path.resolve()}
datasets: [{{path: {rows}, type: messages}}]
sequence_len: {args.sequence_len}
batch_tokens: {args.sequence_len}
max_steps: {args.steps}
learning_rate: 3e-3
warmup_steps: 10
precision: {{compute: f32}}
save: {{at_end: false}}
output_dir: {work / 'run'}
""")
    said = run(args, "train", str(config)).stderr
    line = next((x for x in said.splitlines() if "trained texts end with" in x), "")
    alone = work / "alone"
    (work / "run" / "model").rename(alone)
    for name in ("base", "run"):
        shutil.rmtree(work / name)
    tok = transformers.AutoTokenizer.from_pretrained(alone)
    model = transformers.AutoModelForCausalLM.from_pretrained(alone, dtype=torch.float32)
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends
    right = stopped = 0
    for question, answer in ROWS:
        ids = tok.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                      return_tensors="pt", return_dict=True)
        out = model.generate(**ids, do_sample=False, max_new_tokens=120, pad_token_id=0)[0][ids["input_ids"].shape[1]:]
        stopped += out[-1].item() in ends and len(out) < 120
        right += tok.decode(out, skip_special_tokens=True).strip().endswith(answer)
        last = tok.convert_ids_to_tokens(out[-1].item())
    talked = run(args, "chat", "--model", str(alone), "--temperature", "0", "--json", "--compute", "f32", "--max-tokens", "120",
                 input="".join(q + "\n/clear\n" for q, _ in ROWS)).stdout
    chats = sum(json.loads(x)["finish"] == "stop" for x in talked.splitlines())
    names = ", ".join(f"`{tok.convert_ids_to_tokens(i)}`" for i in ends)
    print(f"| {path.stem} | {names} | `{last}` | {right} | {stopped} | {chats} | {'yes' if line else 'no'} |", flush=True)
    return right == stopped == chats == len(ROWS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", default="millrace")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sequence-len", type=int, default=1024, help="in bytes: some templates begin with 4,000")
    parser.add_argument("templates", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    if transformers.__version__ != PINNED:
        print(f"transformers is {transformers.__version__}, and the figures are of {PINNED}", file=sys.stderr)
    print("| template | ends | last token | answers, of 6 | transformers stops | chat stops | ends added |")
    print("|---|---|---|---|---|---|---|")
    failed = False
    for path in args.templates:
        try:
            failed |= not check(args, path)
        except RuntimeError as e:
            print(f"| {path.stem} | {e} |", flush=True)
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
