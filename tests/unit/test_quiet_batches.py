"""Batches without records: numbered between those of Spark, kept by a restart, and never before ingest has read."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake.exceptions import DeltaError
from preflight_scene import BATCHES, TEN, Scene, open_scene

from include.ground.delta_log import LogDamaged
from include.ground.kafka import BrokerUnreachable
from include.ground.settings import Settings
from spark_jobs.layers.bronze import IdleSet, batch_metadata, idle_set_at, last_before_waking
from spark_jobs.stream import ingest as ingest_module
from spark_jobs.stream import upkeep
from spark_jobs.stream.back_off import PAUSE_AFTER_FAILURE
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.preflight import TopicReplaced, bronze_head
from spark_jobs.stream.upkeep import RESTING_SECONDS, QuietCommits
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import OwnershipLost, Table

LAST = BATCHES - 1


@pytest.fixture
def scene(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(ingest_module, "current_versions", lambda *_: {})
    monkeypatch.setattr(ingest_module, "bootstrap_servers", lambda *_: "broker")
    monkeypatch.setattr(ingest_module, "log_end_offsets", lambda *_, **__: {})
    return open_scene(settings, monkeypatch)


def started(scene: Scene) -> Ingest:
    """Return ingest as a driver that starts has it."""
    bronze = scene.bronze = Table(scene.bronze.spec)
    head = bronze_head(bronze)
    assert head is not None
    made = Ingest(None, scene.settings, scene.dataset, bronze, scene.preflight(), 1, threading.Event())  # type: ignore[arg-type]
    made.continue_after(head)
    made.reader = Mock()
    return made


def take(scene: Scene, ingest: Ingest, monkeypatch: pytest.MonkeyPatch, *brought: int, number: int) -> None:
    """Let Spark plan and commit batch `number`, with a record of each of these partitions."""
    scene.plan(number, number, done=False)
    place = ingest.last_batch + 1
    files = [scene.written(partition, number) for partition in brought]

    def commit(table: Table, _: Any, batch: Any, __: Any) -> list[DataFile]:
        assert batch.number == place
        table.commit(batch.app_id, batch.transaction, batch_metadata(table, files, batch), files)
        return files

    monkeypatch.setattr(ingest, "backend", Mock(ingest=commit))
    monkeypatch.setattr(ingest, "wait_for_next", lambda *_: None)
    monkeypatch.setattr(ingest, "_rows", lambda *_: None)
    ingest._commit(Mock(), number)
    scene.plan(number, number)


def test_a_quiet_batch_follows_bronze_and_moves_the_numbers_of_spark(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = started(scene)
    assert ingest.commit_quiet(frozenset({1}), ingest.last_batch)
    assert ingest.commit_quiet(frozenset({0, 1}), ingest.last_batch)
    head = bronze_head(ingest.bronze)
    assert head is not None
    assert (head.batch, head.transaction, head.idle.partitions) == (LAST + 2, LAST, {0, 1})
    assert head.ends == {0: TEN * BATCHES, 1: TEN * BATCHES}
    take(scene, ingest, monkeypatch, 1, number=BATCHES)
    assert (ingest.last_batch, ingest.idle) == (LAST + 3, IdleSet(frozenset({0}), LAST + 3))


def test_a_restart_continues_after_a_quiet_batch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = started(scene)
    before.commit_quiet(frozenset({1}), before.last_batch)
    ingest = started(scene)
    assert (ingest.last_batch, ingest.idle.partitions) == (LAST + 1, {1})
    take(scene, ingest, monkeypatch, 0, number=BATCHES)
    again = started(scene)
    assert (again.last_batch, again.transaction, again.quiet_batches) == (LAST + 2, BATCHES, 1)
    assert again.idle == IdleSet(frozenset({1}))
    # Spark repeats a batch that bronze has when a crash came before Spark noted it.
    scene.plan(BATCHES, BATCHES, done=False)
    assert again._batch(BATCHES).number == again.last_batch


def test_a_new_generation_continues_after_a_quiet_batch(scene: Scene) -> None:
    (before := started(scene)).commit_quiet(frozenset({0, 1}), before.last_batch)
    (scene.folder / "1" / "offsets" / str(LAST)).write_text("")
    assert scene.repair()[0]
    ingest = started(scene)
    assert (ingest.generation.number, ingest.generation.base) == (2, LAST + 2)
    assert not ingest.commit_quiet(frozenset({0, 1}), ingest.last_batch), (
        "no batch of this generation says where Spark continues"
    )
    scene.plan(0, LAST + 1, generation=2, done=False)
    batch = ingest._batch(0)
    assert (batch.number, batch.before.partitions) == (LAST + 2, {0, 1})


def test_a_batch_says_which_partitions_are_idle(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = started(scene)
    clock = Mock(return_value=0.0)
    ingest.quiet.clock, ingest.quiet.idle_after = clock, timedelta(seconds=5)
    ingest.quiet.look(ingest.ingested, ingest.ingested)
    clock.return_value = 5.0
    take(scene, ingest, monkeypatch, 0, number=BATCHES)
    assert idle_set_at(ingest.bronze, BATCHES).partitions == {1}
    assert ingest.quiet.quiet() == {1}, "partition 0 has just brought a record"


def test_a_partition_with_an_open_transaction_wakes_with_the_batch_of_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = started(scene)
    ingest.commit_quiet(frozenset({0, 1}), ingest.last_batch)
    hidden = {0: TEN * (BATCHES + 1), 1: TEN * (BATCHES + 1) + 1}
    monkeypatch.setattr(ingest_module, "log_end_offsets", lambda *_, **__: hidden)
    take(scene, ingest, monkeypatch, 0, number=BATCHES)
    assert ingest.idle == IdleSet(frozenset(), LAST + 2)


def test_a_full_batch_makes_no_partition_idle(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = started(scene)
    ingest.limit.offsets = ingest.limit.measured = TEN
    ingest.quiet.idle_after = timedelta(0)
    ingest.quiet.look(ingest.ingested, ingest.ingested)
    take(scene, ingest, monkeypatch, 0, number=BATCHES)
    assert idle_set_at(ingest.bronze, BATCHES) == IdleSet()


def test_a_partition_that_is_added_has_brought_nothing_and_wakes_with_its_first_record(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = started(scene)
    ingest.ingested = {0: TEN * BATCHES}
    take(scene, ingest, monkeypatch, 0, number=BATCHES)
    assert idle_set_at(ingest.bronze, BATCHES) == IdleSet(frozenset({1}))
    ingest.ingested = {0: TEN * (BATCHES + 1)}
    ingest.idle = IdleSet()
    take(scene, ingest, monkeypatch, 0, 1, number=BATCHES + 1)
    assert idle_set_at(ingest.bronze, BATCHES + 1) == IdleSet(frozenset(), BATCHES + 1)


def test_a_run_ends_before_each_batch_with_which_a_partition_wakes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = started(scene)
    ingest.commit_quiet(frozenset({0, 1}), ingest.last_batch)
    take(scene, ingest, monkeypatch, 0, number=BATCHES)
    take(scene, ingest, monkeypatch, 0, number=BATCHES + 1)
    take(scene, ingest, monkeypatch, 1, number=BATCHES + 2)
    quiet, end = LAST + 1, LAST + 4
    assert [last_before_waking(ingest.bronze, first, end) for first in (0, quiet, quiet + 1, quiet + 2, end)] == [
        quiet,
        quiet,
        quiet + 2,
        quiet + 2,
        end,
    ]


@pytest.fixture
def due(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> tuple[Ingest, QuietCommits, Mock]:
    """Return ingest of a topic of which all is quiet, and refined, and a table that waits."""
    ingest = started(scene)
    monkeypatch.setattr(upkeep, "is_awaited", awaited := Mock(return_value=True))
    released = Mock(refined_batch=ingest.last_batch)
    released.dataset.pipeline.idle = timedelta(0)
    ingest.committed -= RESTING_SECONDS
    ingest.quiet.look(ingest.ingested, ingest.ingested)
    commits = QuietCommits()
    monkeypatch.setattr(commits, "releases", [released], raising=False)
    return ingest, commits, awaited


def step(ingest: Ingest, commits: QuietCommits) -> bool:
    return commits.step(ingest, commits.releases)  # type: ignore[attr-defined]


def test_all_quiet_is_said_once(due: tuple[Ingest, QuietCommits, Mock]) -> None:
    ingest, commits, awaited = due
    ingest.quiet.idle_after = timedelta(0)
    assert [step(ingest, commits) for _ in range(5)] == [True, False, False, False, False]
    assert (ingest.last_batch, ingest.idle.partitions) == (LAST + 1, {0, 1})
    awaited.assert_called_once()


def test_nothing_is_said_for_which_no_table_waits(due: tuple[Ingest, QuietCommits, Mock]) -> None:
    ingest, commits, awaited = due
    awaited.return_value = False
    assert [step(ingest, commits) for _ in range(5)] == [False] * 5
    assert ingest.last_batch == LAST
    awaited.assert_called_once()


def test_nothing_is_said_while_batches_come_or_wait(
    due: tuple[Ingest, QuietCommits, Mock],
) -> None:
    ingest, commits, _ = due
    (released,) = commits.releases  # type: ignore[attr-defined]
    released.refined_batch = LAST - 1
    assert not step(ingest, commits)
    released.refined_batch = LAST
    ingest.committed += RESTING_SECONDS
    assert not step(ingest, commits)
    ingest.committed -= RESTING_SECONDS
    assert step(ingest, commits)


def test_a_broker_that_is_gone_defers_it(
    due: tuple[Ingest, QuietCommits, Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest, commits, _ = due
    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_refuse_replaced_topic", Mock(side_effect=BrokerUnreachable("broker")))
        assert not step(ingest, commits)
        assert ingest.quiet.quiet() == frozenset()
    ingest.quiet.look(ingest.ingested, ingest.ingested)
    assert step(ingest, commits)


def test_it_is_decided_again_after_a_promotion(due: tuple[Ingest, QuietCommits, Mock]) -> None:
    ingest, commits, awaited = due
    (before,) = commits.releases  # type: ignore[attr-defined]
    promoted = Mock(refined_batch=ingest.last_batch)
    promoted.dataset.pipeline.idle = timedelta(0)
    awaited.side_effect = lambda release, *_: release is promoted
    assert not commits.step(ingest, [before])
    assert commits.step(ingest, [promoted])


def test_a_shadow_that_has_caught_up_gets_its_batch(due: tuple[Ingest, QuietCommits, Mock]) -> None:
    ingest, commits, awaited = due
    (published,) = commits.releases  # type: ignore[attr-defined]
    shadow = Mock(refined_batch=LAST - 1)
    awaited.side_effect = lambda release, *_: release is shadow
    assert not commits.step(ingest, [published, shadow])
    shadow.refined_batch = LAST
    assert commits.step(ingest, [published, shadow])


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), DeltaError("log"), LogDamaged("7.json", "is empty")]
)
def test_an_error_does_not_end_the_driver(
    due: tuple[Ingest, QuietCommits, Mock], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ingest, commits, _ = due
    commits.clock = clock = Mock(return_value=0.0)
    with monkeypatch.context() as patched:
        patched.setattr(ingest_module, "commit_quiet_batch", Mock(side_effect=error))
        assert not step(ingest, commits)
    assert not step(ingest, commits), "it pauses"
    clock.return_value = PAUSE_AFTER_FAILURE
    assert step(ingest, commits)


@pytest.mark.parametrize(
    "error",
    [OwnershipLost("bronze.flights", "flights/bronze/1", "batch 4"), TopicReplaced("flights", "flights", "1", "2")],
)
def test_a_lost_owner_and_another_topic_end_it(
    due: tuple[Ingest, QuietCommits, Mock], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ingest, commits, _ = due
    monkeypatch.setattr(ingest, "_refuse_replaced_topic", Mock(side_effect=error))
    with pytest.raises(type(error)):
        step(ingest, commits)


def test_a_batch_that_came_meanwhile_makes_the_decision_void(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = started(scene)
    considered = ingest.last_batch

    def look() -> None:
        """While the broker answers, Spark commits a batch of partition 0."""
        take(scene, ingest, monkeypatch, 0, number=BATCHES)

    monkeypatch.setattr(ingest, "_refuse_replaced_topic", look)
    assert not ingest.commit_quiet(frozenset({0, 1}), considered)
    assert (ingest.last_batch, ingest.idle.partitions) == (BATCHES, frozenset())


def repeat(ingest: Ingest, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let Spark plan a batch again that bronze has."""
    committed = Mock(ingest=lambda table, _, batch, __: table.batch_files(batch.number, batch.number))
    monkeypatch.setattr(ingest, "backend", committed)
    ingest._commit(Mock(), number)


