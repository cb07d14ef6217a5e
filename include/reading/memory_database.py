"""The only way to open DuckDB: in memory, with a memory limit, spilling into a folder of this process.

Writes: `spill/<process>/` in the state folder, while a query needs more memory than its limit.
After a crash: the next process that opens a database removes the folders of dead processes, also of other containers:
a process that lives holds the lock of its folder.
"""

from __future__ import annotations

import atexit
import fcntl
import shutil
from contextlib import suppress
from functools import cache
from os import getpid
from pathlib import Path
from secrets import token_hex
from typing import Any, TextIO
from uuid import uuid4

from include.paths import spill_path
from include.settings import load_settings

MEMORY = "2GB"
LOCK = ".lock"
# Locks of this process; closing one would release it.
_held: list[TextIO] = []


def memory_database(memory: str = MEMORY) -> Any:
    """Return a DuckDB connection in memory, in UTC, that never loads anything and sees no Python variable.

    Beyond `memory` it spills to the disk; what cannot be spilled fails the query.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("set memory_limit = ?", [memory])
    # Two connections that spill into one folder take and remove each other's files.
    connection.execute("set temp_directory = ?", [str(spill_folder(getpid()) / uuid4().hex[:8])])
    connection.execute("set autoinstall_known_extensions = false; set autoload_known_extensions = false")
    connection.execute("set python_enable_replacements = false")
    return connection


@cache
def spill_folder(process: int) -> Path:
    """Return this process's folder for temporary files, removed at its exit; remove those of dead processes."""
    folder = spill_path(load_settings(), f"{process}-{token_hex(4)}")
    remove_dead(folder.parent)
    if folder.parent.parent.is_dir():
        with suppress(OSError):
            folder.parent.mkdir(exist_ok=True)
            # The lock first: a folder without one is a dead process's.
            hold(folder.with_suffix(LOCK))
            # DuckDB creates only the last folder of the path.
            folder.mkdir()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(folder.with_suffix(LOCK).unlink, missing_ok=True)
    return folder


def remove_dead(spills: Path) -> None:
    """Remove the folders whose process does not hold their lock any more, with the lock."""
    for left in spills.glob("*"):
        if left.suffix != LOCK and not is_held(left.with_suffix(LOCK)):
            shutil.rmtree(left, ignore_errors=True)
            left.with_suffix(LOCK).unlink(missing_ok=True)


def is_held(lock: Path) -> bool:
    """Return whether a process holds the lock, in whichever container."""
    try:
        with lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def hold(lock: Path) -> None:
    """Hold a lock until this process ends."""
    file = lock.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    _held.append(file)
