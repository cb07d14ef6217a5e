"""From Delta commits to the ledger's rows and their sums, the same for the live ledger and the rebuilt one.

A commit is entered once (`projected`), in the order of its table's versions, so its rows are counted once; `status`
reads the sums instead of every run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from include.declare.event_times import watermark_facts
from include.ground.delta_log import Commit
from include.ground.errors import Terminal
from include.observe import ledger_schema as ledger


class TotalKey(NamedTuple):
    """One row of `totals`; `release` is empty for bronze, `name` for what a release has once."""

    dataset: str
    release: str
    kind: str
    name: str


class Count(NamedTuple):
    """Rows to add to a total; or, if `absolute`, the total itself, as a commit has counted it."""

    key: TotalKey
    rows: int
    absolute: bool = False


@dataclass
class Change:
    """How a total changes: from `total`, or from its stored value if None, by `added`."""

    total: int | None = None
    added: int = 0


def add_to_totals(connection: Connection, rows: Iterable[Row]) -> None:
    """Count rows of commits that are entered for the first time; rows of one table in the order of its versions."""
    changes: dict[TotalKey, Change] = defaultdict(Change)
    for row in rows:
        for key, count, absolute in _counts(row):
            if absolute:
                changes[key] = Change(count)
            else:
                changes[key].added += count
    insert = _insert(connection, ledger.totals)
    for known in (True, False):
        values = [
            key._asdict() | {"rows": (change.total or 0) + change.added}
            for key, change in sorted(changes.items())
            if (change.total is not None) == known
        ]
        rows_after = insert.excluded.rows if known else ledger.totals.c.rows + insert.excluded.rows
        if values:
            connection.execute(
                insert.on_conflict_do_update(index_elements=TotalKey._fields, set_={"rows": rows_after}), values
            )


def _counts(row: Row) -> Iterator[Count]:
    values = row.values
    for each in COUNTED.get(row.table.name, ()):
        if each.column in values:
            name = values[each.named_by] if each.named_by else ""
            yield Count(_key(values, each.kind, name), int(values[each.column]), each.is_absolute)
    more = COUNTED_BY_NAME.get(row.table.name)
    yield from more(values) if more else ()


def _key(values: Values, kind: str, name: object = "") -> TotalKey:
    return TotalKey(str(values["dataset"]), str(values.get("release", "")), kind, str(name))


class Counted(NamedTuple):
    """A column that counts rows of a `kind`, by the name in another column if several have it."""

    kind: str
    column: str
    named_by: str = ""
    is_absolute: bool = False


GOLD_TOTAL = Counted("gold", "total", "gold", is_absolute=True)
COUNTED: Mapping[str, Sequence[Counted]] = {
    ledger.batches.name: [Counted("bronze", "rows")],
    ledger.runs.name: [Counted(kind, kind) for kind in ("rows_in", "accepted", "invalid", "duplicate")],
    ledger.reasons.name: [Counted("reason", "rows", "reason")],
    ledger.warnings.name: [Counted("warning", "violations", "rule")],
    ledger.gold_commits.name: [GOLD_TOTAL],
    ledger.refreshes.name: [GOLD_TOTAL],
}


def _count_correction(values: Values) -> Iterator[Count]:
    layer, _, name = str(values["table"]).partition(".")
    if layer == "silver":
        yield Count(_key(values, "accepted"), int(values["total"]), absolute=True)
    elif layer == "gold":
        yield Count(_key(values, "gold", name), int(values["total"]), absolute=True)
    yield from _count_changes(values, 1)


def _count_expiration(values: Values) -> Iterator[Count]:
    """Expired rows are no longer in the tables; `expired` counts them by layer."""
    layer, rows = str(values["table"]).partition(".")[0], int(values["rows"])
    yield Count(_key(values, "expired", layer), rows)
    yield Count(_key(values, "bronze" if layer == "bronze" else "rows_in"), -rows)
    if layer == "silver":
        yield Count(_key(values, "accepted"), -rows)
    yield from _count_changes(values, -1)


def _count_changes(values: Values, sign: int) -> Iterator[Count]:
    for disposition, rows in json.loads(values["dispositions"] or "{}").items():
        yield Count(_key(values, disposition), sign * rows)
    for reason, rows in json.loads(values["reasons"] or "{}").items():
        yield Count(_key(values, "reason", reason), sign * rows)


COUNTED_BY_NAME: Mapping[str, Callable[[Values], Iterator[Count]]] = {
    ledger.corrections.name: _count_correction,
    ledger.expirations.name: _count_expiration,
}


Values = dict[str, Any]
Metadata = Mapping[str, Any]


class Row(NamedTuple):
    """A row of one of the ledger's tables, or the part of it that this commit provides."""

    table: Table
    values: Values


