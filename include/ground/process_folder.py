"""Folders of temporary files that belong to one process: removed at its exit, or by the next process after a crash.

A live process holds the lock next to its folder. Its pid is not proof: another container has the same numbers.
"""

from __future__ import annotations

import atexit
import fcntl
import shutil
from os import getpid
from pathlib import Path
from secrets import token_hex
from typing import TextIO

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
