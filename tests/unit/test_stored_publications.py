"""Publications in a real object store: what its readers see, whose it is, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from error_codes import raises
from small_warehouse import NOON, SmallWarehouse, bronze_metadata, bronze_row, rejected_row, silver_row
from stored_site import create_bucket, endpoint_of, proven_once, running_store, stored_settings

from include.ground.object_store import ObjectStore, StoreUnavailable, find_store
from include.ground.paths import decision_log_path, publication_path, silver_path, store_owner_path, warehouse
from include.ground.settings import Settings
from include.read import publication, publish_to_store
from include.read.fetch_dataset import fetch_dataset
from include.read.publication import Publication, find_publication, publish
from include.read.publish_to_store import refuse_start
from include.read.stored_publication import StoreConflict, read_stored


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_store() as process, proven_once():
        yield endpoint_of(process)


@pytest.fixture
def settings(endpoint: str, tmp_path: Path) -> Settings:
    bucket = tmp_path.name.replace("_", "-").lower()
    create_bucket(endpoint, bucket)
    return stored_settings(tmp_path, endpoint, bucket)


@pytest.fixture
def tables(settings: Settings) -> SmallWarehouse:
    """Tables with a first batch, published."""
    made = SmallWarehouse(settings)
    write_batch(made, 0)
    made.move(0)
    return made


def write_batch(tables: SmallWarehouse, batch: int) -> None:
    first = batch * 4
    tables.write(
        "bronze",
        [bronze_row(first + n, b"{}", batch=batch) for n in range(4)],
        bronze_metadata(batch, {0: (first, first + 4)}),
    )
    tables.write("silver", [silver_row(first + n, f"e{first + n}", batch=batch) for n in range(3)])
    tables.write("rejected", [rejected_row(first + 3, "invalid", "amount", batch=batch)])


def store_of(settings: Settings) -> ObjectStore:
    store = find_store(settings)
    assert store is not None
    return store


def stored(settings: Settings) -> Any:
    found = read_stored(store_of(settings), "sales")
    assert found is not None
    return found


def in_store(settings: Settings, name: str) -> DeltaTable:
    """Return a table as a reader of the store opens it: at the version of the store's publication."""
    store, pinned = store_of(settings), stored(settings).publication["tables"][name]
    return DeltaTable(f"{store.url}/{pinned['path']}", pinned["version"], dict(store.delta_options))


def test_readers_of_the_store_see_the_published_versions(settings: Settings, tables: SmallWarehouse) -> None:
    write_batch(tables, 1)
    tables.move(1)
    for name, path in tables.names.items():
        rows = pl.DataFrame(in_store(settings, name).to_pyarrow_table())
        assert rows.height > 0
        assert rows.equals(pl.read_delta(str(path)).select(rows.columns)), name
    assert json.loads(publication_path(settings, "sales").read_bytes()) == stored(settings).publication


def test_a_reader_of_the_store_keeps_the_version_that_it_opened(settings: Settings, tables: SmallWarehouse) -> None:
    opened = in_store(settings, "silver.sales")
    write_batch(tables, 1)
    tables.move(1)
    assert opened.to_pyarrow_table().num_rows == 3
    assert in_store(settings, "silver.sales").to_pyarrow_table().num_rows == 6


