"""A derived stream that a source's release has halted recovers by itself once the source is repaired."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from held_lease import HeldLease
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_release import Record, SmallRelease, small_release

from include.declare.dataset import load_dataset
from include.declare.derived_dataset import snapshot_derived
from include.ground.paths import derived_run_path
from include.ground.settings import Settings
from include.read.publication import publish, read_publication
from include.read.published_tables import pinned
from include.state.streams import DriverStatus
from spark_jobs.history.rebuild_derived import commit_run
from spark_jobs.layers.derived import DerivedTable, QueryUnfit
from spark_jobs.stream import derived as derived_stream
from spark_jobs.stream.derived import DerivedRelease, DerivedSource
from spark_jobs.stream.driver_loop import DriverLoop
from spark_jobs.stream.refine import publication_of
from spark_jobs.tables.failpoints import Step

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: taps
name: taps
version: 1.0.0
status: active
description: {purpose: Taps.}
schema:
  - name: taps
    physicalType: topic
    logicalType: object
    properties:
      - {name: id, logicalType: string, required: true, unique: true, primaryKey: true,
         logicalTypeOptions: {minLength: 1, maxLength: 64}}
      - {name: at, logicalType: timestamp, required: true, logicalTypeOptions: {minimum: "1970-01-01T00:00:00Z"}}
      - {name: n, logicalType: integer, required: true, logicalTypeOptions: {minimum: 0, maximum: 1000}}
"""
PIPELINE = """\
topic: taps
partitions: 2
event_time: at
lateness: 2 days
identity: {columns: [id], horizon: 400 days}
gold:
  taps_days:
    kind: additive
    window: {column: at, size: 1 day, as: day}
    keys: []
    measures: {taps: {count: "*"}}
"""
SILVER = """\
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    return accepted.%s
"""
FITTING = 'withColumn("huge", F.col("n") > 50)'
LACKING = 'withColumn("big", F.col("n") > 50)'
UNFIT = 'withColumns({"huge": F.array("n"), "n": F.col("n") + 1})'
"""The columns are there, but the query cannot be computed: known only once a run has begun."""
DERIVED = """\
sources: {taps: silver.taps}
gold:
  taps_hours:
    query: gold/taps_hours.sql
    grain: [hour]
    touched_by: {taps: {hour: "date_trunc('hour', at)"}}
  taps_huge:
    query: gold/taps_huge.sql
    grain: [hour]
    touched_by: {taps: {hour: "date_trunc('hour', at)"}}
"""
HOURS = "select date_trunc('hour', at) as hour, count(*) as taps, sum(n) as total from taps group by 1"
HUGE = "select date_trunc('hour', at) as hour, count_if(huge) as huges from taps group by 1"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def tap(number: int) -> Record:
    at = f"2024-01-01T{number % 24:02}:00:00Z"
    return Record(f'{{"id": "t{number}", "at": "{at}", "n": {number % 100}}}'.encode())


@dataclass
class Scene:
    """A source with two releases, of which the second cannot be read by a derived stream, and the stream."""

    spark: SparkSession
    settings: Settings
    source: SmallRelease
    broken: SmallRelease
    loop: DriverLoop
    release: DerivedRelease
    sent: int = 0

    def take(self, count: int = 50) -> None:
        """Publish records by the first release."""
        self.source.take([tap(number) for number in range(self.sent, self.sent + count)])
        self.sent += count

    def promote_broken(self) -> None:
        """Publish the release that the stream cannot read."""
        self.broken.refine(0, self.source.batches - 1)

    def roll_back(self) -> None:
        """Publish the first release again."""
        publish(self.settings, publication_of(self.settings, self.source.release, self.source.refined()))

    def restart(self) -> None:
        """Open the stream as a new process does."""
        self.loop, self.release = opened(self.spark, self.settings)

    def advance(self) -> str:
        """Let the stream work until nothing is left, or it halts; return its state."""
        self.loop.back_off.ends_at = 0.0
        while self.loop.advance():
            pass
        return str(self.loop.reporter.status.state)

    @property
    def run_file(self) -> Path:
        return derived_run_path(self.settings, "taps_hours", self.release.derived.release)

    def sums(self) -> tuple[int, int, int]:
        """Return taps, total and huges of all hours."""
        tables = pinned(self.settings)
        hours, huge = (tables.read(f"gold.{name}").collect() for name in ("taps_hours", "taps_huge"))
        return hours["taps"].sum(), hours["total"].sum(), huge["huges"].sum()

    def expected(self) -> tuple[int, int, int]:
        """Return the sums of what was sent."""
        numbers = [number % 100 for number in range(self.sent)]
        return len(numbers), sum(numbers), sum(number > 50 for number in numbers)


