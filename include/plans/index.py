"""The index of plans: the newest, the open, the applied ones and those with data are found without reading the others.

Reads / Writes: `plans/.index-2/plans.sqlite`. Removes `plans/.index`, which earlier versions keep.
Guarantee: a plan has an entry before it is written, and what a stage adds is entered before the stage is recorded. So
an entry never lacks what the plan has; the caller reads the plan itself.
After a crash: the same holds. Folders that were added or removed by hand are noticed by the modification time of
`plans/`; a missing or damaged index is rebuilt from the plans. (adr-0003)
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from include.ground.errors import Transient
from include.ground.paths import plan_path
from include.ground.settings import Settings
from include.plans.plan import PLAN_ID, RELEASES, Applied, PlanRecord, Stage

INDEX, EARLIER_INDEX = ".index-2", ".index"
LOCKED_WITHIN = 60.0
# A folder may change again within the resolution of its modification time, a few milliseconds.
SETTLED_NS = 1_000_000_000
SCHEMA_VERSION = 2
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS plans (
 seq INTEGER PRIMARY KEY AUTOINCREMENT, plan TEXT NOT NULL UNIQUE, series TEXT NOT NULL, number INTEGER NOT NULL,
 dataset TEXT NOT NULL, planned_at REAL NOT NULL, origin TEXT NOT NULL, is_open INTEGER NOT NULL,
 has_data INTEGER NOT NULL, applied_at REAL NOT NULL, is_read INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS plans_by_time ON plans (planned_at, seq);
CREATE INDEX IF NOT EXISTS plans_by_number ON plans (series, number);
CREATE INDEX IF NOT EXISTS plans_by_origin ON plans (origin, seq) WHERE origin <> '';
CREATE INDEX IF NOT EXISTS plans_open ON plans (plan) WHERE is_open;
CREATE INDEX IF NOT EXISTS plans_with_data ON plans (dataset) WHERE has_data;
CREATE INDEX IF NOT EXISTS plans_applied ON plans (dataset, applied_at) WHERE applied_at > 0;
CREATE INDEX IF NOT EXISTS plans_unread ON plans (plan) WHERE NOT is_read;
CREATE TABLE IF NOT EXISTS rollbacks (who TEXT NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (who, plan)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (dataset TEXT NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (dataset, plan))
 WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS listing (one INTEGER PRIMARY KEY, changed INTEGER NOT NULL, strays TEXT NOT NULL,
 built TEXT NOT NULL);
INSERT OR IGNORE INTO listing VALUES (1, 0, '[]', hex(randomblob(8)));
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
COLUMNS = "plan, series, number, dataset, planned_at, origin, is_open, has_data, applied_at, is_read"
INSERT = f"INSERT INTO plans ({COLUMNS}) VALUES ({', '.join('?' * 10)}) ON CONFLICT (plan)"  # noqa: S608
REPLACE = f"{INSERT} DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS.split(", "))
OF_MEMBER = "SELECT plans.* FROM members JOIN plans USING (plan) WHERE members.dataset = ?"
BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class PlanIndexUnavailable(Transient):
    """The index of plans cannot be read or written; a damaged one was removed."""

    def __init__(self, path: Path, why: str, *, is_damaged: bool) -> None:
        consequence = "it was removed and is rebuilt from the plans" if is_damaged else "nothing was done"
        super().__init__(f"{path} cannot be used ({why}); {consequence}", "the same command again")
        self.is_damaged = is_damaged


class Entry(NamedTuple):
    """What the index knows of a plan.

    `dataset` is "" when nothing names it; `members` are datasets that it releases too. `has_data`: it may need or
    leave tables, rows or comparisons. `applied_at` is 0 unless it is applied and has changed rows. `is_read`: its files
    could be read.
    """

    plan: str
    dataset: str
    planned_at: float
    origin: str = ""
    is_open: bool = True
    has_data: bool = True
    applied_at: float = 0.0
    rolled_back_by: tuple[str, ...] = ()
    is_read: bool = True
    members: tuple[str, ...] = ()


class IndexPosition(NamedTuple):
    """How far the entries of an index were read: the id of the index, and the number of the last entry."""

    built: str = ""
    seq: int = 0


def entry_of(record: PlanRecord) -> Entry:
    """Return a plan's entry."""
    plan, is_applied = record.plan, record.stage is Stage.APPLIED
    # A verified slice is applied too, and has changed nothing that could be rolled back.
    is_changed = is_applied and record.last(Applied).changed != 0
    return Entry(
        plan=plan.id,
        dataset=plan.dataset,
        planned_at=plan.planned_at.timestamp(),
        origin=plan.origin,
        is_open=record.is_open,
        # The rows of an applied slice stay: it can be rolled back at any time.
        has_data=plan.kind in RELEASES or not is_applied,
        applied_at=record.events[-1].at.timestamp() if is_changed else 0.0,
        rolled_back_by=tuple({event.by for event in record.events if event.stage is Stage.ROLLED_BACK}),
        members=tuple(member.dataset for member in plan.members),
    )


