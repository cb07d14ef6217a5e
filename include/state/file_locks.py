"""OS locks on files of the state folder: the kernel releases them when their process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from include.ground.errors import Transient


class LockHeld(Transient):
    """Another process has the lock; `holder` is what it wrote into the file."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder}; nothing was done", "wait for it, then try again")
        self.path, self.holder = path, holder


def take_lock(path: Path, holder: str) -> TextIO:
    """Take the lock until the file is closed, and write `holder` into it. Raises LockHeld when it is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise LockHeld(path, path.read_text().strip() or "an unknown process") from error
    file.truncate(0)
    file.write(holder)
    file.flush()
    return file


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold a shared lock; waits while a process has it exclusively."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_free(path: Path) -> bool:
    """Return whether no process holds the lock of a file."""
    if not path.exists():
        return True
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def is_held(file: TextIO) -> bool:
    """Return whether the lock file still exists under its path; False if it was removed."""
    try:
        return os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
