"""A dataset inferred from a sample of Debezium's records: the row, its keys, and the order of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from include.declare.contract import member_path
from include.declare.envelopes import OPERATIONS
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
ADDED = ("op", "sequence", "ts_ms")
"""The columns of the envelope."""
MOST_BROKEN = 0.01
"""Share of the changes that may create a row which is there: a sample may begin anywhere, and repeats some."""
TIME = InferredField("ts_ms", ("ts_ms",), "number", True, 0, TimeForm.millis)


BIGINT = "integer, physicalType: bigint"


@dataclass(frozen=True)
class Order:
    """The fields that put changes in order, by their JSON pointers, with the columns that the contract has of them.

    Without columns the envelope's own `column` does.
    """

    pointers: tuple[str, ...]
    columns: tuple[tuple[str, str], ...] = ()
    """The name and type of each."""
    column: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that put changes in order."""
        return (*(name for name, _ in self.columns), *([self.column] if self.column else []))

    @property
    def doubt(self) -> str:
        """What is lost where two changes have the same place in the order."""
        return "; of two in one millisecond the second is taken for a copy" if self.column == "ts_ms" else ""

    def identity(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return what tells a change from all others, in the order of the contract's columns."""
        return (*(name for name, _ in self.columns), *keys, *([self.column] if self.column else []), "op")

    def is_of(self, change: Record) -> bool:
        """Whether a change has all of the fields."""
        return all(value_at(change, member_path(pointer)) is not None for pointer in self.pointers)


BY_TIME = Order((), column="ts_ms")
ORDERS = (
    Order(("/source/lsn",), column="sequence"),
    Order(("/source/file", "/source/pos"), (("binlog_file", "string"), ("binlog_position", BIGINT))),
    Order(("/source/change_lsn", "/source/event_serial_no"), (("change_lsn", "string"), ("event_number", BIGINT))),
    Order(("/ts_ns",), (("changed_ns", BIGINT),)),
    BY_TIME,
)
"""PostgreSQL's log, MySQL's, SQL Server's; the time of the change, in nanoseconds where it has them."""


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
        return tuple((*column, place) for column, place in zip(self.order.columns, self.order.pointers, strict=False))

    @property
    def sequence(self) -> tuple[str, ...]:
        """The columns that put changes in order, when they are not the envelope's."""
        return () if self.order.column == "sequence" else self.order.names


def is_change(record: Record) -> bool:
    """Whether a record is Debezium's, with or without a schema next to it."""
    change = _change(record)
    op, rows = change.get("op"), [change.get("after"), change.get("before")]
    is_row = all(isinstance(row, dict | None) for row in rows) and (any(rows) or op in OPERATIONS.truncate)
    return isinstance(op, str) and "source" in change and is_row


def inferred_changes(name: str, topic: str, sample: RecordSample, now: datetime) -> InferredChanges:
    """Infer a dataset of changes. Raises SampleUnusable without a row or a field that may be its key."""
    changes = [_change(record) for record in sample.fields]
    rows = [row for change in changes if (row := _row(change))]
    fields, left_out = inferred_fields(rows, now)
    fields = [replace(field, name=f"row_{field.name}") if field.name in ADDED else field for field in fields]
    keys = _keys(name, changes, fields)
    if not keys:
        raise SampleUnusable(sample.origin, "no field of the rows may be their key, which each row has")
    if not any(change.get("after") for change in changes):
        raise SampleUnusable(sample.origin, "no record has a row as it is after a change")
    order = next(each for each in ORDERS if all(map(each.is_of, changes)))
    return InferredChanges(
        name=name,
        topic=topic,
        origin=sample.origin,
        records=sample.records,
        fields=tuple(replace(field, required=field.name in keys, values=(), seen=field.values) for field in fields),
        left_out=left_out,
        unusual=sample.unusual,
        identity=order.identity(keys),
        identity_reason="the key of a row, and its change" + order.doubt,
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
        if change["op"] in OPERATIONS.truncate:
            live.clear()
        elif change["op"] in OPERATIONS.delete:
            live.discard(was)
        else:
            broken += (change["op"] == "c" and at in live) or (change["op"] == "u" and None not in was and was != at)
            live.add(at)
    return broken


def _values(row: Any, key: Sequence[InferredField]) -> tuple[Any, ...]:
    found = (value_at(row, field.path) for field in key)
    return tuple(str(value) if isinstance(value, Decimal) else value for value in found)
