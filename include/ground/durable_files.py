"""Files that survive a power cut: small ones replaced atomically, and files and folders forced to disk."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, TextIO


def write_atomically(
    path: Path, content: str | bytes, *, durable: bool = True, before_replacing: Callable[[], None] = lambda: None
) -> None:
    """Replace a small file so that a reader sees the old or the new content; when `durable`, also after a power cut.

    When `before_replacing` raises, or somebody calls `discard_unfinished` after it, nothing is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{unique_suffix()}.part")
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    before_replacing()
    os.replace(part, path)
    if durable:
        sync_path(path.parent)


def discard_unfinished(path: Path) -> None:
    """Remove what others have written to replace the file and have not put in its place: they fail instead."""
    for part in path.parent.glob(f"{path.name}.*.part"):
        part.unlink(missing_ok=True)


@contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """Open a file to append to it, one process at a time; the content is forced to disk at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock is a separate file: an editor may replace the file itself.
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with path.open("ab") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        sync_path(path.parent)


def unique_suffix() -> str:
    """Return a suffix for a temporary file or folder: containers that share a volume have processes of the same pid."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def sync_path(path: Path) -> None:
    """Force a file's content to disk, or a folder's list of entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(files: Iterable[Path], root: Path) -> None:
    """Force files to disk with the folders that name them, up to and including `root`."""
    paths = list(files)
    folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(root)}
    for path in [*paths, *folders]:
        sync_path(path)


LOCK = ".lock"
# Locks of this process; closing one would release it.
_locks: list[TextIO] = []


def new_process_folder(parent: Path) -> Path:
    """Make a folder of this process below `parent`; remove those of dead processes. Raises OSError."""
    remove_dead(parent)
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{getpid()}-{token_hex(4)}"
    # The lock first: a folder without one is a dead process's.
    hold(folder.with_suffix(LOCK))
    folder.mkdir()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(folder.with_suffix(LOCK).unlink, missing_ok=True)
    return folder


def remove_dead(parent: Path) -> None:
    """Remove the folders whose process does not hold their lock any more, with the lock."""
    for left in parent.glob("*"):
        if left.suffix != LOCK and not _is_held(left.with_suffix(LOCK)):
            shutil.rmtree(left, ignore_errors=True)
            left.with_suffix(LOCK).unlink(missing_ok=True)


def hold(lock: Path) -> None:
    """Hold a lock until this process ends."""
    file = lock.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    _locks.append(file)


def _is_held(lock: Path) -> bool:
    """Return whether a process holds the lock, in whichever container."""
    try:
        with lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        # Held, or not readable for us: folders of other users stay.
        return True
    return False


# 64 bits of SHA-256: it finds damage, not forgery.
NAMED = re.compile(r"\.sha256-([0-9a-f]{16})\.parquet$")


def file_checksum(path: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of a file's bytes, read block by block."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def named_checksum(path: str) -> str | None:
    """Return the checksum in a file's name; None for a file of a version that wrote none."""
    found = NAMED.search(path)
    return None if found is None else found[1]


def name_by_checksum(path: Path) -> Path:
    """Rename a newly written Parquet file to carry its checksum; return its path. Named already: nothing happens."""
    if named_checksum(path.name):
        return path
    named = path.with_name(f"{path.stem}.sha256-{file_checksum(path)}.parquet")
    # Hadoop's own checksum of a file that Spark wrote, which Spark compares when it reads the file.
    hadoop = path.with_name(f".{path.name}.crc")
    if hadoop.exists():
        hadoop.rename(path.with_name(f".{named.name}.crc"))
    return path.rename(named)


def is_whole(path: Path) -> bool:
    """Return whether a Parquet file has the bytes of its checksum; without one, whether all of it can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if (expected := named_checksum(path.name)) is not None:
            return file_checksum(path) == expected
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            return all(group is not None for group in map(file.read_row_group, range(file.num_row_groups)))
    except (pa.ArrowException, OSError):
        return False
