"""Two releases of a dataset, or a slice before and after, at the same bronze batch, compared table by table.

By key: keys that only one of them has, and keys whose rows differ, with samples; per measure: sums and nulls. Our own
columns (those that begin with `_`) are left out, but for a record's coordinates: how a row came about may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from include.catalog.dataset import Dataset
from include.catalog.pipeline import LatestGold, grain_columns
from include.reading.published_sql import memory_database

EQUAL, WITHIN_POLICY, NEEDS_APPROVAL, HELD = "equal", "within policy", "needs approval", "held"
SAMPLES = 5
ROWS_PER_SAMPLE = 3
NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
COORDINATES = ("_topic", "_partition", "_offset")
# A contract's new version alone makes no rejected record another one.
NOT_COMPARED = ("contract_version",)


@dataclass(frozen=True)
class MeasureChange:
    """A numeric column in both releases: sums (as doubles) and shares of nulls."""

    column: str
    old_sum: float | None
    new_sum: float | None
    old_nulls: float
    new_nulls: float

    @property
    def percent(self) -> float | None:
        """How far the sum moved; None where there is nothing to compare with."""
        if self.old_sum is None or self.new_sum is None or self.old_sum == 0:
            return None
        return 100.0 * (self.new_sum - self.old_sum) / abs(self.old_sum)


@dataclass(frozen=True)
class TableComparison:
    """One table. `keys` are its key columns; counts of `added`, `missing` and `changed` are of keys, not of rows.

    `columns_added`, `columns_removed`: names; `retyped`: name → old and new type. `samples`: by kind, up to five keys
    with their old and new rows. `presence`: both, added (only the new release has the table), removed, rekeyed (the
    old rows do not have the new keys, so they cannot be told to be the same).
    """

    name: str
    presence: str
    keys: Sequence[str] = ()
    old_rows: int = 0
    new_rows: int = 0
    old_keys: int = 0
    added: int = 0
    missing: int = 0
    changed: int = 0
    columns_added: Sequence[str] = ()
    columns_removed: Sequence[str] = ()
    retyped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    drift: Sequence[MeasureChange] = ()

    @property
    def differing(self) -> int:
        """Keys that are not the same in both."""
        return self.added + self.missing + self.changed

    @property
    def share(self) -> float:
        """Differing keys for each old key; 1 where there were none and there are now."""
        return self.differing / self.old_keys if self.old_keys else float(self.differing > 0)

    @property
    def is_equal(self) -> bool:
        """Whether a reader would see no difference at all."""
        same_columns = not (self.columns_added or self.columns_removed or self.retyped)
        return self.presence == "both" and same_columns and self.differing == 0


@dataclass(frozen=True)
class Comparison:
    """Both releases at bronze batch `batch`, and what follows from it under `threshold`.

    `checks`: results of the contract's whole-table rules on the new tables (`include/planning/contract_checks.py`).
    """

    dataset: str
    base: str
    release: str
    batch: int
    threshold: float
    tables: Sequence[TableComparison]
    checks: Sequence[Mapping[str, Any]] = ()

    @property
    def verdict(self) -> str:
        """EQUAL; WITHIN_POLICY: what was there is there, but for at most the threshold of each table's keys.

        A table or a column more takes nothing from anybody, so it needs no approval. HELD: a rule that holds back is
        broken, whatever else is equal; one that could not be asked needs somebody's approval.
        """
        if any(check["blocks"] for check in self.checks):
            return HELD
        if any(check["is_kept"] is None and check["action"] in ("hold", "fail") for check in self.checks):
            return NEEDS_APPROVAL
        if self.is_equal:
            return EQUAL
        return WITHIN_POLICY if all(self._is_small(table) for table in self.tables) else NEEDS_APPROVAL

    @property
    def is_equal(self) -> bool:
        """Whether a reader would see no difference in any table."""
        return all(table.is_equal for table in self.tables)

    def _is_small(self, table: TableComparison) -> bool:
        if table.presence != "both":
            return table.presence == "added"
        return not table.columns_removed and not table.retyped and 0 <= table.share <= self.threshold

    def as_json(self) -> dict[str, Any]:
        """Return all of it, with the verdict, as JSON values."""
        tables = [asdict(t) | {"share": t.share, "equal": t.is_equal} for t in self.tables]
        return {**asdict(self), "tables": tables, "verdict": self.verdict}


Rows = Any
"""A pyarrow Dataset: the rows of a table, wherever they lie."""
Side = tuple[Dataset, Mapping[str, Rows]]
"""A dataset as one release declares it, and the rows of its tables by full name."""
Progress = Callable[[str], None]


def parquet_rows(folder: Path) -> Rows:
    """Return the rows of a folder of Parquet files."""
    import pyarrow.dataset as pd

    return pd.dataset(str(folder), format="parquet")


def compare(old: Side, new: Side, batch: int, threshold: float, progress: Progress) -> Comparison:
    """Compare all tables but bronze, which is Kafka's records whatever the code."""
    (base, before), (fresh, after) = old, new
    names = [name for name in dict.fromkeys([*before, *after]) if not name.startswith("bronze.")]
    found = []
    for name in names:
        progress(name)
        if name in before and name in after:
            found.append(_compared(name, key_columns(fresh, name), before[name], after[name]))
        else:
            found.append(_alone(name, before.get(name), after.get(name)))
    return Comparison(base.name, base.release, fresh.release, batch, threshold, found)


