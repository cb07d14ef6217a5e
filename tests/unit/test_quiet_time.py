"""When a partition is idle: read to its end, quiet for long enough, and looked at just now. With a clock of its own."""

from __future__ import annotations

from datetime import timedelta

from spark_jobs.layers.bronze import BronzeBatch, IdleSet
from spark_jobs.stream.ingest import LOOK_IS_OLD, QuietPartitions

AFTER = timedelta(seconds=30)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def observed(ends: dict[int, int], after: timedelta | None = AFTER) -> tuple[QuietPartitions, Clock]:
    clock = Clock()
    quiet = QuietPartitions(clock, after)
    quiet.look(ends, ends)
    return quiet, clock


def look_after(
    quiet: QuietPartitions, clock: Clock, seconds: float, read: dict[int, int], ends: dict[int, int]
) -> None:
    clock.now += seconds
    quiet.look(read, ends)


def test_a_partition_is_idle_when_it_was_quiet_for_so_long_and_not_before() -> None:
    quiet, clock = observed({0: 5, 1: 0})
    look_after(quiet, clock, 29.9, {0: 5}, {0: 5, 1: 0})
    assert quiet.quiet() == frozenset()
    look_after(quiet, clock, 0.1, {0: 5}, {0: 5, 1: 0})
    assert quiet.quiet() == {0, 1}


def test_never_is_never() -> None:
    quiet, clock = observed({0: 5}, after=None)
    look_after(quiet, clock, 1e9, {0: 5}, {0: 5})
    assert quiet.quiet() == frozenset()


def test_a_topic_rests_where_it_ends_when_all_partitions_have_been_quiet_for_so_long() -> None:
    quiet, clock = observed({0: 5, 1: 0}, after=None)
    look_after(quiet, clock, 29.9, {0: 5}, {0: 5, 1: 0})
    assert quiet.resting(AFTER) == {}
    look_after(quiet, clock, 0.1, {0: 5}, {0: 5, 1: 0})
    assert quiet.resting(AFTER) == {0: 5, 1: 0}
    clock.now += LOOK_IS_OLD + 0.1
    assert quiet.resting(AFTER) == {}, "what has come since the last look is not known"


def test_a_topic_does_not_rest_while_one_partition_lags_or_is_new() -> None:
    quiet, clock = observed({0: 5, 1: 5})
    look_after(quiet, clock, 100, {0: 5, 1: 5}, {0: 6, 1: 5})
    assert quiet.resting(AFTER) == {}
    look_after(quiet, clock, 100, {0: 6, 1: 5}, {0: 6, 1: 5, 2: 0})
    look_after(quiet, clock, 20, {0: 6, 1: 5}, {0: 6, 1: 5, 2: 0})
    assert quiet.resting(AFTER) == {}


def test_a_record_begins_the_time_anew() -> None:
    quiet, clock = observed({0: 5, 1: 5})
    clock.now += 20
    quiet.bring([0])
    look_after(quiet, clock, 0, {0: 6, 1: 5}, {0: 6, 1: 5})
    look_after(quiet, clock, 15, {0: 6, 1: 5}, {0: 6, 1: 5})
    assert quiet.quiet() == {1}


def test_a_partition_that_lags_or_has_an_open_transaction_is_never_idle() -> None:
    quiet, clock = observed({0: 5, 1: 5})
    look_after(quiet, clock, 100, {0: 5, 1: 5}, {0: 6, 1: 5})
    assert quiet.quiet() == {1}
    # Read to its end later, it has been quiet from then on.
    look_after(quiet, clock, 1, {0: 6, 1: 5}, {0: 6, 1: 5})
    look_after(quiet, clock, 29, {0: 6, 1: 5}, {0: 6, 1: 5})
    assert quiet.quiet() == {1}
    look_after(quiet, clock, 1, {0: 6, 1: 5}, {0: 6, 1: 5})
    assert quiet.quiet() == {0, 1}


def test_nothing_is_idle_while_kafka_does_not_answer() -> None:
    quiet, clock = observed({0: 5})
    clock.now += 100
    assert quiet.quiet() == frozenset(), f"the last look is older than {LOOK_IS_OLD} s"
    quiet.look({0: 5}, {0: 5})
    assert quiet.quiet() == {0}
    quiet.forget()
    assert quiet.quiet() == frozenset()
    look_after(quiet, clock, 20, {0: 5}, {0: 5})
    assert quiet.quiet() == frozenset()


def test_a_partition_that_was_idle_ceases_to_be_when_it_lags() -> None:
    quiet, clock = observed({0: 5, 1: 5})
    look_after(quiet, clock, 100, {0: 5, 1: 5}, {0: 5, 1: 6})
    before = IdleSet(frozenset({0, 1}))
    offsets = {0: (5, 6), 1: (5, 5)}
    batch = BronzeBatch(7, "app", 7, offsets, {}, before, quiet.quiet(), quiet.lagging)
    assert batch.idle_set([0]) == IdleSet(frozenset(), woken=7)
