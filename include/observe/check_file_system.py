"""Checks of the state folder's file system: its kind, what commits and locks need of it, locks of another host."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from include.ground.paths import runner_lock_path
from include.ground.settings import Settings
from include.observe.check_result import CheckResult, failed, passed, warning
from include.state.file_locks import is_free
from include.state.heartbeats import EXPIRY
from include.state.json_file import StateFileUnreadable
from include.state.process_states import RUNNER
from include.state.run_files import RunFile, has_heartbeat, is_elsewhere, read_run_file

SHARED = "what other hosts see of it depends on its options (docs/several-hosts.md)"
FLEETING = {
    "tmpfs": "it is memory: all is lost when the machine stops",
    "ramfs": "it is memory: all is lost when the machine stops",
    "overlay": "it is a container's own layer: all is lost with the container",
    "overlayfs": "it is a container's own layer: all is lost with the container",
    "nfs": SHARED,
    "nfs4": SHARED,
    "cifs": SHARED,
    "smb3": SHARED,
    "9p": SHARED,
    "fuse.sshfs": SHARED,
    "fuse.glusterfs": SHARED,
}
NO_FAULT_OF_ITS_KIND = (errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
MOUNT = "mount the file system with locks for all hosts, or set HEADRACE_LEASE_URL"
ROOM = "make the folder exist, writable for this user and with free space, then headrace doctor"
Link = Callable[[Path, Path], None]


class Mount(NamedTuple):
    """A mounted file system."""

    mountpoint: str
    fstype: str


def check_mount(state: Path, mounts: Iterable[Mount]) -> CheckResult:
    """Check that the state folder is on a persistent local file system."""
    mount = mount_of(state, mounts)
    if mount is None:
        return warning("file system", f"unknown for {state}", "make sure that it is a local disk")
    found = f"{mount.fstype} at {mount.mountpoint}"
    if mount.fstype not in FLEETING:
        return passed("file system", found)
    remedy = "set HEADRACE_STATE to a folder on a local disk"
    return warning("file system", f"{found}: {FLEETING[mount.fstype]}", remedy)


def check_ledger_place(settings: Settings, mounts: Iterable[Mount]) -> list[CheckResult]:
    """Check that an SQLite ledger is not on a network file system: one machine's processes share its index in memory.

    Empty for a ledger on PostgreSQL, or on a local file system.
    """
    mount = mount_of(settings.state, mounts)
    if settings.ledger_url or mount is None or FLEETING.get(mount.fstype) != SHARED:
        return []
    found = f"SQLite on {mount.fstype}: only the processes of one machine may open it"
    return [warning("ledger", found, "set HEADRACE_LEDGER_URL to a PostgreSQL database, then headrace ledger rebuild")]


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount of a path: the longest matching mount point, the last mounted of equal ones."""
    leading = [mount for mount in mounts if path.is_relative_to(mount.mountpoint)]
    return max(reversed(leading), key=lambda mount: len(mount.mountpoint)) if leading else None


def check_file_operations(state: Path, link: Link = os.link) -> CheckResult:
    """Check that a hard link creates a name once, a rename replaces a file, and an OS lock excludes."""
    remedy = "set HEADRACE_STATE to a folder on a local disk, or on a network file system with them"
    try:
        with tempfile.TemporaryDirectory(dir=state, prefix=".doctor-") as folder:
            missing = missing_operation(Path(folder), link)
    except OSError as error:
        full = error.errno in NO_FAULT_OF_ITS_KIND
        return failed("file operations", f"{state}: {error.strerror}", ROOM if full else remedy)
    if missing:
        return failed("file operations", f"{state}: {missing}", remedy)
    return passed("file operations", "hard links, renames and locks work")


def missing_operation(folder: Path, link: Link) -> str:
    """Return what does not work in a folder, "" when all does."""
    new, name = folder / "new", folder / "name"
    new.write_text("first")
    try:
        link(new, name)
    except OSError as error:
        return f"there are no hard links ({error.strerror}), which commits need"
    with suppress(FileExistsError):
        link(new, name)
        return "a hard link replaces a file: commits would overwrite each other"
    other = folder / "other"
    other.write_text("second")
    other.replace(name)
    if (name.read_text(), new.read_text(), other.exists()) != ("second", "first", False):
        return "a rename does not replace a file"
    return "" if lock_excludes(name) else "an OS lock (flock) does not exclude another one"


def lock_excludes(path: Path) -> bool:
    """Return whether a file that is locked cannot be locked again."""
    # NFS grants an exclusive lock only on a file that is open for writing.
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not is_free(path)


def check_locks_elsewhere(settings: Settings) -> list[CheckResult]:
    """Check that the lock of a runner on another host is visible here; empty without one, or with leases elsewhere."""
    run = None if settings.lease_url else runner_elsewhere(settings)
    if run is None:
        return []
    try:
        is_shared = not is_free(runner_lock_path(settings))
    except OSError as error:
        return [failed("locks", f"the file system refuses locks: {error.strerror}", MOUNT)]
    if is_shared:
        return [passed("locks", f"the lock of the runner on {run.host} is visible here")]
    found = f"the lock of the runner on {run.host} is free here: locks are not shared, or it has just ended"
    return [failed("locks", found, f"headrace doctor again after {EXPIRY:.0f} s; then {MOUNT}")]


def runner_elsewhere(settings: Settings) -> RunFile | None:
    """Return the record of a runner that works in another container or on another host, None without one."""
    with suppress(StateFileUnreadable):
        run = read_run_file(settings, RUNNER)
        return run if run is not None and is_elsewhere(run) and has_heartbeat(run) else None
    return None
