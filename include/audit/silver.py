"""I3 and I4: each record of bronze is once in silver or rejected, and silver has each identity once.

All functions query a DuckDB connection with the views `bronze`, `silver` and `rejected` (all their columns) of the
batches that are compared, `all_silver` with all batches, and `fixes` (partition, offset, value): the corrected payloads
of rejected records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

import polars as pl

from include.audit.findings import Finding, FindingKind, position_findings
from include.declare.children import Children, child_table
from include.declare.contract import Column, member_path
from include.declare.pipeline import Pipeline
from include.ground.sql_quoting import json_path, sql_identifier, sql_literal, sql_path
from include.read.memory_database import view_table
from include.read.published_tables import PinnedTables

EXACT_NUMBER = "exact_number"
"""The function of DuckDB: a payload's text, the name of a member, and a scale → its number as a plain decimal."""
MOST_DIGITS = 100
"""Before the point: more than any column has."""
AT_A_TIME = 10_000


def define_exact_number(database: Any) -> None:
    """Define the function `exact_number` in a DuckDB database."""
    types = ["varchar", "varchar", "integer"]
    database.create_function(EXACT_NUMBER, exact_number, types, "varchar", null_handling="special")


def exact_number(payload: str | None, member: str, scale: int) -> str | None:
    """Return a member's number as a plain decimal; None if it is none, or has more digits than the scale."""
    number = _inside(_numbers(payload), member_path(member))
    if not isinstance(number, Decimal) or not number.is_finite():
        return None
    if not number:
        return "0"
    digits = str(number.copy_abs()).partition("E")[0].replace(".", "").rstrip("0")
    decimals = len(digits.lstrip("0")) - 1 - number.adjusted()
    return f"{number:f}" if number.adjusted() < MOST_DIGITS and decimals <= scale else None


def number_findings(database: Any, dataset: str, members: Mapping[str, str], first: int = 0) -> Iterator[Finding]:
    """Yield where a decimal column of silver is not the number in the payload, among those that a double might change.

    `members`: the columns that `silver.py` leaves as they are, with their names in the payload. Rows of batches before
    `first` are inherited: their values are what an earlier release made of the payloads. Reads the views of
    `silver.py`.
    """
    types = _types_inside(database, members)
    decimals = {name: member for name, member in members.items() if types.get(name, "").startswith("DECIMAL")}
    if not decimals:
        return
    shown = ", ".join(f"cast(s.{sql_path(name)} as varchar)" for name in decimals)
    equal = " and ".join(_is_surely_equal(name, member, types[name]) for name, member in decimals.items())
    found = database.execute(LONG_NUMBERS.format(columns=shown, equal=equal, first=first))
    wrong: dict[str, list[tuple[int, int]]] = {name: [] for name in decimals}
    while rows := found.fetchmany(AT_A_TIME):
        for partition, offset, payload, *values in rows:
            given = _numbers(payload)
            for (name, member), value in zip(decimals.items(), values, strict=True):
                if not _is_same(_inside(given, member_path(member)), value):
                    wrong[name].append((partition, offset))
    for name, places in wrong.items():
        rows = pl.DataFrame(places, schema={"partition": pl.Int32, "offset": pl.Int64}, orient="row")
        detail = f"{name} is not the number in the payload"
        yield from position_findings(FindingKind.different, f"silver.{dataset}", rows, detail)


def _types_inside(database: Any, names: Iterable[str]) -> dict[str, str]:
    """Return the types of silver's columns, and of these fields inside of them."""
    found = dict(database.sql("select column_name, column_type from (describe silver)").fetchall())
    inside = [name for name in names if "." in name and found.get(name.partition(".")[0], "").startswith("STRUCT")]
    if inside:
        fields = ", ".join(f"{sql_path(name)} as {sql_identifier(name)}" for name in inside)
        described = f"select column_name, column_type from (describe select {fields} from silver)"
        found |= dict(database.sql(described).fetchall())
    return found


def _inside(value: Any, path: Sequence[str]) -> Any:
    """Return what a path leads to in a JSON object; None if it leads nowhere."""
    for member in path:
        value = value.get(member) if isinstance(value, Mapping) else None
    return value


