"""Drift: how a dataset's newest records differ from all before, and what they have that the contract does not know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.declare.column_type import Profile
from include.declare.contract import Column, Contract, joined_path
from include.declare.envelopes import columns_read, is_of_row, text_of_row
from include.declare.writer_schemas import WriterSchemas
from include.ground.errors import Refused
from include.ground.sql_quoting import json_path, sql_identifier, sql_literal, sql_path
from include.read.memory_database import memory_database
from include.read.published_tables import PinnedTables

BINS, FEW = 10, 50
NULLS, PSI, DISTINCT = 0.05, 0.2, 2.0
# PSI takes logarithms: an empty bin counts as this share.
LEAST = 1e-4


@dataclass(frozen=True)
class RecordPosition:
    """A record, in the order of ingestion."""

    batch: int
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.batch}/{self.partition}/{self.offset}"


@dataclass(frozen=True)
class DriftWarning:
    """A warning: `measure` is nulls, distinct, range, value, psi or unknown field; `before` and `now` are texts."""

    column: str
    measure: str
    before: str
    now: str
    first: RecordPosition | None


@dataclass(frozen=True)
class UnknownField:
    """A field of payloads that the contract does not have: in how many records, and the first of them."""

    path: tuple[str, ...]
    rows: int
    first: RecordPosition

    @property
    def warning(self) -> DriftWarning:
        rows = f"{self.rows:,} records"
        return DriftWarning(joined_path(self.path), "unknown field", "no field of the contract", rows, self.first)


def drift_warnings(
    reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas
) -> list[DriftWarning]:
    """Return how silver from batch `since_batch` on differs from all before; it refuses when a side is empty."""
    name = contract.dataset
    with _database(reading, contract, since_batch, schemas) as database:
        _view_silver(database, reading, contract, since_batch)
        sizes = dict(database.execute("select fresh, count(*) from rows group by fresh").fetchall())
        if not sizes.get(True) or not sizes.get(False):
            what = f"{name}: silver has no records on one side of batch {since_batch}; nothing was compared"
            remedy = f"headrace ledger show --dataset {name}, then another --since-batch"
            raise Refused(what, remedy, code="nothing-to-compare", batch=since_batch)
        known = {name for name, *_ in database.execute("describe rows").fetchall()}
        columns = [column for column in contract.plain_columns if column.name in known or "." not in column.name]
        found = [warning for column in columns for warning in _column(database, column)]
        return [*found, *(each.warning for each in _unknown_fields(database, contract))]


def unknown_fields(
    reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas
) -> list[UnknownField]:
    """Return the fields that payloads from batch `since_batch` on have, in objects that the contract reads of."""
    with _database(reading, contract, since_batch, schemas) as database:
        return list(_unknown_fields(database, contract))


def newest_payloads(
    reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas, most: int
) -> list[bytes]:
    """Return the texts of the newest payloads, the newest first."""
    order = "order by _batch_id desc, _offset desc, _partition desc"
    with _database(reading, contract, since_batch, schemas) as database:
        found = database.sql(f"select payload from payloads where payload is not null {order} limit {int(most)}")
        return [str(text).encode() for (text,) in found.fetchall()]


def _database(reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas) -> Any:
    """Return a database with the view `payloads`: those from a batch on, as texts."""
    database = memory_database()
    contract.payload.define_texts(database, schemas, columns_read(contract), text_of_row(contract))
    database.register("bronze", reading.arrow(f"bronze.{contract.dataset}"))
    database.execute(
        'create view payloads as select _batch_id, partition as _partition, "offset" as _offset, '
        f"payload_text(value, headers := headers) as payload from bronze where _batch_id >= {int(since_batch)}"
    )
    return database


def _view_silver(database: Any, reading: PinnedTables, contract: Contract, since_batch: int) -> None:
    """Create the view `rows`: silver's, with the fields inside of its objects, and whether they are `fresh`."""
    database.register("silver", reading.arrow(f"silver.{contract.dataset}"))
    fields = "".join(f", {sql} as {sql_identifier(name)}" for name, sql in _fields_inside(database, contract).items())
    database.execute(f"create view rows as select *, _batch_id >= {int(since_batch)} as fresh{fields} from silver")


def _fields_inside(database: Any, contract: Contract) -> dict[str, str]:
    """Return SQL for each field inside of an object of silver, by its name there: `customer.city`."""
    types = dict(database.sql("select column_name, column_type from (describe silver)").fetchall())
    named = [column.name for column in contract.plain_columns if "." in column.name]
    inside = [name for name in named if types.get(name.partition(".")[0], "").startswith("STRUCT")]
    return {name: sql_path(name) for name in inside}


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


def _unknown_fields(database: Any, contract: Contract) -> Iterator[UnknownField]:
    """Fields of accepted and rejected payloads that the contract does not have, in objects of which it reads some."""
    objects: dict[tuple[str, ...], set[str]] = {}
    maps = tuple(f"{column.name}{ELEMENTS}" for column in contract.all_columns if column.kind.reads == MAP)
    columns = [column for column in contract.all_columns if not column.name.startswith(maps)]
    for column in columns:
        for depth, member in enumerate(column.path):
            objects.setdefault(column.path[:depth], set()).add(_own_name(member))
    kept = {column.path for column in columns if column.kind.keeps_all}
    known = [path for path in objects if not any(path[:depth] in kept for depth in range(len(path) + 1))]
    paths = [path for path in known if is_of_row(path, contract)]
    parts = ", ".join(map(_places, paths))
    members = ", ".join(f"[{', '.join(map(sql_literal, sorted(objects[path])))}]" for path in paths)
    for number, field, rows, place in database.execute(UNKNOWN_FIELDS.format(parts=parts, known=members)).fetchall():
        yield UnknownField((*paths[number - 1], field), rows, RecordPosition(*_numbers(place)))


def _own_name(member: str) -> str:
    """Return a member without the brackets that stand for an array's elements."""
    return _own_name(member.removesuffix(ELEMENTS)) if member.endswith(ELEMENTS) else member


def _places(path: Sequence[str]) -> str:
    """Return SQL for the list of what is at a path, all elements of its arrays."""
    steps = (
        json_path([name] if name else [])[1:] + "[*]" * ((len(member) - len(name)) // len(ELEMENTS))
        for member in path
        for name in [_own_name(member)]
    )
    place = "$" + "".join(steps)
    found = f"json_extract(text, {sql_literal(place)})"
    return found if "[*]" in place else f"[{found}]"


ELEMENTS, MAP = "[]", "map"
UNKNOWN_FIELDS = """
select number, field, count(distinct (_batch_id, _partition, _offset)), min((_batch_id, _partition, _offset))
from (
    select _batch_id, _partition, _offset, number, unnest(json_keys(part)) as field
    from (
        select * exclude (places), unnest(places) as part
        from (
            select *, unnest([{parts}]) as places, generate_subscripts([{parts}], 1) as number
            from (select *, case when json_valid(payload) then payload end as text from payloads)
        )
    )
    where json_type(part) = 'OBJECT'
)
where not list_contains([{known}][number], field) group by number, field order by number, field
"""


def _numbers(place: Any) -> Sequence[int]:
    """DuckDB gives a row value as a tuple or as a mapping."""
    return [int(number) for number in (place.values() if isinstance(place, dict) else place)]
