"""Write small Parquet files as data sets have them, with every row as JSON beside them.

    pip install pyarrow==22.0.0 polars==2.1.0 duckdb==2.0.0 fastparquet==2026.9.0
    python make.py

Writes NAME.parquet and NAME.jsonl, in which is what pyarrow reads, whoever wrote the file. In the JSON, fields that are null are left
out of objects.
"""

import json
import math
import pathlib
import random

import duckdb
import fastparquet
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq

assert (polars.__version__, duckdb.__version__, fastparquet.__version__) == ("2.1.0", "2.0.0", "2026.9.0")
assert pa.__version__ == "22.0.0", pa.__version__
HERE = pathlib.Path(__file__).resolve().parent

CALL = pa.struct([("id", pa.string()), ("function", pa.struct([("name", pa.string()), ("arguments", pa.large_string())]))])
MESSAGE = pa.struct([("role", pa.dictionary(pa.int32(), pa.string())), ("content", pa.string()), ("tool_calls", pa.list_(CALL)), ("weight", pa.int8())])
CHAT = pa.schema([
    ("id", pa.int64()), ("messages", pa.list_(MESSAGE)), ("tools", pa.large_string()), ("scores", pa.large_list(pa.list_(pa.float64()))),
    ("source", pa.dictionary(pa.int8(), pa.string()))])
FLAT = pa.schema([
    pa.field("text", pa.string(), nullable=False), ("prompt", pa.large_string()), ("ok", pa.bool_()), ("i8", pa.int8()), ("u8", pa.uint8()),
    ("u32", pa.uint32()), ("u64", pa.uint64()), ("i32", pa.int32()), ("i64", pa.int64()), ("f32", pa.float32()), ("f64", pa.float64()),
    ("bytes", pa.binary())])
EMPTY = pa.schema([("text", pa.string()), ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))])


