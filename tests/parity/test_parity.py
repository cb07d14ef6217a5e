"""Parity: the same events give the same silver, rejected and gold however delivered, and gold equals the oracle's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from deliveries import Batch, Delivery, days_of, deal_out_of_order, deliveries, parity_seed, split_in_order, verdicts
from oracle import ORACLE, differences
from pyspark.sql import SparkSession
from release_contents import ReleaseContents, assert_accounted, assert_same_contents, payload_verdicts, release_contents
from simulated_deaths import Died, crash_order, dying_at
from small_release import SmallRelease, small_release

from include.ground.settings import Settings
from include.producers.faults import Shares
from spark_jobs.backends.local import prepared_query, validation
from spark_jobs.backends.local.runs import NextRun

# The end of a month, the days when New York's clocks go forward and back, and the days at either end of the source.
DAYS = {
    "flights": days_of("2013-01-31", "2013-02-01", "2013-03-10", "2013-11-03"),
    "weather": days_of("2013-01-31", "2013-02-01", "2013-03-10", "2013-11-03", "2013-12-30"),
}
# Enough faults for every kind of bad record, and for duplicates near and far.
SHARES = {
    "flights": Shares(duplicates=0.05, late=0.05, reorder=0.2, corrupt=0.01),
    "weather": Shares(duplicates=0.1, late=0.1, reorder=0.2, corrupt=0.3),
}


@dataclass(frozen=True)
class Case:
    """A dataset's deliveries, and the release that refined them as one batch: the expected contents."""

    name: str
    days: list[date]
    sent: list[Delivery]
    expected: ReleaseContents
    one_batch: SmallRelease
    rng: np.random.Generator


