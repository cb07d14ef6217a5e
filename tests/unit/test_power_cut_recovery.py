"""After a power cut a driver finds the last state that bronze, checkpoint and Kafka share, and starts from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from preflight_scene import BATCHES, NOW, Scene, open_scene, record_of

from include.ground.delta_log import LOG, commit_name
from include.ground.settings import Settings
from spark_jobs.stream import recovery
from spark_jobs.stream.preflight import CheckpointDisagrees, CheckpointMissing, RecordsReplaced, TopicReplaced
from spark_jobs.stream.preflight import bronze_head as head_of
from spark_jobs.stream.recovery import PatchBlocksRollback, roll_back_tables, usable_generation
from spark_jobs.tables.checkpoint import Generation
from spark_jobs.tables.data_files import TableSpec
from spark_jobs.tables.delta_table import Table


@pytest.fixture
def scene(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = open_scene(settings, monkeypatch)
    monkeypatch.setattr(recovery, "topic_id", lambda *_: scene.kafka.id)
    monkeypatch.setattr(recovery, "log_end_offsets", lambda *_: dict(scene.kafka.ends))
    return scene


def roll_back(scene: Scene) -> str | None:
    return roll_back_tables(scene.settings, scene.dataset, "broker", NOW)


def started(scene: Scene) -> tuple[int, Generation, str]:
    """Recover as a driver does; return bronze's last batch, the generation, and what is reported."""
    event = roll_back(scene) or ""
    bronze = Table(scene.bronze.spec)
    head = head_of(bronze)
    assert head is not None
    generation, replaced = usable_generation(scene.settings, scene.dataset, bronze, head, "broker")
    assert generation.start == head.ends or generation.number == 1
    assert roll_back(scene) is None
    return head.batch, generation, f"{event}; {replaced or ''}"


def replace_from(scene: Scene, batch: int, partition: int) -> None:
    """Kafka loses the partition's records of a batch and later ones; producers have sent as many since."""
    for place, record in list(scene.kafka.records.items()):
        if place[0] == partition and place[1] >= batch * 10:
            scene.kafka.records[place] = replace(record, value=b"sent since")


def lose_from(scene: Scene, batch: int) -> None:
    """Kafka loses the records of a batch and later ones."""
    scene.kafka.records = {place: r for place, r in scene.kafka.records.items() if place[1] < batch * 10}
    scene.kafka.ends = {0: batch * 10, 1: batch * 10}


def send_short(scene: Scene) -> None:
    """Kafka lost records, and the new ones end at other offsets."""
    lose_from(scene, 3)
    scene.kafka.ends = {0: 35, 1: 60}
    scene.kafka.records |= {(1, offset): record_of(offset, 1) for offset in (31, 38, 59)}
    scene.kafka.records[1, 31] = replace(scene.kafka.records[1, 31], value=b"sent since")


