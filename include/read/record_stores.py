"""Where files of records lie, this machine or a store: found by a pattern, checked for changes, opened."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from include.ground.errors import HeadraceError, Refused, Transient
from include.ground.object_store import arrow_client
from include.ground.settings import Settings

READ_BYTES = 8 << 20
"""Bytes that are read at a time."""
WILD = re.compile(r"[*?\[]")
REMOTE = re.compile(r"[a-z][a-z0-9]+://")
ANEW = "headrace plan cancel PLAN, then headrace load plan again"


def file_changed(address: str, how: str) -> Refused:
    """Return that a file is not the one that was planned; `how` says what differs."""
    what = f"{address} has changed since the load was planned: {how}; readers still get the published tables"
    return Refused(what, ANEW, code="file-changed", file=address)


def files_unreadable(place: str, why: str) -> Transient:
    """Return that files cannot be listed or read: their store does not answer, or refuses."""
    what = f"{place} cannot be read: {why}; readers still get the published tables"
    return Transient(what, "the same command again", code="files-unreadable", place=place, why=why)


def file_malformed(place: str, why: str) -> Refused:
    """Return that a file's content is not of its format: it is the same at the next attempt."""
    what = f"{place} is not of its format: {why}; readers still get the published tables"
    remedy = "mend the file, cancel its plan if there is one, and plan again"
    return Refused(what, remedy, code="file-malformed", place=place, why=why)


UNREAD: Mapping[str, Callable[[str, str], HeadraceError]] = {
    "files-unreadable": files_unreadable,
    "file-malformed": file_malformed,
}
"""Why a file was not read, by the code of the error."""


@contextmanager
def read_errors(place: str) -> Iterator[None]:
    """Raise what a store answers as `files-unreadable`, and what a reader cannot take as `file-malformed`."""
    try:
        yield
    except OSError as error:
        raise files_unreadable(place, _first_line(error)) from error
    except _malformed() as error:
        raise file_malformed(place, _first_line(error)) from error


def _malformed() -> tuple[type[BaseException], ...]:
    import duckdb
    from polars.exceptions import PanicException, PolarsError

    ours = (pa.ArrowException, UnicodeError, PolarsError, PanicException)
    return (*ours, duckdb.DataError, duckdb.ProgrammingError, duckdb.NotSupportedError)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


@dataclass(frozen=True)
class FoundFile:
    """A file as it is there: its address, bytes, and the time of its last change in nanoseconds since 1970."""

    address: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class FilePlace:
    """A file system, a path or a pattern of it, and what an address has before the path."""

    system: Any
    path: str
    before: str = ""


def place_of(settings: Settings, address: str) -> FilePlace:
    """Return where an address leads. Raises Refused (`store-unknown`)."""
    if not REMOTE.match(address):
        return FilePlace(fs.LocalFileSystem(), str(Path(address).absolute()))
    scheme, _, rest = address.partition("://")
    if scheme not in STORES:
        what = f"{address}: files are read at {', '.join(f'{name}://' for name in STORES)} or a path; nothing was read"
        raise Refused(what, "copy the files to one of these", code="store-unknown", file=address)
    return STORES[scheme](settings, rest)


def _local(_settings: Settings, rest: str) -> FilePlace:
    return FilePlace(fs.LocalFileSystem(), unquote(rest))


def _s3(settings: Settings, rest: str) -> FilePlace:
    """Return the place in the store, with endpoint and key of HEADRACE_WAREHOUSE_… where they are set."""
    return FilePlace(arrow_client(settings), rest, "s3://")


def _webhdfs(_settings: Settings, rest: str) -> FilePlace:
    """Return the place in HDFS, by the HTTP address of its name node: Arrow's own client needs Hadoop's libraries."""
    from fsspec.implementations.webhdfs import WebHDFS

    class WebHdfsHandler(fs.FSSpecHandler):  # type: ignore[misc]
        def _create_file_info(self, path: str, info: Mapping[str, Any]) -> Any:
            return super()._create_file_info(path, {**info, "mtime": info["modificationTime"] / 1000})

    named = urlsplit(f"//{rest}")
    user = os.environ.get("HADOOP_USER_NAME")
    system = WebHDFS(named.hostname, named.port or NAME_NODE, user=user, use_listings_cache=False)
    return FilePlace(fs.PyFileSystem(WebHdfsHandler(system)), f"/{rest.partition('/')[2]}", f"webhdfs://{named.netloc}")


