"""Tables from a real object store, in a new state folder: what is fetched, who is refused then, what is removed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from error_codes import raises
from small_warehouse import SmallWarehouse
from stored_site import create_bucket, endpoint_of, proven_once, running_store, stored_settings
from test_stored_publications import in_store, store_of, stored, write_batch

from include.ground.app_ids import add_check, remove_check
from include.ground.errors import Refused, Transient
from include.ground.paths import (
    bronze_path,
    checkpoint_path,
    restoring_path,
    silver_path,
    snapshots_path,
    warehouse,
)
from include.ground.settings import Settings
from include.read import fetch_dataset as fetching
from include.read import publish_to_store
from include.read.fetch_dataset import fetch_dataset, own_in_store
from include.read.publication import Publication, SourceVersion, TableVersion, find_publication, publish
from include.read.publish_to_store import refuse_start, remove_stored_files
from include.read.stored_publication import StoreConflict
from include.state.lease import LeaseLost
from spark_jobs.jobs import repair_job
from spark_jobs.stream.expiry import AutomaticDeletion, RetainedTables

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def test_restore_without_a_store_is_refused_before_the_question(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repair_job, "load_settings", lambda: settings)
    monkeypatch.setattr(repair_job, "is_confirmed", pytest.fail)
    assert repair_job.main(["flights", "ask", "restore"]) == repair_job.REFUSED
    assert "HEADRACE_WAREHOUSE names no object store" in capsys.readouterr().err


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_store() as process, proven_once():
        yield endpoint_of(process)


@pytest.fixture
def lost(endpoint: str, tmp_path: Path) -> SmallWarehouse:
    """Tables with two published batches, of a host that will be lost."""
    bucket = tmp_path.name.replace("_", "-").lower()
    create_bucket(endpoint, bucket)
    made = SmallWarehouse(stored_settings(tmp_path, endpoint, bucket))
    snapshot = snapshots_path(made.settings, "sales") / made.release
    (snapshot / "gold").mkdir(parents=True)
    (snapshot / "gold" / "shop_days.sql").write_text("select 1")
    for batch in (0, 1):
        write_batch(made, batch)
        made.move(batch)
    return made


@pytest.fixture
def fresh(lost: SmallWarehouse) -> Settings:
    """Settings of a new host."""
    return lost.settings.model_copy(update={"state": lost.settings.state.parent / "new-host"})


def rows(settings: Settings, path: Path) -> pl.DataFrame:
    return pl.read_delta(str(path))


def test_a_new_host_gets_tables_snapshots_and_publication(lost: SmallWarehouse, fresh: Settings) -> None:
    done = fetch_dataset(fresh, "sales", NOW)
    assert (done.batch, done.release, done.moved_to, list(done.removed)) == (1, lost.release, None, [])
    assert find_publication(fresh, "sales") == find_publication(lost.settings, "sales")
    for path in lost.names.values():
        copy = warehouse(fresh) / path.relative_to(warehouse(lost.settings))
        assert DeltaTable(str(copy)).version() == DeltaTable(str(path)).version()
        assert pl.read_delta(str(copy)).equals(pl.read_delta(str(path)))
    assert (snapshots_path(fresh, "sales") / lost.release / "gold" / "shop_days.sql").read_text() == "select 1"
    assert not restoring_path(fresh, "sales").exists()
    refuse_start(fresh, "sales")


def test_a_derived_dataset_is_restored_with_the_versions_of_its_sources(lost: SmallWarehouse, fresh: Settings) -> None:
    derived = replace(lost, dataset="shops", names={})
    derived.write("gold", [])
    path = derived.names["gold.shop_days"].relative_to(warehouse(lost.settings)).as_posix()
    source = SourceVersion("sales/bronze", 1, lost.release, 1, "commit")
    tables = {"gold.shop_days": TableVersion(path, 0)}
    published = Publication("shops", lost.release, 0, NOW, {}, tables, {"bronze.sales": source})
    publish(lost.settings, published)
    assert fetch_dataset(fresh, "shops", NOW).versions == {path: 0}
    assert find_publication(fresh, "shops") == published
    assert find_publication(fresh, "sales") is None


def test_hosts_of_a_domain_take_over_from_each_other_and_from_nobody_else(endpoint: str, tmp_path: Path) -> None:
    create_bucket(endpoint, "domain")
    alone = stored_settings(tmp_path, endpoint, "domain")
    first = SmallWarehouse(alone.model_copy(update={"lease_domain": "shops"}))
    # It owned the dataset before it was in a domain.
    assert own_in_store(alone, "sales", NOW) is None
    assert own_in_store(first.settings, "sales", NOW) is None
    write_batch(first, 0)
    first.move(0)
    assert own_in_store(first.settings, "sales", NOW) is None
    for domain in ("", "others"):
        stranger = first.settings.model_copy(update={"state": tmp_path / "stranger", "lease_domain": domain})
        with raises(StoreConflict, "published-elsewhere"):
            own_in_store(stranger, "sales", NOW)
    second = replace(first, settings=first.settings.model_copy(update={"state": tmp_path / "second"}), names={})
    for turn, host in enumerate((second, first, second)):
        checkpoint_path(host.settings, "sales").mkdir(parents=True)
        taken = own_in_store(host.settings, "sales", NOW + timedelta(seconds=turn))
        assert taken is not None
        assert taken.moved_to is not None
        assert (taken.moved_to / "checkpoint").is_dir()
        assert not checkpoint_path(host.settings, "sales").exists()
        write_batch(host, taken.batch + 1)
        host.move(taken.batch + 1)
        assert own_in_store(host.settings, "sales", NOW) is None


def test_host_whose_lease_is_lost_takes_nothing_over(endpoint: str, tmp_path: Path) -> None:
    create_bucket(endpoint, "lost-lease")
    settings = stored_settings(tmp_path, endpoint, "lost-lease").model_copy(update={"lease_domain": "shops"})
    first = SmallWarehouse(settings)
    write_batch(first, 0)
    first.move(0)
    owner = stored(settings).owner

    def lost() -> None:
        raise LeaseLost("sales", "leases")

    add_check(lost)
    try:
        with pytest.raises(LeaseLost):
            own_in_store(settings.model_copy(update={"state": tmp_path / "late"}), "sales", NOW)
    finally:
        remove_check(lost)
    assert stored(settings).owner == owner


def test_dataset_that_a_lost_host_never_published_is_taken_over_without_its_checkpoint(
    endpoint: str, tmp_path: Path
) -> None:
    create_bucket(endpoint, "unpublished")
    bare = stored_settings(tmp_path, endpoint, "unpublished")
    settings = bare.model_copy(update={"lease_domain": "shops", "warehouse": bare.warehouse.replace("s3:", "s3a:")})
    assert own_in_store(settings, "sales", NOW) is None
    other = settings.model_copy(update={"state": tmp_path / "other"})
    for host in (other, settings):
        checkpoint_path(host, "sales").mkdir(parents=True)
        taken = own_in_store(host, "sales", NOW)
        assert taken is not None
        assert taken.moved_to is not None
        assert (taken.moved_to / "checkpoint").is_dir()
        assert not checkpoint_path(host, "sales").exists()


def test_the_new_host_publishes_and_the_old_one_is_refused(lost: SmallWarehouse, fresh: Settings) -> None:
    fetch_dataset(fresh, "sales", NOW)
    # Before the new host has published anything.
    write_batch(lost, 2)
    with raises(StoreConflict, "published-elsewhere"):
        lost.move(2)
    new = replace(lost, settings=fresh, names={})
    write_batch(new, 2)
    new.move(2)
    with raises(StoreConflict, "published-elsewhere"):
        lost.move(2)
    assert stored(fresh).publication["batch"] == 2
    assert in_store(fresh, "silver.sales").to_pyarrow_table().num_rows == 9


def test_commits_that_no_publication_names_are_removed(lost: SmallWarehouse, fresh: Settings) -> None:
    store, key = store_of(fresh), f"sales/{lost.release}/silver"
    foreign = DeltaTable(f"{store.url}/{key}", storage_options=dict(store.delta_options))
    write_deltalake(foreign, foreign.to_pyarrow_table().slice(0, 1), mode="append")
    done = fetch_dataset(fresh, "sales", NOW)
    assert [Path(each).name for each in done.removed] == [f"{2:020d}.json"]
    assert store.read(f"{key}/_delta_log/{2:020d}.json") is None
    assert DeltaTable(str(silver_path(fresh, "sales", lost.release))).version() == 1


def test_commits_that_the_old_owner_puts_during_the_restore_are_removed(
    lost: SmallWarehouse, fresh: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner has begun its publication before the restore, and ends it when the commits are fetched."""

    def end_publication(*given: Any) -> Any:
        monkeypatch.setattr(fetching, "_data_files", keep)
        with raises(StoreConflict, "published-elsewhere"):
            lost.move(2)
        return keep(*given)

    write_batch(lost, 2)
    begun, keep = stored(fresh), fetching._data_files
    monkeypatch.setattr(publish_to_store, "_begin", lambda *_: begun)
    monkeypatch.setattr(fetching, "_data_files", end_publication)
    done = fetch_dataset(fresh, "sales", NOW)
    monkeypatch.undo()
    assert [Path(each).name for each in done.removed] == [f"{2:020d}.json"] * 3
    new = replace(lost, settings=fresh, names={})
    write_batch(new, 2)
    new.move(2)
    assert stored(fresh).publication["batch"] == 2