def rows_of_commit(commit: Commit) -> list[Row]:
    """Return the rows that a commit represents; none for maintenance, creation and commits that are not ours.

    A pure function of the commit. Raises Terminal when our metadata lacks a key or has another type.
    """
    if commit.metadata is None or commit.app_id is None:
        return []
    project = _projection_of(commit.app_id)
    if project is None:
        return []
    try:
        return project(commit, commit.metadata)
    except (KeyError, TypeError, ValueError) as error:
        why = f"its metadata cannot be read ({type(error).__name__}: {error}); the ledger stops before it"
        what = f"commit {commit.version} of {commit.app_id}: {why}"
        raise Terminal(what, "headrace audit   (checks the data itself)", code="commit-metadata-invalid") from error


def _projection_of(app_id: str) -> Callable[[Commit, Metadata], list[Row]] | None:
    """Return how commits of an app id (include/ground/app_ids.py) become rows; None for those that are not counted."""
    match app_id.split("/"):
        case [_, "bronze", _] | [_, "bronze", _, "quiet"] | [_, "bronze", "load", _]:
            return _bronze
        case [_, _, "silver"]:
            return _silver
        case [_, _, "rejected"]:
            return _rejected
        case [_, _, "gold", _]:
            return _gold
        case [_, _, "gold", _, "refresh"]:
            return _refresh
        case [_, _, "plan", _]:
            return _correction
        case [_, _, "expiry", _]:
            return _expiration
    return None


def _bronze(commit: Commit, meta: Metadata) -> list[Row]:
    batch, _ = _bounds(meta)
    key = {"dataset": str(meta["dataset"]), "generation": meta["app_id"].split("/")[2], "batch": batch}
    first, last = meta["timestamps"] or (None, None)
    values = {
        **_committed(commit, meta),
        **{name: _text(meta[name]) for name in ("topic", "topic_id", "query_id", "code")},
        "rows": int(meta["rows"]),
        "first_timestamp_ms": first,
        "last_timestamp_ms": last,
        "reference": canonical(meta.get("reference", {})),
    }
    return [Row(ledger.batches, key | values), *(_range(key, meta, part) for part in sorted(meta["offsets"], key=int))]


def _range(key: Values, meta: Metadata, partition: str) -> Row:
    start, end = meta["offsets"][partition]
    rows = int(meta["rows_by_partition"].get(partition, 0))
    bounds = {"partition": int(partition), "start_offset": int(start), "end_offset": int(end)}
    return Row(ledger.ranges, key | bounds | {"rows": rows})


def _silver(commit: Commit, meta: Metadata) -> list[Row]:
    values = {
        "rows_in": int(meta["rows_in"]),
        "accepted": int(meta["rows"]),
        "epoch": int(meta["epoch"]),
        "silver_version": commit.version,
        "silver_committed_at_ms": commit.timestamp_ms,
        "event_time_max": canonical(watermark_facts(meta)),
        "code": _text(meta["code"]),
    }
    return [Row(ledger.runs, _run(meta) | values)]


def _rejected(commit: Commit, meta: Metadata) -> list[Row]:
    run = _run(meta)
    values = {
        **{name: int(meta["dispositions"].get(name, 0)) for name in ("invalid", "duplicate")},
        "rejected_version": commit.version,
        "rejected_committed_at_ms": commit.timestamp_ms,
    }
    key = {name: run[name] for name in ("dataset", "release", "last_batch")}
    by_reason = sorted(meta["reasons"].items())
    return [
        Row(ledger.runs, run | values),
        *(Row(ledger.reasons, key | {"reason": str(reason), "rows": int(rows)}) for reason, rows in by_reason),
        # Commits from before rules could warn have none.
        *(_warning(key, name, counts) for name, counts in sorted(meta.get("warnings", {}).items())),
    ]


def _warning(key: Values, rule: str, counts: Mapping[str, Any]) -> Row:
    partition, offset = counts["first"] or (None, None)
    # Commits of earlier versions name the counts so.
    counted = {
        "validated": int(counts["judged" if "judged" in counts else "validated"]),
        "violations": int(counts["broken" if "broken" in counts else "violations"]),
    }
    return Row(ledger.warnings, key | {"rule": rule, "first_partition": partition, "first_offset": offset} | counted)


def _gold(commit: Commit, meta: Metadata) -> list[Row]:
    gold = {"gold": meta["app_id"].split("/")[3]}
    return [Row(ledger.gold_commits, _run(meta) | gold | _committed(commit, meta) | _grains(meta))]


def _refresh(commit: Commit, meta: Metadata) -> list[Row]:
    _, release, _, gold, _ = meta["app_id"].split("/")
    key = {"dataset": str(meta["dataset"]), "release": release, "gold": gold, "batch": commit.app_version}
    return [Row(ledger.refreshes, key | _committed(commit, meta) | _grains(meta))]


