"""A dataset inferred from a sample of Debezium's records: the row, its keys, and the order of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from include.declare.inferred_dataset import (
    InferredDataset,
    InferredField,
    TimeForm,
    inferred_fields,
    likely_keys,
    value_at,
)
from include.declare.sample_records import RecordSample, SampleUnusable

Record = dict[str, Any]
SEQUENCE = ("sequence",)
MOST_BROKEN = 0.01
"""Share of the changes that may create a row which is there: a sample may begin anywhere, and repeats some."""
TIME = InferredField("ts_ms", ("ts_ms",), "number", True, 0, TimeForm.millis)


@dataclass(frozen=True)
class Order:
    """The fields of `source` that put changes in order, with their columns; none are columns of the envelope."""

    members: tuple[str, ...]
    columns: tuple[tuple[str, str], ...] = ()
    """The name and logical type of each, which the contract declares."""

    @property
    def added(self) -> tuple[str, ...]:
        """The column of the envelope that puts changes in order, unless `columns` do."""
        return () if self.columns else SEQUENCE if self.members else ("ts_ms",)


ORDERS = (
    Order(("lsn",)),
    Order(("file", "pos"), (("binlog_file", "string"), ("binlog_position", "integer"))),
)
"""PostgreSQL's log, MySQL's."""
BY_TIME = Order(())


@dataclass(frozen=True)
class InferredChanges(InferredDataset):
    """A dataset whose records are changes of rows with these `fields`; the row's place is `row` in a record."""

    keys: tuple[str, ...] = ()
    order: Order = BY_TIME
    row: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns of the row that gold keeps: all that are one value."""
        values = [field for field in self.fields if not field.kind.is_nested and field.type != "variant"]
        return tuple(field.name for field in values if field.name not in self.keys)

    @property
    def key_paths(self) -> tuple[tuple[str, ...], ...]:
        return tuple((*self.row, *field.path) for field in self.fields if field.name in self.keys)

    @property
    def pointed(self) -> tuple[tuple[str, str, str], ...]:
        places = (f"/source/{member}" for member in self.order.members)
        return tuple((*column, place) for column, place in zip(self.order.columns, places, strict=False))

    @property
    def sequence(self) -> tuple[str, ...]:
        """The columns that put changes in order, when they are not the envelope's."""
        names = tuple(name for name, _ in self.order.columns) or self.order.added
        return () if names == SEQUENCE else names


def is_change(record: Record) -> bool:
    """Whether a record is Debezium's, with or without a schema next to it."""
    change = _change(record)
    return (
        isinstance(change.get("op"), str) and "source" in change and not change.keys().isdisjoint(("after", "before"))
    )


def inferred_changes(name: str, topic: str, sample: RecordSample, now: datetime) -> InferredChanges:
    """Infer a dataset of changes. Raises SampleUnusable without a row or a field that may be its key."""
    changes = [_change(record) for record in sample.fields]
    rows = [row for change in changes if (row := _row(change))]
    fields, left_out = inferred_fields(rows, now)
    keys = _keys(name, changes, fields)
    if not keys:
        raise SampleUnusable(sample.origin, "no field of the rows may be their key, which each row has")
    order = next((each for each in ORDERS if all(map(_has(each), changes))), BY_TIME)
    columns = tuple(replace(field, required=field.name in keys, values=(), seen=field.values) for field in fields)
    return InferredChanges(
        name=name,
        topic=topic,
        origin=sample.origin,
        records=sample.records,
        fields=columns,
        left_out=left_out,
        unusual=sample.unusual,
        identity=(*(each for each, _ in order.columns), *keys, *order.added, "op"),
        identity_reason="the key of a row, and its change",
        time=TIME,
        event_time="changed_at",
        group=None,
        measured=(),
        keys=keys,
        order=order,
        row=(*(["payload"] if "payload" in sample.fields[0] else []), "after"),
    )


def _change(record: Record) -> Record:
    payload = record.get("payload")
    return payload if "schema" in record and isinstance(payload, dict) else record


def _row(change: Record) -> Record:
    return change.get("after") or change.get("before") or {}


def _has(order: Order) -> Any:
    return lambda change: all(value_at(change, ("source", member)) is not None for member in order.members)


def _keys(name: str, changes: Sequence[Record], fields: Sequence[InferredField]) -> tuple[str, ...]:
    """Return the likeliest key: with it, a row is created once until it is deleted."""
    candidates = [tuple(found) for found in likely_keys(name, fields)]
    fit = (found for found in candidates if _broken(changes, found) <= MOST_BROKEN * len(changes))
    key = next(fit, candidates[0] if candidates else ())
    return tuple(field.name for field in fields if field in key)


def _broken(changes: Sequence[Record], key: Sequence[InferredField]) -> int:
    """Return how many changes create a row that is there, or move one to another key."""
    live, broken = set[tuple[Any, ...]](), 0
    for change in changes:
        at, was = (_values(change.get(side), key) for side in ("after", "before"))
        if change["op"] == "d":
            live.discard(was)
            continue
        broken += (change["op"] == "c" and at in live) or (change["op"] == "u" and None not in was and was != at)
        live.add(at)
    return broken


def _values(row: Any, key: Sequence[InferredField]) -> tuple[Any, ...]:
    return tuple(_text(value_at(row, field.path)) for field in key)


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value
