"""The watermark: one formula, with idle partitions, the same for each way to divide the batches into runs."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta

import pytest

from include.catalog.watermark import WatermarkProgress, watermark_facts, watermarks
from spark_jobs.layers.idle_set import IdleSet, read_idle_set

HOUR = timedelta(hours=1)
NONE = timedelta(0)


def at(hour: float) -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC) + hour * HOUR


def run(idle: tuple[int, ...] = (), **hours: float) -> str:
    """Return what a run's commit says: greatest event times like `p0=10`, in hours of one day."""
    times = {name.removeprefix("p"): at(hour).isoformat() for name, hour in hours.items()}
    return json.dumps(watermark_facts({"event_time_max": times, "idle": list(idle)}))


def reached(*runs: str, lateness: timedelta = NONE) -> list[datetime | None]:
    return [each.after for each in watermarks(enumerate(runs), lateness)]


def test_a_partition_that_is_not_idle_holds_the_watermark() -> None:
    assert reached(run(p0=10, p1=1), run(p0=20)) == [at(1), at(1)]


def test_an_idle_partition_does_not() -> None:
    assert reached(run(p0=10, p1=1), run((1,), p0=20), lateness=HOUR) == [at(0), at(19)]


def test_when_all_are_idle_the_greatest_event_time_decides() -> None:
    assert reached(run(p0=10, p1=1), run((0, 1))) == [at(1), at(10)]


def test_when_the_newest_is_idle_the_others_still_hold_it() -> None:
    assert reached(run(p0=10, p1=1, p2=5), run((0,))) == [at(1), at(1)]
    assert reached(run(p0=10, p1=1, p2=5), run((0, 1))) == [at(1), at(5)]


def test_a_partition_that_wakes_with_old_records_moves_nothing_back() -> None:
    assert reached(run(p0=10, p1=1), run((1,), p0=20), run(p1=2), run(p1=30)) == [at(1), at(20), at(20), at(20)]
    assert reached(run(p0=10, p1=1), run((1,), p0=20), run(p0=29, p1=30))[-1] == at(29)


def test_a_partition_without_records_holds_nothing() -> None:
    assert reached(run(p0=10), run((2,), p0=11)) == [at(10), at(11)]
    assert reached(run((0, 1)), "", "{}") == [None, None, None]


def test_the_holder_is_named_and_the_run_that_last_brought_a_row_of_it() -> None:
    progress = WatermarkProgress(NONE)
    assert progress.holder is None
    for batch, text in enumerate([run(p0=10, p1=1), run(p0=20), run((1,), p0=21), run((0, 1))]):
        progress.advance(batch, text)
        assert progress.holder == ("1" if batch < 2 else "0")
    assert progress.brought == {"0": 2, "1": 0}


def test_commits_of_earlier_versions_have_no_idle_partition() -> None:
    assert watermark_facts({"event_time_max": {"0": "2026-11-01T00:00:00Z"}}) == {"0": "2026-11-01T00:00:00Z"}
    assert read_idle_set({}) == IdleSet()


def test_an_idle_set_says_when_a_partition_last_woke() -> None:
    idle = IdleSet().after(3, {1}).after(4, {1, 2})
    assert (idle.partitions, idle.woken) == (frozenset({1, 2}), -1)
    woken = idle.after(5, {2}).after(6, {2})
    assert (woken.partitions, woken.woken) == (frozenset({2}), 5)
    assert read_idle_set(woken.metadata) == woken


@pytest.mark.parametrize("seed", range(20))
def test_each_division_into_runs_that_ends_before_partitions_wake_gives_the_same_watermark(seed: int) -> None:
    """The runs of a stream and those of a rebuild differ; at a batch where both end, the watermark is the same."""
    random_ = random.Random(seed)
    batches, sets = random_batches(random_, count=30)
    cuts = {number - 1 for number, each in enumerate(sets) if each.woken == number}
    single = reached(*(run(tuple(s.partitions), **b) for b, s in zip(batches, sets, strict=True)))
    first = 0
    progress = WatermarkProgress(NONE)
    while first < 30:
        last = min([*(cut for cut in cuts if cut >= first), random_.randint(first, 29)])
        greatest: dict[str, float] = {}
        for batch in batches[first : last + 1]:
            greatest |= {name: max(hour, greatest.get(name, hour)) for name, hour in batch.items()}
        progress.advance(last, run(tuple(sets[last].partitions), **greatest))
        assert progress.watermark == single[last]
        first = last + 1


def random_batches(random_: random.Random, count: int) -> tuple[list[dict[str, float]], list[IdleSet]]:
    """Return the hours that each batch brings by partition, and the idle partitions after it."""
    batches, sets, before = [], [], IdleSet(frozenset(range(3)))
    for number in range(count):
        brought = [part for part in range(3) if random_.random() < 0.4]
        quiet = {part for part in range(3) if random_.random() < 0.2}
        before = before.after(number, (before.partitions | quiet) - set(brought))
        batches.append({f"p{part}": number + random_.uniform(-5, 5) for part in brought})
        sets.append(before)
    return batches, sets
