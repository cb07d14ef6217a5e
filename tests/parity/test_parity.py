"""Parity: the same events give the same silver, rejected and gold, whatever way they came, and gold is the oracle's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from answers import Answers, answers, assert_accounted, assert_same, payload_verdicts
from deliveries import Batch, Sent, cut, days_of, deliveries, parity_seed, shuffled, verdicts
from oracle import ORACLE, differences
from pyspark.sql import SparkSession
from simulated_deaths import Died, crash_order, dying_at
from small_release import SmallRelease, small_release

from include.producers.injected_faults import Shares
from include.settings import Settings

# The end of a month, the days when New York's clocks go forward and back, and the days at either end of the source.
DAYS = {
    "flights": days_of("2013-01-31", "2013-02-01", "2013-03-10", "2013-11-03"),
    "weather": days_of("2013-01-31", "2013-02-01", "2013-03-10", "2013-11-03", "2013-12-30"),
}
# So many that every kind of bad record is there, and copies of all distances.
SHARES = {
    "flights": Shares(duplicates=0.05, late=0.05, reorder=0.2, corrupt=0.01),
    "weather": Shares(duplicates=0.1, late=0.1, reorder=0.2, corrupt=0.3),
}


@dataclass(frozen=True)
class Case:
    """A dataset's deliveries, what one batch of them gave, and the means to try another way."""

    name: str
    days: list[date]
    sent: list[Sent]
    expected: Answers
    one_batch: SmallRelease
    rng: np.random.Generator


@pytest.fixture(scope="module", params=["flights", "weather"])
def case(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """All deliveries as one batch, refined at once."""
    name, seed = str(request.param), parity_seed()
    sent = deliveries(name, DAYS[name], SHARES[name], seed)
    release = small_release(spark, Settings(state=tmp_path_factory.mktemp("one batch")), name)
    release.take([item.record for item in sent])
    return Case(name, DAYS[name], sent, answers(release), release, np.random.default_rng(seed))


@pytest.fixture
def another(case: Case, spark: SparkSession, tmp_path: Path) -> SmallRelease:
    """A release with nothing in it yet."""
    return small_release(spark, Settings(state=tmp_path / "a state"), case.name)


def refined_in_runs(release: SmallRelease, batches: list[Batch], runs: int, rng: np.random.Generator) -> None:
    """Ingest all batches, and refine them in so many runs [a..b] with random bounds."""
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


def test_one_batch_is_what_the_oracle_says(case: Case) -> None:
    for name, rows in case.expected.gold.items():
        assert rows.height > 10
        assert differences(rows, name, case.days).rows() == [], name
    assert case.expected.gold.keys() <= ORACLE.keys()


def test_cut_at_random_into_batches_and_runs(case: Case, another: SmallRelease) -> None:
    batches = cut(case.sent, 7, case.rng)
    refined_in_runs(another, batches, 4, case.rng)
    assert_accounted(another)
    assert_same(answers(another), case.expected)


def test_out_of_order_and_across_partitions(case: Case, another: SmallRelease) -> None:
    refined_in_runs(another, shuffled(case.sent, 4, case.rng), 3, case.rng)
    assert_accounted(another)
    assert_same(answers(another), case.expected)


def test_all_of_it_sent_again(case: Case, another: SmallRelease) -> None:
    """A producer that sends everything twice, the second time from the middle of the first: only rejected grows."""
    half = len(case.sent) // 2
    again = [*case.sent[:half], *case.sent, *case.sent[half:]]
    refined_in_runs(another, cut(again, 3, case.rng), 2, case.rng)
    assert_accounted(another)
    found = answers(another)
    assert_same(Answers(found.silver, case.expected.rejected, found.gold), case.expected)
    accepted = case.expected.silver.height
    assert found.rejected["disposition"].to_list().count("duplicate") == accepted + 2 * duplicates_of(case)


def duplicates_of(case: Case) -> int:
    return case.expected.rejected["disposition"].to_list().count("duplicate")


# Of one dataset: the steps are the same for all, and flights has every kind of gold.
@pytest.mark.parametrize("case", ["flights"], indirect=True)
def test_crash_restarted_at_every_step(case: Case, another: SmallRelease) -> None:
    """Each life of the process ends at another step; the next finishes what was begun, with fresh handles."""
    # A life that dies at the last step uses up a run of two batches at most: enough for a death at every step.
    batches = cut(case.sent, 22, case.rng)
    ends = crash_order(case.rng, rounds=1)
    print("dies at", [step.value for step in ends])
    for step in [*ends, None]:
        try:
            with dying_at(step):
                live(another, batches, case.rng)
        except Died as death:
            print("died at", death)
            another.restart()
        else:
            assert step is None, f"{step} was never passed"
    assert_accounted(another)
    assert_same(answers(another), case.expected)


def live(release: SmallRelease, batches: list[Batch], rng: np.random.Generator) -> None:
    """One life of a driver: finish what was begun, then ingest a few batches and refine them, until all are done."""
    release.catch_up_publication()
    while release.refined() < len(batches) - 1:
        begun = release.begun()
        if begun is None:
            behind = min(int(rng.integers(1, 3)), len(batches) - 1 - release.refined())
            begun = (release.refined() + 1, release.refined() + behind)
        while release.batches <= begun[1]:
            release.ingest(batches[release.batches])
        release.refine(*begun)