def key_columns(dataset: Dataset, table: str) -> tuple[str, ...]:
    """Return the columns by which rows of two releases are told to be the same."""
    layer, _, name = table.partition(".")
    if layer == "silver":
        return tuple(dataset.pipeline.identity)
    if layer == "rejected":
        return COORDINATES
    gold = next(gold for gold in dataset.pipeline.gold if gold.name == name)
    return gold.keys if isinstance(gold, LatestGold) else grain_columns(gold)


def _alone(name: str, old: Rows | None, new: Rows | None) -> TableComparison:
    if old is None:
        assert new is not None
        return TableComparison(name, "added", new_rows=new.count_rows())
    return TableComparison(name, "removed", old_rows=old.count_rows())


def column_types(table: Rows) -> dict[str, str]:
    """Return a table's columns, less our own, with their types as DuckDB names them."""
    database = memory_database()
    database.register("_rows", table)
    rows = database.execute("describe select * from _rows").fetchall()
    database.close()
    return {name: kind for name, kind, *_ in rows if not name.startswith("_") or name in COORDINATES}


class _Both:
    """One table of both releases in a database of their own, as views `old` and `new`."""

    def __init__(self, old: Rows, new: Rows, keys: Sequence[str]) -> None:
        self.database = memory_database()
        self.database.register("_old", old)
        self.database.register("_new", new)
        self.old, self.new = column_types(old), column_types(new)
        self.keys = keys
        shared = [name for name in self.new if self.old.get(name) == self.new[name]]
        left_out = (*keys, *NOT_COMPARED)
        self.values = [name for name in shared if name not in left_out and not name.startswith("_")]
        for side in ("old", "new"):
            self._summarise(side)

    def _summarise(self, side: str) -> None:
        """One row a key: how many rows it has, and a hash of what they say, in whatever order."""
        names, keys = ", ".join(map(quoted_name, self.values)), ", ".join(map(quoted_name, self.keys))
        content = f"sum(hash({names})::hugeint)" if names else "0"
        self.database.execute(
            f"create table {side}_keys as select {keys}, count(*) as _rows, {content} as _content "
            f"from _{side} group by {keys}"
        )

    def count(self, sql: str) -> int:
        return int(self.database.execute(sql).fetchone()[0] or 0)

    def joined(self, kind: str) -> str:
        """Keys of a kind: `added`, `missing` or `changed`."""
        on = " and ".join(f"o.{quoted_name(key)} is not distinct from n.{quoted_name(key)}" for key in self.keys)
        if kind == "changed":
            differ = "(o._rows <> n._rows or o._content <> n._content)"
            return f"from new_keys n join old_keys o on {on} where {differ}"
        one, other = ("new_keys n", "old_keys o") if kind == "added" else ("old_keys o", "new_keys n")
        return f"from {one} anti join {other} on {on}"


