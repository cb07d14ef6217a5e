"""Which files the commits between two versions of a Delta table added and removed. No table state is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from include.ground.delta_log import commit_content


@dataclass(frozen=True)
class FileChanges:
    """Paths below the table's folder: files of the later version only, and files of the earlier one only."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def file_changes(table: Path, after: int, upto: int, *, rows_only: bool = False) -> FileChanges:
    """Return the files in which versions `after` and `upto` differ; O(commits between them).

    With `rows_only` commits that move rows between files (`dataChange=false`) are left out: the rows of `added` without
    those of `removed` are the new rows, also when a file is not of version `upto`. Raises FileNotFoundError when the
    log and its history lack one of the commits, HistoryDamaged.
    """
    added, removed = dict[str, None](), dict[str, None]()
    for version in range(after + 1, upto + 1):
        for line in commit_content(table, version).splitlines():
            action: dict[str, Any] = orjson.loads(line) if line.strip() else {}
            if rows_only and not (action.get("add") or action.get("remove") or {}).get("dataChange", True):
                continue
            # A removed file may be added again, by a rollback of the table.
            if "add" in action and removed.pop(path := unquote(action["add"]["path"]), path) is not None:
                added[path] = None
            if "remove" in action and added.pop(path := unquote(action["remove"]["path"]), path) is not None:
                removed[path] = None
    return FileChanges(tuple(added), tuple(removed))