def index_path(settings: Settings) -> Path:
    """Return the path of the index."""
    return plan_path(settings, INDEX) / "plans.sqlite"


def enter(settings: Settings, entry: Entry) -> None:
    """Enter a plan, or what has changed about it. Raises PlanIndexUnavailable."""
    with _writing(settings) as index:
        _insert(index, REPLACE, [entry])


def enter_ahead(settings: Settings, before: Entry, after: Entry) -> None:
    """Enter the next stage of a plan in addition to its current one. Raises PlanIndexUnavailable."""
    both = after._replace(
        is_open=before.is_open or after.is_open,
        has_data=before.has_data or after.has_data,
        applied_at=after.applied_at or before.applied_at,
    )
    if both != before:
        enter(settings, both)


def note_without_data(settings: Settings, plans: Iterable[str]) -> None:
    """Enter that these plans have only parameters and events left. Raises PlanIndexUnavailable."""
    if names := [(plan,) for plan in plans]:
        with _writing(settings) as index:
            index.executemany("UPDATE plans SET has_data = 0 WHERE plan = ?", names)


NEWEST = "SELECT plan FROM plans ORDER BY planned_at DESC, seq DESC LIMIT ? OFFSET ?"
OPEN = "SELECT plan FROM plans WHERE is_open ORDER BY plan"
DAMAGED = "SELECT plan FROM plans WHERE NOT is_read ORDER BY plan"
OF_ORIGIN = "SELECT plan FROM plans WHERE origin = ? AND origin <> '' ORDER BY seq DESC LIMIT 1"
# Two queries each, since with OR between them SQLite reads all plans.
WITH_DATA = f"""SELECT plan FROM (SELECT * FROM plans WHERE has_data AND dataset IN (?, '')
 UNION {OF_MEMBER} AND has_data) ORDER BY seq"""  # noqa: S608
APPLIED = f"""SELECT plan FROM (SELECT * FROM plans WHERE dataset = ? AND applied_at > 0
 UNION {OF_MEMBER} AND applied_at > 0) ORDER BY applied_at DESC"""  # noqa: S608
OF_ROLLBACKS = "SELECT plan, seq FROM rollbacks JOIN plans USING (plan)"
ROLLED_BACK = f"""SELECT plan FROM ({OF_ROLLBACKS} WHERE who = ? AND plans.dataset = ?
 UNION {OF_ROLLBACKS} JOIN members USING (plan) WHERE who = ? AND members.dataset = ?) ORDER BY seq DESC"""  # noqa: S608


def ids(settings: Settings, query: str, *parameters: Any) -> list[str]:
    """Return the ids that a query selects: of plans that may be what it asks for. Raises PlanIndexUnavailable."""
    return [plan for (plan,) in _rows(settings, query, *parameters)]


def newest_ids(settings: Settings, limit: int | None = None, skipped: int = 0) -> list[str]:
    """Return ids of plans, newest first: `limit` of them, or all, after the `skipped` newest."""
    return ids(settings, NEWEST, -1 if limit is None else limit, skipped)


def number_of_plans(settings: Settings) -> int:
    """Return how many plans there are."""
    return sum(number for (number,) in _rows(settings, "SELECT count(*) FROM plans"))


def stray_names(settings: Settings) -> list[str]:
    """Return the names of folders among the plans that are no plan's id."""
    return [name for (names,) in _rows(settings, "SELECT strays FROM listing") for name in json.loads(names)]


def ids_entered_since(settings: Settings, position: IndexPosition) -> tuple[list[str], IndexPosition]:
    """Return the ids of plans that were entered after a position, all of another index, and the new position."""
    if not index_path(settings).exists():
        return [], position
    with _index(settings) as index:
        built = index.execute("SELECT built FROM listing").fetchone()[0]
        after = position.seq if built == position.built else 0
        rows = index.execute("SELECT plan, seq FROM plans WHERE seq > ? ORDER BY seq", (after,)).fetchall()
    return [plan for plan, _ in rows], IndexPosition(built, rows[-1][1] if rows else after)


