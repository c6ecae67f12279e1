"""Write what the `tokenizers` package makes of many strings, for reference_test.go to compare with.

    python reference.py VOCABULARIES OUT [DATA]

VOCABULARIES has a directory for each tokenizer with its tokenizer.json. For each of them OUT/NAME.ref is written: the
strings below, those made of the tokenizer's own added tokens, and every line of the files in DATA. A record is

    text, ids, ids with special tokens, text decoded from the ids without special tokens, and with them

Numbers are uint32, little-endian; texts are bytes and ids are numbers, each after its count. A text that is not UTF-8
goes into the package as bytes.decode("utf-8", "replace") reads it.
"""

import pathlib
import random
import struct
import sys
import unicodedata

import tokenizers

BLOCKS = [  # first and last character of a piece of each script
    (0x20, 0x7E), (0xA0, 0x17F), (0x1E00, 0x1EFF), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58A), (0x591, 0x5F4), (0x600, 0x6FF),
    (0x900, 0x97F), (0x980, 0x9FE), (0xA01, 0xA76), (0xB82, 0xBFA), (0xC00, 0xC7F), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFDA),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C), (0x13A0, 0x13FD), (0x1780, 0x17F9), (0x1800, 0x1878),
    (0x2000, 0x206F), (0x2070, 0x209C), (0x2100, 0x218B), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x3000, 0x303F),
    (0x3041, 0x30FF), (0x3105, 0x312F), (0x3200, 0x33FF), (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xAC00, 0xD7A3), (0xF900, 0xFAD9),
    (0xFB00, 0xFDFF), (0xFE00, 0xFE0F), (0xFF01, 0xFFEE), (0x10000, 0x1005D), (0x10330, 0x1034A), (0x12000, 0x12399), (0x1D400, 0x1D7FF),
    (0x1F100, 0x1F1FF), (0x1F300, 0x1F64F), (0x1F680, 0x1F9FF), (0x20000, 0x2A6DF), (0xE0001, 0xE007F), (0xE000, 0xE0FF),
]
EMOJI = ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1e9\U0001f1ea",
         "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f937\U0001f3ff\u200d\u2642\ufe0f", "\u263a"]
SPACES = [" ", "  ", "    ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", "\u00a0", "\u3000", "\u2028", "\u2003", "\u0085", "\x0b", "\x0c", "\u200b",
          "\ufeff", "\u1680", "\u202f", "\u205f", "\x1c", "\x1d", "\x1e", "\x1f", "\u2581", "\u180e"]
WORDS = ["the", "Hello", "world", "don't", "I'LL", "we'Ve", "it\u2019s", "HTTPServer", "camelCase", "snake_case", "x", "123", "1234567", "3.14",
         "\u00e9t\u00e9", "na\u00efve", "e\u0301", "\u1e9b\u0323", "stra\u00dfe", "\u0130I", "\u4f60\u597d", "\u3053\u3093", "\uc548\ub155", "\u0633\u0644\u0627\u0645",
         "\u0e2a\u0e27\u0e31\u0e2a", "\u0928\u092e\u0938\u094d\u0924\u0947", "()", "{}", "=>", "!=", "//", "/*", "*/", "...", "\u2026", "\u2014", "#", "$5", "\u20ac",
         "'s", "'S", "'\u017f", "'", '"', "\\n", "/", "/\n", "!/\r\n", "<0x41>", "<0xE2>", "<", ">", "\u2581", "\u0120", "\u010a", "\ufb01", "\u212b", "\u00bd",
         "\u0663", "\u2167", "\u01c5", "\u02b0", "\u0301"]


def code(rng, sources):
    text = rng.choice(sources)
    start = rng.randrange(len(text))
    return text[start:start + rng.choice([20, 80, 300, 1500])]


def script(rng):
    low, high = rng.choice(BLOCKS)
    out = []
    for _ in range(rng.randint(1, 8)):
        out.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 10))))
    return rng.choice([" ", "", "\n", "  "]).join(out)


