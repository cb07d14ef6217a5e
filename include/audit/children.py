"""The conservation law of children: each element of an array in silver is one row, accepted or rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from include.audit.findings import Finding, FindingKind
from include.declare.children import Children, child_table
from include.ground.sql_quoting import sql_identifier
from include.read.memory_database import view_table
from include.read.published_tables import PinnedTables


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
