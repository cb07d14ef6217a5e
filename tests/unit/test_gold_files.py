"""Pieces of gold tables: which files a change rewrites, and how the new ones are cut (adr-0007)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from include.declare.gold import AdditiveGold, Gold, LatestGold
from include.declare.windows import Window, parsed_size
from spark_jobs.backends.local.backend import LocalBackend
from spark_jobs.layers.gold_files import YOUNG, GoldTable, Grain, Grains, PiecePolicy, is_piece
from spark_jobs.stream.compaction import AUTOMATIC, CompactedTable, compact_group
from spark_jobs.tables.data_files import DataFile, TableSpec, written_file
from spark_jobs.tables.delta_table import Table

KEYED = LatestGold("users", "'all'", ("user",), ("at",), (("score", "score"),))
PAIRED = LatestGold("users", "'all'", ("country", "user"), ("at",), (("score", "score"),))
COLUMNS = (
    StructType()
    .add("country", StringType())
    .add("user", StringType())
    .add("score", IntegerType())
    .add("_last_batch", LongType())
    .add("_month", StringType())
)
SMALL = PiecePolicy(smallest=2_000, uncut=4_000, rewritten=2)
FIXED = PiecePolicy(smallest=4_000, uncut=64_000, rewritten=2)
ARROW = pa.schema([("country", pa.string()), ("user", pa.string()), ("score", pa.int32()), ("_last_batch", pa.int64())])


@dataclass
class KeyedTable:
    """A gold table whose runs merge rows in Python; `rows` is what it must hold, by grain."""

    folder: Path
    gold: LatestGold = KEYED
    policy: PiecePolicy = SMALL
    batch: int = 0
    rows: dict[Grain, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = self.opened()

    def opened(self) -> Table:
        """Open the table as a new process does."""
        bounded = (*self.gold.keys, "_last_batch")
        return Table(TableSpec("gold.users", self.folder / "gold", COLUMNS, "_month", bounded))

    @property
    def target(self) -> GoldTable:
        """The table as a release has it, without Spark."""
        return GoldTable(self.gold, self.table, cast("SparkSession", None), "gold", self.policy)

    def run(self, changes: dict[Grain, int | None]) -> tuple[list[DataFile], list[DataFile]]:
        """Set the scores of some grains (None: remove); return the files added and removed."""
        named = self.folder / f"grains-{self.batch}.parquet"
        pq.write_table(_arrow(self.gold, ((grain, 0, 0) for grain in changes)), named)
        old = self.target.files_with([named])
        found = {(grain): (score, batch) for file in old for grain, score, batch in self.rows_of(file)}
        kept = [(grain, *values) for grain, values in found.items() if grain not in changes]
        new = [(grain, score, self.batch) for grain, score in changes.items() if score is not None]
        added = self.written([*kept, *new])
        added = self.target.cut_files(added, old, len(new), self.batch)
        self.table.commit("gold", self.batch, {}, added, old)
        self.rows = {g: s for g, s in {**self.rows, **changes}.items() if s is not None}
        self.batch += 1
        return added, old

    def written(self, rows: Sequence[tuple[Grain, int, int]]) -> list[DataFile]:
        """Write rows into one file of the next batch's folder; no file without rows."""
        path = self.folder / "gold" / f"b{self.batch}" / "_month=all" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(_arrow(self.gold, rows), path)
        return [written_file(self.table.spec, path)] if rows else []

    def put(self, grains: Sequence[Grain]) -> DataFile:
        """Commit one more file with these grains."""
        added = self.written([(grain, 0, self.batch) for grain in grains])
        self.table.commit("gold", self.batch, {}, added)
        self.batch += 1
        return added[0]

    def rows_of(self, file: DataFile) -> list[tuple[Grain, int, int]]:
        rows = pq.read_table(self.table.spec.path / file.path, partitioning=None).to_pylist()
        return [(tuple(r[key] for key in self.gold.keys), r["score"], r["_last_batch"]) for r in rows]

    def content(self) -> dict[Grain, int]:
        """Return what another reader of the Delta table finds; fails when a grain has two rows."""
        rows = pl.read_delta(str(self.table.spec.path)).select(*self.gold.keys, "score").rows()
        assert len({row[:-1] for row in rows}) == len(rows), "a grain has two rows"
        return {row[:-1]: row[-1] for row in rows}


