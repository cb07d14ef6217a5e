"""Drift: how the newest batches of silver differ from those before, column by column, and undeclared fields.

Simple measures that a person can check: share of nulls, distinct values, range, and the population stability index
(PSI) over ten bins of equal share, or over values where there are few. A warning names the first record that shows it.
Reads: published silver, and the payloads of the newest batches in bronze. Writes: nothing. A warning stops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.declare.column_type import Profile
from include.declare.contract import Column, Contract
from include.declare.payload_format import JSON
from include.declare.payload_text import define_payload_text
from include.declare.writer_schemas import WriterSchemas
from include.ground.errors import Terminal
from include.ground.sql_quoting import sql_literal
from include.read.memory_database import memory_database
from include.read.published_tables import PinnedTables

BINS, FEW = 10, 50
NULLS, PSI, DISTINCT = 0.05, 0.2, 2.0
# PSI takes logarithms: an empty bin counts as this share.
LEAST = 1e-4


class NothingToCompare(Terminal):
    """One of the two sides has no records."""

    def __init__(self, dataset: str, batch: int) -> None:
        super().__init__(
            f"{dataset}: silver has no records on one side of batch {batch}; nothing was compared",
            f"headrace ledger show --dataset {dataset}, then another --since-batch",
        )
        self.dataset, self.batch = dataset, batch


@dataclass(frozen=True)
class RecordPosition:
    """A record, in the order of ingestion."""

    batch: int
    partition: int
    offset: int


@dataclass(frozen=True)
class DriftWarning:
    """A warning: `measure` is nulls, distinct, range, value, psi or unknown field; `before` and `now` are texts."""

    column: str
    measure: str
    before: str
    now: str
    first: RecordPosition | None


def drift_warnings(
    reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas
) -> list[DriftWarning]:
    """Return how silver from batch `since_batch` on differs from all before; NothingToCompare when a side is empty."""
    name = contract.dataset
    with _database(reading, contract, since_batch, schemas) as database:
        sizes = dict(database.execute("select fresh, count(*) from rows group by fresh").fetchall())
        if not sizes.get(True) or not sizes.get(False):
            raise NothingToCompare(name, since_batch)
        found = [warning for column in contract.columns for warning in _column(database, column)]
        return [*found, *_unknown_fields(database, contract)]


def _database(reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas) -> Any:
    database, dataset = memory_database(), contract.dataset
    define_payload_text(database, schemas, contract.format != JSON, contract.columns)
    database.register("silver", reading.arrow(f"silver.{dataset}"))
    database.register("bronze", reading.arrow(f"bronze.{dataset}"))
    database.execute(f"create view rows as select *, _batch_id >= {int(since_batch)} as fresh from silver")
    database.execute(
        'create view payloads as select _batch_id, partition as _partition, "offset" as _offset, '
        f"payload_text(value) as payload from bronze where _batch_id >= {int(since_batch)}"
    )
    return database


def _column(database: Any, column: Column) -> Iterator[DriftWarning]:
    yield from _nulls(database, column.name)
    if column.kind.profile is Profile.range:
        yield from _range(database, column.name)
        yield from _psi(database, column.name, _bins(database, column.name))
    elif column.kind.profile is Profile.values:
        yield from _values(database, column.name)


def _nulls(database: Any, column: str) -> Iterator[DriftWarning]:
    shares = dict(database.execute(f'select fresh, avg(("{column}" is null)::int) from rows group by fresh').fetchall())
    before, now = shares[False], shares[True]
    if abs(now - before) > NULLS:
        condition = f'"{column}" is null' if now > before else f'"{column}" is not null'
        yield DriftWarning(column, "nulls", f"{before:.1%}", f"{now:.1%}", _first(database, condition))


def _range(database: Any, column: str) -> Iterator[DriftWarning]:
    sql = f'select min("{column}"), max("{column}") from rows where not fresh'
    low, high = database.execute(sql).fetchone()
    if low is None:
        return
    condition = f'("{column}" < {low} or "{column}" > {high})'
    first = _first(database, condition)
    if first is not None:
        now = database.execute(f'select min("{column}"), max("{column}") from rows where fresh').fetchone()
        yield DriftWarning(column, "range", f"{low} to {high}", f"{now[0]} to {now[1]}", first)


def _bins(database: Any, column: str) -> str:
    """Return SQL for the bin of a value: bins have equally many earlier values, where values differ."""
    at = [n / BINS for n in range(1, BINS)]
    (edges,) = database.execute(f'select quantile_cont("{column}", {at}) from rows where not fresh').fetchone()
    distinct = sorted({float(edge) for edge in edges or ()})
    return " + ".join(f'("{column}" > {edge!r})::int' for edge in distinct) or "0"


def _values(database: Any, column: str) -> Iterator[DriftWarning]:
    """For a column with few values: new ones, and each one's frequency; for any other: the number of values."""
    sql = f'select fresh, count(distinct "{column}"), count("{column}") from rows group by fresh'
    counted = {fresh: (distinct, rows) for fresh, distinct, rows in database.execute(sql).fetchall()}
    if counted[False][0] > FEW:
        # Of as many rows each: more rows have more values.
        rows = min(counted[False][1], counted[True][1])
        before, now = (_distinct(database, column, fresh, rows) for fresh in (False, True))
        if before and now and max(before, now) / min(before, now) > DISTINCT:
            yield DriftWarning(
                column, "distinct", f"{before:,} of {rows:,}", f"{now:,} of {rows:,}", _first(database, "true")
            )
        return
    known = f'(select "{column}" from rows where not fresh and "{column}" is not null)'
    first = _first(database, f'"{column}" is not null and "{column}" not in {known}')
    if first is not None:
        sql = f'select distinct "{column}"::varchar from rows where fresh and "{column}" not in {known} order by 1'
        fresh = [value for (value,) in database.execute(sql).fetchall()]
        yield DriftWarning(column, "value", f"{counted[False][0]} values", f"also {', '.join(fresh[:5])}", first)
    yield from _psi(database, column, f'"{column}"::varchar')


