"""Files of records, on this machine or in a store: found by a pattern, read in order as arrays of payloads.

No row passes through Python. A payload is the bytes of a line, or the JSON of a row.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from include.ground.errors import Refused, Transient
from include.ground.object_store import DEFAULT_REGION
from include.ground.settings import Settings, read_password

READ_BYTES = 8 << 20
"""Bytes that are read, and lines that are found, at a time."""
WILD = re.compile(r"[*?\[]")
REMOTE = re.compile(r"[a-z][a-z0-9]+://")


class FilesUnreadable(Transient):
    """Files cannot be listed or read: their store does not answer, or refuses."""

    def __init__(self, place: str, error: Exception) -> None:
        why = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        super().__init__(f"{place} cannot be read: {why}; nothing was changed", "the same command again")
        self.place = place


class FileChanged(Refused):
    """A file is not the one that was planned; `how` says what differs."""

    def __init__(self, address: str, how: str) -> None:
        super().__init__(
            f"{address} has changed since the load was planned: {how}; nothing of it was loaded",
            "headrace plan cancel PLAN, then headrace load plan again",
        )
        self.address = address


@dataclass(frozen=True)
class FoundFile:
    """A file as it is there: its address, bytes, and the time of its last change in nanoseconds since 1970."""

    address: str
    size: int
    modified_ns: int


@contextmanager
def _errors(place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise FilesUnreadable(place, error) from error


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


def find_files(settings: Settings, pattern: str) -> list[FoundFile]:
    """Return the files that a pattern names, by address: `*` and `?` inside a folder, `**` across folders.

    Raises FilesUnreadable.
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
    """Return a file as it is now, None without one. Raises FilesUnreadable."""
    with _errors(address):
        system, path = _file_system(settings, address)
        (now,) = system.get_file_info([path])
    if now.type is not fs.FileType.File:
        return None
    return FoundFile(address, int(now.size), int(now.mtime_ns or 0))


def checksum(settings: Settings, address: str) -> str:
    """Return the SHA-256 of a file's bytes. Raises FilesUnreadable."""
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
    """Yield the payloads of a file in order; `form` is one of FORMS. Raises FilesUnreadable.

    `literals`: columns of a text format whose values are numbers or truth values.
    """
    with _errors(address):
        yield from FORMS[form](settings, address, literals)


def estimated_rows(settings: Settings, files: Sequence[FoundFile], form: str) -> int:
    """Return about how many records these files have, by the beginning of the first one. Raises FilesUnreadable."""
    first = next((file for file in files if file.size), None)
    if first is None:
        return 0
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


def form_of(address: str) -> str:
    """Return the format that a file's name tells, "" for none."""
    name = address.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return ENDINGS.get(name.rpartition("/")[2].rpartition(".")[2], "")


COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
ENDINGS: Mapping[str, str] = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "txt": "jsonl", "log": "jsonl"}


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


NEWLINE, RETURN = 10, 13


def lines_of(text: bytes) -> pa.Array:
    """Return the lines of a text that ends with a line feed, without their ends and without empty lines."""
    found = np.frombuffer(text, np.uint8)
    is_end = found == NEWLINE
    # A carriage return belongs to the end of its line.
    is_end[:-1] |= (found[:-1] == RETURN) & is_end[1:]
    kept = found[~is_end]
    ends = np.flatnonzero(found == NEWLINE)
    offsets = np.concatenate(([0], ends + 1 - np.cumsum(is_end)[ends]))
    filled = np.concatenate(([True], np.diff(offsets) > 0))
    offsets = offsets[filled].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


FORMS: Mapping[str, Callable[[Settings, str, Sequence[str]], Payloads]] = {"jsonl": _lines}
"""How the payloads of a file are read, by the name of its format."""
