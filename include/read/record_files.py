"""Files of records, on this machine or in a store: found by a pattern, read in order as arrays of payloads.

No row passes through Python. A payload is the bytes of a line, or the JSON of a row.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, fs

from include.ground.errors import Refused, Transient
from include.ground.object_store import DEFAULT_REGION
from include.ground.settings import Settings, read_password
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.read.memory_database import memory_database

READ_BYTES = 8 << 20
"""Bytes that are read, and lines that are found, at a time."""
WILD = re.compile(r"[*?\[]")
REMOTE = re.compile(r"[a-z][a-z0-9]+://")


def file_changed(address: str, how: str) -> Refused:
    """Return that a file is not the one that was planned; `how` says what differs."""
    what = f"{address} has changed since the load was planned: {how}; nothing of it was loaded"
    return Refused(what, "headrace plan cancel PLAN, then headrace load plan again", code="file-changed", file=address)


@dataclass(frozen=True)
class FoundFile:
    """A file as it is there: its address, bytes, and the time of its last change in nanoseconds since 1970."""

    address: str
    size: int
    modified_ns: int


def files_unreadable(place: str, why: str) -> Transient:
    """Return that files cannot be listed or read: their store does not answer, or refuses."""
    what = f"{place} cannot be read: {why}; nothing was changed"
    return Transient(what, "the same command again", code="files-unreadable", place=place, why=why)


@contextmanager
def _errors(place: str) -> Iterator[None]:
    """Raise what a store or a file answers as `files-unreadable`."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        why = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise files_unreadable(place, why) from error


def _file_system(settings: Settings, address: str) -> tuple[Any, str]:
    """Return the file system of an address and the path there."""
    if not REMOTE.match(address) or address.startswith("file://"):
        return fs.LocalFileSystem(), str(Path(address.removeprefix("file://")).absolute())
    if address.startswith("s3://"):
        return _s3(settings), address.removeprefix("s3://")
    system, path = fs.FileSystem.from_uri(address)
    return system, str(path)


def _s3(settings: Settings) -> Any:
    """Return the store, with the endpoint and the key of HEADRACE_WAREHOUSE_… where they are set."""
    secret = settings.warehouse_secret_file
    access: dict[str, str] = {"region": os.environ.get("AWS_REGION", DEFAULT_REGION)}
    if settings.warehouse_endpoint:
        scheme, _, host = settings.warehouse_endpoint.partition("://")
        access |= {"endpoint_override": host.rstrip("/"), "scheme": scheme}
    if settings.warehouse_key_id and secret:
        access |= {"access_key": settings.warehouse_key_id}
        access |= {"secret_key": read_password("HEADRACE_WAREHOUSE_SECRET_FILE", secret)}
    return fs.S3FileSystem(**access)


def file_within(settings: Settings, pattern: str) -> str:
    """Return a pattern that leads into a store, or into the folder HEADRACE_FILES. Raises Refused, `files-unreadable`.

    Who may load may not therefore read all that this host can read: also a link in the folder leads nowhere else.
    """
    if REMOTE.match(pattern) and not pattern.startswith("file://"):
        return pattern
    folder = settings.files.resolve()
    path = (folder / pattern.removeprefix("file://")).resolve()
    named = find_files(settings, str(path)) if path.is_relative_to(folder) else ()
    if not all(each.resolve().is_relative_to(folder) for each in [path, *(Path(file.address) for file in named)]):
        what = f"{pattern} is not in {settings.files}, from which requests load files; nothing was planned"
        remedy = "move the file there, set HEADRACE_FILES of the console, or load it by the command line"
        raise Refused(what, remedy, code="file-elsewhere", file=pattern)
    return str(path)


def find_files(settings: Settings, pattern: str) -> list[FoundFile]:
    """Return the files that a pattern names, by address: `*` and `?` inside a folder, `**` across folders.

    Raises `files-unreadable`.
    """
    with _errors(pattern):
        system, path = _file_system(settings, pattern)
        scheme = pattern.partition("://")[0] + "://" if REMOTE.match(pattern) else ""
        prefix = "" if scheme == "file://" or not scheme else scheme
        found = [each for each in _listed(system, path) if each.type is fs.FileType.File]
    files = (FoundFile(prefix + each.path, int(each.size), int(each.mtime_ns or 0)) for each in found)
    return sorted(files, key=lambda file: file.address)


