"""DuckDB connections of the product: a memory limit, and a spill folder in the state folder that is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.ground.durable_files import LOCK, hold
from include.ground.paths import spill_path
from include.ground.settings import CLONE, Settings
from include.read.memory_database import memory_database

SPILLS = """
from os import getpid
from include.read.memory_database import memory_database, spill_folder
database = memory_database("64MB")
database.execute("set threads = 1")
database.execute("create table t as select range as i, hash(range) as h from range(8_000_000)")
print(sum(path.stat().st_size for path in spill_folder(getpid()).rglob("*") if path.is_file()))
"""


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    """The environment of a process with the test's state folder."""
    return {**os.environ, "HEADRACE_STATE": str(settings.state), "HEADRACE_DATASETS": str(settings.datasets)}


def test_database_spills_into_the_state_folder_and_leaves_nothing(
    settings: Settings, environment: dict[str, str]
) -> None:
    dead, former, alive = (spill_path(settings, name) for name in ("7-dead", "7", "7-alive"))
    for folder in (dead / "ab12", former, alive):
        folder.mkdir(parents=True)
    dead.with_suffix(LOCK).touch()
    # Another container may have a process of the same pid: only the lock shows whether it is alive.
    hold(alive.with_suffix(LOCK))
    done = subprocess.run([sys.executable, "-c", SPILLS], cwd=CLONE, env=environment, capture_output=True, check=True)
    assert int(done.stdout) > 8_000_000
    assert sorted(Path(settings.state, "spill").iterdir()) == [alive, alive.with_suffix(LOCK)]


def test_database_keeps_nothing_of_files_that_were_read(tmp_path: Path) -> None:
    database = memory_database()
    for number in range(20):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": [number]}), path)
        assert database.execute(f"select n from read_parquet('{path}')").fetchall() == [(number,)]
    kept = database.execute("select tag, memory_usage_bytes from duckdb_memory() where memory_usage_bytes > 0")
    assert kept.fetchall() == []
    database.close()


def test_a_cursor_is_in_utc_and_sees_no_python_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    cursor, hidden = memory_database().cursor(), pa.table({"n": [1]})
    assert cursor.execute("select current_setting('TimeZone')").fetchall() == [("UTC",)]
    with pytest.raises(duckdb.CatalogException):
        cursor.execute("select * from hidden")
    assert hidden.num_rows == 1
