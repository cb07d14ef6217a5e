"""Sustained: the highest open-loop rate at which the lag stays flat, by Theodolite's definition.

At a rate that the stream keeps up with, the trend of the lag over the measuring time, the slope of a line fitted to
it by least squares, stays within a bound. Theodolite's bound is a number of records per second; here it is a share of
the rate. The first part of each trial does not count. Between two rates the search halves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.result import Figures
from benchmarks.sending import OpenLoop
from benchmarks.session import BenchSession
from include.ground.kafka import log_end_offsets

SLOPE_SHARE = 0.01
"""The lag may grow by this share of the rate."""
SETTLING_SHARE = 0.25
"""Of a trial, before its measuring time."""
SAMPLE_SECONDS = 0.5
BEHIND = 1.0
"""Seconds that the producer may be behind its schedule: a rate that it cannot send is not measured."""
PRECISION = 0.05
"""The search ends when the next rate would differ by less than this share."""


@dataclass(frozen=True)
class Trial:
    """A rate, the trend of the lag (records per second), and how far the producer was behind its schedule."""

    rate: float
    slope: float
    behind: float

    @property
    def is_held(self) -> bool:
        """Whether the producer kept its schedule and the lag was flat."""
        return self.behind <= BEHIND and self.slope <= SLOPE_SHARE * self.rate

    def sentence(self) -> str:
        """Return the trial for people."""
        if self.behind > BEHIND:
            return f"{self.rate:,.0f} events/s: the producer was {self.behind:.1f} s behind its schedule"
        return f"{self.rate:,.0f} events/s: lag {'flat' if self.is_held else 'grows'}, {self.slope:+,.0f} records/s"


def measure_sustained(session: BenchSession, lowest: float, highest: float, seconds: float) -> Figures:
    """Search between two rates, with trials of `seconds`; the rate is 0 when the lowest is not sustained."""
    session.log(f"sustained: {lowest:,.0f} to {highest:,.0f} events/s, trials of {seconds:.0f} s …")
    held = highest_held(lambda rate: _reported(session, try_rate(session, rate, seconds)), lowest, highest)
    return {"events/s held": held.rate if held else 0.0, "lag trend, records/s": held.slope if held else 0.0}


def highest_held(try_one: Callable[[float], Trial], lowest: float, highest: float) -> Trial | None:
    """Return the trial of the highest rate that is held, by halving; None when the lowest is not."""
    best = try_one(highest)
    if best.is_held:
        return best
    if lowest >= highest or not (best := try_one(lowest)).is_held:
        return None
    failed = highest
    while (rate := (best.rate + failed) / 2) > best.rate * (1 + PRECISION):
        trial = try_one(rate)
        if trial.is_held:
            best = trial
        else:
            failed = rate
    return best


def try_rate(session: BenchSession, rate: float, seconds: float) -> Trial:
    """Send at the rate and sample the lag; return when the stream has caught up again."""
    events = round(rate * seconds)
    session.supply.prepare(events)
    sender, follower = OpenLoop(session.target, session.supply.frames(events), rate), session.follower()
    follower.poll()
    samples, began, topic = list[tuple[float, float]](), time.monotonic(), session.target.topic
    sender.start()
    try:
        while sender.is_alive():
            follower.poll()
            if time.monotonic() - began >= SAMPLE_SECONDS * len(samples):
                end = sum(log_end_offsets(session.bootstrap, topic).values())
                samples.append((time.monotonic() - began, float(end - follower.published())))
            time.sleep(0.02)
    finally:
        sender.stop()
    sender.finish()
    session.await_published()
    return Trial(rate, lag_trend(samples), sender.behind)


def lag_trend(samples: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the lag over time, records a second, without the time in which the stream settles."""
    last = samples[-1][0]
    measured = np.array([sample for sample in samples if sample[0] >= SETTLING_SHARE * last])
    if len(measured) < 2:
        return 0.0
    return float(np.polyfit(measured[:, 0], measured[:, 1], 1)[0])


def _reported(session: BenchSession, trial: Trial) -> Trial:
    session.log(f"sustained: {trial.sentence()}")
    return trial
