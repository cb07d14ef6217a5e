"""Files that survive a power cut: small ones replaced atomically, and files and folders forced to disk."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
