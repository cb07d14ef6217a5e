"""Compares the tables of two sides by key: keys that only one side has, keys whose rows differ, sums of measures.

Columns that begin with `_` are left out, except a record's coordinates: how a row was produced may differ. Sums of
doubles, which releases of earlier versions have, are equal when their first digits are.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from os import getpid
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from include.declare.children import INDEX
from include.declare.contract_types import COLUMN_TYPES
from include.declare.dataset import Dataset, released_dataset
from include.declare.measures import rounded_sql
from include.declare.windows import Closing
from include.ground.record_coordinates import RECORD
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.plans.comparison import ColumnChange, ColumnProfile, Comparison, MeasureChange, Sample, TableComparison
from include.read.memory_database import memory_database, spill_folder
from include.read.publication import Publication, tables_of
from include.read.published_tables import bounded_reader, open_dataset, stored_refresh_state

ROWS = 1_000_000
"""In a part, about: their keys and hashes are in memory, of both sides."""
BUFFERED_ROWS = 10_000
"""Of each part and thread, until they are written."""
READ_ONCE = "_read_once"


@contextmanager
def key_parts(
    database: Any, views: Mapping[str, Callable[[], Any]], selected: str, keys: str, most: int
) -> Iterator[Iterator[list[str]]]:
    """Yield the parts, each as what to select the rows of each view from.

    `views`: by name what returns a reader of all rows of the view. `selected`: what is selected of them, `keys` among
    it. `most`: rows of the largest view.
    """
    count, queries = 1 + most // ROWS, [f"select {selected} from {view}" for view in views]
    if count == 1:
        yield iter([[f"({query})" for query in queries]])
        return
    folder = spill_folder(getpid()) / uuid4().hex
    try:
        for view, read in views.items():
            _write_parts(database, read(), selected, keys, count, folder / view)
        yield ([_part(folder / v, q, part) for v, q in zip(views, queries, strict=True)] for part in range(count))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_parts(database: Any, reader: Any, selected: str, keys: str, count: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    database.execute(f"set partitioned_write_flush_threshold = {BUFFERED_ROWS}")
    database.register(READ_ONCE, reader)
    parted = f"select *, hash({keys}) % {count} as _part from (select {selected} from {READ_ONCE})"
    database.execute(
        f"copy ({parted}) to {sql_literal(str(folder))} (format parquet, partition_by (_part), row_group_size 100000)"
    )
    database.unregister(READ_ONCE)


def _part(folder: Path, query: str, part: int) -> str:
    """Return what to select a part from; a part without rows has no files."""
    files = folder / f"_part={part}"
    if not files.is_dir():
        return f"({query} limit 0)"
    return f"read_parquet({sql_literal(str(files / '*.parquet'))}, hive_partitioning = false)"


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
    exact = "format('{:.9g}', sum(total))" if kind in ("FLOAT", "DOUBLE") else "sum(total)::varchar"
    added = f"sum({column})" if is_number(kind) else "null"
    grouped = f"select {column} as value, count(*) as rows, {added} as total from {view} group by {column}"
    repeated = f"min(row(-rows, value::varchar), {TOP_VALUES}) filter (value is not null and rows > 1)"
    rows, nulls, distinct, low, high, total, top = database.execute(
        "select coalesce(sum(rows), 0)::bigint, coalesce(sum(rows) filter (value is null), 0)::bigint, count(value), "
        f"min(value)::varchar, max(value)::varchar, {exact}, {repeated} from ({grouped})"
    ).fetchone()
    most = [(_short(value) or "", -negative) for negative, value in top or ()]
    return ColumnProfile(rows, nulls, distinct, _short(low), _short(high), total, most)


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


LESS_EXACT = "FLOAT"
"""The type whose values have fewer digits than a record may have: a wider column is compared by these."""


def widened_columns(old: Any, new: Any) -> list[str]:
    """Return the columns of a pyarrow Dataset that another one has in a type which holds each of their values."""
    return [
        field.name
        for field in new.schema
        if field.name in old.schema.names and _is_wider(old.schema.field(field.name).type, field.type)
    ]


def widened_rows(old: Any, new: Any) -> Any:
    """Return a Dataset of files, without a filter, with another one's types in the columns that this has wider."""
    import pyarrow as pa
    import pyarrow.dataset as pd

    names = widened_columns(old, new)
    if not names or not isinstance(old, pd.FileSystemDataset):
        return old
    fields = [new.schema.field(field.name) if field.name in names else field for field in old.schema]
    return pd.FileSystemDataset(list(old.get_fragments()), pa.schema(fields), old.format, old.filesystem)


