"""The ingest query's restart: only with the topic that bronze has, and with all records that bronze has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from preflight_scene import Scene, open_scene, record_of
from stored_site import stored_settings

from include.ground.errors import Terminal
from include.ground.kafka import BrokerUnreachable, TopicMissing
from include.ground.paths import bronze_path
from include.ground.settings import Settings
from spark_jobs.stream import kafka_source
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.kafka_source import MAX_FAILURES, IngestSupervisor, drained_on_error
from spark_jobs.stream.pacing import BatchLimitChanged
from spark_jobs.stream.preflight import OffsetsExpired, RecordsReplaced, TablesDisagree, TopicReplaced
from spark_jobs.stream.progress import StatusReporter


class EndedQuery:
    """A streaming query that has ended without an error of Spark's."""

    isActive = False

    def exception(self) -> None:
        return None


@dataclass
class Restarts:
    """A supervisor whose query has ended; `started` counts its restarts."""

    scene: Scene
    supervisor: IngestSupervisor
    started: int = 0
    errors: list[Exception] = field(default_factory=list)
    """What the broker answers instead of offsets, next first."""

    def end(self, failure: Exception | None = None) -> None:
        self.supervisor.ingest.failure, self.supervisor.has_ended = failure, False

    def restart(self) -> int:
        self.supervisor.restart_ended()
        self.supervisor.back_off.ends_at = 0.0
        self.supervisor.restart_ended()
        return self.started

    def ends(self, *_: object, **__: object) -> dict[int, int]:
        if self.errors:
            raise self.errors.pop(0)
        return dict(self.scene.kafka.ends)


@pytest.fixture
def restarts(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Restarts:
    scene = open_scene(settings, monkeypatch)
    # No session: the query is a stand-in.
    ingest = Ingest(None, settings, scene.dataset, scene.bronze, scene.generation, 1, threading.Event())  # type: ignore[arg-type]
    reporter = StatusReporter(settings.state / "status.json", lambda: False)
    made = Restarts(scene, IngestSupervisor(ingest, reporter))

    def start(_: str) -> EndedQuery:
        made.started += 1
        return EndedQuery()

    monkeypatch.setattr(ingest, "start", start)
    monkeypatch.setattr(kafka_source, "log_end_offsets", made.ends)
    monkeypatch.setattr(kafka_source, "bootstrap_servers", lambda _: "broker")
    made.supervisor.query = EndedQuery()  # type: ignore[assignment]
    return made


def test_changed_batch_limit_is_no_failure_and_needs_no_pause(restarts: Restarts) -> None:
    for _ in range(MAX_FAILURES + 2):
        restarts.end(BatchLimitChanged("its batches get fewer offsets"))
        restarts.supervisor.restart_ended()
    assert (restarts.started, restarts.supervisor.failures) == (MAX_FAILURES + 2, 0)


def replace_last_record(scene: Scene) -> None:
    scene.kafka.records[0, 37] = replace(record_of(37, 0), value=b"another")


CHANGES: dict[type[Terminal], Callable[[Scene], object]] = {
    TopicReplaced: lambda scene: setattr(scene.kafka, "id", "topic-2"),
    TablesDisagree: lambda scene: scene.kafka.ends.update({1: 39}),
    RecordsReplaced: replace_last_record,
    OffsetsExpired: lambda scene: scene.kafka.starts.update({1: 55}),
}


def test_ended_query_is_restarted(restarts: Restarts) -> None:
    assert restarts.restart() == 1


@pytest.mark.parametrize("kind", CHANGES)
def test_changed_topic_ends_the_driver(restarts: Restarts, kind: type[Terminal]) -> None:
    CHANGES[kind](restarts.scene)
    with pytest.raises(kind) as refused:
        restarts.restart()
    assert restarts.started == 0
    assert "headrace" in refused.value.remedy


def test_topic_that_returns_under_another_id_ends_the_driver(restarts: Restarts) -> None:
    missing = TopicMissing("flights", "broker")
    restarts.end(missing)
    restarts.errors = [missing] * (MAX_FAILURES + 2)
    for _ in list(restarts.errors):
        assert restarts.restart() == 0
    restarts.scene.kafka.id = "topic-2"
    with pytest.raises(TopicReplaced):
        restarts.restart()


def test_outage_is_waited_for(restarts: Restarts) -> None:
    restarts.errors = [BrokerUnreachable("broker")] * (MAX_FAILURES + 2)
    while restarts.errors:
        assert restarts.restart() == 0
    assert restarts.restart() == 1


def test_store_of_the_tables_that_is_away_is_waited_for(restarts: Restarts, tmp_path: Path) -> None:
    supervisor, stored = restarts.supervisor, stored_settings(tmp_path, "http://127.0.0.1:9", "nowhere", "s3a")
    here, supervisor.failures = supervisor.ingest.bronze.spec, MAX_FAILURES - 1
    supervisor.ingest.bronze.spec = replace(here, path=bronze_path(stored, "flights"))
    supervisor.restart_ended()
    supervisor.back_off.ends_at = 0.0
    supervisor.restart_ended()
    assert (restarts.started, supervisor.failures) == (0, 0)
    supervisor.ingest.bronze.spec = here
    assert restarts.restart() == 1


class FailedQuery(EndedQuery):
    """A streaming query that has ended with Spark's wrapper of an error."""

    def exception(self) -> None:
        return RuntimeError("the query ended with an exception")  # type: ignore[return-value]

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("failure", "is_expected"), [(BatchLimitChanged(5), True), (BrokerUnreachable("b:1"), True), (ValueError(), False)]
)
def test_drain_after_an_expected_end_of_the_query_is_no_error(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, failure: Exception, is_expected: bool
) -> None:
    restarts.end(failure)
    restarts.supervisor.query = FailedQuery()  # type: ignore[assignment]
    monkeypatch.setattr(restarts.supervisor.ingest, "mute", lambda: None)
    with nullcontext() if is_expected else pytest.raises(RuntimeError):
        restarts.supervisor.drain()


def test_error_while_the_releases_are_opened_ends_ingest_and_is_not_replaced_by_its_own(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts.end(ValueError())
    restarts.supervisor.query = FailedQuery()  # type: ignore[assignment]
    monkeypatch.setattr(restarts.supervisor.ingest, "mute", lambda: None)
    with pytest.raises(TablesDisagree), drained_on_error(restarts.supervisor):
        raise TablesDisagree("flights", "silver is gone")
    assert restarts.supervisor.ingest.stop.is_set()


def test_failure_for_good_names_the_planned_offsets(restarts: Restarts) -> None:
    restarts.supervisor.ingest.reading = {1: (5, 9), 0: (2, 2)}
    for _ in range(MAX_FAILURES):
        restarts.end(ValueError("t-1, offset 7: the record cannot be stored"))
        restarts.restart()
    restarts.end(ValueError("t-1, offset 7: the record cannot be stored"))
    with pytest.raises(Terminal) as failed:
        restarts.restart()
    assert failed.value.code == "ingest-failed"
    assert "7 times in a row" in failed.value.what
    assert "t-1, offset 7" in failed.value.what
    assert "partition 0 offsets [2, 2), partition 1 offsets [5, 9)" in failed.value.what
    assert failed.value.remedy.startswith("headrace doctor")
