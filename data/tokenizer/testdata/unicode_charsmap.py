"""Builds the double-array trie of SentencePiece's Precompiled normalizer from a few rules."""

import struct


def charsmap(rules):
    """Each key becomes its value. Nodes take one block of 256 units each, which wastes space but needs no search."""
    texts, places = b"", {}
    for key, value in rules.items():
        places[key.encode()] = len(texts)
        texts += value.encode() + b"\0"
    nodes = {b""}
    for key in places:
        nodes |= {key[:i] for i in range(1, len(key) + 1)}
    order = sorted(nodes)
    block = {node: 256 * (i + 1) for i, node in enumerate(order)}  # where the children of a node are, by their byte
    units = [0] * (256 * (len(order) + 1))
    units[0] = block[b""] << 10
    for node in order[1:]:
        at = block[node[:-1]] ^ node[-1]
        units[at] = (at ^ block[node]) << 10 | node[-1]
        if node in places:
            units[at] |= 1 << 8
            units[block[node]] = 1 << 31 | places[node]
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts
