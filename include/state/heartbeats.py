"""Heartbeats across containers and hosts: the supervisor of a process touches its run file; others read its age.

Writes and reads: the modification times of run files, compared with the clock of their file system (adr-0002).
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

# A runner touches the files each second; a step that reads declarations on a busy machine takes some.
EXPIRY = 30.0


def beat(path: Path) -> None:
    """Send a heartbeat for the process of a run file; nothing happens when the file is gone or cannot be written."""
    with suppress(OSError):
        os.utime(path)


def heartbeat_age(path: Path) -> float | None:
    """Return the seconds since the last heartbeat, None without a run file."""
    try:
        beaten = path.stat().st_mtime
    except FileNotFoundError:
        return None
    return max(0.0, file_system_now(path.parent) - beaten)


def beaten_since_boot(path: Path) -> bool:
    """Return whether the last heartbeat is younger than this boot: no earlier boot of the machine sent it."""
    age = heartbeat_age(path)
    return age is not None and age < seconds_since_boot()


def seconds_since_boot() -> float:
    """Return the seconds since this machine was booted, also those of its sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def file_system_now(folder: Path) -> float:
    """Return the time as the file system stamps it: on a network volume this host's clock may be seconds off."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stamp:
            return os.fstat(stamp.fileno()).st_mtime
    except OSError:
        # Read-only, or full.
        return time.time()
