"""Train tiny byte-level BPE tokenizers and store what `tokenizers` makes of tricky texts.

    pip install tokenizers==0.22.2
    python make.py

Writes NAME.json (a tokenizer.json) and NAME.ids.json for each tokenizer, and texts.json.
"""

import json
import random
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert tokenizers.__version__ == "0.22.2", tokenizers.__version__

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\t\t", "   \n  \n\n ", "hello", " hello  world", "Hello World!",
    "it's IT'S I'll we'Ve they'RE d'oh 'tis rock'n'roll o'clock 'S 's''s'", "it'\u017f x'\u017fab '\u212a",
    "1 12 123 1234 12345678 3.14159 1,000,000 0xFF 1e-5 \u00bd \u00b2 \u0663\u0664 \u2167 \u4e09",
    "func main() {\n\tfmt.Println(\"hi\", x[i:j+1])\n\t// a   comment  \n}\n\n\n",
    "def f(a, b=None):\n    return {k: v for k, v in a.items() if v is not None}\n",
    "if (a != b && c >= 0) { d->e = &f[*g]; } /* ... */ #define X(y) y##_t\r\n\r\n  z",
    "a\u00a0b\u3000c\u2003d\u2028e\u2029f\u0085g\u200bh\ufeffi\u00adj\u180ek",
    "\x00\x01\x1b[0m\x1c\x1d\x7f end", "caf\u00e9 cafe\u0301 \u212b \u0041\u030a \ufb01 \u1e9b\u0323 \uac00 \u1100\u1161",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u3053\u3093\u306b\u3061\u306f \uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 stra\u00dfe \u0130stanbul",
    "\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f x\U0001f600y",
    "\U00010d4a\U000105c0\u1c89 \U00010d40\U00011bf0 newer than Unicode 15", "a\u0300\u0301\u0302 \u0928\u0940 z\u0335",
    "<|bos|>", "<|eos|>text<|eos|>", " <|bos|> <|eos|> ", "<|bos|", "<|bo<|bos|>s|>", "x<|eos|>\n\ny",
    "left <left> right", "left\n\t<left>", "<right>  \n right", "<right><right> <left>", " <both> \t<both> ",
    "word sword words word", "word,word_ _word word9 \u00e9word word\u0301 (word)", "wordword word", "caf\u00e9s caf\u00e9 cafe\u0301",
    "longlonger longer long longe", "\u00c5ngstrom A\u030angstrom \u212bngstrom", "a" * 80, "ab" * 60 + " " * 40 + "x", "the " * 30,
    "supercalifragilisticexpialidociousantidisestablishmentarianism", "!!!???...---===***", " !\n ?\r\n \t.\n",
    "https://example.com/a?b=c&d=%20#e user@example.org", "$12.50 + 3% = \u20ac13.00; \u00a35", "\u201cquoted\u201d \u2018single\u2019 \u2014 dash\u2026",
    "The quick brown fox jumps over the lazy dog. " * 2, "\tint x = 007;\n\t\treturn;\n", "ends with space ", "ends with spaces   ",
]


def random_texts():
    rng = random.Random(5)
    pieces = list("abcXYZ'  \n\r\t,.!?_-()<>|0123456789") + [
        "'s", "'LL", "the", " the", "\u00e9", "e\u0301", "\u4f60", "\u00a0", "\u3000", "\u00bd", "\u0663", "\U0001f600", "\u017f",
        "<|bos|>", "<|eos|>", "<left>", "<right>", "<both>", "word", "\u2028", "\u0301", "long", "longer", "caf\u00e9"]
    return ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 25))) for _ in range(250)]


CORPUS = TEXTS * 3 + [open(__file__, encoding="utf-8").read()]


def byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(expression):
    return pre_tokenizers.Split(Regex(expression), "isolated")


def train(pre, vocab=560, normalizer=None, whole_alphabet=True, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if whole_alphabet else []
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False))
    return t


def template(t, single):
    special = [(s, t.token_to_id(s)) for s in ("<|bos|>", "<|eos|>")]
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=single, pair=None, special_tokens=special)])


def gpt2():
    t = train(byte_level())
    t.add_special_tokens(["<|eos|>"])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def llama3():
    t = train(pre_tokenizers.Sequence([split(LLAMA3), byte_level(regex=False)]), ignore_merges=True)
    t.add_special_tokens(["<|bos|>", "<|eos|>"])
    template(t, "<|bos|> $A")
    return t


def qwen2():
    t = train(pre_tokenizers.Sequence([split(QWEN2), byte_level(regex=False)]), normalizer=normalizers.NFC())
    t.add_special_tokens(["<|eos|>", AddedToken("<both>", normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def smollm2():
    t = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]), whole_alphabet=False)
    t.add_special_tokens(["<|bos|>", "<|eos|>"])
    return t


def prefix():
    """Every kind of added token, a prefix space, an unknown token, runs of digits, the template's both ends."""
    t = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(), byte_level(prefix=True)]), whole_alphabet=False,
              normalizer=normalizers.Sequence([normalizers.NFKD()]), unk_token="a", fuse_unk=True)
    t.add_special_tokens(["<|bos|>", "<|eos|>"])
    t.add_tokens([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=False),
                  AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word", single_word=True),
                  AddedToken("caf\u00e9", normalized=True), "long", "longer", "\u212bngstrom"])
    template(t, "<|bos|> $A <|eos|>")
    return t


def expressions():
    """Expressions without a scanner, a literal, and parts that are removed."""
    t = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split("--", "removed"), split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        pre_tokenizers.Split(Regex(LETTERS + r"|\s+(?!\S)|\s+|[^\s\p{L}]+"), "removed", invert=True), byte_level(regex=False)]))
    t.add_special_tokens(["<|eos|>"])
    return t


def main():
    texts = TEXTS + random_texts()
    with open("texts.json", "w") as f:
        json.dump(texts, f, separators=(",\n", ":"))
    for make in (gpt2, llama3, qwen2, smollm2, prefix, expressions):
        t = make()
        name = make.__name__
        spec = json.loads(t.to_str())
        if make is llama3:  # as files before tokenizers 0.20 have it
            spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
            t = Tokenizer.from_str(json.dumps(spec))
        with open(name + ".json", "w") as f:
            json.dump(spec, f, separators=(",", ":"))
        ids = [t.encode(s, add_special_tokens=False).ids for s in texts]
        with open(name + ".ids.json", "w") as f:
            json.dump({
                "tokenizers": tokenizers.__version__,
                "ids": ids,
                "with_special": [t.encode(s, add_special_tokens=True).ids for s in texts],
                "decoded": [t.decode(i, skip_special_tokens=True) for i in ids],
            }, f, separators=(",", ":"))


main()
