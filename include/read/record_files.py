"""Files of records, read in order as arrays of payloads: the bytes of a line, or the JSON of a row.

Rows that are as their file's format has them do not pass through Python.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from include.ground.settings import Settings
from include.ground.sql_quoting import sql_literal
from include.read.memory_database import memory_database
from include.read.record_stores import READ_BYTES, FoundFile, opened, opened_anywhere, read_errors

Payloads = Iterator[pa.Array]


def payloads(settings: Settings, address: str, form: str, literals: Sequence[str] = ()) -> Payloads:
    """Yield the payloads of a file in order; `form` is one of FORMS. Raises `files-unreadable`, `file-malformed`.

    `literals`: columns of a text format whose values are numbers or truth values.
    """
    with read_errors(address):
        yield from FORMS[form](settings, address, literals)


def estimated_rows(settings: Settings, files: Sequence[FoundFile], form: str) -> int:
    """Return about how many records these files have, by the beginning of the first one. Raises `files-unreadable`."""
    first = next((file for file in files if file.size), None)
    if first is None:
        return 0
    share = sum(file.size for file in files) / first.size
    if form in COUNTED:
        with read_errors(first.address):
            return round(COUNTED[form](settings, first.address) * share)
    with read_errors(first.address), opened(settings, first.address, None) as stream:
        head = stream.read(SAMPLE_BYTES)
    return round(_rows_in_text(head, _compression(first.address)) * sum(file.size for file in files) / len(head))


def _rows_in_text(head: bytes, compression: str | None) -> int:
    """Return the lines in the beginning of a file."""
    if compression is None:
        return head.count(b"\n") or 1
    rows, stream = 0, pa.CompressedInputStream(pa.BufferReader(head), compression)
    # The beginning of a compressed file ends in the middle.
    with suppress(OSError, pa.ArrowInvalid):
        while block := stream.read(1 << 16):
            rows += block.count(b"\n")
    return rows or 1


SAMPLE_BYTES = 1 << 20


def _parquet_rows(settings: Settings, address: str) -> int:
    with opened_anywhere(settings, address) as source:
        return int(pq.ParquetFile(source).metadata.num_rows)


COUNTED: Mapping[str, Callable[[Settings, str], int]] = {
    "parquet": _parquet_rows,
    "avro": lambda settings, address: int(_avro_rows(settings, address).num_rows),
}
"""Formats whose files say how many rows they have."""


def form_of(address: str) -> str:
    """Return the format that a file's name tells, "" for none."""
    name = address.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return ENDINGS.get(name.rpartition("/")[2].rpartition(".")[2], "")


COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
LINES = ("jsonl", "ndjson", "json", "txt", "log")
ENDINGS: Mapping[str, str] = {**dict.fromkeys(LINES, "jsonl"), "csv": "csv", "parquet": "parquet", "avro": "avro"}


def _compression(address: str) -> str | None:
    return next((kind for ending, kind in COMPRESSIONS.items() if address.lower().endswith(ending)), None)


