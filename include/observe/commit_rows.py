"""From a Delta commit to the ledger's rows: the one function behind the live ledger and the rebuilt one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Table

from include.declare.watermark import watermark_facts
from include.ground.delta_log import Commit
from include.observe.ledger_errors import CommitMetadataInvalid
from include.observe.ledger_schema import (
    batches,
    corrections,
    expirations,
    gold_commits,
    ranges,
    reasons,
    refreshes,
    runs,
    warnings,
)

Values = dict[str, int | str | None]
Metadata = Mapping[str, Any]


class Row(NamedTuple):
    """A row of one of the ledger's tables, or the part of it that this commit provides."""

    table: Table
    values: Values


def rows_of_commit(commit: Commit) -> list[Row]:
    """Return the rows that a commit represents; none for maintenance, creation and commits that are not ours.

    A pure function of the commit. Raises CommitMetadataInvalid when our metadata lacks a key or has another type.
    """
    if commit.metadata is None or commit.app_id is None:
        return []
    project = _projection_of(commit.app_id)
    if project is None:
        return []
    try:
        return project(commit, commit.metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise CommitMetadataInvalid(commit.app_id, commit.version, f"{type(error).__name__}: {error}") from error


def _projection_of(app_id: str) -> Callable[[Commit, Metadata], list[Row]] | None:
    """Return how commits of an app id (include/ground/app_ids.py) become rows; None for those that are not counted."""
    match app_id.split("/"):
        case [_, "bronze", _] | [_, "bronze", _, "quiet"]:
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
    key: Values = {"dataset": str(meta["dataset"]), "generation": meta["app_id"].split("/")[2], "batch": batch}
    first, last = meta["timestamps"] or (None, None)
    row = Row(
        batches,
        key
        | _committed(commit, meta)
        | {"rows": int(meta["rows"]), "first_timestamp_ms": first, "last_timestamp_ms": last}
        | {name: _text(meta[name]) for name in ("topic", "topic_id", "query_id", "code")}
        | {"reference": canonical(meta.get("reference", {}))},
    )
    return [row, *(_range(key, meta, partition) for partition in sorted(meta["offsets"], key=int))]


def _range(key: Values, meta: Metadata, partition: str) -> Row:
    start, end = meta["offsets"][partition]
    rows = int(meta["rows_by_partition"].get(partition, 0))
    return Row(
        ranges,
        key | {"partition": int(partition), "start_offset": int(start), "end_offset": int(end), "rows": rows},
    )


def _silver(commit: Commit, meta: Metadata) -> list[Row]:
    values: Values = {
        "rows_in": int(meta["rows_in"]),
        "accepted": int(meta["rows"]),
        "epoch": int(meta["epoch"]),
        "silver_version": commit.version,
        "silver_committed_at_ms": commit.timestamp_ms,
        "event_time_max": canonical(watermark_facts(meta)),
        "code": _text(meta["code"]),
    }
    return [Row(runs, _run(meta) | values)]


def _rejected(commit: Commit, meta: Metadata) -> list[Row]:
    run = _run(meta)
    values: Values = {
        "invalid": int(meta["dispositions"].get("invalid", 0)),
        "duplicate": int(meta["dispositions"].get("duplicate", 0)),
        "rejected_version": commit.version,
        "rejected_committed_at_ms": commit.timestamp_ms,
    }
    key = {name: run[name] for name in ("dataset", "release", "last_batch")}
    by_reason = sorted(meta["reasons"].items())
    return [
        Row(runs, run | values),
        *(Row(reasons, key | {"reason": str(reason), "rows": int(rows)}) for reason, rows in by_reason),
        # Commits from before rules could warn have none.
        *(_warning(key, name, counts) for name, counts in sorted(meta.get("warnings", {}).items())),
    ]


def _warning(key: Values, rule: str, counts: Mapping[str, Any]) -> Row:
    partition, offset = counts["first"] or (None, None)
    # Commits of earlier versions name the counts so.
    counted: Values = {
        "validated": int(counts["judged" if "judged" in counts else "validated"]),
        "violations": int(counts["broken" if "broken" in counts else "violations"]),
    }
    return Row(warnings, key | {"rule": rule, "first_partition": partition, "first_offset": offset} | counted)


def _gold(commit: Commit, meta: Metadata) -> list[Row]:
    counts: Values = {name: int(meta[name]) for name in ("rows", "grains", "total")}
    gold: Values = {"gold": meta["app_id"].split("/")[3]}
    return [Row(gold_commits, _run(meta) | gold | _committed(commit, meta) | counts)]


def _refresh(commit: Commit, meta: Metadata) -> list[Row]:
    _, release, _, gold, _ = meta["app_id"].split("/")
    key: Values = {"dataset": str(meta["dataset"]), "release": release, "gold": gold, "batch": commit.app_version}
    counts: Values = {name: int(meta[name]) for name in ("rows", "grains", "total")}
    return [Row(refreshes, key | _committed(commit, meta) | counts)]


def _correction(commit: Commit, meta: Metadata) -> list[Row]:
    key: Values = {name: str(meta[name]) for name in ("dataset", "release", "plan", "table")}
    counts: Values = {name: meta.get(name) for name in ("rows_removed", "rows_added", "grains", "total")}
    changes: Values = {name: canonical(meta[name]) if name in meta else None for name in ("dispositions", "reasons")}
    # Commits of earlier versions name the direction so.
    direction = meta["direction" if "direction" in meta else "way"]
    where: Values = {"direction": int(direction), "batch": int(meta["batch"]), "epoch": int(meta["epoch"])}
    committed: Values = {"version": commit.version, "committed_at_ms": commit.timestamp_ms}
    return [Row(corrections, key | where | committed | counts | changes)]


def _expiration(commit: Commit, meta: Metadata) -> list[Row]:
    owner, (first, before) = meta["app_id"].split("/")[1], meta["expired"]
    key: Values = {"dataset": str(meta["dataset"]), "release": "" if owner == "bronze" else owner}
    where: Values = {"table": str(meta["table"]), "before": int(before), "first": int(first)}
    committed: Values = {"version": commit.version, "committed_at_ms": commit.timestamp_ms}
    counts: Values = {"rows": int(meta["rows_removed"]), "total": int(meta["total"])}
    named: Values = {name: canonical(meta.get(name, {})) for name in ("dispositions", "reasons")}
    offsets: Values = {"offsets": canonical(meta["offsets_expired"])}
    return [Row(expirations, key | where | committed | counts | named | offsets)]


def _run(meta: Metadata) -> Values:
    first, last = _bounds(meta)
    return {
        "dataset": str(meta["dataset"]),
        "release": meta["app_id"].split("/")[1],
        "first_batch": first,
        "last_batch": last,
    }


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