def plain(value, in_list=False):
    """The value as the reader writes it."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write(name, rows, schema, **options):
    pq.write_table(pa.Table.from_pylist(rows, schema), HERE / f"{name}.parquet", store_schema=False, **options)
    write_rows(name)


def write_rows(name):
    with open(HERE / f"{name}.jsonl", "w", encoding="utf-8") as f:
        for row in pq.read_table(HERE / f"{name}.parquet").to_pylist():
            f.write(json.dumps(plain(row), ensure_ascii=False) + "\n")


def chats(rng, n):
    def maybe(value, p=0.3):
        return None if rng.random() < p else value

    def words():
        return " ".join(rng.choice(["the", "Wheel", "\u6c34\u8eca", "\U0001f30a", "\"quoted\"", "line\nbreak", "\\", "\x01", ""]) for _ in range(rng.randint(0, 5)))

    def call():
        return {"id": maybe(f"call_{rng.randint(0, 99)}"), "function": maybe({"name": rng.choice("fgh"), "arguments": maybe(json.dumps({"x": words()}))})}

    def message():
        return {"role": rng.choice(["user", "assistant", "tool"]), "content": maybe(words()), "weight": maybe(rng.randint(0, 1)),
                "tool_calls": maybe([maybe(call(), 0.1) for _ in range(rng.randint(0, 3))], 0.6)}

    return [{"id": i, "messages": maybe([maybe(message(), 0.05) for _ in range(rng.randint(0, 5))], 0.1), "tools": maybe("[]"),
             "scores": maybe([maybe([maybe(rng.random()) for _ in range(rng.randint(0, 3))]) for _ in range(rng.randint(0, 3))]),
             "source": maybe(rng.choice(["web", "book"]))} for i in range(n)]


def flat(rng, n):
    rows = []
    for i in range(n):
        row = {"text": f"document {i} " + "word " * rng.randint(0, 5), "prompt": "What is %d?" % (i // 3), "ok": i % 3 == 0, "i8": -i % 128, "u8": 255 - i,
               "u32": 2**32 - 1 - i, "u64": 2**64 - 1 - i, "i32": -2**31 + i * 1000, "i64": 2**63 - 1 - i**9, "f32": i / 4, "f64": math.pi * 10.0**(i - 20),
               "bytes": b"b" * (i % 7)}
        rows.append({k: v if k == "text" or rng.random() < 0.8 else None for k, v in row.items()})
    rows[3]["f64"], rows[4]["f32"] = math.nan, math.inf
    return rows


def main():
    rng = random.Random(1)
    # Rows that go over many pages and row groups, with checksums.
    write("chat_snappy", chats(rng, 18), CHAT, row_group_size=8, data_page_size=64, write_batch_size=4, compression="snappy", write_page_checksum=True)
    write("chat_zstd_v2", chats(rng, 25), CHAT, data_page_version="2.0", compression="zstd", data_page_size=128, write_batch_size=4)
    write("chat_gzip", chats(rng, 12), CHAT, compression="gzip", use_dictionary=False)
    write("flat_none", flat(rng, 40), FLAT, compression="none", use_dictionary=["prompt", "i32", "f64"])
    write("flat_lz4", flat(rng, 20), FLAT, compression="lz4")
    write("flat_delta", flat(rng, 40), FLAT, compression="zstd", use_dictionary=False, data_page_version="2.0", column_encoding={
        "text": "DELTA_BYTE_ARRAY", "prompt": "DELTA_LENGTH_BYTE_ARRAY", "bytes": "DELTA_BYTE_ARRAY", "i32": "DELTA_BINARY_PACKED", "i64": "DELTA_BINARY_PACKED",
        "u64": "DELTA_BINARY_PACKED", "f32": "BYTE_STREAM_SPLIT", "f64": "BYTE_STREAM_SPLIT", "u32": "BYTE_STREAM_SPLIT", "ok": "RLE"})
    write("long_delta", [{"n": i * i % 1000 - 500 * (i % 2), "text": f"{i // 7:05d}"} for i in range(700)], pa.schema([("n", pa.int64()), ("text", pa.string())]),
          compression="zstd", use_dictionary=False, column_encoding={"n": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"})
    write("nulls", [{"text": None, "list": None}] * 50, pa.schema([("text", pa.string()), ("list", pa.list_(pa.string()))]), compression="snappy")
    plain_schema = pa.schema([(f.name, f.type) for f in CHAT if f.name not in ("messages", "source")] + [("messages", pa.list_(pa.struct(
        [("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(CALL))])))])
    table = pa.Table.from_pylist(chats(rng, 12), plain_schema)
    polars.from_arrow(table).write_parquet(HERE / "other_polars.parquet", compression="snappy", row_group_size=5)
    write_rows("other_polars")
    db = duckdb.connect()
    db.register("chats", table)
    db.execute(f"copy chats to '{HERE}/other_duckdb.parquet' (format parquet, parquet_version v2, codec 'zstd')")
    write_rows("other_duckdb")
    rows = [{k: row[k] for k in ("text", "prompt", "ok", "i32", "f64")} for row in flat(rng, 20)]
    fastparquet.write(str(HERE / "other_fastparquet.parquet"), pandas.DataFrame(rows, dtype=object), compression="GZIP", object_encoding={
        "text": "utf8", "prompt": "utf8", "ok": "bool", "i32": "int32", "f64": "float"}, row_group_offsets=7)
    write_rows("other_fastparquet")
    # Empty shards: of pyarrow, with and without a dictionary (it writes no data page, but a place for one), and of Polars, without a row group.
    write("empty_pyarrow", [], EMPTY)
    write("empty_pyarrow_v2", [], EMPTY, use_dictionary=False, data_page_version="2.0", compression="brotli")
    polars.DataFrame({"text": []}, schema={"text": polars.String}).write_parquet(HERE / "empty_polars.parquet")
    write_rows("empty_polars")
    write("flat_brotli", flat(random.Random(2), 20), FLAT, compression="brotli")


main()