def test_a_publication_sends_only_what_is_new(
    settings: Settings, tables: SmallWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batch(tables, 1)
    sent = list[str]()
    keep = ObjectStore.write, ObjectStore.create
    monkeypatch.setattr(ObjectStore, "write", lambda *given: (sent.append(given[1]), keep[0](*given))[1])
    monkeypatch.setattr(ObjectStore, "create", lambda *given: (sent.append(given[1]), keep[1](*given))[1])
    tables.move(1)
    kinds = sorted("data" if key.endswith(".parquet") else Path(key).name for key in sent)
    assert kinds == [f"{1:020d}.json"] * 3 + ["data"] * 3


def test_small_files_are_read_and_sent_again_only_when_they_changed(
    settings: Settings, tables: SmallWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(path: Path) -> str:
        hashed.append(path)
        return keep(path)

    hashed, keep = list[Path](), publish_to_store.file_checksum
    decisions = decision_log_path(settings, "sales")
    decisions.write_text("one")
    monkeypatch.setattr(publish_to_store, "file_checksum", count)
    tables.move(0)
    tables.move(0)
    assert hashed == [decisions]
    decisions.write_text("two")
    tables.move(0)
    assert hashed == [decisions] * 2
    found = store_of(settings).read(f"sales/{decisions.name}")
    assert found is not None
    assert found.content == b"two"


def test_files_of_odd_partitions_are_found_in_the_store(settings: Settings, tables: SmallWarehouse) -> None:
    odd = ["plain", "with space", "100%", "a/b", "x=y", "ü", "a%20b", "q?#&+"]
    path = warehouse(settings) / "sales" / tables.release / "gold" / "odd"
    rows = pa.table({"name": odd, "n": list(range(len(odd)))})
    write_deltalake(str(path), rows, partition_by=["name"])
    tables.names["gold.odd"] = path
    tables.move(0)
    found = pl.DataFrame(in_store(settings, "gold.odd").to_pyarrow_table()).sort("n")
    assert found["name"].to_list() == odd


def test_log_checkpoints_reach_the_store(settings: Settings, tables: SmallWarehouse) -> None:
    DeltaTable(str(tables.names["silver.sales"])).create_checkpoint()
    write_batch(tables, 1)
    DeltaTable(str(tables.names["silver.sales"])).create_checkpoint()
    tables.move(1)
    names = {Path(each.key).name for each in store_of(settings).list("sales") if "silver" in each.key}
    assert {f"{1:020d}.checkpoint.parquet", "_last_checkpoint"} <= names
    assert in_store(settings, "silver.sales").to_pyarrow_table().num_rows == 6


def test_a_foreign_commit_in_the_store_is_refused(settings: Settings, tables: SmallWarehouse) -> None:
    store, key = store_of(settings), f"sales/{tables.release}/silver"
    foreign = DeltaTable(f"{store.url}/{key}", storage_options=dict(store.delta_options))
    write_deltalake(foreign, foreign.to_pyarrow_table().slice(0, 1), mode="append")
    write_batch(tables, 1)
    with raises(StoreConflict, "foreign-commit") as refused:
        tables.move(1)
    assert (refused.value.facts["table"], refused.value.facts["version"]) == (key, 1)
    before = find_publication(settings, "sales")
    assert before is not None
    assert (before.batch, stored(settings).publication["batch"]) == (0, 0)


def test_a_second_state_folder_cannot_publish(endpoint: str, settings: Settings, tables: SmallWarehouse) -> None:
    other = replace(tables, settings=settings.model_copy(update={"state": settings.state.parent / "other"}), names={})
    write_batch(other, 0)
    with raises(StoreConflict, "published-elsewhere"):
        other.move(0)
    with raises(StoreConflict, "published-elsewhere"):
        refuse_start(other.settings, "sales")
    assert find_publication(other.settings, "sales") is None


def test_of_two_publications_at_once_one_is_refused(
    settings: Settings, tables: SmallWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_meanwhile(*given: Any) -> dict[str, str]:
        store, before = store_of(settings), stored(settings)
        taken = replace(before, owner=replace(before.owner, name="other", host="elsewhere"))
        assert store.replace("sales/publication.json", taken.content(), before.tag)
        return keep(*given)

    keep = publish_to_store._push_files
    monkeypatch.setattr(publish_to_store, "_push_files", taken_meanwhile)
    write_batch(tables, 1)
    with raises(StoreConflict, "published-elsewhere", match="elsewhere"):
        tables.move(1)
    assert stored(settings).publication["batch"] == 0


def test_tables_of_an_old_backup_are_refused(settings: Settings, tables: SmallWarehouse) -> None:
    backup = settings.state.parent / "backup"
    shutil.copytree(warehouse(settings), backup)
    write_batch(tables, 1)
    tables.move(1)
    shutil.rmtree(warehouse(settings))
    shutil.copytree(backup, warehouse(settings))
    with raises(StoreConflict, "store-differs"):
        refuse_start(settings, "sales")
    write_batch(tables, 1)
    write_batch(tables, 2)
    with raises(StoreConflict, "store-differs"):
        tables.move(2)
    with raises(StoreConflict, "store-differs"):
        refuse_start(settings, "sales")


def test_tables_that_are_gone_here_are_refused(settings: Settings, tables: SmallWarehouse) -> None:
    shutil.rmtree(silver_path(settings, "sales", tables.release))
    with raises(StoreConflict, "store-differs"):
        refuse_start(settings, "sales")
    shutil.rmtree(warehouse(settings))
    with raises(StoreConflict, "published-elsewhere"):
        refuse_start(settings, "sales")


@pytest.mark.parametrize("step", ["_put_commits", "_push_files", "save_stored"])
def test_a_publication_that_was_interrupted_is_completed(
    step: str, settings: Settings, tables: SmallWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*given: Any) -> None:
        # Of the three tables' commits, some are in the store then.
        if step == "_put_commits":
            keep(*given)
        raise KeyboardInterrupt

    keep = getattr(publish_to_store, step)
    write_batch(tables, 1)
    with monkeypatch.context() as broken:
        broken.setattr(publish_to_store, step, die)
        with pytest.raises(KeyboardInterrupt):
            tables.move(1)
    assert stored(settings).publication["batch"] == 0
    refuse_start(settings, "sales")
    tables.move(1)
    assert stored(settings).publication["batch"] == 1


def interrupt_first_publication(tables: SmallWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish a first batch, and die when its commits are in the store."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    write_batch(tables, 0)
    with monkeypatch.context() as broken:
        broken.setattr(publish_to_store, "_push_files", die)
        with pytest.raises(KeyboardInterrupt):
            tables.move(0)


def test_an_interrupted_first_publication_is_completed_by_its_owner_only(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SmallWarehouse(settings)
    interrupt_first_publication(own, monkeypatch)
    other = SmallWarehouse(settings.model_copy(update={"state": settings.state.parent / "other"}))
    write_batch(other, 0)
    with raises(StoreConflict, "published-elsewhere"):
        refuse_start(other.settings, "sales")
    with raises(StoreConflict, "published-elsewhere"):
        other.move(0)
    refuse_start(settings, "sales")
    own.move(0)
    assert stored(settings).publication["batch"] == 0


def test_an_interrupted_first_publication_is_taken_over_by_another_state_folder(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = SmallWarehouse(settings)
    interrupt_first_publication(gone, monkeypatch)
    other = SmallWarehouse(settings.model_copy(update={"state": settings.state.parent / "other"}))
    write_batch(other, 0)
    done = fetch_dataset(other.settings, "sales", NOON)
    assert (done.batch, len(done.removed), done.files, done.moved_to) == (-1, 3, 0, None)
    refuse_start(other.settings, "sales")
    other.move(0)
    assert in_store(other.settings, "silver.sales").to_pyarrow_table().num_rows == 3
    with raises(StoreConflict, "published-elsewhere"):
        gone.move(0)


def test_a_crash_between_store_and_file_is_completed(
    settings: Settings, tables: SmallWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    write_batch(tables, 1)
    with monkeypatch.context() as broken:
        broken.setattr(publication, "write_atomically", die)
        with pytest.raises(KeyboardInterrupt):
            tables.move(1)
    before = find_publication(settings, "sales")
    assert before is not None
    assert (before.batch, stored(settings).publication["batch"]) == (0, 1)
    refuse_start(settings, "sales")
    assert tables.move(1).batch == stored(settings).publication["batch"]


def test_a_store_out_of_reach_keeps_the_old_publication(settings: Settings, tables: SmallWarehouse) -> None:
    write_batch(tables, 1)
    gone = settings.model_copy(update={"warehouse_endpoint": "http://127.0.0.1:9"})
    with pytest.raises(StoreUnavailable):
        replace(tables, settings=gone).move(1)
    before = find_publication(settings, "sales")
    assert before is not None
    assert before.batch == 0
    tables.move(1)
    assert stored(settings).publication["batch"] == 1


def test_without_a_store_nothing_is_sent_or_written(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    refuse_start(settings, "sales")
    publish(settings, Publication("sales", "r", 0, publication.datetime.now(publication.UTC), {}, {}))
    assert [path.name for path in warehouse(settings).rglob("*") if path.is_file()] == ["publication.json"]
    assert not store_owner_path(settings, "sales").exists()