def _lines(settings: Settings, address: str, _literals: Sequence[str]) -> Payloads:
    """Yield the lines of a file, as bytes; empty ones are no records."""
    with opened(settings, address, _compression(address)) as stream:
        rest = stream.read(READ_BYTES).removeprefix(BYTE_ORDER_MARK)
        while block := stream.read(READ_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield lines_of(whole + newline)
        if rest:
            yield lines_of(rest + b"\n")


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE = ord("\n")


def lines_of(text: bytes) -> pa.Array:
    """Return the lines of a text that ends with a line feed, without their ends and without empty lines."""
    # bytes.replace copies what lies between at once: a mask of the bytes takes five times as long.
    text = text.replace(b"\r\n", b"\n")
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
    offsets = np.concatenate(([0], ends - np.arange(len(ends))))
    filled = np.concatenate(([True], np.diff(offsets) > 0))
    buffers = [None, pa.py_buffer(offsets[filled].astype(np.int32)), pa.py_buffer(text.replace(b"\n", b""))]
    return pa.Array.from_buffers(pa.binary(), int(filled.sum()) - 1, buffers)


@dataclass
class _OddRows:
    """Rows of a CSV file with more or fewer values than the header: their numbers, and their texts as JSON strings."""

    numbers: list[int] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    returned: int = 0

    def __call__(self, row: csv.InvalidRow) -> str:
        """Take a row that pyarrow's reader found."""
        self.numbers.append(row.number)
        self.texts.append(json.dumps(row.text, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        return "skip"

    def among(self, rows: pa.Array) -> pa.Array:
        """Return the rows that were read next, with the odd ones between them where the file has them."""
        within = self.returned + len(rows)
        count = next((n for n, number in enumerate(self.numbers) if number - n > within + 1), len(self.numbers))
        self.returned = within + count
        if not count:
            return rows
        places = np.array(self.numbers[:count], np.int64) - (within - len(rows)) - 1 - np.arange(count)
        order = np.insert(np.arange(len(rows)), places, len(rows) + np.arange(count))
        found = pa.concat_arrays([rows, pa.array(self.texts[:count], pa.binary())])
        del self.numbers[:count], self.texts[:count]
        return found.take(pa.array(order))


def _csv_rows(stream: Any, names: Sequence[str], odd: _OddRows, encoding: str) -> Any:
    """Return batches of the rows below the header, as texts; those that have not its columns are given to `odd`."""
    # With threads the numbers of rows are not known.
    reading = csv.ReadOptions(use_threads=False, block_size=READ_BYTES, column_names=names, encoding=encoding)
    values = csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parsing = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=odd)
    try:
        return csv.open_csv(stream, reading, parsing, values)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return ()
        raise


def _csv(settings: Settings, address: str, literals: Sequence[str]) -> Payloads:
    """Yield the rows of a CSV file with a header as JSON; an empty value without quotation marks is left out.

    A row that has not as many values as the header is a JSON string, which the contract rejects.
    """
    returned = 0
    try:
        for rows in _unreported(_csv_in(settings, address, literals, "utf8")):
            yield rows
            returned += len(rows)
    except pa.ArrowInvalid:
        # pyarrow gives no such row that is no UTF-8 either. In Latin-1 each byte is a character, which is a byte again.
        for rows in _csv_in(settings, address, literals, "latin1"):
            fresh = rows[min(returned, len(rows)) :]
            returned -= len(rows) - len(fresh)
            yield pa.array([text.decode().encode("latin1") for text in fresh.to_pylist()], pa.binary())


def _unreported(rows: Payloads) -> Payloads:
    """Yield the rows. Python prints no UnicodeDecodeError meanwhile: nobody can catch it, and pyarrow goes on."""
    while True:
        with _silent(UnicodeDecodeError):
            each = next(rows, None)
        if each is None:
            return
        yield each


@contextmanager
def _silent(kind: type[Exception]) -> Iterator[None]:
    hook = sys.unraisablehook
    sys.unraisablehook = lambda found: None if issubclass(found.exc_type, kind) else hook(found)
    try:
        yield
    finally:
        sys.unraisablehook = hook


def _csv_in(settings: Settings, address: str, literals: Sequence[str], encoding: str) -> Payloads:
    with opened(settings, address, _compression(address)) as stream:
        first = bytearray()
        while not first.endswith(b"\n") and (byte := stream.read(1)):
            first += byte
        if not first:
            return
        names = _header(bytes(first))
        odd = _OddRows()
        texts = _csv_rows(stream, names, odd, encoding)
        for rows in _json_rows(texts, literals):
            yield odd.among(rows)
        yield odd.among(pa.array([], pa.binary()))


def _header(line: bytes) -> list[str]:
    """Return the names in the first line of a CSV file. Raises ArrowInvalid."""
    text = line.rstrip(b"\r\n")
    if b"\r" in text:
        raise pa.ArrowInvalid("a line ends in a carriage return alone")
    names = [str(name) for name in csv.read_csv(pa.BufferReader(text + b"\n")).column_names]
    _refuse_repeated(names)
    return names


def _refuse_repeated(names: Sequence[str]) -> None:
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise pa.ArrowInvalid(f"two columns are named {repeated[0]!r}")


def _parquet(settings: Settings, address: str, _literals: Sequence[str]) -> Payloads:
    """Yield the rows of a Parquet file as JSON."""
    with opened_anywhere(settings, address) as source:
        yield from _json_rows(pq.ParquetFile(source).iter_batches(ROWS_AT_A_TIME), ())


def _avro(settings: Settings, address: str, _literals: Sequence[str]) -> Payloads:
    """Yield the rows of an Avro file as JSON; the whole file is in memory."""
    yield from _json_rows(_avro_rows(settings, address).to_batches(ROWS_AT_A_TIME), ())


def _avro_rows(settings: Settings, address: str) -> pa.Table:
    import polars as pl

    with opened(settings, address, None) as stream:
        return pl.read_avro(BytesIO(stream.read())).to_arrow()


ROWS_AT_A_TIME = 50_000
# DuckDB writes nothing for bytes that are no UTF-8: with the bytes as they are, the contract rejects the record.
TEXT = "coalesce(nullif(to_json({0})::varchar, ''), '\"' || {0} || '\"')"
LITERAL = (
    r"case when regexp_full_match({0}, '-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false') then {0}"
    f" else {TEXT} end"
)
"""A text that is JSON as it stands; any other one becomes a string, which the contract judges."""


def _json_rows(batches: Iterable[pa.RecordBatch], literals: Container[str]) -> Payloads:
    """Yield rows as JSON objects with the columns' names, without those that are null. DuckDB makes the text.

    `literals`: columns of texts that are JSON as they stand. Raises ArrowInvalid.
    """
    with memory_database() as database:
        for batch in batches:
            _refuse_repeated(batch.schema.names)
            # For DuckDB a and A are one name.
            rows = pa.table({f"c{n}": _plain(column) for n, column in enumerate(batch.columns)})
            columns = zip(batch.schema.names, rows.schema, strict=True)
            members = (
                _member(name, LITERAL if name in literals else field.type, field.name) for name, field in columns
            )
            database.register("given", rows)
            sql = f"select '{{' || concat_ws(',', {', '.join(members)}) || '}}' as payload from given"
            made = database.sql(sql).to_arrow_table()["payload"]
            yield from made.cast(pa.binary()).chunks


def _plain(column: pa.Array) -> pa.Array:
    """Return the values of a dictionary; DuckDB would write its indexes."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _member(name: str, kind: pa.DataType | str, value: str) -> str:
    """Return SQL for a member of an object, null for a null value; `kind` may be SQL that writes the value."""
    written = kind.format(value) if isinstance(kind, str) else _json_sql(kind, value)
    return f"{_key(name)} || {written}"


def _json_sql(kind: pa.DataType, value: str, depth: int = 0) -> str:
    """Return SQL that writes a value of a type as JSON, null for null; numbers keep all their digits."""
    if pa.types.is_struct(kind):
        fields = ((each.name, f"struct_extract({value}, {sql_literal(each.name)})", each.type) for each in kind)
        members = (f"{_key(name)} || {_inner(inner, field, depth)}" for name, field, inner in fields)
        return _enclosed(value, "{", " || ',' || ".join(members), "}")
    element = f"v{depth}"
    if pa.types.is_map(kind):
        pair = f"to_json({element}.key::varchar)::varchar || ':' || {_inner(kind.item_type, element + '.value', depth)}"
        return _enclosed(value, "{", _listed(f"map_entries({value})", element, pair), "}")
    if any(is_list(kind) for is_list in LISTS):
        return _enclosed(value, "[", _listed(value, element, _inner(kind.value_type, element, depth)), "]")
    written = next((sql for is_kind, sql in TOKENS if is_kind(kind)), "to_json({0})::varchar")
    return written.format(value)


def _key(name: str) -> str:
    return sql_literal(json.dumps(name) + ":")


def _inner(kind: pa.DataType, value: str, depth: int) -> str:
    """Return SQL for a value inside a row: there nulls are written."""
    return f"coalesce({_json_sql(kind, value, depth + 1)}, 'null')"


def _listed(values: str, element: str, written: str) -> str:
    return f"coalesce(array_to_string(list_transform({values}, lambda {element}: {written}), ','), '')"


def _enclosed(value: str, begin: str, inside: str, end: str) -> str:
    return f"case when {value} is not null then '{begin}' || {inside} || '{end}' end"


LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
AT = "'\"%Y-%m-%dT%H:%M:%S.%fZ\"'"
BASE64 = "'\"' || to_base64({0}) || '\"'"
TOKENS: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (pa.types.is_integer, "{0}::varchar"),
    (pa.types.is_decimal, "{0}::varchar"),
    (pa.types.is_floating, "case when isfinite({0}) then {0}::varchar else to_json({0}::varchar)::varchar end"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, f"strftime(timezone('UTC', {{0}}), {AT})"),
    (pa.types.is_timestamp, f"strftime({{0}}::timestamp, {AT})"),
    (pa.types.is_binary, BASE64),
    (pa.types.is_large_binary, BASE64),
    (pa.types.is_fixed_size_binary, BASE64),
    (pa.types.is_string, TEXT),
    (pa.types.is_large_string, TEXT),
    (pa.types.is_string_view, TEXT),
)

FORMS: Mapping[str, Callable[[Settings, str, Sequence[str]], Payloads]] = {
    "jsonl": _lines,
    "csv": _csv,
    "parquet": _parquet,
    "avro": _avro,
}
"""How the payloads of a file are read, by the name of its format."""