def type_word(duckdb_type: str) -> str:
    """Return the word of contracts for a type of DuckDB: `int` for INTEGER."""
    words = [kind.physical[0] for kind in COLUMN_TYPES.values() if kind.duckdb == duckdb_type]
    return words[0] if words else duckdb_type.lower()


def _is_wider(old: Any, new: Any) -> bool:
    import pyarrow.types as types

    if types.is_signed_integer(old) and types.is_signed_integer(new):
        return bool(new.bit_width > old.bit_width)
    if types.is_decimal(old) and types.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return bool(types.is_float32(old) and types.is_float64(new))


SIDES = ("old", "new")
Types = Mapping[str, tuple[str, str]]
NONE: Types = MappingProxyType({})
SAMPLES = 5
ROWS_PER_SAMPLE = 3
# A new contract version alone does not change a rejected record.
NOT_COMPARED = ("contract_version",)
MEMORY = "500MB"
"""Of DuckDB, for one pair of tables; buffers of Arrow come on top."""


Rows = Any
"""A pyarrow Dataset: the rows of a table."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the dataset as its release declares it, and the rows of its tables by full name.

    `conditions`: by table, which of its rows count, as Arrow has it; all of a table without one.
    """

    dataset: Dataset
    tables: Mapping[str, Rows]
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, name: str, like: Rows | None = None) -> Rows | None:
        """Return the rows of a table that count, with the types of another table where those are wider."""
        rows = self.tables.get(name)
        if rows is None:
            return None
        rows = rows if like is None else widened_rows(rows, like)
        return rows.filter(self.conditions[name]) if name in self.conditions else rows


def parquet_rows(folder: Path) -> Rows:
    """Return the rows of a folder of Parquet files. Without buffering ahead, which holds a whole file in memory."""
    import pyarrow.dataset as pd

    unbuffered = pd.ParquetFragmentScanOptions(pre_buffer=False)
    return pd.dataset(str(folder), format=pd.ParquetFileFormat(default_fragment_scan_options=unbuffered))


def compare(old: Side, new: Side, batch: int, threshold: float, progress: Progress) -> Comparison:
    """Return how two sides differ in all tables but bronze, which no code changes; `progress` gets each name."""
    names = [name for name in dict.fromkeys([*old.tables, *new.tables]) if not name.startswith("bronze.")]
    found = []
    for name in names:
        progress(name)
        if name in old.tables and name in new.tables:
            keys, sums = key_columns(new.dataset, name), summed_columns(new.dataset, name)
            widened = widened_types(old.tables[name], new.tables[name])
            sides = old.rows(name, like=new.tables[name]), new.rows(name)
            found.append(compared_by_key(name, keys, sums, *sides, widened))
        else:
            found.append(_unmatched(name, old.rows(name), new.rows(name)))
    return Comparison(old.dataset.name, old.dataset.release, new.dataset.release, batch, threshold, found)


def key_columns(dataset: Dataset, table: str) -> tuple[str, ...]:
    """Return the columns by which rows of two releases are matched."""
    if table == f"silver.{dataset.name}":
        return tuple(dataset.pipeline.identity)
    if table == f"rejected.{dataset.name}":
        return RECORD
    gold = next(gold for gold in dataset.pipeline.gold if gold.table == table)
    return gold.row_columns