def _is_surely_equal(name: str, member: str, kind: str) -> str:
    """Return SQL that is true only where a column has its member's exact number; Python reads the other payloads.

    Surely: nothing is escaped, one key has the member's name, and it is the record's own; the cast of its text loses
    no digit.
    """
    members = member_path(member)
    column, key, scale = sql_path(name), re.escape(members[-1]), kind.rstrip(")").rpartition(",")[2]
    number = f"regexp_extract(b.payload, {sql_literal(NUMBER.format(key=key))}, ['text', 'fraction', 'power'])"
    keys = f"len(regexp_extract_all(b.payload, {sql_literal(KEY.format(key=key))}))"
    path = sql_literal(json_path(members))
    return EQUAL.format(column=column, kind=kind, scale=scale, number=number, keys=keys, path=path)


def _numbers(payload: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(payload or "", parse_float=_decimal, parse_int=_decimal)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _decimal(token: str) -> Decimal | None:
    try:
        return Decimal(token)
    except InvalidOperation:
        # An exponent that even a decimal cannot have; zero has any.
        return Decimal(0) if not token.lower().partition("e")[0].strip("-0.") else Decimal("NaN")


def _is_same(given: Any, value: str | None) -> bool:
    if value is None:
        return given is None
    return isinstance(given, Decimal) and given.is_finite() and given == Decimal(value)


KEY = r'"{key}"\s*:'
NUMBER = rf"{KEY}\s*(-?[0-9]+(?:\.([0-9]*[1-9])?0*)?(?:[eE]([+-]?[0-9]{{{{1,9}}}}))?)\s*[,}}}}]"
# In a lambda, so that DuckDB extracts the number once.
EQUAL = r"""(
    not contains(b.payload, '\') and (
        {keys} = 0 and s.{column} is null
        or {keys} = 1 and try(json_exists(b.payload, {path}))
        and list_bool_and(list_transform([{number}], lambda number:
            s.{column} = try_cast(number.text as {kind})
            and length(number.fraction) - coalesce(try_cast(number.power as integer), 0) <= {scale}
        ))
    )
)"""
# The tokens that matter: with an exponent, or of more digits than every double has.
LONG_NUMBERS = r"""
select s._partition, s._offset, b.payload, {columns}
from silver as s
join (
    select partition, "offset", payload
    from (
        select b.partition, b."offset",
            case when f.value is null then payload_text(b.value, headers := b.headers)
            else fix_text(f.value, headers := b.headers) end as payload
        from bronze as b
        left join fixes as f on f.partition = b.partition and f."offset" = b."offset"
    )
    where regexp_matches(payload, ':\s*-?[0-9](?:[0-9.]{{15}}|[0-9.]*[eE])')
) as b
on s._partition = b.partition and s._offset = b."offset"
where (s._batch_id >= {first} or s._batch_id is null) and not coalesce({equal}, false)
order by s._partition, s._offset
"""


ALL_SILVER = "all_silver"
EVERYWHERE = "true"
HASHES_AT_A_TIME = 20_000_000
"""160 MB of them, and as much again to count the distinct ones."""


def split_findings(
    database: Any, dataset: str, batch: int, first: int = 0, *, distinct: bool = False
) -> Iterator[Finding]:
    """Yield where bronze differs from silver ⊎ rejected by (partition, offset, batch), and rows of later batches.

    Batches before `first` have expired and are not compared. If bronze is known to have `distinct` records, they are
    compared one by one only if their number or the sum of their hashes differs from those of silver and rejected.
    """
    if not (distinct and _is_split(database, first)):
        yield from _unequal_findings(database, dataset, first)
    later = database.sql(LATER_RECORDS, params=[batch] * 3).pl()
    for (layer,), rows in later.group_by(["layer"], maintain_order=True):
        detail = f"of a batch later than the published {batch}"
        yield from position_findings(FindingKind.surplus, f"{layer}.{dataset}", rows, detail)


def _is_split(database: Any, first: int) -> bool:
    """Whether silver and rejected together have as many records as bronze, with the same sum of hashes."""
    sums = {side: found for side, *found in database.sql(RECORD_SUMS.format(first=first)).fetchall()}
    return bool(sums.get("bronze") == sums.get("validated"))


def _unequal_findings(database: Any, dataset: str, first: int) -> Iterator[Finding]:
    unequal = database.sql(UNEQUAL_RECORDS.format(first=first)).pl()
    silver, rejected, bronze = f"silver.{dataset}", f"rejected.{dataset}", f"bronze.{dataset}"
    validated, known = pl.col("silver") + pl.col("rejected"), pl.col("bronze") > 0
    both = (pl.col("silver") > 0) & (pl.col("rejected") > 0)
    rules: list[tuple[FindingKind, str, str, pl.Expr]] = [
        (FindingKind.overlap, bronze, "more than one row of the same record", pl.col("bronze") > 1),
        (FindingKind.missing, silver, "in bronze but in neither silver nor rejected", known & (validated == 0)),
        (FindingKind.surplus, silver, "in silver but not in bronze", ~known & (pl.col("silver") > 0)),
        (FindingKind.surplus, rejected, "in rejected but not in bronze", ~known & (pl.col("rejected") > 0)),
        (FindingKind.overlap, silver, "in both silver and rejected", both),
        (FindingKind.overlap, silver, "more than one row of the same record", pl.col("silver") > 1),
        (FindingKind.overlap, rejected, "more than one row of the same record", pl.col("rejected") > 1),
        (FindingKind.different, silver, "_batch_id differs from bronze", (pl.col("bronze") == 1) & (validated == 1)),
    ]
    for kind, table, detail, wrong in rules:
        yield from position_findings(kind, table, unequal.filter(wrong), detail)


def repeated_findings(database: Any, dataset: str, pipeline: Pipeline, after: int = -1) -> Iterator[Finding]:
    """Yield identities that are twice in silver within the horizon, the later one in a batch > `after`."""
    identity = ", ".join(sql_identifier(column) for column in pipeline.identity)
    if after < 0 and not _is_a_hash_repeated(database, identity):
        return
    same = " and ".join(
        f"earlier.{sql_identifier(column)} is not distinct from later.{sql_identifier(column)}"
        for column in pipeline.identity
    )
    event_time = sql_identifier(pipeline.event_time)
    near = _near_silver(database, pipeline) if after >= 0 else "true"
    sql = REPEATED_IDENTITIES.format(identity=identity, same=same, event_time=event_time, near=near, after=after)
    repeated = database.sql(sql, params=[pipeline.horizon.total_seconds()]).pl()
    yield from position_findings(FindingKind.overlap, f"silver.{dataset}", repeated, "identity already in silver")


def _is_a_hash_repeated(database: Any, identity: str) -> bool:
    """Whether two rows of silver have identities with the same hash.

    Polars counts distinct numbers in a sixth of the time in which DuckDB groups them, but in memory: it gets a part of
    the hashes at a time.
    """
    rows = database.sql(f"select count(*) from {ALL_SILVER}").fetchall()[0][0]
    parts = max(1, -(-rows // HASHES_AT_A_TIME))
    mark = f"hash({identity})"
    return any(
        _has_repeated(database, f"select {mark} from {ALL_SILVER} where {mark} % {parts} = {part}")
        for part in range(parts)
    )


def _has_repeated(database: Any, sql: str) -> bool:
    values = database.sql(sql).pl().to_series()
    return bool(values.n_unique() < len(values))


def _near_silver(database: Any, pipeline: Pipeline) -> str:
    """Return the condition of all rows of silver that are within the horizon of a row of the view `silver`."""
    time, horizon = sql_identifier(pipeline.event_time), pipeline.horizon // timedelta(microseconds=1)
    low, high = database.sql(f"select epoch_us(min({time})), epoch_us(max({time})) from silver").fetchall()[0]
    if low is None:
        return "false"
    return f"{time} between make_timestamptz({low - horizon}) and make_timestamptz({high + horizon})"


def orphan_findings(
    database: Any,
    dataset: str,
    pipeline: Pipeline,
    first: int = 0,
    columns: Mapping[str, Column] = MappingProxyType({}),
    payloads: str = "bronze",
) -> Iterator[Finding]:
    """Yield rejected duplicates without a winner in silver.

    The winner has the same identity and precedes the duplicate in the order (batch, partition, offset). A duplicate's
    identity is read from its fix, or else from its payload (`payload_text`), which the view `payloads` has. A duplicate
    whose winner is in a batch before `first`, and so expired from silver, is skipped. `columns`: those of the contract
    by name; another one is read as DuckDB casts its text. The batches of silver that the rejected rows name are read;
    all if one is wrong.
    """
    near = _named_batches(database)
    orphans = database.sql(_orphans(database, pipeline, first, columns, payloads, near)).pl()
    if orphans.height and near != EVERYWHERE:
        orphans = database.sql(_orphans(database, pipeline, first, columns, payloads, EVERYWHERE)).pl()
    detail = "rejected as a duplicate, but silver has no earlier record with its identity"
    yield from position_findings(FindingKind.different, f"rejected.{dataset}", orphans, detail)


def _named_batches(database: Any) -> str:
    """Return the condition of the batches of silver that have the winners, as the rejected duplicates name them."""
    low, high, unknown = database.sql(NAMED_BATCHES).fetchall()[0]
    if unknown:
        return EVERYWHERE
    return "false" if low is None else f"_batch_id between {low} and {high}"


def _orphans(
    database: Any, pipeline: Pipeline, first: int, columns: Mapping[str, Column], payloads: str, near: str
) -> str:
    types = dict(database.sql("select column_name, column_type from (describe silver)").fetchall())
    names = list(enumerate(pipeline.identity))
    known = [columns.get(name, Column(name, "string")) for name in pipeline.identity]
    extracted = ", ".join(
        f"{_payload_value(column, types[column.name])} as _identity_{number}" for number, column in enumerate(known)
    )
    same = " and ".join(f"s.{sql_identifier(name)} is not distinct from d._identity_{number}" for number, name in names)
    kept = KEPT_WINNER.format(first=first) if first else ""
    return ORPHANED_DUPLICATES.format(extracted=extracted, same=same, kept=kept, payloads=payloads, near=near)


def _payload_value(column: Column, kind: str) -> str:
    if kind.startswith("DECIMAL"):
        scale = int(kind.rstrip(")").rpartition(",")[2])
        return f"try_cast({EXACT_NUMBER}(payload, {sql_literal(column.member)}, {scale}) as {kind})"
    return column.kind.duckdb_value(payload_member(*column.path), kind)


def payload_member(*path: str) -> str:
    """Return SQL for the text of what a path leads to in the JSON object `payload`."""
    return f"json_extract_string(payload, {sql_literal(json_path(path))})"


def register_fixes(database: Any, fixes: Mapping[tuple[int, int], bytes]) -> None:
    """Register the view `fixes`: payloads by partition and offset."""
    rows = [(partition, offset, value) for (partition, offset), value in fixes.items()]
    schema = {"partition": pl.Int32, "offset": pl.Int64, "value": pl.Binary}
    database.register("fixes", pl.DataFrame(rows, schema=schema, orient="row").to_arrow())


def layer_counts(database: Any, tables: Sequence[str]) -> pl.DataFrame:
    """Return the rows per partition: columns partition, bronze, silver, rejected; 0 for a layer not in `tables`."""
    layers = [table.partition(".")[0] for table in tables]
    rows = [f"select '{layer}' as layer, {PARTITION[layer]} as partition from {layer}" for layer in layers]
    counted = " union all ".join(rows) or "select '' as layer, 0 as partition where false"
    found: pl.DataFrame = database.sql(COUNTS.format(rows=counted)).pl()
    return found


UNEQUAL_RECORDS = """
select
    partition,
    "offset",
    count(*) filter (layer = 0) as bronze,
    count(*) filter (layer = 1) as silver,
    count(*) filter (layer = 2) as rejected
from (
    select 0 as layer, partition, "offset", _batch_id as batch from bronze
    union all
    select 1, _partition, _offset, _batch_id from silver
    union all
    select 2, _partition, _offset, _batch_id from rejected
)
where batch >= {first} or batch is null or {first} = 0
group by partition, "offset"
having
    count(*) <> 2
    or count(*) filter (layer = 0) <> 1
    or min(batch) <> max(batch)
order by partition, "offset"
"""
RECORD_SUMS = """
select side, count(*), sum(hash(partition::integer, "offset"::bigint, batch::bigint))
from (
    select 'bronze' as side, partition, "offset", _batch_id as batch from bronze
    union all
    select 'validated', _partition, _offset, _batch_id from silver
    union all
    select 'validated', _partition, _offset, _batch_id from rejected
)
where batch >= {first} or batch is null or {first} = 0
group by side
"""
LATER_RECORDS = """
select 'bronze' as layer, partition, "offset" from bronze where _batch_id > ?
union all
select 'silver', _partition, _offset from silver where _batch_id > ?
union all
select 'rejected', _partition, _offset from rejected where _batch_id > ?
order by all
"""
REPEATED_IDENTITIES = """
with repeated as (
    select hash({identity}) as mark from all_silver where {near}
    group by mark having count(*) > 1 and max(_batch_id) > {after}
),
candidates as (
    select {identity}, epoch({event_time}) as _moment, _batch_id, _partition, _offset
    from all_silver
    where {near} and hash({identity}) in (select mark from repeated)
)
select later._partition as partition, later._offset as "offset"
from candidates as later
semi join candidates as earlier
on
    {same}
    and (earlier._batch_id, earlier._partition, earlier._offset) < (later._batch_id, later._partition, later._offset)
    and abs(earlier._moment - later._moment) <= ?
where later._batch_id > {after}
order by all
"""
ORPHANED_DUPLICATES = """
with duplicates as (
    select r._batch_id, b.partition, b."offset",
        case when f.value is null then payload_text(b.value, headers := b.headers)
            else fix_text(f.value, headers := b.headers) end as payload
    from {payloads} as b
    left join fixes as f on f.partition = b.partition and f."offset" = b."offset"
    join (select _batch_id, _partition, _offset from rejected where disposition = 'duplicate'{kept}) as r
    on r._partition = b.partition and r._offset = b."offset"
),
named as (
    select _batch_id, partition, "offset", {extracted}
    from (select * replace (case when json_valid(payload) then payload end as payload) from duplicates)
)
select d.partition, d."offset"
from named as d
anti join (select * from all_silver where {near}) as s
on {same} and (s._batch_id, s._partition, s._offset) < (d._batch_id, d.partition, d."offset")
order by all
"""
WINNERS_BATCH = "try_cast(split_part(reasons[1].detail, '/', 1) as bigint)"
KEPT_WINNER = f" and coalesce({WINNERS_BATCH}, {{first}}) >= {{first}}"
NAMED_BATCHES = f"""
select min({WINNERS_BATCH}), max({WINNERS_BATCH}), count(*) - count({WINNERS_BATCH})
from rejected
where disposition = 'duplicate'
"""
PARTITION = {"bronze": "partition", "silver": "_partition", "rejected": "_partition"}
COUNTS = """
select
    partition,
    count(*) filter (layer = 'bronze') as bronze,
    count(*) filter (layer = 'silver') as silver,
    count(*) filter (layer = 'rejected') as rejected
from ({rows})
group by partition
order by partition
"""


@dataclass(frozen=True)
class ChildBalance:
    """How many elements silver's arrays have, and how many rows the tables of accepted and of rejected children."""

    table: str
    elements: int
    accepted: int
    rejected: int


def child_balance(
    database: Any, tables: PinnedTables, dataset: str, children: Children
) -> tuple[ChildBalance, list[Finding]]:
    """Count the elements and the rows of each record of silver. What cannot be read raises READ_ERRORS."""
    name = child_table(dataset, children.name)
    accepted, rejected = f"silver.{name}", f"rejected.{name}"
    views = {"parents": f"silver.{dataset}", "accepted": accepted}
    views |= {"refused": rejected} if children.rejects_alone else {}
    for view, table in views.items():
        view_table(database, view, tables.table(table).path, tables.arrow(table))
    if not children.rejects_alone:
        database.execute("create or replace temp view refused as select * from accepted where false")
    database.execute(COUNTED.format(array=sql_identifier(children.column)))
    totals = database.execute("select sum(elements), sum(accepted), sum(refused) from child_counts").fetchall()[0]
    found = ChildBalance(accepted, *(int(total or 0) for total in totals))
    return found, list(_findings(database, accepted))


def _findings(database: Any, table: str) -> Iterator[Finding]:
    for partition, offset, elements, rows in database.execute(UNEQUAL).fetchall():
        kind = FindingKind.missing if rows < elements else FindingKind.surplus
        detail = f"the record has {elements:,} elements, and {rows:,} rows of children"
        yield Finding(kind, table, abs(rows - elements), detail, partition, offset, offset + 1)


COUNTED = """
create or replace temp table child_counts as
select _partition, _offset, sum(elements) as elements, sum(accepted) as accepted, sum(refused) as refused
from (
    select _partition, _offset, coalesce(len({array}), 0) as elements, 0 as accepted, 0 as refused from parents
    union all select _partition, _offset, 0, 1, 0 from accepted
    union all select _partition, _offset, 0, 0, 1 from refused
)
group by _partition, _offset
"""
UNEQUAL = """
select _partition, _offset, elements::bigint, (accepted + refused)::bigint
from child_counts where elements <> accepted + refused order by 1, 2 limit 20
"""