class Reporter(Mock):
    """A reporter that keeps the state alone."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.status, self.waiting_for = DriverStatus(state="running"), None

    def report(self, state: str, why: str | None = None) -> None:
        self.status.state, self.why = state, why


def opened(spark: SparkSession, settings: Settings) -> tuple[DriverLoop, DerivedRelease]:
    release = DerivedRelease(settings, snapshot_derived(settings, "taps_hours"), spark, HeldLease())
    reporter = Reporter()
    return DriverLoop(release, DerivedSource(release, reporter), Mock(), reporter, threading.Event()), release


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    folder = {"contract.yaml": CONTRACT, "pipeline.yaml": PIPELINE}
    taps = write(settings.datasets / "taps", folder | {"silver.py": SILVER % FITTING})
    columns = getattr(request, "param", UNFIT)
    other = write(tmp_path / "broken" / "taps", folder | {"silver.py": SILVER % columns})
    queries = {"derived.yaml": DERIVED, "gold/taps_hours.sql": HOURS, "gold/taps_huge.sql": HUGE}
    write(settings.datasets / "taps_hours", queries)
    source = small_release(spark, settings, "taps", taps)
    broken = SmallRelease(spark, settings, load_dataset("taps", other))
    made = Scene(spark, settings, source, broken, *opened(spark, settings))
    made.take()
    assert made.advance() == "running"
    assert made.sums() == made.expected()
    return made


@pytest.mark.parametrize(
    ("scene", "restarted", "corrected"),
    [
        pytest.param(LACKING, True, False, id="a column is missing", marks=pytest.mark.extended),
        pytest.param(UNFIT, False, False, id="a column is unfit", marks=pytest.mark.extended),
        pytest.param(UNFIT, True, True, id="restarted and corrected"),
    ],
    indirect=["scene"],
)
def test_stream_follows_the_repaired_source(scene: Scene, restarted: bool, corrected: bool) -> None:
    scene.promote_broken()
    assert [scene.advance(), scene.advance()] == ["halted", "halted"]
    if restarted:
        scene.restart()
        assert scene.advance() == "halted"
    assert scene.sums() == scene.expected()
    if corrected:
        scene.take()
    scene.roll_back()
    assert scene.advance() == "running"
    assert scene.sums() == scene.expected()
    assert not scene.run_file.exists()
    scene.take()
    assert scene.advance() == "running"
    assert scene.sums() == scene.expected()


def test_run_that_no_table_has_is_forgotten(scene: Scene) -> None:
    scene.restart()
    scene.promote_broken()
    assert [scene.advance(), scene.advance()] == ["halted", "halted"]
    assert not scene.run_file.exists()
    scene.roll_back()
    assert scene.advance() == "running"
    assert scene.sums() == scene.expected()
    assert read_publication(scene.settings, "taps_hours").batch == 0


@pytest.mark.extended
def test_run_that_one_table_has_is_repeated_once_when_its_sources_have_moved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_second(table: DerivedTable, *given: Any) -> None:
        if table.declared.name == "taps_huge":
            raise OSError(28, "No space left on device")
        commit_run(table, *given)

    def next_run() -> tuple[int, bool] | None:
        run = scene.release.next_run()
        return run and (run.number, run.whole)

    monkeypatch.setattr(derived_stream, "commit_run", fail_second)
    scene.take()
    for _ in range(2):
        assert scene.advance() == "halted"
        assert next_run() == (1, False)
    monkeypatch.undo()
    assert scene.advance() == "running"
    assert scene.sums() == scene.expected()
    monkeypatch.setattr(derived_stream, "commit_run", fail_second)
    for expected in ((2, False), (3, True)):
        scene.take()
        assert scene.advance() == "halted"
        scene.take()
        assert next_run() == expected
    monkeypatch.undo()
    assert scene.advance() == "running"
    assert scene.sums() == scene.expected()
    assert read_publication(scene.settings, "taps_hours").batch == 3


def test_run_that_one_table_has_is_replaced_in_all(scene: Scene) -> None:
    """The table that needs no missing column commits; readers see neither, until both are of the repaired source."""
    before, tables = scene.sums(), scene.release.tables
    scene.promote_broken()
    with pytest.raises(Died), dying_at(Step.GOLD_COMMITTED):
        scene.loop._run_next()
    assert [table.target.table.committed(table.target.app_id) for table in tables] == [1, 0]
    states = []
    for _ in range(3):
        scene.restart()
        states.append(scene.advance())
    assert (states, scene.sums()) == (["halted"] * 3, before)
    scene.roll_back()
    scene.restart()
    assert scene.advance() == "running"
    assert scene.sums() == scene.expected()
    assert read_publication(scene.settings, "taps_hours").batch == 2


@pytest.mark.extended
@pytest.mark.parametrize("file_is_lost", [False, True])
def test_run_after_a_replacement_that_failed_reaches_the_table_that_was_ahead(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, file_is_lost: bool
) -> None:
    """A number that one table has is not given again: the table would skip the sources' new rows."""
    scene.promote_broken()
    with pytest.raises(Died), dying_at(Step.GOLD_COMMITTED):
        scene.loop._run_next()
    for _ in range(2):
        scene.restart()
        assert scene.advance() == "halted"
    scene.take()
    if file_is_lost:
        derived_run_path(scene.settings, "taps_hours", scene.release.derived.release).unlink()
    with monkeypatch.context() as patched:
        patched.setattr(derived_stream, "commit_run", Mock(side_effect=OSError("no space left")))
        scene.restart()
        assert scene.advance() == "halted"
    assert scene.advance() == "running"
    assert scene.sums() == scene.expected()
    assert read_publication(scene.settings, "taps_hours").batch > 1


def test_message_names_the_file_of_the_release_and_how_to_change_it(scene: Scene) -> None:
    scene.promote_broken()
    scene.restart()
    run = scene.release.next_run()
    assert run is not None
    with pytest.raises(QueryUnfit) as refused:
        scene.release.execute(run)
    derived = scene.release.derived
    assert [each.file for each in refused.value.problems] == [derived.folder / "derived.yaml"]
    assert derived.folder.is_relative_to(scene.settings.state)
    assert f"release {derived.release} of taps_hours" in refused.value.what
    assert str(scene.settings.datasets / "taps_hours") in refused.value.remedy