def highest_number(settings: Settings, series: str) -> int:
    """Return the highest number of the plans of a kind and dataset, 0 when there is none."""
    query = "SELECT number FROM plans WHERE series = ? ORDER BY number DESC LIMIT 1"
    return sum(number for (number,) in _rows(settings, query, series))


def refresh_index(settings: Settings, read: Callable[[str], Entry], end: float = math.inf) -> bool:
    """Enter the plans that have no entry, as `read` returns them, and drop those whose folder is gone.

    Stops at `end` (monotonic); returns whether nothing is missing any more. Raises PlanIndexUnavailable.
    """
    try:
        return _refresh(settings, read, end)
    except PlanIndexUnavailable as error:
        if not error.is_damaged:
            raise
        return _refresh(settings, read, end)


def _refresh(settings: Settings, read: Callable[[str], Entry], end: float) -> bool:
    folder = plan_path(settings, INDEX).parent
    if not folder.is_dir():
        return True
    _discard_earlier(settings, folder / EARLIER_INDEX)
    changed = folder.stat().st_mtime_ns
    with _index(settings) as index:
        if index.execute("SELECT changed FROM listing").fetchone()[0] == changed:
            return True
        # Before the folder is listed: a plan has its folder before its entry.
        known = {plan for (plan,) in index.execute("SELECT plan FROM plans")}
    names = _folders(folder)
    plans = set(filter(PLAN_ID.fullmatch, names))
    missing = sorted(plans - known, key=_number)
    entries = [read(plan) for plan in _until(end, missing)]
    with _writing(settings) as index:
        # A stage that was recorded meanwhile is newer than what was read here.
        _insert(index, f"{INSERT} DO NOTHING", sorted(entries, key=lambda entry: entry.planned_at))
        index.executemany("DELETE FROM plans WHERE plan = ?", [(plan,) for plan in known - plans])
        is_whole = len(entries) == len(missing)
        is_settled = is_whole and time.time_ns() - changed > SETTLED_NS
        listing = (changed if is_settled else 0, json.dumps(sorted(names - plans)))
        index.execute("UPDATE listing SET changed = ?, strays = ?", listing)
    return is_whole


def _until(end: float, plans: Iterable[str]) -> Iterator[str]:
    """Yield plans until `end` (monotonic), at least one."""
    for plan in plans:
        yield plan
        if time.monotonic() >= end:
            return


def _discard_earlier(settings: Settings, earlier: Path) -> None:
    """Empty the index when an earlier version has run since: it enters nothing here, and needs its own index whole."""
    if earlier.is_dir():
        with _writing(settings) as index:
            for emptied in ("plans", "rollbacks", "members"):
                index.execute(f"DELETE FROM {emptied}")  # noqa: S608
            index.execute("UPDATE listing SET changed = 0")
        shutil.rmtree(earlier, ignore_errors=True)


def _folders(folder: Path) -> set[str]:
    """Return the names of the folders in a folder, without hidden ones."""
    with os.scandir(folder) as found:
        return {each.name for each in found if not each.name.startswith(".") and each.is_dir()}


def _insert(index: sqlite3.Connection, statement: str, entries: Iterable[Entry]) -> None:
    for e in entries:
        flags = (e.is_open, e.has_data, e.applied_at, e.is_read)
        series = e.plan.rpartition("-")[0]
        index.execute(statement, (e.plan, series, _number(e.plan), e.dataset, e.planned_at, e.origin, *flags))
        index.executemany("INSERT OR IGNORE INTO rollbacks VALUES (?, ?)", [(who, e.plan) for who in e.rolled_back_by])
        index.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", [(name, e.plan) for name in e.members])


def _number(plan: str) -> int:
    return int(plan.rpartition("-")[2])


def _rows(settings: Settings, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    # A command that only reads creates no folder where no plan ever was.
    if not index_path(settings).exists():
        return []
    with _index(settings) as index:
        return index.execute(query, parameters).fetchall()


@contextmanager
def _writing(settings: Settings) -> Iterator[sqlite3.Connection]:
    """Open a transaction that no other writer is in."""
    with _index(settings) as index:
        index.execute("BEGIN IMMEDIATE")
        yield index
        index.execute("COMMIT")


@contextmanager
def _index(settings: Settings) -> Iterator[sqlite3.Connection]:
    path = index_path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path, timeout=LOCKED_WITHIN, isolation_level=None)) as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
                connection.executescript(SCHEMA)
            yield connection
    except sqlite3.DatabaseError as error:
        is_damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in BROKEN
        if is_damaged:
            for each in (path, path.with_name(f"{path.name}-journal")):
                each.unlink(missing_ok=True)
        raise PlanIndexUnavailable(path, str(error), is_damaged=is_damaged) from error