def _arrow(gold: Gold, rows: Iterable[tuple[Grain, int, int]]) -> pa.Table:
    assert isinstance(gold, LatestGold)
    names = gold.keys
    dicts = [dict(zip(names, grain, strict=True)) | {"score": s, "_last_batch": b} for grain, s, b in rows]
    return pa.Table.from_pylist(dicts, schema=ARROW)


def keys(count: int, seed: int = 1) -> list[Grain]:
    """Return random keys, as user or order numbers are."""
    source = random.Random(seed)
    return [(f"{source.getrandbits(64):016x}",) for _ in range(count)]


def size(files: Iterable[DataFile]) -> int:
    return sum(file.size for file in files)


@pytest.fixture(scope="module")
def random_keys(tmp_path_factory: pytest.TempPathFactory) -> KeyedTable:
    """Return a table of 20,000 random keys that one small run has cut."""
    made = KeyedTable(tmp_path_factory.mktemp("random"), policy=FIXED)
    made.run(dict.fromkeys(keys(20_000), 0))
    assert len(made.table.files()) == 1, "a run of new rows only leaves its files as they are"
    made.run(dict.fromkeys(keys(10), 1))
    return made


def test_run_of_few_changes_rewrites_few_bytes(random_keys: KeyedTable) -> None:
    files = random_keys.table.files()
    assert all(is_piece(file) for file in files)
    grains = random.Random(3).sample(sorted(random_keys.rows), 10)
    added, removed = random_keys.run(dict.fromkeys(grains, 7))
    assert len(added) == len(removed) <= 10, "each piece keeps its range"
    assert size(added) < size(files) / 4
    assert size(added) <= 10 * 1.5 * FIXED.smallest
    assert random_keys.content() == random_keys.rows


def test_pieces_have_ranges_of_their_own(random_keys: KeyedTable) -> None:
    ranges = sorted((file.low["user"], file.high["user"]) for file in random_keys.table.files())
    assert len(ranges) > 10
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))


def test_small_partition_stays_one_file(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, policy=PiecePolicy())
    table.run(dict.fromkeys(keys(5_000), 0))
    table.run(dict.fromkeys(keys(5), 1))
    assert len(table.table.files()) == 1


def test_run_that_changes_much_leaves_files_whole(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, policy=PiecePolicy(uncut=4_000))
    table.run(dict.fromkeys(keys(5_000), 0))
    table.run(dict.fromkeys(keys(1_000), 1))
    assert len(table.table.files()) == 1


def test_piece_that_grows_is_split(tmp_path: Path) -> None:
    table, added = KeyedTable(tmp_path), keys(2_000)
    table.run(dict.fromkeys(added[:200], 0))
    for first in range(200, 2_000, 150):
        table.run(dict.fromkeys(added[first : first + 150], first))
    files = table.table.files()
    assert len(files) > 5
    assert max(file.size for file in files) <= 3 * SMALL.smallest
    assert size(files) / len(files) >= SMALL.smallest / 2
    assert table.content() == table.rows


def test_new_keys_enlarge_the_pieces_around_them(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path)
    table.run({(f"{n:06}",): n for n in range(0, 30_000, 10)})
    table.run({("000000",): 1})
    before = len(table.table.files())
    for n in range(40):
        table.run({(f"{source:06}",): n for source in (n * 701 + 1, 40_000 + n)})
    assert len(table.table.files()) <= before + 2
    assert table.content() == table.rows


@pytest.mark.parametrize("reopened", [False, True], ids=["written", "read from the log"])
def test_null_key_finds_its_file(tmp_path: Path, reopened: bool) -> None:
    table = KeyedTable(tmp_path, PAIRED, PiecePolicy(uncut=0))
    of_null = table.put([("a", "x"), ("c", None), ("c", "y")])
    between = table.put([("b", "m")])
    without = table.put([("a", "k"), ("d", "z")])
    table.table = table.opened() if reopened else table.table
    touched = table.target.touched_files(Grains("country", None, lambda: {("c", None)}))
    assert {file.path for file in touched} == {of_null.path, between.path}
    assert without.nulls["user"] == 0


