"""Preflight and repair: every way in which checkpoint, bronze and Kafka can disagree."""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from preflight_scene import BATCHES, NOW, Scene, open_scene, record_of

from include.ground.errors import Terminal
from include.ground.paths import bronze_path, lease_path, silver_path
from include.ground.settings import Settings
from include.state.lease import LeaseHeld, take_file_lease
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.preflight import (
    CheckpointDisagrees,
    CheckpointMissing,
    OffsetsExpired,
    RecordsReplaced,
    TablesDisagree,
    TopicReplaced,
    bronze_head,
)
from spark_jobs.tables.checkpoint import GenerationDamaged, OffsetLogDamaged, write_generation
from spark_jobs.tables.delta_table import OwnershipLost, Table


@pytest.fixture
def scene(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return open_scene(settings, monkeypatch)


def in_checkpoint(change: Callable[[Path], object]) -> Callable[[Scene], None]:
    def damage(scene: Scene) -> None:
        change(scene.folder / "1")

    return damage


def rewritten(**changes: Any) -> Callable[[Scene], None]:
    def damage(scene: Scene) -> None:
        write_generation(scene.folder, replace(scene.generation, **changes))

    return damage


def lost_commits_and_planned_on(scene: Scene) -> None:
    for number in range(BATCHES):
        (scene.folder / "1" / "commits" / str(number)).unlink()
    scene.plan(BATCHES, BATCHES, done=False)
    scene.plan(BATCHES + 1, BATCHES + 1, done=False)


REPAIRABLE = {
    "no generation": (lambda s: (s.folder / "generation.json").unlink(), CheckpointMissing, "generation.json"),
    "empty generation": (lambda s: (s.folder / "generation.json").write_text(""), GenerationDamaged, "generation.json"),
    "no checkpoint": (lambda s: shutil.rmtree(s.folder), CheckpointMissing, "generation.json"),
    "no query": (lambda s: shutil.rmtree(s.folder / "1"), CheckpointMissing, "offsets"),
    "empty offsets": (
        in_checkpoint(lambda c: (c / "offsets/3").write_text("")),
        OffsetLogDamaged,
        "offsets/3 is empty",
    ),
    "cut offsets": (in_checkpoint(lambda c: (c / "offsets/3").write_text("v1\n{}")), OffsetLogDamaged, "offsets/3"),
    "lost offsets": (in_checkpoint(lambda c: (c / "offsets/3").unlink()), OffsetLogDamaged, "offsets/3 is missing"),
    "hole in offsets": (in_checkpoint(lambda c: (c / "offsets/2").unlink()), OffsetLogDamaged, "offsets/2 is missing"),
    "hole in commits": (in_checkpoint(lambda c: (c / "commits/2").unlink()), OffsetLogDamaged, "commits/2 is missing"),
    "empty commits": (
        in_checkpoint(lambda c: (c / "commits/3").write_text("")),
        OffsetLogDamaged,
        "commits/3 is empty",
    ),
    "no metadata": (in_checkpoint(lambda c: (c / "metadata").unlink()), OffsetLogDamaged, "metadata"),
    "empty metadata": (in_checkpoint(lambda c: (c / "metadata").write_text("")), OffsetLogDamaged, "metadata"),
    "another query": (
        in_checkpoint(lambda c: (c / "metadata").write_text('{"id": "other"}')),
        CheckpointDisagrees,
        "of query other",
    ),
    "other offsets": (
        in_checkpoint(lambda c: (c / "offsets/3").write_text('v1\n{}\n{"flights": {"0": 40, "1": 41}}')),
        CheckpointDisagrees,
        "batch 3 ends at",
    ),
    "ahead of bronze": (lambda s: s.plan(BATCHES, BATCHES), CheckpointDisagrees, "bronze has 3"),
    "planned too far": (lost_commits_and_planned_on, CheckpointDisagrees, "planned up to batch 5"),
    "older generation": (lambda s: s.commit(BATCHES, 2, BATCHES), CheckpointDisagrees, "bronze does not have"),
    "generation elsewhere": (rewritten(number=2, base=3), CheckpointDisagrees, "generation 2 starts with batch 3"),
}
LAST = (1, BATCHES * 10 - 3)
"""Partition and offset of bronze's last record."""


def replaced_record(scene: Scene) -> None:
    scene.kafka.records[LAST] = replace(scene.kafka.records[LAST], value=b"another")


def later_record(scene: Scene) -> None:
    scene.kafka.records[1, 38] = record_of(38, 1)


UNREPAIRABLE = {
    "record replaced": (replaced_record, RecordsReplaced, "partition 1, offset 37"),
    "record missing": (lambda s: s.kafka.records.pop(LAST), RecordsReplaced, "Kafka has no record"),
    "record that bronze lacks": (later_record, RecordsReplaced, r"another record \(offset 38"),
    "topic created again": (lambda s: setattr(s.kafka, "id", "topic-2"), TopicReplaced, "topic-2"),
    "Kafka lost records": (lambda s: s.kafka.ends.update({1: 39}), TablesDisagree, "Kafka only up to 39"),
    "Kafka lost a partition": (lambda s: s.kafka.ends.pop(1), TablesDisagree, "Kafka only up to nothing"),
    "another bronze": (rewritten(bronze_id="other"), TablesDisagree, "its checkpoint wrote table other"),
    "no bronze": (lambda s: shutil.rmtree(bronze_path(s.settings, "flights")), TablesDisagree, "is gone"),
}


def test_checkpoint_is_replaced_when_its_topic_was_created_again_before_bronze_had_a_batch(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = open_scene(settings, monkeypatch, batches=0)
    scene.plan(0, 0, done=False)
    scene.kafka.id, scene.kafka.starts = "topic-2", {0: 3, 1: 0}
    with pytest.raises(CheckpointDisagrees, match=r"created again \(id topic-2, the checkpoint is of id topic-1\)"):
        scene.preflight()
    assert scene.repair()[0]
    found = scene.preflight()
    assert (found.number, found.base, found.start, found.topic_id) == (2, 0, {0: 3, 1: 0}, "topic-2")


def test_intact_checkpoint_is_continued(scene: Scene) -> None:
    assert scene.preflight() == scene.generation
    scene.plan(BATCHES, BATCHES, done=False)
    (scene.folder / "1/commits/3").unlink()
    assert scene.preflight().number == 1
    assert scene.repair() == (True, ["flights: nothing to repair; nothing was changed"])


@pytest.mark.parametrize("name", REPAIRABLE)
def test_unusable_checkpoint_is_refused_and_repaired(scene: Scene, name: str) -> None:
    damage, kind, message = REPAIRABLE[name]
    damage(scene)
    with pytest.raises(kind, match=message.replace("(", r"\(")) as refusal:
        scene.preflight()
    assert refusal.value.remedy == "headrace repair flights"

    before = (scene.folder / "generation.json").exists() and (scene.folder / "generation.json").read_text()
    well, shown = scene.repair(agreed=False)
    assert not well
    assert any(message in line for line in shown)
    assert before == ((scene.folder / "generation.json").exists() and (scene.folder / "generation.json").read_text())

    head = bronze_head(scene.bronze)
    assert head is not None
    assert scene.repair()[0]
    made = scene.generation
    assert (made.base, made.start) == (head.batch + 1, head.ends)
    assert made.number >= 2
    assert f"flights/bronze/{made.number}" != head.app_id
    assert not made.checkpoint(scene.folder).exists()
    assert scene.preflight() == made


@pytest.mark.parametrize("name", UNREPAIRABLE)
def test_disagreeing_tables_are_not_repaired(scene: Scene, name: str) -> None:
    damage, kind, message = UNREPAIRABLE[name]
    damage(scene)
    before = (scene.folder / "generation.json").read_text()
    for ask in (scene.preflight, scene.repair):
        with pytest.raises(kind, match=message):
            ask()
    assert (scene.folder / "generation.json").read_text() == before


@pytest.mark.parametrize("change", [{"timestamp_ms": 7}, {"key": None}, {"value": None}])
def test_record_with_another_content_is_refused(scene: Scene, change: dict[str, Any]) -> None:
    """Producers that send as many records as Kafka lost leave no trace in the offsets."""
    scene.kafka.records[LAST] = replace(scene.kafka.records[LAST], **change)
    with pytest.raises(RecordsReplaced) as refused:
        scene.preflight()
    assert (refused.value.partition, refused.value.bronze.offset) == LAST
    assert "headrace" in refused.value.remedy


def test_expired_and_compacted_records_are_not_compared(scene: Scene) -> None:
    del scene.kafka.records[LAST]
    scene.kafka.starts[1] = 38
    assert scene.preflight().number == 1
    scene.kafka.starts[1], scene.kafka.compacted = 0, True
    assert scene.preflight().number == 1
    later_record(scene)
    with pytest.raises(RecordsReplaced):
        scene.preflight()


def test_silver_ahead_of_bronze_is_refused(scene: Scene) -> None:
    path = silver_path(scene.settings, "flights", scene.dataset.release)
    silver = Table(replace(scene.bronze.spec, path=path))
    silver.commit(f"flights/{scene.dataset.release}/silver", BATCHES, {"batches": [0, BATCHES], "app_id": "x"}, [])
    with pytest.raises(TablesDisagree, match="silver has batches up to 4, bronze only up to 3"):
        scene.preflight()


def test_second_generation_is_continued(scene: Scene) -> None:
    (scene.folder / "generation.json").unlink()
    assert scene.repair()[0]
    scene.plan(0, BATCHES, generation=2, done=False)
    assert scene.preflight().number == 2
    scene.commit(BATCHES, generation=2, base=BATCHES)
    scene.plan(1, BATCHES + 1, generation=2, done=False)
    assert scene.preflight().number == 2
    shutil.rmtree(scene.folder)
    assert scene.repair()[0]
    assert (scene.generation.number, scene.generation.base) == (3, BATCHES + 1)


def test_expired_offsets_are_named(scene: Scene) -> None:
    shutil.rmtree(scene.folder)
    scene.kafka.starts = {0: 40, 1: 55}
    with pytest.raises(OffsetsExpired, match=r"partition 1 offsets \[40, 55\)") as refusal:
        scene.repair()
    assert refusal.value.missing == {1: (40, 55)}
    assert not (scene.folder / "generation.json").exists()


def test_retention_that_overtook_the_stream_is_refused_until_the_loss_is_accepted(scene: Scene) -> None:
    scene.kafka.starts = {0: 40, 1: 55}
    for ask in (scene.preflight, scene.repair):
        with pytest.raises(OffsetsExpired, match=r"partition 1 offsets \[40, 55\)") as refused:
            ask()
        assert "headrace repair flights --accept-loss" in refused.value.remedy
    well, shown = scene.repair(agreed=False, accept_loss=True)
    assert (well, scene.generation.number) == (False, 1)
    assert any("lost for good" in line and "[40, 55)" in line for line in shown)
    assert scene.repair(accept_loss=True)[0]
    assert (scene.generation.start, scene.generation.lost) == ({0: 40, 1: 55}, {1: (40, 55)})
    assert scene.preflight() == scene.generation
    # Until the first batch names the gap, it may still grow.
    scene.kafka.starts = {0: 40, 1: 60}
    with pytest.raises(OffsetsExpired, match=r"\[55, 60\)"):
        scene.preflight()
    assert scene.repair(accept_loss=True)[0]
    assert (scene.generation.number, scene.generation.lost) == (3, {1: (40, 60)})


def test_first_batch_after_an_accepted_loss_names_it(scene: Scene) -> None:
    scene.kafka.starts = {0: 40, 1: 55}
    scene.repair(accept_loss=True)
    for batch in (0, 1):
        scene.plan(batch, BATCHES + 1 + batch, generation=2, done=False)
    ingest = Ingest(None, scene.settings, scene.dataset, scene.bronze, scene.generation, 1, threading.Event())  # type: ignore[arg-type]
    first, second = ingest._batch(0), ingest._batch(1)
    assert first.facts["lost"] == {"1": [40, 55]}
    assert first.offsets == {0: (40, 60), 1: (55, 60)}
    assert "lost" not in second.facts


def test_partition_that_was_added_later_begins_at_its_first_record(scene: Scene) -> None:
    scene.kafka.starts[2], scene.kafka.ends[2] = 0, 5
    assert scene.preflight() == scene.generation
    shutil.rmtree(scene.folder)
    scene.repair()
    assert scene.generation.start == {0: 40, 1: 40, 2: 0}


def test_expired_records_of_a_partition_that_was_added_later_are_skipped_only_on_request(scene: Scene) -> None:
    scene.kafka.starts[2] = scene.kafka.ends[2] = 5
    for ask in (scene.preflight, scene.repair):
        with pytest.raises(OffsetsExpired, match=r"partition 2 offsets \[0, 5\)"):
            ask()
    assert scene.repair(accept_loss=True)[0]
    assert (scene.generation.start, scene.generation.lost) == ({0: 40, 1: 40, 2: 5}, {2: (0, 5)})
    assert scene.preflight() == scene.generation


def test_repair_needs_the_lease(scene: Scene) -> None:
    shutil.rmtree(scene.folder)
    held = take_file_lease(lease_path(scene.settings, "flights"), "flights", NOW)
    with pytest.raises(LeaseHeld):
        scene.repair()
    held.release()
    assert scene.repair()[0]
    take_file_lease(lease_path(scene.settings, "flights"), "flights", NOW)


def test_lease_removed_under_its_holder(scene: Scene) -> None:
    path = lease_path(scene.settings, "flights")
    first = take_file_lease(path, "flights", NOW).with_minimum_epoch(7)
    assert (first.is_held(), first.epoch) == (True, 7)
    path.unlink()
    assert not first.is_held()
    second = take_file_lease(path, "flights", NOW)
    assert (second.is_held(), first.is_held()) == (True, False)
    second.release()
    assert take_file_lease(path, "flights", NOW).epoch == second.epoch + 1


def test_stale_owner_is_refused_by_the_table(scene: Scene) -> None:
    stale = Table(scene.bronze.spec)
    scene.commit(BATCHES)
    with pytest.raises(OwnershipLost):
        Scene(scene.settings, scene.dataset, stale, scene.kafka).commit(BATCHES)
    assert issubclass(OwnershipLost, Terminal)
    assert Table(scene.bronze.spec).version == scene.bronze.version


def test_lease_is_taken_although_a_runner_tests_it_at_that_moment(settings: Settings) -> None:
    path = lease_path(settings, "flights")
    path.parent.mkdir(parents=True)
    with path.open("a+") as file, ThreadPoolExecutor(1) as pool:
        fcntl.flock(file, fcntl.LOCK_EX)
        taken = pool.submit(take_file_lease, path, "flights", NOW)
        time.sleep(0.02)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert taken.result(5).epoch == 1
