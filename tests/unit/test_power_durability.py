"""`HEADRACE_DURABILITY=power`: what is published is on disk, whenever the power is cut."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote

import pytest
from durable_disk import DurableDisk
from grown_history import GrownHistory
from preflight_scene import BATCHES, open_scene

from include.ground.delta_log import LOG, commit_name
from include.ground.settings import Settings
from include.run.kafka_broker import NEVER, BrokerNode, write_properties
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.stream.ingest import Ingest
from spark_jobs.tables.delta_table import Table


@pytest.fixture
def power(settings: Settings) -> Settings:
    return settings.model_copy(update={"durability": "power"})


def published_batch(left: dict[Path, bytes]) -> int:
    """Return the batch that is published on this disk, -1 for none, after reading all that it needs."""
    found = left.get(Path("warehouse/flights/publication.json"))
    if found is None:
        return -1
    publication = json.loads(found)
    for table in publication["tables"].values():
        path, sizes = Path("warehouse", table["path"]), {}
        for version in range(table["version"] + 1):
            lines = left[path / LOG / commit_name(version)].splitlines()
            assert lines, f"version {version} of {path} is empty"
            for line in lines:
                action: dict[str, Any] = json.loads(line)
                if "add" in action:
                    sizes[action["add"]["path"]] = action["add"]["size"]
                if "remove" in action:
                    del sizes[action["remove"]["path"]]
        for name, size in sizes.items():
            assert len(left[path / unquote(name)]) == size, f"batch {publication['batch']} names {name}"
    return int(publication["batch"])


def test_published_batch_is_complete_whenever_the_power_is_cut(
    power: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = GrownHistory(power)
    disk = DurableDisk(power.state)
    cuts: list[int] = []
    with disk.recording(monkeypatch):
        for batch in range(12):
            # The model is slow: look at every cut of some batches only.
            disk.after_sync = (lambda: cuts.append(published_batch(disk.files()))) if batch in (0, 9) else lambda: None
            history.add_batch()
            assert published_batch(disk.files()) == batch
    assert set(cuts) == {-1, 0, 8, 9}


def test_checkpoint_of_a_log_is_synced_after_its_commit(power: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(bronze_spec(power, "flights"))
    for number in range(48):
        table.commit("app", number, {}, [])
    disk = DurableDisk(power.state)
    with disk.recording(monkeypatch):
        table.commit("app", 48, {}, [])
    left = disk.files()
    log = Path("warehouse/flights/bronze", LOG)
    assert left[log / f"{49:020d}.checkpoint.parquet"][-4:] == b"PAR1"
    assert json.loads(left[log / "_last_checkpoint"])["version"] == 49


def test_nothing_of_a_batch_is_synced_by_default(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    history = GrownHistory(settings)
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    history.add_batch()
    assert [name for name in synced if "publication" not in name and not name.endswith("warehouse/flights")] == []


def test_planned_offsets_are_on_disk_before_bronze_has_the_batch(
    power: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = open_scene(power, monkeypatch)
    scene.plan(BATCHES, BATCHES, done=False)
    spark = Mock()
    spark.sparkContext.master = "local[2]"
    ingest = Ingest(spark, power, scene.dataset, scene.bronze, scene.generation, 1, threading.Event())
    ingest.reader = Mock()
    disk = DurableDisk(power.state)
    disk.entries.clear()
    left: list[dict[Path, bytes]] = []
    monkeypatch.setattr("spark_jobs.stream.ingest.current_versions", lambda *_: {})
    monkeypatch.setattr(ingest, "backend", Mock(ingest=lambda *_: left.append(disk.files()) or []))
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", disk.fsync)
        ingest._commit(Mock(), BATCHES)
    synced = {Path(name).name: names for name, names in disk.entries.items()}
    assert left, "the batch was committed"
    assert str(BATCHES) in synced["offsets"]
    assert str(BATCHES - 1) in synced["commits"]
    assert "metadata" in synced["1"]
    assert len(disk.contents) == 3


@pytest.mark.parametrize(("durability", "interval"), [("power", 1), ("process", NEVER)])
def test_broker_flushes_each_record_with_power(settings: Settings, durability: str, interval: int) -> None:
    write_properties(settings.model_copy(update={"durability": durability}), BrokerNode("id", 9, 10))
    text = (settings.state / "kafka" / "server.properties").read_text()
    assert f"\nlog.flush.interval.messages={interval}\n" in text
