"""One-time renames in a state folder that an earlier version wrote.

Writes: the names in RENAMED, nothing else; the content of the files is upgraded where it is read.
Guarantee: idempotent, also under two processes at once. A file that has its new name already is never overwritten.
After a crash: the next command renames the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from include.ground.errors import Terminal
from include.ground.paths import desired_path, local_warehouse, request_path, run_path
from include.ground.settings import Settings
from include.state.process_states import RUNNER
from include.state.run_files import RunFile, run_file

RENAMED = {"live.json": "active_releases.json", "*/correcting.json": "patch_in_progress.json"}


def migrate_state(settings: Settings) -> list[str]:
    """Rename what an earlier version wrote; return one line for each rename, relative to the state folder.

    Raises Terminal (`earlier-version-running`) when there is something to rename while the runner or a driver is alive.
    """
    former = list(former_files(settings))
    if former and (run := next(running_processes(settings), None)):
        raise Terminal(
            f"{run.name} (pid {run.pid}) was started by an earlier version, which uses other file names in "
            f"{settings.state}; nothing was renamed or started",
            "headrace down, then the same command again",
            code="earlier-version-running",
        )
    done = []
    for old, new in former:
        if rename_once(old, new):
            done.append(f"{old.relative_to(settings.state)} → {new.relative_to(settings.state)}")
    for old in {old.parent for old, new in former if old.parent != new.parent}:
        # Another process may be renaming the rest.
        with suppress(OSError):
            old.rmdir()
    return done


def former_files(settings: Settings) -> Iterator[tuple[Path, Path]]:
    """Yield each file that has a former name, with its new path."""
    folders = {"wanted": desired_path(settings, "*").parent, "orders": request_path(settings, "*").parent}
    for former, folder in folders.items():
        yield from ((old, folder / old.name) for old in sorted((settings.state / former).glob("*.json")))
    for pattern, name in RENAMED.items():
        for old in sorted(local_warehouse(settings).glob(f"*/{pattern}")):
            yield old, old.with_name(name)


def running_processes(settings: Settings) -> Iterator[RunFile]:
    """Yield the runner and the drivers that are alive; a process without a readable run file is none of them."""
    for path in [run_path(settings, RUNNER), *sorted(run_path(settings, "x").parent.glob("stream-*.json"))]:
        run = run_file(path).read_if_valid()
        if run is not None and replace(run, path=path).is_alive():
            yield run


def rename_once(old: Path, new: Path) -> bool:
    """Rename a file unless the new name exists, which is the newer one; return whether this call renamed it."""
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A rename would replace what another process wrote since; a link does not.
        os.link(old, new)
        renamed = True
    except FileExistsError:
        renamed = False
    except FileNotFoundError:
        return False
    old.unlink(missing_ok=True)
    return renamed
