"""Which rows of a derived table only one of two views has: as sets with repetitions, doubles by their distance.

The last digits of a sum of doubles depend on the order of its rows. Two doubles are equal when they differ by at most a
trillionth of the larger one, two floats by their last two bits; texts of so many digits would tell two sums apart that
lie on both sides of a rounding. Copies, rows that are equal but for these, are paired in the order of rounded numbers:
by all digits, the noise in one column would decide which values of the others are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from include.ground.sql_quoting import sql_identifier
from spark_jobs.tables.duckdb_session import DuckSession

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
    order = f"order by {', '.join([*(_rounded(*each) for each in numbers.items()), *numbers])}" if numbers else ""
    ones, others = (NUMBERED.format(exact=", ".join(exact), order=order, sign=sign) for sign in (">", "<"))
    query = DIFFERING.format(
        grain=", ".join(f"coalesce(o.{c}, t.{c}) as {c}" for c in map(sql_identifier, grain)),
        ones=ones,
        others=others,
        same=" and ".join(f"o.{c} is not distinct from t.{c}" for c in exact),
        close=" and ".join(NEAR.format(c, CLOSE[kind]) for c, kind in numbers.items()) or "true",
    )
    duck.create_table("differing", query)


def _rounded(name: str, kind: str) -> str:
    """Return SQL for a number as a text of few digits; both zeros have the same."""
    return f"format('{{:.{PAIRED_DIGITS[kind] - 1}e}}', {name}::double + 0)"
