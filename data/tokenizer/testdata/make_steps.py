"""Store what `tokenizers` makes of tricky texts with models and steps that make.py does not have.

    pip install tokenizers==0.22.2
    python make_steps.py

Reads texts.json. Writes NAME.json and NAME.ids.json for each tokenizer, and steps.json: what each normalizer, pre-tokenizer and
decoder makes of some texts.
"""

import json

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert tokenizers.__version__ == "0.22.2", tokenizers.__version__

with open("texts.json") as f:
    TEXTS = json.load(f)
CORPUS = TEXTS[:60] + ["the wheel turns and the water runs over the wheel"] * 3

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}?"
         rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}")
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
          rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
BYTES = [f"<0x{b:02X}>" for b in range(256)]
SPECIAL = ["<unk>", "<|bos|>", "<|eos|>"]


def split(expression, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(expression), behavior, invert)


def byte_pairs(normalizer, pre, decoder, fallback=True, vocab=300):
    """BPE over characters as SentencePiece files are converted: bytes for what has no token."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    # Words are learned with marks, whatever the file will say.
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    t.train_from_iterator([c for c in CORPUS if c.isascii()], trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL + (BYTES if fallback else []), show_progress=False))
    spec = json.loads(t.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["content"] in SPECIAL]
    t = Tokenizer.from_str(json.dumps(spec))
    t.normalizer, t.decoder = normalizer, decoder
    t.pre_tokenizer = pre
    t.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", t.token_to_id("<|bos|>"))])
    return t


def llama2():
    return byte_pairs(
        normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), None,
        decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]), vocab=420)


def gemma():
    return byte_pairs(normalizers.Replace(" ", "\u2581"), pre_tokenizers.Split(" ", "merged_with_previous"),
                      decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]), vocab=400)


def metaspace_first():
    return byte_pairs(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), decoders.Metaspace(prepend_scheme="first"), False, 140)


def unigram(fallback=False):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator([c for c in CORPUS if c.isascii() and "|" not in c], trainers.UnigramTrainer(
        vocab_size=150, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False))
    spec = json.loads(t.to_str())
    if fallback:
        spec["model"]["byte_fallback"] = True
        spec["model"]["vocab"] += [[b, -20.0] for b in BYTES]
    t = Tokenizer.from_str(json.dumps(spec))
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]) if fallback else decoders.Metaspace()
    t.post_processor = processors.TemplateProcessing(single="<|bos|> $A <|eos|>", special_tokens=[("<|bos|>", 1), ("<|eos|>", 2)])
    return t


def unigram_bytes():
    return unigram(True)


STEP_TEXTS = TEXTS[3:54:2] + TEXTS[60:72] + [
    "x--y---z--", "--", "a-b", "\u0301\u0301a" + "\u0316\u0301" * 40 + "b", "q\u0307\u0323\u1e0b\u0323", "\u1100\u1161\u11a8 \uac00\u11a8", "\u32ff\ufdfa\u2126",
    "\u01c5\u01c4\u01c6 \u0130\u0131 \u03a3\u03c2 \u1e9e", "\u4e2d\u6587abc\u3400\U00020000", "\x07bell\x00nul\ufffd\u200e\u00ad\u2581", "a\u0300 a\u0300\u0301 e\u0301\u0301 \r\n\r\n",
    "AbCd HTTPServer iPhone's IT'S X'\u017f \u02b0\u01c5a\u0301B \u0301a 12345 a/b/\n//\r\n", "\uff11\uff12 \u0661\u0662 \u2167\u00bd \U00011de3", "\u0915\u094d\u0937 \u0600a \u0600\u0301"]


def steps():
    n, p = normalizers, pre_tokenizers
    normal = [n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Sequence([n.NFD(), n.Replace("e", "")]), n.Replace("a", "bc"),
              n.Replace(Regex(r"\s{2,}|[0-9]+?"), "_"), n.Prepend("\u2581"), n.ByteLevel()]
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    pre = [p.ByteLevel(), p.ByteLevel(add_prefix_space=False, use_regex=False), p.Whitespace(), p.WhitespaceSplit(),
           p.Digits(), p.Digits(individual_digits=True)]
    pre += [p.Punctuation(b) for b in behaviors]
    pre += [p.Split("-", b, i) for b in behaviors for i in (False, True)]
    pre += [split(r"\s+|\w", b, i) for b in behaviors for i in (False, True)]
    pre += [p.Metaspace(prepend_scheme=s, split=w) for s in ("always", "first", "never") for w in (False, True)]
    pre += [p.Sequence([p.WhitespaceSplit(), p.Metaspace(prepend_scheme="first")]), p.Sequence([p.ByteLevel(use_regex=False), p.Digits()])]
    pre += [split(e) for e in (
        GPT4O, TEKKEN, DEEPSEEK, r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)".replace("*", "{0,5}"),
        r"[a-z&&[^aeiou]]+|[A-Z][a-z]*?(?=[A-Z]|$)|^.", r"(?<=[a-z])[A-Z]|(?<!a)b|\bc\B|\Ad|e\z", r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\d{2,}|x{3}|y{,2}z",
        r"[\p{Han}\p{P}]+|[^\p{L}\p{M}\s]{1,4}|\P{Lu}\p{^Ll}", r"a|ab|abc|(?:l|lo|lon)ger?|(?:w|wo)+r?", r"\x41|\u0062+|[\x{63}-\x{65}]|\.|\t")]
    decode = [decoders.ByteLevel(), decoders.Metaspace(), decoders.Metaspace(prepend_scheme="never"), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("_", 2, 1), decoders.Replace("a", "bb"), decoders.Replace(Regex("[ab]+"), "c"),
              decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])]
    tokens = [["\u2581a", "\u2581\u2581", "b\u2581", "c"], ["<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "x", "<0x41>", "<0xE4>"],
              ["\u0120the", "\u010a", "\u00e4\u00bd", "\u0142", "\u4f60", "a b"], ["___a__"], ["aab", "ba", "caab"], ["<0x4>", "<0xZZ>", "<0x0a>"]]
    state = lambda step: json.loads(step.__getstate__())
    with open("steps.json", "w") as f:
        json.dump({
            "tokenizers": tokenizers.__version__, "texts": STEP_TEXTS, "tokens": tokens,
            "normalizers": [{"step": state(s), "out": [s.normalize_str(t) for t in STEP_TEXTS]} for s in normal],
            "pre_tokenizers": [{"step": state(s), "out": [[w for w, _ in s.pre_tokenize_str(t)] for t in STEP_TEXTS]} for s in pre],
            "decoders": [{"step": state(s), "out": [s.decode(list(t)) for t in tokens]} for s in decode],
        }, f, separators=(",", ":"))


def main():
    for make in (llama2, gemma, metaspace_first, unigram, unigram_bytes):
        t = make()
        with open(make.__name__ + ".json", "w") as f:
            json.dump(json.loads(t.to_str()), f, separators=(",", ":"))
        ids = [t.encode(s, add_special_tokens=False).ids for s in TEXTS]
        with open(make.__name__ + ".ids.json", "w") as f:
            json.dump({"tokenizers": tokenizers.__version__, "ids": ids,
                       "with_special": [t.encode(s, add_special_tokens=True).ids for s in TEXTS],
                       "decoded": [t.decode(i, skip_special_tokens=True) for i in ids]}, f, separators=(",", ":"))
    steps()


main()
