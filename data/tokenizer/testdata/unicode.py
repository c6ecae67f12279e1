"""Write ../unicode.tab: what the parts of `tokenizers` take each character for.

    pip install tokenizers==0.22.2
    python unicode.py

The library uses several Unicode tables of different ages: those of its regular expressions, of Rust's standard library, and of
crates that have not changed for years. So the properties are measured, not copied: each is asked of the library itself.

The file is a count of property sets, those sets as uint32 (little-endian), and then runs of characters from U+0000 on: the run's
length as a varint and the number of its set as a byte. Bits 0-3 of a set are the category, the others are flags; unicode.go names them.
"""

import struct

import tokenizers
from tokenizers import Regex, pre_tokenizers

assert tokenizers.__version__ == "0.22.2", tokenizers.__version__

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "P", "S"]  # from 1; 0 is any other
SPACE, WORD, RUST_WORD, PUNCTUATION, HAN = (1 << i for i in range(4, 9))

characters = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
text = "".join(map(chr, characters))


def mark(sets, pre_tokenizer, value):
    """Adds value to the characters in what the pre-tokenizer leaves of the text."""
    for _, (start, end) in pre_tokenizer.pre_tokenize_str(text):
        for i in range(start, end):
            sets[i] |= value


def matches(expression):
    return pre_tokenizers.Split(Regex(expression), "removed", invert=True)


def main():
    sets = [0] * len(characters)
    for i, category in enumerate(CATEGORIES):
        mark(sets, matches(rf"\p{{{category}}}+"), i + 1)
    mark(sets, matches(r"\s+"), SPACE)
    mark(sets, matches(r"\w+"), WORD)
    mark(sets, matches(r"\p{Han}+"), HAN)
    rust_word, unpunctuated = [0] * len(characters), [0] * len(characters)
    whitespace = pre_tokenizers.Whitespace()
    mark(unpunctuated, pre_tokenizers.Punctuation("removed"), 1)
    for i, c in enumerate(text):
        words = whitespace.pre_tokenize_str("a" + c)
        if len(words) == 1 and words[0][0] != "a":
            sets[i] |= RUST_WORD
        if not unpunctuated[i]:
            sets[i] |= PUNCTUATION
    distinct = sorted(set(sets))
    number = {s: i for i, s in enumerate(distinct)}
    out = bytearray(struct.pack(f"<B{len(distinct)}I", len(distinct), *distinct))
    by_character = dict(zip(characters, sets))
    runs = []
    for c in range(0x110000):
        s = number[by_character.get(c, 0)]
        if runs and runs[-1][1] == s:
            runs[-1][0] += 1
        else:
            runs.append([1, s])
    for length, s in runs:
        while length >= 0x80:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        out += bytes([length, s])
    with open("../unicode.tab", "wb") as f:
        f.write(out)
    print(len(out), "bytes,", len(distinct), "sets,", len(runs), "runs")


main()
