"""Profiles of columns on both sides of a comparison: nulls, distinct values, bounds, sum, most frequent values.

Only columns that are new, removed or retyped, or whose values differ, are profiled. One pass over both tables finds the
differing ones by hashes that do not depend on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from include.ground.sql_quoting import sql_identifier
from include.plans.comparison import ColumnChange, ColumnProfile

NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
TOP_VALUES, SHOWN_CHARACTERS = 3, 60


def column_changes(
    database: Any, old: Mapping[str, str], new: Mapping[str, str], shared: Sequence[str]
) -> list[ColumnChange]:
    """Return the changed columns of the views `_old` and `_new`; `old` and `new` are their columns with types.

    `shared`: the columns whose values are compared. A side without columns has no view.
    """
    changed = _differing(database, shared)
    found = []
    for name in dict.fromkeys([*new, *old]):
        if name not in old:
            found.append(ColumnChange(name, "new", None, _profile(database, "_new", name, new[name])))
        elif name not in new:
            found.append(ColumnChange(name, "removed", _profile(database, "_old", name, old[name]), None))
        elif old[name] != new[name] or name in changed:
            sides = [_profile(database, view, name, kind) for view, kind in (("_old", old[name]), ("_new", new[name]))]
            found.append(ColumnChange(name, "retyped" if old[name] != new[name] else "changed", *sides))
    return found


def is_number(kind: str) -> bool:
    """Return whether a DuckDB type is numeric."""
    return kind.partition("(")[0] in NUMBERS


def _differing(database: Any, names: Sequence[str]) -> set[str]:
    """Return the columns whose values, each as often as it occurs, are not the same on both sides."""
    if not names:
        return set()
    hashes = ", ".join(f"sum(hash({sql_identifier(name)})::hugeint)" for name in names)
    old, new = (database.execute(f"select count(*), {hashes} from {view}").fetchone() for view in ("_old", "_new"))
    return {name for name, before, after in zip(names, old[1:], new[1:], strict=True) if before != after}


def _profile(database: Any, view: str, name: str, kind: str) -> ColumnProfile:
    column = sql_identifier(name)
    # Nine digits of a sum of doubles: the rest depends on the order of the rows.
    exact = "format('{:.9g}', sum({c}))" if kind in ("FLOAT", "DOUBLE") else "sum({c})::varchar"
    total = exact.replace("{c}", column) if is_number(kind) else "null"
    rows, values, distinct, low, high, added = database.execute(
        f"select count(*), count({column}), count(distinct {column}), min({column})::varchar, "
        f"max({column})::varchar, {total} from {view}"
    ).fetchone()
    top = list(_most_frequent(database, view, column))
    return ColumnProfile(rows, rows - values, distinct, _short(low), _short(high), added, top)


def _most_frequent(database: Any, view: str, column: str) -> Iterator[tuple[str, int]]:
    """Yield the most frequent values that occur more than once, with their counts."""
    rows = database.execute(
        f"select {column}::varchar, count(*) from {view} where {column} is not null group by {column} "
        f"having count(*) > 1 order by 2 desc, 1 limit {TOP_VALUES}"
    ).fetchall()
    yield from ((_short(value) or "", count) for value, count in rows)


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