def test_tables_and_checkpoint_that_are_here_are_moved_away(lost: SmallWarehouse) -> None:
    checkpoint = checkpoint_path(lost.settings, "sales")
    checkpoint.mkdir(parents=True)
    (checkpoint / "generation.json").write_text("{}")
    write_batch(lost, 2)
    done = fetch_dataset(lost.settings, "sales", NOW)
    assert done.moved_to is not None
    assert sorted(path.name for path in done.moved_to.iterdir()) == ["checkpoint", "tables"]
    assert not checkpoint.exists()
    assert DeltaTable(str(bronze_path(lost.settings, "sales"))).version() == 1
    refuse_start(lost.settings, "sales")


def test_a_fetch_that_was_killed_continues(
    lost: SmallWarehouse, fresh: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(fetching, "_write_records", die)
        with pytest.raises(KeyboardInterrupt):
            fetch_dataset(fresh, "sales", NOW)
    assert find_publication(fresh, "sales") is None
    assert fetch_dataset(fresh, "sales", NOW).files == 0
    assert rows(fresh, bronze_path(fresh, "sales")).height == 8


def test_a_file_that_is_cut_short_in_the_store_is_found(lost: SmallWarehouse, fresh: Settings) -> None:
    store = store_of(fresh)
    key = next(each.key for each in store.list("sales/bronze") if each.key.endswith(".parquet"))
    store.delete([key])
    with raises(Transient, "fetched-file-differs", match="missing"):
        fetch_dataset(fresh, "sales", NOW)
    assert not warehouse(fresh).exists()


def test_a_dataset_that_was_never_published_is_named(lost: SmallWarehouse) -> None:
    with raises(Refused, "not-stored", match="no publication"):
        fetch_dataset(lost.settings, "orders", NOW)
    with raises(Refused, "not-stored", match="HEADRACE_WAREHOUSE"):
        fetch_dataset(Settings(state=lost.settings.state), "sales", NOW)


def test_replaced_files_are_removed_from_the_store_after_the_retention(lost: SmallWarehouse) -> None:
    table, settings = lost.names["silver.sales"], lost.settings
    DeltaTable(str(table)).optimize.compact()
    lost.move(1)
    files = {each.key for each in store_of(settings).list("sales") if "/silver/_month" in each.key}
    assert len(files) == 3
    assert remove_stored_files(settings, table, (), timedelta(hours=6)) == 0
    assert remove_stored_files(settings, table, {1}, timedelta()) == 0
    assert remove_stored_files(settings, table, (), timedelta()) == 2
    assert in_store(settings, "silver.sales").to_pyarrow_table().num_rows == 6
    assert remove_stored_files(Settings(state=settings.state), table, (), timedelta()) == 0


def test_owner_does_not_wait_for_a_store_that_does_not_answer(tmp_path: Path) -> None:
    with running_store() as process:
        create_bucket(endpoint_of(process), "slow")
        tables = SmallWarehouse(stored_settings(tmp_path, endpoint_of(process), "slow"))
        for batch in (0, 1):
            write_batch(tables, batch)
        table, settings = tables.names["silver.sales"], tables.settings
        DeltaTable(str(table)).optimize.compact()
        tables.move(1)
        step = AutomaticDeletion(next_check=0)
        opened = Mock(spec=["spec"], **{"spec.path": table})
        retained = RetainedTables([opened], timedelta(), dict, settings.state / "reading.lock", settings)
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        while step.step(lambda: retained):
            pass
        waited = time.monotonic() - began
        process.send_signal(signal.SIGCONT)
        assert waited < 5
        while data_files_in_store(settings) > 1:
            assert time.monotonic() < began + 60
            time.sleep(0.1)


def data_files_in_store(settings: Settings) -> int:
    return sum("/silver/_month" in each.key for each in store_of(settings).list("sales"))


def test_state_folder_whose_tables_another_one_fetched_removes_nothing(lost: SmallWarehouse, fresh: Settings) -> None:
    DeltaTable(str(lost.names["silver.sales"])).optimize.compact()
    lost.move(1)
    fetch_dataset(fresh, "sales", NOW)
    assert remove_stored_files(lost.settings, lost.names["silver.sales"], (), timedelta()) == 0


def test_old_checkpoints_are_removed_but_the_one_that_readers_are_led_to(lost: SmallWarehouse) -> None:
    table, settings, store = lost.names["silver.sales"], lost.settings, store_of(lost.settings)
    for batch in range(2, 15):
        write_batch(lost, batch)
        DeltaTable(str(table)).create_checkpoint()
        lost.move(batch)
    log = f"{table.relative_to(warehouse(settings))}/_delta_log"
    led = store.read(f"{log}/{4:020d}.checkpoint.parquet")
    assert led is not None
    store.write(f"{log}/_last_checkpoint", b'{"version": 4, "size": 1}')
    assert remove_stored_files(settings, table, (), timedelta(hours=6)) == 2
    left = [each.key for each in store.list(log) if "checkpoint.parquet" in each.key]
    assert len(left) == 11
    assert f"{log}/{4:020d}.checkpoint.parquet" in left
    assert in_store(settings, "silver.sales").to_pyarrow_table().num_rows == 45


def test_tables_of_a_release_that_is_gone_leave_the_store(lost: SmallWarehouse) -> None:
    old, settings = lost.release, lost.settings
    lost.release, lost.names = "fedcba987654", {"bronze.sales": lost.names["bronze.sales"]}
    write_batch(lost, 2)
    lost.move(2)
    assert any(each.key.startswith(f"sales/{old}/silver") for each in store_of(settings).list("sales"))
    refuse_start(settings, "sales")
    for path in (warehouse(settings) / "sales" / old).iterdir():
        path.rename(settings.state / path.name)
    refuse_start(settings, "sales")
    lost.move(2)
    assert not any(each.key.startswith(f"sales/{old}/silver") for each in store_of(settings).list("sales"))
    assert in_store(settings, "silver.sales").to_pyarrow_table().num_rows == 3