def test_a_repeated_batch_changes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = started(scene)
    take(scene, ingest, monkeypatch, 0, number=BATCHES)
    ingest.commit_quiet(frozenset({1}), ingest.last_batch)
    before = (ingest.last_batch, ingest.transaction, ingest.quiet_batches, ingest.idle)
    ingest.quiet.idle_after = timedelta(0)
    ingest.quiet.look(ingest.ingested, ingest.ingested)
    repeat(ingest, monkeypatch, BATCHES)
    assert (ingest.last_batch, ingest.transaction, ingest.quiet_batches, ingest.idle) == before
    assert ingest.idle == idle_set_at(ingest.bronze, ingest.last_batch)


def test_a_commit_whose_end_was_not_seen_is_followed_as_it_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = started(scene)
    with monkeypatch.context() as patched:
        patched.setattr(Ingest, "_note_batch", Mock(side_effect=OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            take(scene, ingest, monkeypatch, 0, number=BATCHES)
    assert not ingest.commit_quiet(frozenset({1}), ingest.last_batch), "its number would be taken"
    ingest.quiet.idle_after = timedelta(0)
    ingest.quiet.look({0: 0, 1: 0}, {0: 0, 1: 0})
    repeat(ingest, monkeypatch, BATCHES)
    assert (ingest.last_batch, ingest.transaction, ingest.idle) == (BATCHES, BATCHES, IdleSet())
    assert ingest.quiet.quiet() == {1}
