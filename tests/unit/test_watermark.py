"""The watermark: one formula, with idle partitions, the same for each way to divide the batches into runs."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from include.declare.event_times import PROGRESS, WatermarkProgress, read_progress, watermark_facts, watermarks
from spark_jobs.layers.bronze import IdleSet, awake_partitions, read_idle_set

HOUR = timedelta(hours=1)
NONE = timedelta(0)
PARTITIONS = 3
SEEDS = int(os.environ.get("HEADRACE_WATERMARK_SEEDS", "30"))


def at(hour: float) -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC) + hour * HOUR


def run(idle: tuple[int, ...] = (), rowless: tuple[int, ...] = (), **hours: float) -> str:
    """Return what a run's commit says: greatest event times like `p0=10`, in hours of one day."""
    times = {name.removeprefix("p"): at(hour).isoformat() for name, hour in hours.items()}
    return json.dumps(
        watermark_facts({"event_time_max": times, "idle": list(idle), "rowless": list(map(str, rowless))})
    )


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
    assert awake_partitions({"offsets": {"0": [0, 1]}}) == frozenset(), "who is awake is not known"
    assert awake_partitions({"offsets": {"0": [0, 1], "1": [0, 0]}, "idle": [1]}) == {0}


def test_an_idle_set_says_when_a_partition_last_woke() -> None:
    idle = IdleSet().after(3, {1}).after(4, {1, 2})
    assert (idle.partitions, idle.woken) == (frozenset({1, 2}), -1)
    woken = idle.after(5, {2}).after(6, {2})
    assert (woken.partitions, woken.woken) == (frozenset({2}), 5)
    assert read_idle_set(woken.metadata) == woken


def test_a_partition_that_is_not_idle_and_has_no_row_holds_the_watermark_where_it_is() -> None:
    assert reached(run(p0=10), run(rowless=(1,), p0=20), run(p0=21, p1=15)) == [at(10), at(10), at(15)]
    assert reached(run(rowless=(1,), p0=10), run((1,), p0=11)) == [None, at(11)]


def test_the_holder_may_be_a_partition_without_rows() -> None:
    progress = WatermarkProgress(NONE)
    progress.advance(0, run(p0=10))
    progress.advance(1, run(rowless=(1,), p0=20))
    assert progress.holder == "1"
    again = read_progress(NONE, {PROGRESS: progress.as_json()})
    assert again == progress
    assert progress.reached(["1"], ["1"]) == at(20)


@dataclass(frozen=True)
class Batch:
    """The hours of the rows of a batch by partition, none if all its records are rejected; who is idle then."""

    hours: dict[int, list[float]]
    after: IdleSet


@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_cuttings_of_batches_into_runs_give_the_same_watermarks(seed: int) -> None:
    """The runs of a stream and those of a rebuild differ; each ends before partitions wake."""
    batches = random_batches(random.Random(seed), count=8)
    live = dict(watermarks_of(batches, set(range(8))))
    must = {number - 1 for number, batch in enumerate(batches) if batch.after.woken == number} | {7}
    may = sorted(set(range(8)) - must)
    for chosen in range(2 ** len(may)):
        ends = must | {end for place, end in enumerate(may) if chosen >> place & 1}
        assert all(live[last] == after for last, after in watermarks_of(batches, ends)), (seed, ends)


def watermarks_of(batches: list[Batch], ends: set[int]) -> list[tuple[int, datetime | None]]:
    """Return the watermark after each run; runs end with the batches `ends`."""
    progress, found, first = WatermarkProgress(NONE), [], 0
    for last in sorted(ends - {-1}):
        rows = [(part, hour) for each in batches[first : last + 1] for part, of in each.hours.items() for hour in of]
        greatest = {f"p{part}": max(hour for one, hour in rows if one == part) for part, _ in rows}
        idle = batches[last].after.partitions
        named = {f"{part}" for part, _ in rows}
        rowless = progress.without_rows(str(part) for part in set(range(PARTITIONS)) - idle) - named
        progress.advance(last, run(tuple(idle), tuple(map(int, rowless)), **greatest))
        found.append((last, progress.watermark))
        first = last + 1
    return found


def random_batches(random_: random.Random, count: int) -> list[Batch]:
    """Return batches of a topic none of whose partitions has a record before them."""
    batches, before = [], IdleSet(frozenset(range(PARTITIONS)))
    for number in range(count):
        brought = [part for part in range(PARTITIONS) if random_.random() < 0.4]
        quiet = {part for part in range(PARTITIONS) if random_.random() < 0.2}
        before = before.after(number, (before.partitions | quiet) - set(brought))
        rows = {part: random_.choices(range(2), (0.4, 0.6))[0] for part in brought}
        hours = {part: [number + random_.uniform(-5, 5)] * count for part, count in rows.items()}
        batches.append(Batch(hours, before))
    return batches
