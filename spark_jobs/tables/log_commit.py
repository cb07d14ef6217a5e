"""Puts a commit into a Delta log: a JSON file that is created whole, and only if its version is free (adr-0004).

*Writes:* one commit file of a table's log. Reads no log: the cost does not depend on what the log or the table has.
*Guarantee:* readers see all of a commit or nothing; of two processes that commit one version, one succeeds.
*After a crash:* the unfinished file stays until the table's next owner takes it over; readers ignore it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from include.ground.commit_history import history_end
from include.ground.delta_log import LOG, commit_name
from include.ground.durable_files import sync_path, unique_suffix

Action = Mapping[str, Any]
UNFINISHED = "_commit_*.json.tmp"


class VersionTaken(Exception):
    """Another process has committed the version."""


def put_commit(
    table: Path, version: int, facts: Mapping[str, str], actions: Iterable[Action], *, durable: bool
) -> None:
    """Commit `version`. Raises VersionTaken.

    `facts` are added to `commitInfo`, the first line. A `txn` must be the last one: without it a file is known as cut.
    """
    info = {
        "timestamp": int(time.time() * 1000),
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": "headrace",
    }
    lines = [json.dumps(action, separators=(",", ":")) for action in ({"commitInfo": {**info, **facts}}, *actions)]
    log = table / LOG
    unfinished = log / UNFINISHED.replace("*", unique_suffix())
    try:
        _write(unfinished, "\n".join(lines).encode(), durable)
        _create(table, version, unfinished)
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        sync_path(log)


def discard_unfinished_commits(table: Path) -> None:
    """Remove commits that earlier owners have not finished; one that is still in progress fails with VersionTaken."""
    for path in (table / LOG).glob(UNFINISHED):
        path.unlink(missing_ok=True)


def _write(path: Path, content: bytes, durable: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _create(table: Path, version: int, content: Path) -> None:
    path = table / LOG / commit_name(version)
    try:
        # Unlike a rename, a link does not replace the file of a process that was faster.
        os.link(content, path)
    except FileExistsError as error:
        raise VersionTaken(f"the log has version {version}") from error
    except FileNotFoundError as error:
        raise VersionTaken(f"a new owner has removed the unfinished commit of version {version}") from error
    # The owner that was faster may have moved its commit into the history meanwhile, so that the name was free again.
    if version < history_end(table):
        path.unlink()
        raise VersionTaken(f"the history has version {version}")
