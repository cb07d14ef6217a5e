"""Sums over the ledger's rows, kept as commits are entered: `status` reads these instead of every run.

A commit is entered once (`projected`), in the order of its table's versions, so its rows are counted once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from include.observe.commit_rows import Row, Values
from include.observe.ledger_schema import (
    batches,
    corrections,
    expirations,
    gold_commits,
    reasons,
    refreshes,
    runs,
    totals,
    warnings,
)


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
    insert = postgresql.insert(totals) if connection.dialect.name == "postgresql" else sqlite.insert(totals)
    for known in (True, False):
        values = [
            key._asdict() | {"rows": (change.total or 0) + change.added}
            for key, change in sorted(changes.items())
            if (change.total is not None) == known
        ]
        rows_after = insert.excluded.rows if known else totals.c.rows + insert.excluded.rows
        if values:
            connection.execute(
                insert.on_conflict_do_update(index_elements=TotalKey._fields, set_={"rows": rows_after}), values
            )


def _counts(row: Row) -> Iterator[Count]:
    count = COUNTED.get(row.table.name)
    return iter(()) if count is None else count(row.values)


def _key(values: Values, kind: str, name: object = "") -> TotalKey:
    return TotalKey(str(values["dataset"]), str(values.get("release", "")), kind, str(name))


def _batch(values: Values) -> Iterator[Count]:
    yield Count(_key(values, "bronze"), _rows(values["rows"]))


def _run(values: Values) -> Iterator[Count]:
    for kind in ("rows_in", "accepted", "invalid", "duplicate"):
        if kind in values:
            yield Count(_key(values, kind), _rows(values[kind]))


def _reason(values: Values) -> Iterator[Count]:
    yield Count(_key(values, "reason", values["reason"]), _rows(values["rows"]))


def _warning(values: Values) -> Iterator[Count]:
    yield Count(_key(values, "warning", values["rule"]), _rows(values["violations"]))


def _gold(values: Values) -> Iterator[Count]:
    yield Count(_key(values, "gold", values["gold"]), _rows(values["total"]), absolute=True)


def _correction(values: Values) -> Iterator[Count]:
    layer, _, name = str(values["table"]).partition(".")
    if layer == "silver":
        yield Count(_key(values, "accepted"), _rows(values["total"]), absolute=True)
    elif layer == "gold":
        yield Count(_key(values, "gold", name), _rows(values["total"]), absolute=True)
    for disposition, rows in _changes(values["dispositions"]):
        yield Count(_key(values, disposition), rows)
    for reason, rows in _changes(values["reasons"]):
        yield Count(_key(values, "reason", reason), rows)


def _expiration(values: Values) -> Iterator[Count]:
    """Expired rows are no longer in the tables; `expired` counts them by layer."""
    layer, rows = str(values["table"]).partition(".")[0], _rows(values["rows"])
    yield Count(_key(values, "expired", layer), rows)
    if layer == "bronze":
        yield Count(_key(values, "bronze"), -rows)
    else:
        yield Count(_key(values, "rows_in"), -rows)
    if layer == "silver":
        yield Count(_key(values, "accepted"), -rows)
    for disposition, count in _changes(values["dispositions"]):
        yield Count(_key(values, disposition), -count)
    for reason, count in _changes(values["reasons"]):
        yield Count(_key(values, "reason", reason), -count)


def _changes(text: int | str | None) -> Iterable[tuple[str, int]]:
    return json.loads(text).items() if isinstance(text, str) else ()


def _rows(value: int | str | None) -> int:
    assert isinstance(value, int)
    return value


COUNTED: Mapping[str, Callable[[Values], Iterator[Count]]] = {
    batches.name: _batch,
    runs.name: _run,
    reasons.name: _reason,
    warnings.name: _warning,
    gold_commits.name: _gold,
    refreshes.name: _gold,
    corrections.name: _correction,
    expirations.name: _expiration,
}
