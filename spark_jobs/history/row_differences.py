"""Differences of a published table from its recomputed rows: how many of each kind, and samples with both values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from include.declare.comparable_doubles import SUM_ERROR
from include.ground.record_coordinates import POSITION
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.duckdb_session import DuckSession

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
    duck: DuckSession,
    table: Table,
    keys: Sequence[str],
    shown: Sequence[str],
    doubles: Sequence[str] = (),
) -> Differences:
    """Return how the rows of views `removed` (published) and `added` (recomputed) differ, paired by `keys`.

    The columns `shown` name a row. Columns `doubles` are equal within SUM_ERROR.
    """
    columns = duck.columns("removed")
    unequal = [_unequal(name, near=name in doubles) for name in columns]
    same = " and ".join(f'r."{key}" is not distinct from a."{key}"' for key in [*keys, "_copy"])
    duck.view_query(
        "pairs",
        PAIRS.format(
            removed=SIDE.format(view="removed", keys=_listed(keys), columns=_listed(columns)),
            added=SIDE.format(view="added", keys=_listed(keys), columns=_listed(columns)),
            same=same,
            keys=", ".join(f'coalesce(r."{key}", a."{key}") as "_key_{key}"' for key in keys),
            names=", ".join(_text(f'coalesce(r."{name}", a."{name}")') for name in shown) or "null",
            published=", ".join(_text(f'r."{name}"') for name in columns),
            recomputed=", ".join(_text(f'a."{name}"') for name in columns),
            unequal=", ".join(unequal),
            any=" or ".join(unequal),
        ),
    )
    counts = {str(kind): int(count) for kind, count in duck.rows("select kind, count(*) from pairs group by all")}
    order = ", ".join(f'"_key_{key}"' for key in keys)
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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


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
