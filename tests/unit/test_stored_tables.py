"""A table in a real object store (moto): its paths, its log, and who may commit to it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from plan_samples import plan_at, publication
from pyspark.sql.types import LongType, StringType, StructType
from stored_site import create_bucket, endpoint_of, running_store, stored_settings

from include.declare.dataset import snapshot_dataset
from include.ground import object_store
from include.ground.delta_log import (
    LOG,
    commits,
    commits_descending,
    commits_following,
    latest_version,
    log_versions,
    obsolete_files,
    open_delta,
    transaction_version,
)
from include.ground.object_store import ObjectStore, StoreUnavailable
from include.ground.paths import bronze_path, gold_path, publication_path, silver_path, table_path, warehouse
from include.ground.settings import InvalidSetting, Settings
from include.ground.stored_path import (
    NotOnThisHost,
    StoredPath,
    arrow_sink,
    arrow_source,
    delta_options,
    free_bytes,
    names_in,
    path_below,
    remove_tree,
    text_below,
)
from include.observe.ended_plans import delete_moved, disk_use, move_ended
from include.plans.plan import Stage
from include.read.limited_query import QueryLimits, limited_query
from include.read.memory_database import files_sql, memory_database
from include.read.publication import PublishedTable, publish
from include.read.published_sql import QueryFailed
from include.read.published_tables import PinnedTables
from spark_jobs.backends.local.arrow_files import rows_in_files
from spark_jobs.tables.commit_log import VersionTaken, checkpoint_versions, put_commit
from spark_jobs.tables.data_files import TableSpec, written_file
from spark_jobs.tables.delta_table import OwnershipLost, Table

COLUMNS = StructType().add("n", LongType()).add("_month", StringType())
APP_ID = "small/runs"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_store() as process:
        create_bucket(endpoint_of(process), "tables")
        yield endpoint_of(process)


@pytest.fixture
def settings(endpoint: str, tmp_path: Path) -> Settings:
    bucket = tmp_path.name.replace("_", "-").lower()
    create_bucket(endpoint, bucket)
    return stored_settings(tmp_path, endpoint, bucket, "s3a")


@pytest.fixture
def spec(settings: Settings) -> TableSpec:
    return TableSpec("bronze.small", bronze_path(settings, "small"), COLUMNS, "_month", ("n",))


def commit(table: Table, version: int) -> None:
    table.commit(APP_ID, version, {"app_id": APP_ID, "batches": [version, version]}, [])


def claimed(spec: TableSpec, epoch: int) -> Table:
    table = Table(spec)
    table.claim(epoch)
    return table


def test_tables_have_paths_in_the_store_and_what_lies_next_to_them_is_here(settings: Settings) -> None:
    path, root = gold_path(settings, "small", "r1", "days"), warehouse(settings)
    assert str(path) == f"{settings.warehouse}/small/r1/gold/days"
    assert path == table_path(settings, "small", "r1", "gold.days") == root / "small/r1/gold" / "days"
    assert str(path.relative_to(root)) == path.relative_to(root).as_posix() == "small/r1/gold/days"
    assert (path.name, path.parent.name, path.parents[1].name) == ("days", "gold", "r1")
    assert len({path, root / "small" / "r1" / "gold" / "days"}) == 1
    assert publication_path(settings, "small").is_relative_to(settings.state)


@pytest.mark.parametrize(
    "use", [os.listdir, os.path.exists, Path.rmdir, lambda path: path.rename("other"), pq.read_table]
)
def test_what_needs_a_file_of_this_host_says_so(settings: Settings, use: Callable[[Path], object]) -> None:
    with pytest.raises(NotOnThisHost, match="s3a://"):
        use(bronze_path(settings, "small"))


def test_files_and_folders_of_a_store_answer_as_local_ones(settings: Settings) -> None:
    folder = bronze_path(settings, "small")
    assert not folder.is_dir()
    with pytest.raises(FileNotFoundError):
        names_in(folder / LOG)
    first, other = folder / LOG / "00.json", warehouse(settings) / "other" / "r1" / "silver" / LOG / "00.json"
    assert isinstance(first, StoredPath)
    assert first.create(b"one")
    assert first.create(b"one"), "a repeated request finds its own object"
    assert not first.create(b"two")
    other.write_bytes(b"three")
    assert (first.read_bytes(), other.read_text("utf-8"), first.stat().st_size) == (b"one", "three", 3)
    assert first.stat().st_mtime_ns > 0
    assert first.stat().st_mtime == pytest.approx(first.stat().st_mtime_ns / 1e9)
    assert (first.exists(), folder.is_dir(), (folder / "none").exists()) == (True, True, False)
    assert [str(each) for each in warehouse(settings).glob(f"*/*/silver/{LOG}")] == [str(other.parent)]
    assert list(warehouse(settings).glob(f"small/bronze/{LOG}")) == [first.parent]
    assert list(warehouse(settings).rglob("*.json")) == [other, first]
    assert names_in(folder / LOG) == ["00.json"]
    assert names_in(folder / LOG, "00.json") == []
    first.unlink()
    with pytest.raises(FileNotFoundError):
        first.read_bytes()
    with pytest.raises(FileNotFoundError):
        first.stat()


def test_a_store_that_does_not_answer_is_not_a_table_that_is_missing(tmp_path: Path) -> None:
    settings = stored_settings(tmp_path, "http://127.0.0.1:9", "nowhere", "s3a")
    for use in (StoredPath.exists, latest_version, log_versions):
        with pytest.raises(StoreUnavailable):
            use(bronze_path(settings, "small"))  # type: ignore[operator]


def test_delta_rs_waits_no_longer_than_other_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "REQUEST_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = stored_settings(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", "silent", "s3a")
        begun = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            open_delta(bronze_path(settings, "small"))
    assert time.monotonic() - begun < 20


def test_a_log_in_a_store_reads_as_a_local_one(spec: TableSpec) -> None:
    table = claimed(spec, 1)
    for number in range(30):
        commit(table, number)
    assert latest_version(spec.path) == table.version == 31
    assert [each.app_version for each in commits(spec.path, after=28)] == [27, 28, 29]
    assert [each.version for each in commits_following(spec.path, 29)] == [30, 31]
    assert next(commits_descending(spec.path)).app_version == 29
    assert log_versions(spec.path, 29) == [30, 31]
    assert checkpoint_versions(spec.path) == [24]
    assert Table(spec).committed(APP_ID) == transaction_version(spec.path, APP_ID) == 29
    assert table.commit_of(APP_ID, 12).version == 14


def test_an_earlier_owner_commits_nothing_after_a_claim(spec: TableSpec) -> None:
    old = claimed(spec, 1)
    commit(old, 0)
    new = claimed(spec, 2)
    with pytest.raises(OwnershipLost):
        commit(old, 1)
    commit(new, 1)
    with pytest.raises(OwnershipLost):
        old.claim(2)
    assert Table(spec).committed(APP_ID) == 1


def test_of_two_commits_of_a_version_one_is_refused(spec: TableSpec) -> None:
    Table(spec)
    put_commit(spec.path, 1, {}, [], durable=False)
    with pytest.raises(VersionTaken):
        put_commit(spec.path, 1, {}, [], durable=False)


def test_a_file_in_a_store_is_known_by_its_footer_and_found_when_it_is_obsolete(spec: TableSpec) -> None:
    table, path = claimed(spec, 1), spec.path / "b0" / "_month=2026-11" / "part-0.parquet"
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [3, 1, 2]}), sink)
    path.write_bytes(sink.getvalue().to_pybytes())
    file = written_file(spec, path)
    assert (file.path, file.rows, file.low, file.high) == (str(path.relative_to(spec.path)), 3, {"n": 1}, {"n": 3})
    table.commit(APP_ID, 0, {"app_id": APP_ID}, [file])
    assert open_delta(spec.path).to_pyarrow_table()["n"].to_pylist() == [3, 1, 2]
    assert pq.read_table(arrow_source(path))["n"].to_pylist() == [3, 1, 2]
    table.commit(APP_ID, 1, {"app_id": APP_ID}, [], [file])
    assert obsolete_files(spec.path, [], timedelta()) == [file.path]


def test_tables_in_a_store_need_the_backend_spark(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="HEADRACE_BACKEND=spark"):
        stored_settings(tmp_path, "", "tables", "s3a", backend="local")


def test_duckdb_reads_files_of_a_store_as_those_of_a_folder(settings: Settings, tmp_path: Path) -> None:
    for folder in (bronze_path(settings, "small"), tmp_path):
        for name, rows in {"a.parquet": {"n": [1]}, "b.parquet": {"n": [2], "more": ["x"]}}.items():
            with arrow_sink(folder / name) as sink:
                pq.write_table(pa.table(rows), sink)
        with memory_database() as database:
            found = database.execute(f"select n, more from {files_sql(database, folder, ['a.parquet', 'b.parquet'])}")
            assert sorted(found.fetchall()) == [(1, None), (2, "x")]
        assert rows_in_files([folder / "a.parquet", folder / "b.parquet"]) == 2


def test_the_text_of_a_path_is_relative_to_a_folder_unless_it_lies_in_a_store(settings: Settings) -> None:
    for path in (bronze_path(settings, "small"), settings.state / "analyses" / "a" / "table"):
        assert path_below(settings.state, text_below(settings.state, path)) == path
    assert text_below(settings.state, bronze_path(settings, "small")) == f"{settings.warehouse}/small/bronze"


def test_a_store_has_no_disk_that_a_plan_could_fill(settings: Settings) -> None:
    settings.state.mkdir()
    assert free_bytes(bronze_path(settings, "small")) > free_bytes(settings.state)


def test_tables_of_an_ended_release_are_counted_and_deleted(settings: Settings) -> None:
    publish(settings, publication(snapshot_dataset(settings, "flights").release))
    kept, ended = (silver_path(settings, "flights", release) / "part.parquet" for release in ("aaa", "bbb"))
    for file in (kept, ended, ended.parent / LOG / "0.json"):
        file.write_bytes(b"12345")
    plan_at(settings, Stage.CANCELLED)
    later = datetime.now(UTC) + timedelta(days=8)
    (removed,) = move_ended(settings, "flights", later)
    assert (removed.path, removed.bytes) == (f"{settings.warehouse}/flights/bbb", 10)
    assert delete_moved(settings, "flights")
    assert (kept.exists(), ended.parents[1].is_dir()) == (True, False)
    assert move_ended(settings, "flights", later) == []
    use = {(each.part.release, each.part.name): each.total for each in disk_use(settings)}
    assert use["aaa", "silver.flights"] == 5


def test_of_a_folder_that_is_deleted_logs_go_first(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = silver_path(settings, "small", "r1")
    logged = [f"{LOG}/{name}" for name in ("5.checkpoint.parquet", "_last_checkpoint", "0.json")]
    expected = [*logged, "_date=1/a.parquet", "b.parquet"]
    for name in expected:
        (folder / name).write_bytes(b"1")
    deleted = list[str]()
    monkeypatch.setattr(ObjectStore, "delete", lambda _, keys: deleted.extend(keys))
    remove_tree(folder)
    assert [key.removeprefix("small/r1/silver/") for key in deleted] == expected


def test_the_process_of_a_statement_of_others_reaches_the_store(spec: TableSpec) -> None:
    options = delta_options(spec.path)
    write_deltalake(str(spec.path), pa.table({"n": [1, 2]}), storage_options=options)
    tables = PinnedTables({"bronze.small": PublishedTable("bronze.small", spec.path, 0, "small", "r1", 0)})
    assert limited_query(tables, "select sum(n) from bronze.small", QueryLimits(60.0)).rows == [(3,)]
    with pytest.raises(QueryFailed, match="disabled by configuration"):
        limited_query(tables, f"from read_text('{spec.path}/{LOG}/{0:020}.json')", QueryLimits(60.0))
