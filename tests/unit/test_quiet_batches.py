"""Batches without records: numbered between those of Spark, kept by a restart, and never before ingest has read."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from preflight_scene import BATCHES, TEN, Scene, open_scene

from include.clients.kafka import BrokerUnreachable
from include.settings import Settings
from spark_jobs.engine import ingest as ingest_module
from spark_jobs.engine import quiet_commits
from spark_jobs.engine.ingest import Ingest
from spark_jobs.engine.preflight import bronze_head
from spark_jobs.engine.quiet_commits import RESTING_SECONDS, QuietCommits
from spark_jobs.layers.bronze_layer import _metadata
from spark_jobs.layers.idle_set import IdleSet, idle_set_at, last_before_waking
from spark_jobs.storage.data_files import DataFile
from spark_jobs.storage.delta_table import Table

LAST = BATCHES - 1


@pytest.fixture
def scene(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(ingest_module, "current_versions", lambda *_: {})
    monkeypatch.setattr(ingest_module, "bootstrap_servers", lambda *_: "broker")
    return open_scene(settings, monkeypatch)


def started(scene: Scene) -> Ingest:
    """Return ingest as a driver that starts has it."""
    bronze = scene.bronze = Table(scene.bronze.spec)
    head = bronze_head(bronze)
    assert head is not None
    made = Ingest(None, scene.settings, scene.dataset, bronze, scene.preflight(), 1, threading.Event())  # type: ignore[arg-type]
    made.continue_after(head)
    return made


def take(scene: Scene, ingest: Ingest, monkeypatch: pytest.MonkeyPatch, *brought: int, number: int) -> None:
    """Let Spark plan and commit batch `number`, with a record of each of these partitions."""
    scene.plan(number, number, done=False)
    place = ingest.last_batch + 1
    files = [scene.written(partition, number) for partition in brought]

    def commit(table: Table, _: Any, batch: Any, __: Any) -> list[DataFile]:
        assert batch.number == place
        table.commit(batch.app_id, batch.transaction, _metadata(table, files, batch), files)
        return files

    monkeypatch.setattr(ingest_module, "commit_bronze", commit)
    monkeypatch.setattr(ingest, "wait_for_next", lambda *_: None)
    monkeypatch.setattr(ingest, "_rows", lambda *_: None)
    ingest._commit(Mock(), number)
    scene.plan(number, number)


def test_a_quiet_batch_follows_bronze_and_moves_the_numbers_of_spark(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = started(scene)
    assert ingest.commit_quiet(frozenset({1}))
    assert ingest.commit_quiet(frozenset({0, 1}))
    head = bronze_head(ingest.bronze)
    assert head is not None
    assert (head.batch, head.transaction, head.idle.partitions) == (LAST + 2, LAST, {0, 1})
    assert head.ends == {0: TEN * BATCHES, 1: TEN * BATCHES}
    take(scene, ingest, monkeypatch, 1, number=BATCHES)
    assert (ingest.last_batch, ingest.idle) == (LAST + 3, IdleSet(frozenset({0}), LAST + 3))


def test_a_restart_continues_after_a_quiet_batch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = started(scene)
    before.commit_quiet(frozenset({1}))
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
    started(scene).commit_quiet(frozenset({0, 1}))
    (scene.folder / "1" / "offsets" / str(LAST)).write_text("")
    assert scene.repair()[0]
    ingest = started(scene)
    assert (ingest.generation.number, ingest.generation.base) == (2, LAST + 2)
    assert not ingest.commit_quiet(frozenset({0, 1})), "no batch of this generation says where Spark continues"
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
    ingest.commit_quiet(frozenset({0, 1}))
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
    monkeypatch.setattr(quiet_commits, "refined_batch", lambda _: ingest.last_batch)
    monkeypatch.setattr(quiet_commits, "is_awaited", awaited := Mock(return_value=True))
    released = Mock()
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
    due: tuple[Ingest, QuietCommits, Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest, commits, _ = due
    monkeypatch.setattr(quiet_commits, "refined_batch", lambda _: LAST - 1)
    assert not step(ingest, commits)
    monkeypatch.setattr(quiet_commits, "refined_batch", lambda _: LAST)
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
