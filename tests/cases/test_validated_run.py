"""The next run is validated while the current one is written: the same result, and nothing committed too early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from declared_gold import meter_release, reading
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_release import Record, SmallRelease

from include.ground.settings import Settings
from include.read.rejected_records import FIX, Decision, append_decisions
from spark_jobs.backends.local import prepared_query as prepared_silver
from spark_jobs.backends.local import runs
from spark_jobs.backends.local.validation import ValidatedFiles
from spark_jobs.backends.release import BronzeEnd
from spark_jobs.jobs.shadow_job import advance
from spark_jobs.stream.active_releases import ActiveRelease, open_active_release
from spark_jobs.stream.pacing import SLOW_PACE, BronzePacing, CommittedBatch
from spark_jobs.tables import failpoints
from spark_jobs.tables.failpoints import Step

GOLD = """
  meter_days:
    kind: additive
    window: {column: read_at, size: 1 day, as: day}
    measures: {litres: {sum: litres}}
"""
BATCHES = 4
FIXED = reading("d9", 50, 7)


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> SmallRelease:
    """Return a release with four batches of three records in bronze, one of them broken, and none in silver."""
    release = meter_release(spark, tmp_path, GOLD)
    for batch in range(BATCHES):
        release.ingest([reading("d1", batch, 1), reading("d2", batch, 2), Record(b"broken")])
    return release


@pytest.fixture
def active(made: SmallRelease, spark: SparkSession) -> Iterator[ActiveRelease]:
    opened = open_active_release(spark, made.settings, made.dataset, made.bronze)
    yield opened
    opened.lease.release()


def refine_next(active: ActiveRelease, made: SmallRelease, *, most_rows: int = 3) -> Any:
    """Execute one run; with 3 rows at most, each batch is a run of its own."""
    end = BronzeEnd(BATCHES - 1)
    return active.refine_next(in_runs_of(most_rows, made), end.batch, publishing=True, bronze_end=lambda: end)


def in_runs_of(rows: int, made: SmallRelease) -> Settings:
    return made.settings.model_copy(update={"refine_records": rows})


def validated_batches(active: ActiveRelease) -> tuple[int, int] | None:
    return None if active.validated is None else active.validated.batches


def test_run_is_written_from_what_the_run_before_validated(
    active: ActiveRelease, made: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = []
    while (report := refine_next(active, made)) is not None:
        ahead.append((report.batches, validated_batches(active)))
        # From here on, only the run before validates.
        monkeypatch.setattr(runs, "_validated", lambda _, run, following, **__: following.claim(run))
    assert ahead == [((0, 0), (1, 1)), ((1, 1), (2, 2)), ((2, 2), (3, 3)), ((3, 3), None)]
    silver = made.silver()
    assert silver["_batch_id"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert made.rejected()["_batch_id"].to_list() == [0, 1, 2, 3]
    assert made.read("gold.meter_days")["litres"].to_list() == [12]
    assert not active.release.writer.staging.exists() or not list(active.release.writer.staging.iterdir())


def test_shadow_build_validates_each_run_during_the_run_before(
    active: ActiveRelease, made: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    monkeypatch.setattr(failpoints, "step_listeners", [steps.append])
    assert advance(in_runs_of(3, made), active, BATCHES - 1, threading.Event())
    assert steps.count(Step.NEXT_VALIDATED) == BATCHES - 1
    assert set(active.release.committed_batches.values()) == {BATCHES - 1}


def test_stopped_shadow_build_leaves_no_validated_records(
    active: ActiveRelease, made: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, is_validated = threading.Event(), threading.Event()

    def note(step: Step) -> None:
        if step == Step.NEXT_VALIDATED:
            is_validated.set()
        if step == Step.SILVER_COMMITTED:
            assert is_validated.wait(30)
            stop.set()

    monkeypatch.setattr(failpoints, "step_listeners", [note])
    assert not advance(in_runs_of(3, made), active, BATCHES - 1, stop)
    assert set(active.release.committed_batches.values()) == {0}
    assert list(active.release.writer.staging.iterdir()) == []


def test_shadow_build_that_is_stopped_during_a_validation_begins_no_other(
    active: ActiveRelease, made: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, steps, validate = threading.Event(), list[Step](), runs.validate_run

    def validate_and_stop(*arguments: Any) -> Any:
        stop.set()
        return validate(*arguments)

    monkeypatch.setattr(failpoints, "step_listeners", [steps.append])
    monkeypatch.setattr(runs, "validate_run", validate_and_stop)
    assert not advance(in_runs_of(3, made), active, BATCHES - 1, stop)
    assert Step.NEXT_VALIDATED not in steps
    assert set(active.release.committed_batches.values()) == {0}


@pytest.mark.parametrize(("most_rows", "has_backlog"), [(31, False), (7, True)])
def test_few_records_wait_for_others(
    active: ActiveRelease, made: SmallRelease, most_rows: int, has_backlog: bool
) -> None:
    """A batch has three records: less than a tenth of a run of 31, and than half of one of 7 in a backlog."""
    assert validated_after_first(active, made, most_rows, has_backlog) is None


@pytest.mark.parametrize(("most_rows", "has_backlog"), [(30, False), (6, True)])
def test_many_records_are_validated_ahead(
    active: ActiveRelease, made: SmallRelease, most_rows: int, has_backlog: bool
) -> None:
    assert validated_after_first(active, made, most_rows, has_backlog) == (1, 1)


def validated_after_first(
    active: ActiveRelease, made: SmallRelease, most_rows: int, has_backlog: bool
) -> tuple[int, int] | None:
    """Execute the run of batch 0 while bronze ends at batch 1; return the batches that were validated meanwhile."""
    end = BronzeEnd(1, has_backlog)
    report = active.refine_next(in_runs_of(most_rows, made), 0, publishing=True, bronze_end=lambda: end)
    assert report is not None
    assert report.batches == (0, 0)
    return validated_batches(active)


def test_batch_that_arrives_during_a_run_is_validated_and_paces_the_next(
    active: ActiveRelease, made: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze, pacing = [0], BronzePacing()

    def arrive(step: Step) -> None:
        if step == Step.SILVER_COMMITTED:
            assert is_awaited(pacing, 0)
            bronze.append(1)
            end = time.monotonic() + 30
            while pacing.taken < 1 and time.monotonic() < end:
                time.sleep(0.005)

    monkeypatch.setattr(failpoints, "step_listeners", [arrive])
    pacing.begin_run(0)
    active.refine_next(
        in_runs_of(3, made), 0, publishing=True, bronze_end=lambda: BronzeEnd(bronze[-1]), validations=pacing
    )
    assert validated_batches(active) == (1, 1)
    assert is_awaited(pacing, 1)


def is_awaited(pacing: BronzePacing, batch: int) -> bool:
    """Whether the batch after a large one is planned now."""
    return pacing.remaining(CommittedBatch(batch, 0.1, is_large=True), pacing.clock() + SLOW_PACE) == 0


def test_decision_about_a_validated_record_is_followed(active: ActiveRelease, made: SmallRelease) -> None:
    refine_next(active, made)
    at = datetime(2026, 12, 1, tzinfo=UTC)
    broken = next(row for row in made.read("bronze.meter").to_dicts() if row["value"] == b"broken")
    place = (0, broken["offset"] + 3)
    append_decisions(made.settings, "meter", [Decision(FIX, *place, 1, at, "ann", "a test", payload=FIXED.value)])
    refine_next(active, made)
    assert made.silver().filter(device="d9")["_offset"].to_list() == [place[1]]


def test_records_are_validated_again_when_bronze_has_other_files(active: ActiveRelease, made: SmallRelease) -> None:
    refine_next(active, made)
    assert active.validated is not None
    active.validated = replace(active.validated, sources=("replaced.parquet",), files=ValidatedFiles((), ()))
    refine_next(active, made)
    assert made.silver()["_batch_id"].to_list() == [0, 0, 1, 1]


def test_failure_of_the_next_run_is_not_the_current_runs(
    active: ActiveRelease, made: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate_files = runs.validate_files

    def fail(writer: Any, records: Any, batches: tuple[int, int], *given: Any, **named: Any) -> Any:
        if batches == (1, 1):
            raise RuntimeError("no space left")
        return validate_files(writer, records, batches, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "validate_files", fail)
        assert refine_next(active, made).batches == (0, 0)
        assert active.validated is None
        with pytest.raises(RuntimeError, match="no space left"):
            refine_next(active, made)
    assert refine_next(active, made).batches == (1, 1)
    assert made.silver()["_batch_id"].to_list() == [0, 0, 1, 1]


def test_retry_of_a_failed_run_validates_no_other_run_beside_it(
    active: ActiveRelease, made: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("spark_jobs.stream.refine.refuse_unaccounted", fail)
        with pytest.raises(OSError, match="no space left"):
            refine_next(active, made)
    assert (refine_next(active, made).batches, validated_batches(active)) == ((0, 0), None)
    assert (refine_next(active, made).batches, validated_batches(active)) == ((1, 1), (2, 2))
    assert made.silver()["_batch_id"].to_list() == [0, 0, 1, 1]


def test_death_while_the_next_run_is_validated_loses_and_doubles_nothing(
    made: SmallRelease, spark: SparkSession
) -> None:
    dying = open_active_release(spark, made.settings, made.dataset, made.bronze)
    with pytest.raises(Died), dying_at(Step.NEXT_VALIDATED):
        refine_next(dying, made)
    dying.lease.release()
    made.restart()
    assert max(made.release.committed_batches.values()) <= 0
    other = open_active_release(spark, made.settings, made.dataset, made.bronze)
    while refine_next(other, made) is not None:
        pass
    other.lease.release()
    assert made.silver()["_batch_id"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert made.read("gold.meter_days")["litres"].to_list() == [12]


def test_release_opens_while_the_validation_of_faulty_records_is_built(
    made: SmallRelease, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = threading.Event()
    building = projection_builds(monkeypatch, lambda: None if opened.wait(60) else pytest.fail("it was waited for"))
    active = open_active_release(spark, made.settings, made.dataset, made.bronze)
    opened.set()
    assert_faulty_records_are_rejected(active, made)
    assert building == ["projection"]


def test_validation_that_failed_to_build_is_built_by_the_run(
    made: SmallRelease, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no space left on device")

    building = projection_builds(monkeypatch, fail)
    active = open_active_release(spark, made.settings, made.dataset, made.bronze)
    assert_faulty_records_are_rejected(active, made)
    assert building == ["projection", "MainThread"]


def projection_builds(monkeypatch: pytest.MonkeyPatch, ahead: Callable[[], None]) -> list[str]:
    """Return a list that gets the thread of each projection that is built; call `ahead` before one that is begun."""
    threads, build = list[str](), prepared_silver.row_projection

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        if threads[-1] == "projection":
            ahead()
        return build(*arguments)

    monkeypatch.setattr(prepared_silver, "row_projection", noted)
    return threads


def assert_faulty_records_are_rejected(active: ActiveRelease, made: SmallRelease) -> None:
    refine_next(active, made, most_rows=3 * BATCHES)
    active.lease.release()
    assert active.release.writer.rejected.count_rows(0, BATCHES - 1) == BATCHES