def any_character(rng):
    while True:
        c = chr(rng.randint(0, 0x10FFFF) if rng.random() < 0.5 else rng.randint(0, 0xFFFF))
        if unicodedata.category(c) not in ("Cs", "Cn"):
            return c


def malformed(rng, sources):
    kind = rng.randrange(3)
    if kind == 0:
        return bytes(rng.randrange(256) for _ in range(rng.randint(1, 40)))
    b = bytearray((script(rng) if kind == 1 else code(rng, sources)).encode())[:200]
    for _ in range(rng.randint(1, 4)):
        i = rng.randrange(len(b))
        if rng.random() < 0.5:
            b[i] = rng.randrange(256)
        else:
            del b[i]
        if not b:
            return b"\xff"
    return bytes(b)


def mixed(rng, pieces):
    return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 30)))


def strings(rng, sources, added):
    """At least 10,000 strings; the kinds take turns."""
    yield from ("", " ", "a", "\n", "\u2581", "a" * 3000, "ab" * 1500, " " * 3000, "\u4f60" * 1500, "<" * 1000, "\n" * 1000, "a b " * 800)
    for _ in range(1300):
        yield code(rng, sources)
        yield script(rng)
        yield "".join(any_character(rng) for _ in range(rng.randint(1, 30)))
        yield mixed(rng, EMOJI + SPACES[:3] + WORDS[:4])
        yield malformed(rng, sources)
        yield mixed(rng, SPACES + SPACES + WORDS)
        yield mixed(rng, added + SPACES[:8] + WORDS[:20])
        yield mixed(rng, WORDS + [" "] * 20)


def record(text, ids, special, bare, full):
    parts = []
    for value in (text, ids, special, bare, full):
        if isinstance(value, bytes):
            parts.append(struct.pack("<I", len(value)) + value)
        else:
            parts.append(struct.pack(f"<I{len(value)}I", len(value), *value))
    return b"".join(parts)


def main():
    vocabularies, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    here = pathlib.Path(__file__).resolve().parent
    sources = [p.read_text(encoding="utf-8") for p in sorted(here.glob("*.go")) + sorted(pathlib.Path(random.__file__).parent.glob("[a-d]*.py"))]
    sources = [s for s in sources if s]
    lines = []
    for data in sys.argv[3:]:
        for path in sorted(p for p in pathlib.Path(data).rglob("*") if p.is_file()):
            lines += path.read_bytes().splitlines(keepends=True)
    for directory in sorted(p.parent for p in vocabularies.glob("*/tokenizer.json")):
        tok = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        tok.no_truncation()
        tok.no_padding()
        added = [t.content for t in tok.get_added_tokens_decoder().values()]
        added = added[:40] + random.Random(2).sample(added, min(40, len(added)))
        texts = [t if isinstance(t, bytes) else t.encode() for t in strings(random.Random(1), sources, added)]
        made = len(texts)
        texts += lines
        with open(out / (directory.name + ".ref"), "wb") as f:
            f.write(struct.pack("<I", len(texts)))
            for i in range(0, len(texts), 1000):
                chunk = texts[i:i + 1000]
                read = [t.decode("utf-8", "replace") for t in chunk]
                ids = [e.ids for e in tok.encode_batch(read, add_special_tokens=False)]
                special = [e.ids for e in tok.encode_batch(read, add_special_tokens=True)]
                bare = tok.decode_batch(ids, skip_special_tokens=True)
                full = tok.decode_batch(ids, skip_special_tokens=False)
                for r in zip(chunk, ids, special, bare, full):
                    f.write(record(r[0], r[1], r[2], r[3].encode(), r[4].encode()))
        print(f"{directory.name}: {made} strings and {len(lines)} lines, tokenizers {tokenizers.__version__}", flush=True)


main()
