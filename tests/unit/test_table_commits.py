"""When a commit call fails, the Delta log decides whether it was committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql.types import LongType, StringType, StructType

from include.clients.delta_log import LOG, LogDamaged, commit_name
from spark_jobs.storage.data_files import DataFile, TableSpec
from spark_jobs.storage.delta_table import OwnershipLost, Table

SPEC_COLUMNS = StructType().add("n", LongType()).add("_month", StringType())


def spec(folder: Path) -> TableSpec:
    return TableSpec("silver.small", folder / "a table", SPEC_COLUMNS, "_month", ("n",))


def file(name: str) -> DataFile:
    return DataFile(f"b1/_month=2024-01/{name}.parquet", "2024-01", 3, 100, {"n": 1}, {"n": 3})


class Failing:
    """Replaces a table's handle: every commit fails, after it was written (`late`) or before."""

    def __init__(self, table: Table, late: bool, error: Exception) -> None:
        self.table, self.real, self.late, self.error = table, table._delta, late, error
        table._delta = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def create_write_transaction(self, *arguments: Any, **named: Any) -> None:
        if self.late:
            self.real.create_write_transaction(*arguments, **named)
        raise self.error


ERRORS: list[Callable[[], Exception]] = [
    lambda: OSError("No space left on device"),
    lambda: DeltaError("Kernel error: No space left on device"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_commit_in_the_log_counts_although_its_call_failed(tmp_path: Path, error: Callable[[], Exception]) -> None:
    table = Table(spec(tmp_path))
    Failing(table, late=True, error=error())
    assert table.commit("app", 0, {}, [file("one")]) == 1
    assert table.committed("app") == 0
    assert [f.path for f in table.files()] == [file("one").path]
    assert table.commit("app", 1, {}, [file("two")]) == 2


@pytest.mark.parametrize("error", ERRORS)
def test_commit_not_in_the_log_can_be_repeated(tmp_path: Path, error: Callable[[], Exception]) -> None:
    table = Table(spec(tmp_path))
    failed = error()
    Failing(table, late=False, error=failed)
    with pytest.raises(type(failed)):
        table.commit("app", 0, {}, [file("one")])
    assert (table.committed("app"), table.files()) == (-1, [])
    assert table.commit("app", 0, {}, [file("one")]) == 1


def test_second_owner_of_a_table_is_refused(tmp_path: Path) -> None:
    stale, owner = Table(spec(tmp_path)), Table(spec(tmp_path))
    owner.commit("app", 0, {}, [file("one")])
    with pytest.raises(OwnershipLost) as refusal:
        stale.commit("app", 0, {}, [file("two")])
    assert (refusal.value.table, refusal.value.app_id) == ("silver.small", "app")
    assert [f.path for f in Table(spec(tmp_path)).files()] == [file("one").path]


def test_owner_refuses_a_log_with_an_empty_commit_file(tmp_path: Path) -> None:
    """delta-rs opens it without that commit's files."""
    table = Table(spec(tmp_path))
    for number in range(3):
        table.commit("app", number, {}, [file(f"f{number}")])
    lost = table.spec.path / LOG / commit_name(2)
    lost.write_bytes(b"")
    with pytest.raises(LogDamaged, match="2.json is empty") as refused:
        Table(spec(tmp_path))
    assert refused.value.path == lost


def test_stale_owner_is_refused_whatever_it_commits(tmp_path: Path) -> None:
    """delta-rs would repeat the commit on top of the other owner's: app id and files do not conflict."""
    first = Table(spec(tmp_path))
    first.commit("app", 0, {}, [file("one"), file("two")])
    stale, owner = Table(spec(tmp_path)), Table(spec(tmp_path))
    owner.commit("app", 1, {}, [file("three")])
    with pytest.raises(OwnershipLost):
        stale.commit("another app", 0, {}, [file("four")])
    with pytest.raises(OwnershipLost):
        first.compact([replace(file("both"), rows=6)], [file("one"), file("two")])
    assert {f.path for f in Table(spec(tmp_path)).files()} == {file(name).path for name in ("one", "two", "three")}
