"""Differences of a published table from its recomputed rows: how many of each kind, and samples with both values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from include.declare.measures import SUM_ERROR
from include.ground.record_coordinates import POSITION
from include.ground.sql_quoting import same_sql, sql_identifier, sql_names
from spark_jobs.backends.local.duckdb_session import DuckSession
from spark_jobs.tables.delta_table import Table

SAMPLES = 5
LONGEST = 100


@dataclass(frozen=True)
class DifferentRow:
    """One row that differs: `kind` is different, surplus (not recomputed) or missing (not published).

    For records partition and offset; `values`: by column what is published and what is recomputed.
    """

    kind: str
    label: str
    values: dict[str, tuple[str | None, str | None]]
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True)
class Differences:
    """A table's rows, how many differ by kind, the first of each, and the batches that they are of."""

    table: str
    rows: int
    counts: dict[str, int]
    samples: Sequence[DifferentRow]
    batches: tuple[int, int] | None = None


def row_differences(
    duck: DuckSession, table: Table, keys: Sequence[str], shown: Sequence[str], doubles: Sequence[str] = ()
) -> Differences:
    """Return how the rows of views `removed` (published) and `added` (recomputed) differ, paired by `keys`.

    The columns `shown` name a row. Columns `doubles` are equal within SUM_ERROR.
    """
    columns = duck.columns("removed")
    unequal = [_unequal(name, near=name in doubles) for name in columns]
    duck.view_query(
        "pairs",
        PAIRS.format(
            removed=SIDE.format(view="removed", keys=sql_names(keys), columns=sql_names(columns)),
            added=SIDE.format(view="added", keys=sql_names(keys), columns=sql_names(columns)),
            same=same_sql([*keys, "_copy"], "r", "a"),
            keys=", ".join(f'coalesce(r."{key}", a."{key}") as "_key_{key}"' for key in keys),
            names=", ".join(_text(f'coalesce(r."{name}", a."{name}")') for name in shown) or "null",
            published=", ".join(_text(f'r."{name}"') for name in columns),
            recomputed=", ".join(_text(f'a."{name}"') for name in columns),
            unequal=", ".join(unequal),
            any=" or ".join(unequal),
        ),
    )
    counts = {str(kind): int(count) for kind, count in duck.rows("select kind, count(*) from pairs group by all")}
    order = sql_names(f"_key_{key}" for key in keys)
    positions = order if tuple(keys) == POSITION else "null, null"
    samples = [
        DifferentRow(
            kind,
            ", ".join(f"{name}={value}" for name, value in zip(shown, names, strict=False)),
            {
                name: (old, new)
                for name, old, new, differs in zip(columns, published, recomputed, flags, strict=True)
                if differs and kind == "different"
            },
            partition,
            offset,
        )
        for kind in sorted(counts)
        for names, published, recomputed, flags, partition, offset in duck.rows(
            SAMPLED.format(positions=positions, order=order, samples=SAMPLES, kind=kind)
        )
    ]
    return Differences(table.spec.name, table.rows, counts, samples)


def _text(value: str) -> str:
    return f"left({value}::varchar, {LONGEST})"


def _unequal(name: str, *, near: bool) -> str:
    old, new = f'r."{name}"', f'a."{name}"'
    unequal = f"{old} is distinct from {new}"
    return f"({unequal} and not coalesce(abs({old} - {new}) <= {SUM_ERROR} * abs({new}), false))" if near else unequal


# Rows of one key are paired in their order: a key of a query's table, or a record that is there twice, has several.
SIDE = "select *, row_number() over (partition by {keys} order by {columns}) as _copy from {view}"
PAIRS = """
select
    case when r._copy is null then 'missing' when a._copy is null then 'surplus' else 'different' end as kind,
    {keys}, [{names}] as names, [{published}] as published, [{recomputed}] as recomputed, [{unequal}] as unequal
from ({removed}) as r full join ({added}) as a on {same}
where {any} or r._copy is null or a._copy is null
"""
# The first rows of a kind: a sort of all would hold their texts.
SAMPLED = """
select names, published, recomputed, unequal, {positions}
from pairs
where kind = '{kind}'
order by {order}
limit {samples}
"""


CLOSE = {"DOUBLE": 1e-12, "FLOAT": 2.0**-22}
PAIRED_DIGITS = {"DOUBLE": 9, "FLOAT": 5}
# Rows whose number differs to the last bit, with how many more the first view has; few of many.
UNEQUAL = """
select * exclude (_sign), sum(_sign) as _more
from (select *, 1 as _sign from {one} union all select *, -1 from {other})
group by all having sum(_sign) <> 0
"""
# Of rows that are equal but for their numbers the first, the second, … by these.
NUMBERED = """
select * exclude (_more, _copy), row_number() over (partition by {exact} {order}) as _n
from (select *, unnest(range(abs(_more)::bigint)) as _copy from unequal where _more {sign} 0)
"""
DIFFERING = """
select {grain}, o._n is not null as _in_one, t._n is not null as _in_other
from ({ones}) as o full join ({others}) as t on {same} and o._n = t._n
where o._n is null or t._n is null or not ({close})
"""
NEAR = """(
    o.{0} is not distinct from t.{0}
    or coalesce(
        isfinite(o.{0}) and isfinite(t.{0}) and abs(o.{0} - t.{0}) <= {1} * greatest(abs(o.{0}), abs(t.{0})), false
    )
)"""


def find_differing_rows(duck: DuckSession, one: str, other: str, grain: Sequence[str]) -> None:
    """Create the table `differing`: the grain of each row that only one view has, `_in_one`, `_in_other`.

    Two rows whose doubles differ too much are one row of it, which is in both.
    """
    kinds = duck.column_types(one)
    numbers = {sql_identifier(c): kind for c, kind in kinds if kind in CLOSE and c not in grain}
    exact = [name for c, _ in kinds if (name := sql_identifier(c)) not in numbers]
    duck.create_table("unequal", UNEQUAL.format(one=sql_identifier(one), other=sql_identifier(other)))
    # Numbers as texts of few digits; both zeros have the same.
    near = [f"format('{{:.{PAIRED_DIGITS[kind] - 1}e}}', {c}::double + 0)" for c, kind in numbers.items()]
    order = f"order by {', '.join([*near, *numbers])}" if numbers else ""
    ones, others = (NUMBERED.format(exact=", ".join(exact), order=order, sign=sign) for sign in (">", "<"))
    query = DIFFERING.format(
        grain=", ".join(f"coalesce(o.{c}, t.{c}) as {c}" for c in map(sql_identifier, grain)),
        ones=ones,
        others=others,
        same=" and ".join(f"o.{c} is not distinct from t.{c}" for c in exact),
        close=" and ".join(NEAR.format(c, CLOSE[kind]) for c, kind in numbers.items()) or "true",
    )
    duck.create_table("differing", query)