LOSSES: dict[str, tuple[Callable[[Scene], object], int]] = {
    "another last record": (lambda scene: replace_from(scene, 3, 1), 2),
    "other records of one partition": (lambda scene: replace_from(scene, 1, 0), 0),
    "Kafka behind": (lambda scene: lose_from(scene, 2), 1),
    "Kafka behind, and newer records at the lost offsets": (send_short, 2),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_bronze_is_rolled_back_to_the_last_batch_that_kafka_has(scene: Scene, loss: str) -> None:
    damage, kept = LOSSES[loss]
    damage(scene)
    batch, generation, event = started(scene)
    assert (batch, generation.number, generation.base) == (kept, 2, kept + 1)
    assert "rolled back" in event
    assert f"bronze batch {kept}" in event
    records = scene.settings.state.glob("removed/flights/*/records/**/*.parquet")
    assert len({path.name for path in records}) == 2 * (BATCHES - 1 - kept), "bronze alone has them"


def test_versions_that_do_not_open_any_more_are_not_compared_with_kafka(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "oldest_version", lambda _: 3)
    opened: list[int] = []

    def opened_table(spec: TableSpec, version: int) -> Table:
        opened.append(version)
        return Table(spec, version)

    monkeypatch.setattr(recovery, "Table", opened_table)
    replace_from(scene, 3, 1)
    assert started(scene)[0] == 2
    assert min(opened) == 3


def test_topic_with_other_records_is_refused(scene: Scene) -> None:
    replace_from(scene, 0, 0)
    assert roll_back(scene) is None
    with pytest.raises(RecordsReplaced):
        started(scene)
    scene.kafka.id = "topic-2"
    assert roll_back(scene) is None
    with pytest.raises(TopicReplaced):
        started(scene)


def test_what_is_too_old_for_a_power_cut_stays(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka restored from a backup of yesterday lacks records that bronze must not lose too."""
    monkeypatch.setattr(recovery, "LONGEST", timedelta(seconds=-1))
    replace_from(scene, 2, 0)
    with pytest.raises(RecordsReplaced):
        started(scene)


def test_filled_gap_is_not_rolled_back(scene: Scene) -> None:
    facts = {"plan": "replay-1", "app_id": "flights/bronze/plan/replay-1", "table": "bronze.flights"}
    scene.bronze.commit("flights/bronze/plan/replay-1", 1, facts, [])
    replace_from(scene, 2, 0)
    with pytest.raises(PatchBlocksRollback, match="replay-1"):
        roll_back(scene)


@pytest.mark.parametrize("content", [b"", b'{"commitInfo":'])
def test_damaged_commit_of_bronze_is_removed(scene: Scene, content: bytes) -> None:
    log = scene.bronze.spec.path / LOG
    (log / commit_name(BATCHES)).write_bytes(content)
    batch, generation, event = started(scene)
    assert (batch, generation.number) == (BATCHES - 2, 2)
    assert "rolled back" in event


CHECKPOINTS: dict[str, Callable[[Scene], object]] = {
    "empty offsets": lambda s: (s.folder / "1/offsets/3").write_text(""),
    "lost offsets": lambda s: (s.folder / "1/offsets/3").unlink(),
    "empty commits": lambda s: (s.folder / "1/commits/3").write_text(""),
    "empty metadata": lambda s: (s.folder / "1/metadata").write_text(""),
    "ahead of bronze": lambda s: s.plan(BATCHES, BATCHES),
    "planned what Kafka lost": lambda s: (s.plan(BATCHES, BATCHES, done=False), s.kafka.ends.update({0: 45})),
}


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_checkpoint_that_lost_files_is_replaced_at_bronzes_end(scene: Scene, damage: str) -> None:
    CHECKPOINTS[damage](scene)
    batch, generation, event = started(scene)
    assert (batch, generation.number, generation.base) == (BATCHES - 1, 2, BATCHES)
    assert "checkpoint replaced by generation 2" in event
    assert scene.preflight() == generation


def test_checkpoint_of_bronze_without_its_batches_is_replaced(scene: Scene) -> None:
    """The first batches of a generation are lost."""
    (scene.folder / "generation.json").unlink()
    scene.repair()
    for batch in (0, 1):
        scene.plan(batch, BATCHES + batch, generation=2)
    assert started(scene)[1].number == 3


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda s: (s.folder / "generation.json").unlink(), CheckpointMissing),
        (lambda s: shutil.rmtree(s.folder / "1"), CheckpointMissing),
        (lambda s: (s.folder / "1/metadata").write_text('{"id": "other"}'), CheckpointDisagrees),
        (lambda s: s.commit(BATCHES, 2, BATCHES), CheckpointDisagrees),
    ],
)
def test_what_a_power_cut_does_not_leave_is_refused(
    scene: Scene, damage: Callable[[Scene], object], kind: type[Exception]
) -> None:
    damage(scene)
    with pytest.raises(kind):
        started(scene)


def test_whole_state_is_left_alone(scene: Scene) -> None:
    assert started(scene)[1:] == (scene.generation, "; ")
    assert not (scene.settings.state / "removed").exists()