def _distinct(database: Any, column: str, fresh: bool, rows: int) -> int:
    order = "order by _batch_id, _partition, _offset"
    some = f'select "{column}" as v from rows where fresh = {fresh} and "{column}" is not null {order} limit {rows}'
    return int(database.execute(f"select count(distinct v) from ({some})").fetchone()[0])


def _psi(database: Any, column: str, bin_of: str) -> Iterator[DriftWarning]:
    sql = f'select {bin_of} as bin, fresh, count(*) from rows where "{column}" is not null group by all'
    counts: dict[Any, dict[bool, int]] = {}
    for place, fresh, rows in database.execute(sql).fetchall():
        counts.setdefault(place, {})[fresh] = rows
    totals = {side: sum(found.get(side, 0) for found in counts.values()) for side in (False, True)}
    if not all(totals.values()):
        return
    parts = {place: psi_term(found, totals) for place, found in counts.items()}
    if sum(parts.values()) > PSI:
        # A value that became rarer has no first record, so the value whose share grew most is named.
        worst = max(counts, key=lambda place: _growth(counts[place], totals))
        shares = [counts[worst].get(side, 0) / totals[side] for side in (False, True)]
        place = worst.replace("'", "''") if isinstance(worst, str) else worst
        first = _first(database, f"({bin_of}) = '{place}'")
        detail = f"PSI {sum(parts.values()):.2f}, most more of {_named(worst)}: {shares[1]:.1%}"
        yield DriftWarning(column, "psi", f"{shares[0]:.1%}", detail, first)


def psi_term(counts: Mapping[bool, int], totals: Mapping[bool, int]) -> float:
    """Return one bin's part of the population stability index: (now - before) · ln(now / before), of shares."""
    before, now = (max(counts.get(side, 0) / totals[side], LEAST) for side in (False, True))
    return (now - before) * math.log(now / before)


def _growth(counts: Mapping[bool, int], totals: Mapping[bool, int]) -> float:
    return counts.get(True, 0) / totals[True] - counts.get(False, 0) / totals[False]


def _named(place: Any) -> str:
    return f"{place!r}" if isinstance(place, str) else f"bin {int(place) + 1}"


def _first(database: Any, condition: str) -> RecordPosition | None:
    sql = f"select min((_batch_id, _partition, _offset)) from rows where fresh and {condition}"
    (found,) = database.execute(sql).fetchone()
    return None if found is None else RecordPosition(*_numbers(found))


def _unknown_fields(database: Any, contract: Contract) -> Iterator[DriftWarning]:
    """Fields of accepted and rejected payloads that the contract does not have."""
    known = ", ".join(sql_literal(column.member) for column in contract.columns)
    sql = f"""
        select field, count(*), min((_batch_id, _partition, _offset))
        from (
            select _batch_id, _partition, _offset, unnest(json_keys(payload)) as field
            from (select * replace (case when json_valid(payload) then payload end as payload) from payloads)
            where json_type(payload) = 'OBJECT'
        )
        where field not in ({known}) group by field order by field
    """
    for field, rows, place in database.execute(sql).fetchall():
        yield DriftWarning(
            field, "unknown field", "no field of the contract", f"{rows:,} records", RecordPosition(*_numbers(place))
        )


def _numbers(place: Any) -> Sequence[int]:
    """DuckDB gives a row value as a tuple or as a mapping."""
    return [int(number) for number in (place.values() if isinstance(place, dict) else place)]