def _listed(system: Any, path: str) -> Sequence[Any]:
    if not WILD.search(path):
        return list(system.get_file_info([path]))
    fixed = path[: WILD.search(path).start()].rpartition("/")[0]  # type: ignore[union-attr]
    deep = "/" in path[len(fixed) + 1 :]
    matches = re.compile(_expression(path)).fullmatch
    selector = fs.FileSelector(fixed or "/", recursive=deep, allow_not_found=True)
    return [each for each in system.get_file_info(selector) if matches(each.path)]


def _expression(pattern: str) -> str:
    parts = re.split(r"(\*\*/?|\*|\?|\[[^\]]+\])", pattern)
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(wild.get(part, part if part.startswith("[") else re.escape(part)) for part in parts)


def found_now(settings: Settings, address: str) -> FoundFile | None:
    """Return a file as it is now, None without one. Raises `files-unreadable`."""
    with _errors(address):
        system, path = _file_system(settings, address)
        (now,) = system.get_file_info([path])
    if now.type is not fs.FileType.File:
        return None
    return FoundFile(address, int(now.size), int(now.mtime_ns or 0))


GONE = "it is gone"


def how_changed(settings: Settings, address: str, size: int, modified_ns: int, sha256: str) -> str:
    """Return how a file differs from what it was, "" if it does not: equal size and time of change say so."""
    now = found_now(settings, address)
    if now is None:
        return GONE
    if now.size != size:
        return f"it had {size:,} bytes and has {now.size:,}"
    if now.modified_ns != modified_ns and checksum(settings, address) != sha256:
        return f"its SHA-256 was {sha256[:12]}… and is another one"
    return ""


