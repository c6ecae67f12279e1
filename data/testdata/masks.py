"""Writes masks.json: which tokens of conversations transformers counts as the assistant's, for templates with generation blocks.

    pip install transformers==4.57.3 tokenizers==0.22.2 jinja2
    python data/testdata/masks.py > data/testdata/masks.json

The tokenizers are those of data/tokenizer/testdata.

"all" are the tokens that have a part of a block, by the offsets of the tokenizer, and "last" those of the blocks behind the text of
the messages before the last turn (transformers has no option for that). transformers looks for the token of a block's first
character and of its last one. Where that is another mask, it is "transformers", and the reason is one of these, which is
asserted:

  bytes  The last character is spelled with several tokens, of which only the first is seen.
  empty  Nothing is in a block, and the token around its place is taken for it.
"""

import json
import os
import shutil
import tempfile

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

assert transformers.__version__ == "4.57.3", transformers.__version__

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZERS = ["llama2", "llama3", "qwen2", "gemma", "smollm2", "unigram"]

TEMPLATES = {
    # The header is the prompt's, the end of the turn is the model's.
    "chatml": "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' }}{% generation %}{{ m.content + eos_token }}"
              "{% endgeneration %}{{ '\n' }}{% else %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endif %}{% endfor %}",
    # Nothing but letters at the borders, so that tokens reach over them.
    "joined": "{% for m in messages %}{{ m.role }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
              "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    # Several blocks in a turn, and a block around a header.
    "blocks": "{{ bos_token }}{% if tools %}{{ 'tools: ' + tools | tojson + '\n' }}{% endif %}{% for m in messages %}"
              "{% if m.role == 'assistant' %}{% generation %}{{ 'assistant: ' }}{% endgeneration %}{{ '[' }}{% generation %}{{ m.content or '' }}"
              "{% for c in m.tool_calls or [] %}{{ '\n!' + c.function.name + c.function.arguments | tojson }}{% endfor %}{{ ' ' }}"
              "{% endgeneration %}{{ ']\n' }}{% else %}{{ m.role + ': ' + m.content | trim + '\n' }}{% endif %}{% endfor %}",
}

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}}}


def turns(*texts, system=None):
    first = [{"role": "system", "content": system}] if system is not None else []
    return first + [{"role": ["user", "assistant"][i % 2], "content": t} for i, t in enumerate(texts)]


CONVERSATIONS = [
    {"messages": turns("hello", "Hello World!")},
    {"messages": turns("The quick brown fox?", "jumps over", "the lazy", "dog.", "and?", "the word sword", system="Be brief, word by word.")},
    {"messages": turns("one", "", "two", "three")},
    {"messages": turns("one", "two", "three", "")},
    {"messages": turns("caf\u00e9 cafe\u0301 \u212b", "A\u030angstrom \u1100\u1161 caf\u00e9", "\U0001f600", "\U0001f44d\U0001f3fd \u4f60\u597d\uff01")},
    {"messages": turns(" spaces  ", "  both   sides \n", "\n", " \n x", "last", "\tint x;\n\n")},
    {"messages": turns("a", "b", "c")},
    {"messages": turns("it's", "'s I'll", "12", "345 6")},
    {"messages": turns("say <|eos|> now", "a<|eos|>b <|bos|> c", "so", "x<|eos|>")},
    {"messages": [{"role": "user", "content": "1 + 2?"},
                  {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]},
                  {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 3."}], "tools": [TOOL]},
    {"messages": turns("the " * 20, "longer long longe " * 10, "go on", "word, " * 12)},
]


def ranges(mask):
    found = []
    for i, m in enumerate(mask):
        if m and (i == 0 or not mask[i - 1]):
            found.append([i, i + 1])
        elif m:
            found[-1][1] = i + 1
    return found


def overlap(spans, offsets):
    return ranges([any(s < end and e > start for start, end in spans if start < end) for s, e in offsets])


def reason(spans, offsets):
    """Why the mask of transformers may differ, the first that holds."""
    for start, end in spans:
        if start == end:
            return "empty"
        if sum(s < end and e > end - 1 for s, e in offsets) > 1:
            return "bytes"
    return None


cases = []
for name in TOKENIZERS:
    with tempfile.TemporaryDirectory() as root:
        shutil.copy(os.path.join(HERE, "..", "tokenizer", "testdata", name + ".json"), os.path.join(root, "tokenizer.json"))
        known = [t["content"] for t in json.load(open(os.path.join(root, "tokenizer.json")))["added_tokens"]]
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eos|>"}
        if "<|bos|>" in known:
            config["bos_token"] = "<|bos|>"
        json.dump(config, open(os.path.join(root, "tokenizer_config.json"), "w"))
        tok = transformers.AutoTokenizer.from_pretrained(root)
    for template, source in TEMPLATES.items():
        for number, c in enumerate(CONVERSATIONS):
            if template == "blocks" and "bos_token" not in config or template != "blocks" and "tools" in c:
                continue
            if name == "unigram" and number == 5:
                continue  # its normalizer melts the spaces on both sides of a border into one token: it is of both and of neither
            kwargs = {"chat_template": source, "tools": c.get("tools")}
            out = tok.apply_chat_template(c["messages"], return_dict=True, return_assistant_tokens_mask=True, **kwargs)
            texts, blocks = render_jinja_template(conversations=[c["messages"]], return_assistant_tokens_mask=True, **kwargs, **tok.special_tokens_map)
            encoded = tok(texts[0], add_special_tokens=False, return_offsets_mapping=True)
            ids, offsets = out["input_ids"], encoded["offset_mapping"]
            assert encoded["input_ids"] == ids
            last = max(i for i, m in enumerate(c["messages"]) if m["role"] == "assistant")
            before = len(tok.apply_chat_template(c["messages"][:last], tokenize=False, **kwargs))
            case = {"tokenizer": name, "config": config, "template": template, "conversation": number, "ids": ids,
                    "all": overlap(blocks[0], offsets), "last": overlap([b for b in blocks[0] if b[0] >= before], offsets)}
            theirs = ranges(out["assistant_masks"])
            if theirs != case["all"]:
                case["transformers"], case["reason"] = theirs, reason(blocks[0], offsets)
                assert case["reason"], (name, template, number, theirs, case["all"])
            cases.append(case)

print('{"transformers":"%s",\n"templates":%s,\n"conversations":[%s],\n"cases":[%s]}' % (
    transformers.__version__, json.dumps(TEMPLATES), ",\n".join(json.dumps(c) for c in CONVERSATIONS),
    ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)))