def summed_columns(dataset: Dataset, table: str) -> frozenset[str]:
    """Return the columns of an additive gold table that are sums."""
    gold = next((gold for gold in dataset.pipeline.gold if table == gold.table), None)
    measures = gold.measures if gold else ()
    return frozenset(measure.name for measure in measures if measure.function == "sum")


def _unmatched(name: str, old: Rows | None, new: Rows | None) -> TableComparison:
    if old is None:
        assert new is not None
        return TableComparison(name, "added", new_rows=new.count_rows(), profiles=_profiles_of(new))
    return TableComparison(name, "removed", old_rows=old.count_rows())


def _profiles_of(added: Rows) -> list[ColumnChange]:
    with memory_database() as database:
        database.register("_new", added)
        return column_changes(database, {}, column_types(added), ())


def column_types(table: Rows) -> dict[str, str]:
    """Return the compared columns of a table with their DuckDB types."""
    with memory_database() as database:
        database.register("_rows", table)
        rows = database.execute("describe select * from _rows").fetchall()
    return {name: kind for name, kind, *_ in rows if not name.startswith("_") or name in (*RECORD, INDEX)}


def widened_types(old: Rows, new: Rows) -> dict[str, tuple[str, str]]:
    """Return the columns that have a wider type in `new`, with both types as DuckDB names them."""
    before, after = column_types(old), column_types(new)
    return {name: (before[name], after[name]) for name in widened_columns(old, new) if name in before}


