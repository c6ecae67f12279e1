"""Write small Parquet files with columns of every Arrow type, and tool data as today's writers have them.

    pip install pyarrow==26.0.1 datasets==5.2.0 duckdb==2.0.1
    python make_types.py

types.parquet has a row of values and a row of nulls; TestTypes says what each column must be. The others have the rows of the JSON lines
beside them, which the writers have read by themselves.
"""

import datetime
import decimal
import json
import pathlib
import uuid

import datasets
import duckdb
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

assert (pa.__version__, datasets.__version__, duckdb.__version__) == ("26.0.1", "5.2.0", "2.0.1")
HERE = pathlib.Path(__file__).resolve().parent

MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5)
TYPES = [
    ("string", pa.string(), "a"), ("large_string", pa.large_string(), "a"), ("string_view", pa.string_view(), "a"), ("binary", pa.binary(), b"a"),
    ("large_binary", pa.large_binary(), b"a"), ("dictionary", pa.dictionary(pa.int8(), pa.string()), "a"), ("json", pa.json_(), '{"a": [1, "b"]}'),
    ("bool", pa.bool_(), True), ("int8", pa.int8(), -1), ("int16", pa.int16(), -2), ("int32", pa.int32(), -3), ("int64", pa.int64(), -4),
    ("uint8", pa.uint8(), 255), ("uint16", pa.uint16(), 65535), ("uint32", pa.uint32(), 2**32 - 1), ("uint64", pa.uint64(), 2**64 - 1),
    ("float32", pa.float32(), 0.5), ("float64", pa.float64(), 0.1), ("null", pa.null(), None), ("list", pa.list_(pa.string()), ["a", None]),
    ("fixed_list", pa.list_(pa.int8(), 2), [1, 2]), ("struct", pa.struct([("a", pa.int8()), ("b", pa.string())]), {"a": 1, "b": None}),
    ("map", pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", None)]), ("map_of_lists", pa.map_(pa.string(), pa.list_(pa.string())), [("a", ["b"]), ("c", [])]),
    ("map_of_maps", pa.map_(pa.string(), pa.map_(pa.string(), pa.string())), [("a", [("b", "c")]), ("d", [])]), ("empty_map", pa.map_(pa.string(), pa.string()), []),
    ("map_of_numbers", pa.map_(pa.int8(), pa.string()), [(1, "a")]), ("map_of_dates", pa.map_(pa.string(), pa.date32()), [("a", MOMENT.date())]),
    ("float16", pa.float16(), 0.5), ("fixed", pa.binary(3), b"abc"), ("decimal32", pa.decimal128(9, 2), decimal.Decimal("0.65")),
    ("decimal256", pa.decimal256(60, 2), decimal.Decimal("0.65")), ("date32", pa.date32(), MOMENT.date()), ("date64", pa.date64(), MOMENT.date()),
    ("time32", pa.time32("ms"), MOMENT.time()), ("time64", pa.time64("us"), MOMENT.time()), ("timestamp_s", pa.timestamp("s"), MOMENT),
    ("timestamp_us", pa.timestamp("us", "UTC"), MOMENT), ("timestamp_ns", pa.timestamp("ns"), MOMENT), ("uuid", pa.uuid(), uuid.UUID(int=7).bytes),
    ("list_of_dates", pa.list_(pa.date32()), [MOMENT.date()]), ("struct_of_dates", pa.struct([("day", pa.date32())]), {"day": MOMENT.date()})]


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": parameters}}}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def chat(*messages):
    return [{"role": role, **fields} for role, fields in messages]


def write_rows(name, rows):
    (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main():
    columns = {name: pa.array([value, None], type) for name, type, value in TYPES}
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False, "store_schema": False}
    pq.write_table(pa.table(columns), HERE / "types.parquet", **options)
    pq.write_table(pa.table({"int96": columns["timestamp_s"]}), HERE / "types_int96.parquet", use_deprecated_int96_timestamps=True, **options)

    # Objects that differ from row to row, which datasets stores as JSON by itself: in the tools, and in the messages.
    plain = chat(("user", {"content": "a"}), ("assistant", {"content": "b"}))
    rows = [{"messages": plain, "tools": [tool("w", {"c": {"type": "string"}})]}, {"messages": plain, "tools": [tool("z", {"n": {"type": "integer"}})]}]
    write_rows("json_tools", rows)
    datasets.load_dataset("json", data_files=str(HERE / "json_tools.jsonl"), split="train").to_parquet(HERE / "json_tools.parquet")
    rows = [{"messages": chat(("user", {"content": "a"}), ("assistant", {"content": "b", "reasoning_content": "c"}))},
            {"messages": chat(("user", {"content": "a"}), ("assistant", {"content": "", "tool_calls": [call("w", {"c": "x"})]}), ("tool", {"content": "1"}),
                              ("assistant", {"content": "", "tool_calls": [call("z", {"n": 3, "when": "2024-01-02"})]}))}]
    write_rows("json_messages", rows)
    datasets.Dataset.from_list(rows, on_mixed_types="use_json").to_parquet(HERE / "json_messages.parquet")

    # A text that looks like a date becomes one.
    row = {"messages": chat(("user", {"content": "flights?"}), ("assistant", {"content": "", "tool_calls": [call("flights", {"date": "2024-01-02", "seats": 2})]}))}
    write_rows("dates", [row])
    pq.write_table(pyarrow.json.read_json(HERE / "dates.jsonl"), HERE / "dates_pyarrow.parquet", compression="zstd", store_schema=False)
    duckdb.sql(f"copy (select * from read_json_auto('{HERE}/dates.jsonl')) to '{HERE}/dates_duckdb.parquet' (codec 'zstd')")
    (HERE / "dates.jsonl").unlink()


main()