def checksum(settings: Settings, address: str) -> str:
    """Return the SHA-256 of a file's bytes. Raises `files-unreadable`."""
    digest = hashlib.sha256()
    with _errors(address), _opened(settings, address, None) as stream:
        while block := stream.read_buffer(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _opened(settings: Settings, address: str, compression: str | None) -> Any:
    system, path = _file_system(settings, address)
    return system.open_input_stream(path, compression=compression, buffer_size=READ_BYTES)


Payloads = Iterator[pa.Array]


def payloads(settings: Settings, address: str, form: str, literals: Sequence[str] = ()) -> Payloads:
    """Yield the payloads of a file in order; `form` is one of FORMS. Raises `files-unreadable`.

    `literals`: columns of a text format whose values are numbers or truth values.
    """
    with _errors(address):
        yield from FORMS[form](settings, address, literals)


def estimated_rows(settings: Settings, files: Sequence[FoundFile], form: str) -> int:
    """Return about how many records these files have, by the beginning of the first one. Raises `files-unreadable`."""
    first = next((file for file in files if file.size), None)
    if first is None:
        return 0
    share = sum(file.size for file in files) / first.size
    if form in COUNTED:
        with _errors(first.address):
            return round(COUNTED[form](settings, first.address) * share)
    with _errors(first.address), _opened(settings, first.address, None) as stream:
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
    system, path = _file_system(settings, address)
    with system.open_input_file(path) as source:
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
    with _opened(settings, address, _compression(address)) as stream:
        rest = b""
        while block := stream.read(READ_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield lines_of(whole + newline)
        if rest:
            yield lines_of(rest + b"\n")


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
        with _unreported(UnicodeDecodeError):
            for rows in _csv_in(settings, address, literals, "utf8"):
                yield rows
                returned += len(rows)
    except pa.ArrowInvalid:
        # pyarrow gives no such row that is no UTF-8 either. In Latin-1 each byte is a character, which is a byte again.
        for rows in _csv_in(settings, address, literals, "latin1"):
            fresh = rows[min(returned, len(rows)) :]
            returned -= len(rows) - len(fresh)
            yield pa.array([text.decode().encode("latin1") for text in fresh.to_pylist()], pa.binary())


@contextmanager
def _unreported(kind: type[Exception]) -> Iterator[None]:
    """Keep Python from printing errors of a kind that nobody can catch: pyarrow's reader goes on after them."""
    hook = sys.unraisablehook

    def reported(found: Any) -> None:
        if not issubclass(found.exc_type, kind):
            hook(found)

    sys.unraisablehook = reported
    try:
        yield
    finally:
        sys.unraisablehook = hook


def _csv_in(settings: Settings, address: str, literals: Sequence[str], encoding: str) -> Payloads:
    with _opened(settings, address, _compression(address)) as stream:
        first = bytearray()
        while not first.endswith(b"\n") and (byte := stream.read(1)):
            first += byte
        if not first:
            return
        names = [str(name) for name in csv.read_csv(pa.BufferReader(bytes(first))).column_names]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise OSError(f"the header has {repeated[0]!r} twice")
        odd = _OddRows()
        texts = _csv_rows(stream, names, odd, encoding)
        for rows in _json_rows(texts, {name: LITERAL for name in names if name in literals}):
            yield odd.among(rows)
        yield odd.among(pa.array([], pa.binary()))


def _parquet(settings: Settings, address: str, _literals: Sequence[str]) -> Payloads:
    """Yield the rows of a Parquet file as JSON."""
    system, path = _file_system(settings, address)
    with system.open_input_file(path) as source:
        yield from _json_rows(pq.ParquetFile(source).iter_batches(ROWS_AT_A_TIME), {})


def _avro(settings: Settings, address: str, _literals: Sequence[str]) -> Payloads:
    """Yield the rows of an Avro file as JSON; the whole file is in memory."""
    yield from _json_rows(_avro_rows(settings, address).to_batches(ROWS_AT_A_TIME), {})


def _avro_rows(settings: Settings, address: str) -> pa.Table:
    import polars as pl

    with _opened(settings, address, None) as stream:
        return pl.read_avro(BytesIO(stream.read())).to_arrow()


ROWS_AT_A_TIME = 50_000
# DuckDB writes nothing for bytes that are no UTF-8: with the bytes as they are, the contract rejects the record.
TEXT = "coalesce(nullif(to_json({0})::varchar, ''), '\"' || {0} || '\"')"
LITERAL = (
    r"case when regexp_full_match({0}, '-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false') then {0}"
    f" else {TEXT} end"
)
"""A text that is JSON as it stands; any other one becomes a string, which the contract judges."""


def _json_rows(batches: Iterable[pa.RecordBatch], tokens: Mapping[str, str]) -> Payloads:
    """Yield rows as JSON objects with the columns' names, without those that are null. DuckDB makes the text."""
    with memory_database() as database:
        for batch in batches:
            rows = pa.table({name: _plain(batch[name]) for name in batch.schema.names})
            members = (_member(field, tokens.get(field.name)) for field in rows.schema)
            database.register("given", rows)
            sql = f"select '{{' || concat_ws(',', {', '.join(members)}) || '}}' as payload from given"
            made = database.sql(sql).to_arrow_table()["payload"]
            yield from made.cast(pa.binary()).chunks


def _plain(column: pa.Array) -> pa.Array:
    """Return a column without what DuckDB would write otherwise: times are those of UTC, dictionaries their values."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.timestamp("us"))
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _member(field: pa.Field, token: str | None) -> str:
    """Return SQL for a member of an object, null for a null value."""
    name = sql_identifier(field.name)
    value = (token or _token(field.type)).format(name)
    return f"{sql_literal(json.dumps(field.name) + ':')} || {value}"


def _token(kind: pa.DataType) -> str:
    """Return SQL that writes a value of a type as JSON; numbers keep all their digits."""
    return next((sql for is_kind, sql in TOKENS if is_kind(kind)), "to_json({0})::varchar")


TOKENS: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (pa.types.is_integer, "{0}::varchar"),
    (pa.types.is_decimal, "{0}::varchar"),
    (pa.types.is_floating, "case when isfinite({0}) then {0}::varchar else to_json({0}::varchar)::varchar end"),
    (pa.types.is_timestamp, "strftime({0}, '\"%Y-%m-%dT%H:%M:%S.%fZ\"')"),
    (pa.types.is_binary, "'\"' || to_base64({0}) || '\"'"),
    (pa.types.is_string, TEXT),
)

FORMS: Mapping[str, Callable[[Settings, str, Sequence[str]], Payloads]] = {
    "jsonl": _lines,
    "csv": _csv,
    "parquet": _parquet,
    "avro": _avro,
}
"""How the payloads of a file are read, by the name of its format."""