def test_nan_key_touches_every_file(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, PAIRED, PiecePolicy(uncut=0))
    for name in "abc":
        table.put([(name, name)])
    assert len(table.target.touched_files(Grains("country", None, lambda: {(float("nan"), "a")}))) == 3


def test_null_grain_is_replaced_although_others_of_the_run_are_not_null(tmp_path: Path) -> None:
    """Both lie in one file of grains, whose bounds leave the null out."""
    table = KeyedTable(tmp_path, PAIRED)
    table.run({(None, None): 0, ("a", None): 0})
    table.run({(None, None): 1, ("k", None): 2})
    assert table.content() == {(None, None): 1, ("a", None): 0, ("k", None): 2}


NAMES = st.one_of(
    st.none(), st.text(st.sampled_from("ab\u00e9\U0001f600 '%"), max_size=3), st.just("k" * 5_000), st.just("k" * 60)
)
CHANGES = st.dictionaries(st.tuples(NAMES, NAMES), st.one_of(st.integers(0, 9), st.none()), min_size=1, max_size=12)


@given(runs=st.lists(CHANGES, min_size=1, max_size=5), restarts=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_changes_give_the_rows_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, runs: list[dict[Grain, int | None]], restarts: bool
) -> None:
    eager = PiecePolicy(smallest=1_500, uncut=0, rewritten=0)
    table = KeyedTable(tmp_path_factory.mktemp("any"), PAIRED, eager)
    for changes in runs:
        if restarts:
            table.table = table.opened()
        table.run(changes)
        assert table.content() == table.rows


def compact(table: KeyedTable, batch: int) -> int:
    """Compact as the owner does after `batch`; return the number of groups."""
    group_keys = partial(table.target.old_neighbours, batch)
    compacted = CompactedTable(table.table, LocalBackend(), order=table.gold.keys, group_keys=group_keys)
    groups = compacted.groups(AUTOMATIC)
    for group in groups:
        compact_group(compacted, group)
    return len(groups)


def test_pieces_are_compacted_when_no_run_changes_them_any_more(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path)
    table.run({(f"{n:06}",): n for n in range(6_000)})
    table.run({("000000",): 1})
    pieces = len(table.table.files())
    assert pieces > 16
    assert compact(table, YOUNG) == 0, "a run may change young pieces again"
    table.batch = YOUNG
    table.run({("003000",): 1})
    assert compact(table, YOUNG + 1) == 2, "neither side of the young piece takes rows of the other"
    assert len(table.table.files()) == 3
    ranges = sorted((file.low["user"], file.high["user"]) for file in table.table.files())
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))
    assert table.content() == table.rows
    table.run({("000100",): 1})
    assert len(table.table.files()) > pieces / 3, "the next change cuts the file that it rewrites"
    assert table.content() == table.rows


def test_files_that_are_no_pieces_are_compacted_at_once(tmp_path: Path) -> None:
    table = KeyedTable(tmp_path, policy=PiecePolicy())
    for n in range(8):
        table.run({(f"{n:06}",): n})
    assert compact(table, 8) == 1
    assert len(table.table.files()) == 1
    assert table.content() == table.rows


HOURS = AdditiveGold("hours", "'all'", Window("at", parsed_size("1 hour"), "hour"), ("user",), ())


def test_grains_of_a_window_are_its_starts(tmp_path: Path) -> None:
    columns = StructType().add("at", TimestampType()).add("user", StringType()).add("_month", StringType())
    silver = Table(TableSpec("silver.events", tmp_path / "silver", columns, "_month", ("at",)))
    path = silver.spec.path / "b0" / "_month=all" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    at = datetime(2024, 1, 1, 10, 59, tzinfo=UTC)
    rows = [{"at": at, "user": "a"}, {"at": at + timedelta(minutes=2), "user": None}]
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("user", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    target = GoldTable(HOURS, silver, cast("SparkSession", None), "gold")
    found = target.grains_of_silver(silver, [written_file(silver.spec, path)])
    ten, eleven = datetime(2024, 1, 1, 10, tzinfo=UTC), datetime(2024, 1, 1, 11, tzinfo=UTC)
    assert (found.column, found.spans) == ("hour", [(ten, eleven)])
    assert found.exact() == {(ten, "a"), (eleven, None)}