def _compared(name: str, keys: Sequence[str], old: Rows, new: Rows) -> TableComparison:
    before, after = column_types(old), column_types(new)
    if any(before.get(key) != after.get(key) for key in keys):
        rows = {"old_rows": old.count_rows(), "new_rows": new.count_rows()}
        return TableComparison(name, "rekeyed", keys=list(keys), **rows)
    both = _Both(old, new, keys)
    try:
        return _by_key(name, keys, both)
    finally:
        both.database.close()


def _by_key(name: str, keys: Sequence[str], both: _Both) -> TableComparison:
    kinds = ("added", "missing", "changed")
    counts = {kind: both.count(f"select count(*) {both.joined(kind)}") for kind in kinds}
    return TableComparison(
        name,
        "both",
        keys=list(keys),
        old_rows=both.count("select sum(_rows) from old_keys"),
        new_rows=both.count("select sum(_rows) from new_keys"),
        old_keys=both.count("select count(*) from old_keys"),
        **counts,
        columns_added=sorted(set(both.new) - set(both.old)),
        columns_removed=sorted(set(both.old) - set(both.new)),
        retyped={n: [both.old[n], both.new[n]] for n in both.new if n in both.old and both.old[n] != both.new[n]},
        samples={kind: _samples(both, kind) for kind in kinds if counts[kind]},
        drift=_drift(both),
    )


def _samples(both: _Both, kind: str) -> list[Mapping[str, Any]]:
    side = "o" if kind == "missing" else "n"
    names = ", ".join(f"{side}.{quoted_name(key)}" for key in both.keys)
    rows = both.database.execute(f"select {names} {both.joined(kind)} order by all limit {SAMPLES}").fetchall()
    return [_sample(both, row) for row in rows]


def _sample(both: _Both, key: Sequence[Any]) -> Mapping[str, Any]:
    return {
        "key": {name: json_value(value) for name, value in zip(both.keys, key, strict=True)},
        "old": _rows_of(both, "_old", key),
        "new": _rows_of(both, "_new", key),
    }


def _rows_of(both: _Both, view: str, key: Sequence[Any]) -> list[dict[str, Any]]:
    if not both.values:
        return []
    where = " and ".join(f"{quoted_name(name)} is not distinct from ?" for name in both.keys)
    names = ", ".join(map(quoted_name, both.values))
    found = both.database.execute(
        f"select {names} from {view} where {where} order by all limit {ROWS_PER_SAMPLE}", list(key)
    ).fetchall()
    return [{name: json_value(value) for name, value in zip(both.values, row, strict=True)} for row in found]


def _drift(both: _Both) -> list[MeasureChange]:
    numeric = [name for name in both.values if both.new[name].split("(")[0] in NUMBERS]
    if not numeric:
        return []
    asked = ", ".join(
        f"sum({quoted_name(n)})::double, count(*) filter ({quoted_name(n)} is null) / greatest(count(*), 1)"
        for n in numeric
    )
    old, new = (both.database.execute(f"select {asked} from {view}").fetchone() for view in ("_old", "_new"))
    return [
        MeasureChange(name, old[2 * i], new[2 * i], float(old[2 * i + 1]), float(new[2 * i + 1]))
        for i, name in enumerate(numeric)
    ]


def quoted_name(name: str) -> str:
    """Return a column's name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def json_value(value: Any) -> Any:
    """Return a value as JSON can have it."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
