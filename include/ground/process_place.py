"""The place of a process: boot and pid namespace, since a pid is unique only within these."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def this_boot() -> str:
    """Return the kernel's id of its boot, the same in all containers of a machine; "" when the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def this_place() -> str:
    """Return `boot/pid namespace` of this process; "" when the system does not provide them."""
    try:
        return f"{this_boot()}/{os.stat('/proc/self/ns/pid').st_ino}" if this_boot() else ""
    except OSError:
        return ""


def boot_of(place: str) -> str:
    """Return the boot of a place."""
    return place.partition("/")[0]


def host_name() -> str:
    """Return the name of this host or container."""
    return socket.gethostname()


def process_label() -> str:
    """Return a readable name of this process: `pid 12 on runner`."""
    return f"pid {os.getpid()} on {host_name()}"