def _grains(meta: Metadata) -> Values:
    return {name: int(meta[name]) for name in ("rows", "grains", "total")}


def _correction(commit: Commit, meta: Metadata) -> list[Row]:
    values = {
        **{name: str(meta[name]) for name in ("dataset", "release", "plan", "table")},
        # Commits of earlier versions name the direction so.
        "direction": int(meta["direction" if "direction" in meta else "way"]),
        "batch": int(meta["batch"]),
        **_committed(commit, meta),
        **{name: meta.get(name) for name in ("rows_removed", "rows_added", "grains", "total")},
        **{name: canonical(meta[name]) if name in meta else None for name in ("dispositions", "reasons")},
    }
    return [Row(ledger.corrections, values)]


def _expiration(commit: Commit, meta: Metadata) -> list[Row]:
    owner, (first, before) = meta["app_id"].split("/")[1], meta["expired"]
    values = {
        "dataset": str(meta["dataset"]),
        "release": "" if owner == "bronze" else owner,
        "table": str(meta["table"]),
        "before": int(before),
        "first": int(first),
        "version": commit.version,
        "committed_at_ms": commit.timestamp_ms,
        "rows": int(meta["rows_removed"]),
        "total": int(meta["total"]),
        **{name: canonical(meta.get(name, {})) for name in ("dispositions", "reasons")},
        "offsets": canonical(meta["offsets_expired"]),
    }
    return [Row(ledger.expirations, values)]


def _run(meta: Metadata) -> Values:
    first, last = _bounds(meta)
    release = meta["app_id"].split("/")[1]
    return {"dataset": str(meta["dataset"]), "release": release, "first_batch": first, "last_batch": last}


def _bounds(meta: Metadata) -> tuple[int, int]:
    first, last = meta["batches"]
    return int(first), int(last)


def _committed(commit: Commit, meta: Metadata) -> Values:
    return {"version": commit.version, "committed_at_ms": commit.timestamp_ms, "epoch": int(meta["epoch"])}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def canonical(value: object) -> str:
    """Return JSON that is the same text for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def insert_commits(connection: Connection, path: str, commits: Sequence[Commit], *, cleaned: bool = False) -> int:
    """Enter the commits that are newer than the last one entered of the table at `path`; return how many.

    They must follow it without a gap, else `ledger-behind`: an index with holes would look complete.
    `cleaned`: the caller found that the log itself begins later.
    """
    last = last_projected(connection, path)
    head = -1 if last is None else last[0]
    fresh = [commit for commit in commits if commit.version > head]
    if not fresh:
        return 0
    if fresh[0].version != head + 1 and not cleaned:
        raise ledger.ledger_behind(path, fresh[0].version)
    rows = [row for commit in fresh for row in rows_of_commit(commit)]
    upsert(connection, rows)
    add_to_totals(connection, rows)
    mark = {"path": path, "version": fresh[-1].version, "committed_at_ms": fresh[-1].timestamp_ms}
    upsert(connection, [Row(ledger.projected, mark)])
    return len(fresh)


def last_projected(connection: Connection, path: str) -> tuple[int, int] | None:
    """Return version and commit time (UTC ms) of the last commit entered of a table, None when there is none."""
    c = ledger.projected.c
    found = connection.execute(select(c.version, c.committed_at_ms).where(c.path == path)).first()
    return None if found is None else (int(found[0]), int(found[1]))


def delete_release(connection: Connection, dataset: str, release: str) -> None:
    """Delete the rows of a release without tables, as a rebuild has none; tables of the same name may follow."""
    for table in (table for table in ledger.FACTS if "release" in table.c):
        connection.execute(table.delete().where(table.c.dataset == dataset, table.c.release == release))
    inside = ledger.projected.c.path.startswith(f"{dataset}/{release}/", autoescape=True)
    connection.execute(ledger.projected.delete().where(inside))


def upsert(connection: Connection, rows: Iterable[Row]) -> None:
    """Insert rows, or replace the given columns of those that are there; of equal keys the last one counts."""
    for _, group in groupby(sorted(rows, key=_shape), key=_shape):
        same = list(group)
        connection.execute(_upsert(connection, same[0].table, list(same[0].values)), [row.values for row in same])


def _shape(row: Row) -> tuple[str, list[str]]:
    return row.table.name, list(row.values)


def _upsert(connection: Connection, table: Table, columns: list[str]) -> postgresql.Insert | sqlite.Insert:
    insert = _insert(connection, table)
    keys = [column.name for column in table.primary_key]
    given = {column: insert.excluded[column] for column in columns if column not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=given)


def _insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