class _TablePair:
    """Both versions of a table in one in-memory database, as views `_old` and `_new`.

    Their keys are compared by parts, which `parts` yields one after the other: a part's tables `old_keys` and
    `new_keys` have a row per key.
    """

    def __init__(
        self, database: Any, old: Rows, new: Rows, keys: Sequence[str], sums: frozenset[str], widened: Types
    ) -> None:
        self.database = database
        database.register("_old", old)
        database.register("_new", new)
        self.old, self.new = column_types(old), column_types(new)
        self.keys = keys
        self._most_rows = max(old.count_rows(), new.count_rows())
        shared = [name for name in self.new if self.old.get(name) == self.new[name]]
        ignored = (*keys, *NOT_COMPARED)
        self.values = [name for name in shared if name not in ignored and not name.startswith("_")]
        self.rounded = [name for name in self.values if name in sums and self.new[name] == "DOUBLE"]
        self.singles = [name for name, (kind, _) in widened.items() if kind == LESS_EXACT]
        self._names = [sql_identifier(key) for key in keys]
        self._key_names = ", ".join(self._names)
        columns = [*keys, *self.values]
        self._readers = {"_old": partial(bounded_reader, old, columns), "_new": partial(bounded_reader, new, columns)}

    def parts(self) -> Iterator[None]:
        """Yield once per part, with its keys in `old_keys` and `new_keys`; a key is in the same part on both sides."""
        with key_parts(self.database, self._readers, self._hashed(), self._key_names, self._most_rows) as parts:
            for sources in parts:
                for side, source in zip(SIDES, sources, strict=True):
                    self._summarise(side, source)
                yield

    def _hashed(self) -> str:
        """Return SQL for the keys of a row with a hash of its values."""
        names = ", ".join(map(self._exact, self.values))
        return f"{self._key_names}, {f'hash({names})' if names else '0'} as _content"

    def _summarise(self, side: str, source: str) -> None:
        """One row per key: its number of rows, and a hash of their values that does not depend on their order."""
        self.database.execute(
            f"create or replace table {side}_keys as select {self._key_names}, count(*) as _rows, "
            f"sum(_content::hugeint) as _content from {source} group by {self._key_names}"
        )

    def _exact(self, column: str) -> str:
        """Return a column, a sum of doubles without its last digits: they depend on the order of the rows.

        Doubles that were floats are compared as these, which lack the last digits of their records.
        """
        if column in self.singles:
            return f"try_cast({sql_identifier(column)} as float)"
        return rounded_sql(column) if column in self.rounded else sql_identifier(column)

    def count(self, sql: str) -> int:
        return int(self.database.execute(sql).fetchone()[0] or 0)

    def note_differing(self) -> None:
        """Add to the table `found`, for each kind of a part's keys that differ, their number and the first ones."""
        on = " and ".join(f"o.{name} is not distinct from n.{name}" for name in self._names)
        key = ", ".join(f"{name} := if(n._rows is null, o.{name}, n.{name})" for name in self._names)
        differ = "o._rows is distinct from n._rows or o._content is distinct from n._content"
        kind = "case when o._rows is null then 'added' when n._rows is null then 'missing' else 'changed' end"
        rows = f"select {kind} as kind, struct_pack({key}) as key from new_keys n full join old_keys o on {on}"
        counted = f"select kind, count(*) as number, min(key, {SAMPLES}) as keys"
        found = f"{counted} from ({rows} where {differ}) group by kind"
        self.database.execute(f"create table if not exists found as from ({found}) limit 0")
        self.database.execute(f"insert into found {found}")

    def differing(self) -> dict[str, int]:
        """Return the number of keys of each kind."""
        return dict(self.database.execute("select kind, sum(number)::bigint from found group by kind").fetchall())

    def samples(self) -> dict[str, list[Sample]]:
        """Return the first keys of each kind with their rows, which one query of each side finds."""
        keys = f"unnest(list_sort(flatten(list(keys)))[:{SAMPLES}])"
        self.database.execute(
            "create table samples as select row_number() over (order by _kind, key) as _number, _kind, unnest(key) "
            f"from (select kind as _kind, {keys} as key from found group by kind)"
        )
        old, new = self._sample_rows("_old"), self._sample_rows("_new")
        found: dict[str, list[Sample]] = {}
        for number, kind, *key in self.database.execute("from samples order by _number").fetchall():
            sample = Sample(_json_row(self.keys, key), old.get(number, []), new.get(number, []))
            found.setdefault(kind, []).append(sample)
        return found

    def _sample_rows(self, view: str) -> dict[int, list[dict[str, Any]]]:
        if not self.values:
            return {}
        on = " and ".join(f"s.{name} is not distinct from v.{name}" for name in self._names)
        near, values = zip(*map(self._sampled, self._names), strict=True)
        names = ", ".join(f"v.{sql_identifier(name)}" for name in self.values)
        place = f"row_number() over (partition by _number order by {names}) as _place"
        rows = self.database.execute(
            f"select _number, {place}, {names} from samples s join {view} v on {on} where {' and '.join(near)} "
            f"qualify _place <= {ROWS_PER_SAMPLE} order by _number, _place",
            list(chain.from_iterable(values)),
        ).fetchall()
        by_sample = groupby(rows, itemgetter(0))
        return {number: [_json_row(self.values, row[2:]) for row in found] for number, found in by_sample}

    def _sampled(self, name: str) -> tuple[str, list[Any]]:
        """Return a condition that a key of the samples meets, with its values: files without them are not read."""
        found = [value for (value,) in self.database.execute(f"select distinct {name} from samples").fetchall()]
        values = [value for value in found if value is not None]
        known = f"v.{name} in ({', '.join('?' * len(values))})" if values else "false"
        return known if len(values) == len(found) else f"({known} or v.{name} is null)", values


def compared_by_key(
    name: str,
    keys: Sequence[str],
    sums: frozenset[str],
    old: Rows,
    new: Rows,
    widened: Mapping[str, tuple[str, str]] = NONE,
) -> TableComparison:
    """Return how two versions of a table differ, by key; `sums`: columns whose doubles are sums."""
    before, after = column_types(old), column_types(new)
    if any(before.get(key) != after.get(key) for key in keys):
        rows = {"old_rows": old.count_rows(), "new_rows": new.count_rows()}
        return TableComparison(name, "rekeyed", keys=list(keys), **rows)
    with memory_database(MEMORY) as database:
        return _by_key(name, keys, _TablePair(database, old, new, keys, sums, widened), widened)