NAME_NODE = 9870
"""The port at which Hadoop's name nodes answer HTTP."""
STORES: Mapping[str, Callable[[Settings, str], FilePlace]] = {"s3": _s3, "webhdfs": _webhdfs, "file": _local}


def file_within(settings: Settings, pattern: str) -> str:
    """Return a pattern that leads into a store, or into the folder HEADRACE_FILES. Raises Refused, `files-unreadable`.

    Who may load may not therefore read all that this host can read: also a link in the folder leads nowhere else.
    """
    if REMOTE.match(pattern) and not pattern.startswith("file://"):
        return pattern
    folder = settings.files.resolve()
    path = (folder / unquote(pattern.removeprefix("file://"))).resolve()
    named = find_files(settings, str(path)) if path.is_relative_to(folder) else ()
    if not all(each.resolve().is_relative_to(folder) for each in [path, *(Path(file.address) for file in named)]):
        what = f"{pattern} is not in {settings.files}, from which requests load files; nothing was planned"
        remedy = "move the file there, set HEADRACE_FILES of the console, or load it by the command line"
        raise Refused(what, remedy, code="file-elsewhere", file=pattern)
    return str(path)


def find_files(settings: Settings, pattern: str) -> list[FoundFile]:
    """Return the files that a pattern names, by address.

    `*`, `?`, `[a-z]` and `[!a]` stay inside a folder, `**` crosses folders; as in a shell none names a first dot.
    Raises `files-unreadable`, `store-unknown`.
    """
    place = place_of(settings, pattern)
    with read_errors(pattern):
        found = [each for each in _listed(place.system, place.path) if each.type is fs.FileType.File]
    files = (FoundFile(place.before + each.path, int(each.size), int(each.mtime_ns or 0)) for each in found)
    return sorted(files, key=lambda file: file.address)


def _listed(system: Any, path: str) -> Sequence[Any]:
    wild = WILD.search(path)
    if wild is None:
        return list(system.get_file_info([path]))
    fixed = path[: wild.start()].rpartition("/")[0]
    rest = path[len(fixed) + 1 :]
    matches = re.compile(_expression(path), re.DOTALL).fullmatch
    selector = fs.FileSelector(fixed or "/", recursive="/" in rest or "**" in rest, allow_not_found=True)
    return [each for each in system.get_file_info(selector) if matches(each.path)]


WILDCARDS = {"**/": r"(?:(?!\.)[^/]*/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern; an unmatched bracket, or one that is no range, is itself."""
    found = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern):
        begins = r"(?!\.)" if part in WILDCARDS and found.endswith(("/", "/)*")) else ""
        found += begins + (WILDCARDS.get(part) or _one_of(part) or re.escape(part))
    return found


def _one_of(part: str) -> str | None:
    """Return `[a-z]` as a regular expression, None for a text that is none."""
    if not (part.startswith("[") and part.endswith("]")):
        return None
    inside = part[1:-1].replace("\\", r"\\").replace("^", r"\^")
    expression = f"[^/{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    try:
        re.compile(expression)
    except re.error:
        return None
    return expression


def found_now(settings: Settings, address: str) -> FoundFile | None:
    """Return a file as it is now, None without one. Raises `files-unreadable`."""
    place = place_of(settings, address)
    with read_errors(address):
        (now,) = place.system.get_file_info([place.path])
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
    with read_errors(address), opened(settings, address, None) as stream:
        while block := stream.read_buffer(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def opened(settings: Settings, address: str, compression: str | None) -> Any:
    """Return a stream of a file's bytes, decompressed."""
    place = place_of(settings, address)
    return place.system.open_input_stream(place.path, compression=compression, buffer_size=READ_BYTES)


def opened_anywhere(settings: Settings, address: str) -> Any:
    """Return a file whose bytes are read in any order."""
    place = place_of(settings, address)
    return place.system.open_input_file(place.path)
