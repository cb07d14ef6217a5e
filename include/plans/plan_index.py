"""Finds the open plans and the plan of an Airflow run without reading all plans: empty and one-line files.

Reads / Writes: `plans/.index`: `open/<plan>`, `origins/<hash of the origin>`.
Guarantee: every open plan is listed. A listed plan may be closed or missing, so the caller reads it.
After a crash: a plan is listed before it is written, and removed after its last event. A missing index is built again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from include.durable_files import unique_suffix, write_atomically
from include.paths import plan_path
from include.settings import Settings

INDEX = ".index"


class Entry(NamedTuple):
    """A plan to list: whether it is open, and the Airflow run that it belongs to, "" for none."""

    plan: str
    is_open: bool
    origin: str


def index_path(settings: Settings) -> Path:
    """Return the folder of the index."""
    return plan_path(settings, INDEX)


def build_index(settings: Settings, entries: Iterable[Entry]) -> None:
    """Build a missing index; one that another process has built meanwhile is left alone."""
    path = index_path(settings)
    part = path.with_name(f"{INDEX}.{unique_suffix()}.part")
    for folder in ("open", "origins"):
        (part / folder).mkdir(parents=True, exist_ok=True)
    for entry in entries:
        _write(part, entry)
    with suppress(OSError):
        os.rename(part, path)
    shutil.rmtree(part, ignore_errors=True)


def add_plan(settings: Settings, entry: Entry) -> None:
    """List a plan that is about to be written."""
    _write(index_path(settings), entry)


def remove_closed(settings: Settings, plan: str) -> None:
    """Remove a plan that is not open any more from the open ones."""
    (index_path(settings) / "open" / plan).unlink(missing_ok=True)


def maybe_open(settings: Settings) -> Iterator[str]:
    """Yield the ids of the plans that may be open."""
    return (path.name for path in (index_path(settings) / "open").iterdir())


def plan_of(settings: Settings, origin: str) -> str | None:
    """Return the id of the plan that an Airflow run last created, None when it created none."""
    path = _origin_path(index_path(settings), origin)
    return path.read_text("utf-8") if path.is_file() else None


def _write(index: Path, entry: Entry) -> None:
    if entry.origin:
        write_atomically(_origin_path(index, entry.origin), entry.plan)
    if entry.is_open:
        write_atomically(index / "open" / entry.plan, "")


def _origin_path(index: Path, origin: str) -> Path:
    return index / "origins" / hashlib.sha256(origin.encode()).hexdigest()[:32]