@pytest.fixture(scope="module", params=["flights", pytest.param("weather", marks=pytest.mark.extended)])
def case(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return a case whose deliveries were refined as one batch."""
    name, seed = str(request.param), parity_seed()
    sent = deliveries(name, DAYS[name], SHARES[name], seed)
    release = small_release(spark, Settings(state=tmp_path_factory.mktemp("one batch")), name)
    release.take([item.record for item in sent])
    return Case(name, DAYS[name], sent, release_contents(release), release, np.random.default_rng(seed))


@pytest.fixture
def other(request: pytest.FixtureRequest, case: Case, spark: SparkSession, tmp_path: Path) -> SmallRelease:
    """Return an empty release, of the backend that a test names."""
    backend = getattr(request, "param", "local")
    return small_release(spark, Settings(state=tmp_path / "a state", backend=backend), case.name)


BACKENDS = ["local", pytest.param("spark", marks=pytest.mark.extended)]
on_each_backend = pytest.mark.parametrize("other", BACKENDS, indirect=True)


def refined_in_runs(release: SmallRelease, batches: list[Batch], runs: int, rng: np.random.Generator) -> None:
    """Ingest all batches, and refine them in `runs` runs with random bounds."""
    for batch in batches:
        release.ingest(batch)
    inner = rng.choice(np.arange(len(batches) - 1), size=runs - 1, replace=False)
    first = 0
    for last in [*sorted(int(bound) for bound in inner), len(batches) - 1]:
        release.refine(first, last)
        first = last + 1


def test_one_batch_finds_every_fault_and_no_other(case: Case) -> None:
    assert len({verdict for _, verdict in verdicts(case.sent)}) > 15, "the slice is too small for all kinds of faults"
    assert payload_verdicts(case.one_batch) == verdicts(case.sent)
    assert_accounted(case.one_batch)


@pytest.mark.parametrize("slot_bytes", [0, pytest.param(prepared_query.SLOT_BYTES, marks=pytest.mark.extended)])
def test_tasks_give_the_same_verdicts_and_rows_by_queries_of_one_run_and_by_prepared_ones(
    case: Case, other: SmallRelease, monkeypatch: pytest.MonkeyPatch, slot_bytes: int
) -> None:
    """In other runs records that are not accepted at once are validated without a Spark job."""
    monkeypatch.setattr(validation, "MOST_ROWS_HERE", 0)
    monkeypatch.setattr(prepared_query, "SLOT_BYTES", slot_bytes)
    other.take([item.record for item in case.sent])
    assert_same_contents(release_contents(other), case.expected)


def test_gold_equals_the_oracle(case: Case) -> None:
    for name, rows in case.expected.gold.items():
        assert rows.height > 10
        assert differences(rows, name, case.days).rows() == [], name
    assert case.expected.gold.keys() <= ORACLE.keys()


@on_each_backend
def test_random_batches_and_runs_give_same_contents(case: Case, other: SmallRelease) -> None:
    batches = split_in_order(case.sent, 7, case.rng)
    refined_in_runs(other, batches, 4, case.rng)
    assert_accounted(other)
    assert_same_contents(release_contents(other), case.expected)


@on_each_backend
def test_shuffled_deliveries_give_same_contents(case: Case, other: SmallRelease) -> None:
    refined_in_runs(other, deal_out_of_order(case.sent, 4, case.rng), 3, case.rng)
    assert_accounted(other)
    assert_same_contents(release_contents(other), case.expected)


@on_each_backend
def test_events_sent_twice_add_only_duplicates(case: Case, other: SmallRelease) -> None:
    """The producer sends everything twice, the second time from the middle of the first: only rejected grows."""
    half = len(case.sent) // 2
    again = [*case.sent[:half], *case.sent, *case.sent[half:]]
    refined_in_runs(other, split_in_order(again, 3, case.rng), 2, case.rng)
    assert_accounted(other)
    found = release_contents(other)
    assert_same_contents(ReleaseContents(found.silver, case.expected.rejected, found.gold), case.expected)
    accepted = case.expected.silver.height
    assert found.rejected["disposition"].to_list().count("duplicate") == accepted + 2 * duplicates_of(case)


def duplicates_of(case: Case) -> int:
    return case.expected.rejected["disposition"].to_list().count("duplicate")


# For one dataset: the steps are the same for all, and flights has every kind of gold table.
@pytest.mark.parametrize("case", ["flights"], indirect=True)
def test_restarts_after_crash_at_every_step_give_same_contents(case: Case, other: SmallRelease) -> None:
    """Each process dies at another step; the next opens the tables again and finishes the unfinished run."""
    # A process that dies at the last step refines at most two batches and has ingested two more: enough for all steps.
    batches = split_in_order(case.sent, 26, case.rng)
    ends = crash_order(case.rng, rounds=1)
    print("dies at", [step.value for step in ends])
    for step in [*ends, None]:
        try:
            with dying_at(step):
                run_driver(other, batches, case.rng, longest_run=2 if step else len(batches))
        except Died as death:
            print("died at", death)
            other.restart()
        else:
            assert step is None, f"{step} was never passed"
    assert_accounted(other)
    assert_same_contents(release_contents(other), case.expected)


def run_driver(release: SmallRelease, batches: list[Batch], rng: np.random.Generator, longest_run: int) -> None:
    """Act as a driver: finish an unfinished run, then ingest and refine up to `longest_run` batches at a time.

    Each run is validated while the one before is written.
    """
    release.catch_up_publication()

    def run_from(first: int) -> tuple[int, int] | None:
        left = len(batches) - first
        return (first, first + min(int(rng.integers(1, longest_run + 1)), left) - 1) if left else None

    validated, bounds = None, release.begun() or run_from(release.refined() + 1)
    while bounds is not None:
        after = run_from(bounds[1] + 1)
        while release.batches <= (after or bounds)[1]:
            release.ingest(batches[release.batches])
        following = NextRun(release.release.writer, validated, lambda _, after=after: after)
        release.refine(*bounds, following=following)
        validated, bounds = following.validated, after