def _by_key(name: str, keys: Sequence[str], pair: _TablePair, widened: Types) -> TableComparison:
    counts: Counter[str] = Counter()
    for _ in pair.parts():
        counts["old_keys"] += pair.count("select count(*) from old_keys")
        counts.update({f"{side}_rows": pair.count(f"select sum(_rows) from {side}_keys") for side in SIDES})
        pair.note_differing()
    counts.update(pair.differing())
    return TableComparison(
        name,
        "both",
        keys=list(keys),
        **counts,
        columns_added=sorted(set(pair.new) - set(pair.old)),
        columns_removed=sorted(set(pair.old) - set(pair.new)),
        retyped={n: (pair.old[n], pair.new[n]) for n in pair.new if n in pair.old and pair.old[n] != pair.new[n]},
        widened=widened,
        samples=pair.samples(),
        measures=_measures(pair),
        profiles=column_changes(pair.database, pair.old, pair.new, pair.values),
    )


def _measures(pair: _TablePair) -> list[MeasureChange]:
    numeric = [name for name in pair.values if is_number(pair.new[name])]
    if not numeric:
        return []
    sums = ", ".join(
        f"sum({sql_identifier(n)})::double, count(*) filter ({sql_identifier(n)} is null) / greatest(count(*), 1)"
        for n in numeric
    )
    old, new = (pair.database.execute(f"select {sums} from {view}").fetchone() for view in ("_old", "_new"))
    return [
        MeasureChange(name, old[2 * i], new[2 * i], float(old[2 * i + 1]), float(new[2 * i + 1]))
        for i, name in enumerate(numeric)
    ]


def _json_row(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return a row by column name; a value that JSON does not have is its text."""
    return {
        name: value if value is None or isinstance(value, bool | int | float | str) else str(value)
        for name, value in zip(names, values, strict=True)
    }


def release_sides(settings: Settings, published: Publication, built: Publication) -> tuple[Side, Side]:
    """Return the published and the built side at one batch; `on_close` tables have the rows that both closed."""

    def side(publication: Publication) -> Side:
        tables = {name: open_dataset(table) for name, table in tables_of(settings, publication).items()}
        return Side(released_dataset(settings, publication.dataset, publication.release), tables)

    sides = side(published), side(built)
    closed = [_closed(settings, s.dataset, p) for s, p in zip(sides, (published, built), strict=True)]
    return _closed_on_both(sides[0], closed), _closed_on_both(sides[1], closed)


def _closed(settings: Settings, dataset: Dataset, publication: Publication) -> dict[str, Closing]:
    """Return which rows are closed, for each table that has no others."""
    tables, found = tables_of(settings, publication), {}
    for gold in dataset.pipeline.gold:
        table, timed = tables.get(gold.table), gold.timed_by
        if gold.closes and table is not None and timed is not None:
            refreshed = stored_refresh_state(table.path, table.version)
            found[table.name] = timed.closing(refreshed.watermark)
    return found


def _closed_on_both(side: Side, closed: Sequence[Mapping[str, Closing]]) -> Side:
    """Return a side without the rows that are open on a side that waits for them to close."""
    conditions = dict(side.conditions)
    for name, bound in ((name, bound) for each in closed for name, bound in each.items() if name in side.tables):
        if bound.column in side.tables[name].schema.names:
            also = closed_rows(bound)
            conditions[name] = conditions[name] & also if name in conditions else also
    return replace(side, conditions=conditions)


def closed_rows(closed: Closing) -> Any:
    """Return Arrow's condition of the rows that are closed."""
    import pyarrow.compute as pc

    return pc.scalar(False) if closed.bound is None else pc.field(closed.column) < closed.bound
