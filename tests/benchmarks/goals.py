"""The goals of figures, on two cores. A missed goal is shown; it makes no figure invalid."""

from __future__ import annotations

from benchmarks.result import PLATFORM
from benchmarks.spread import Key, is_higher_better

ANY = ""
GOALS: dict[tuple[str, str, str, str], float] = {
    ("flights", "drain", ANY, "events/s"): 80_000,
    ("ad_events", "drain", ANY, "events/s"): 150_000,
    ("checkouts", "drain", ANY, "events/s"): 40_000,
    ("flights", "drain", ANY, "CPU s/M, JVM"): 22,
    ("ad_events", "drain", ANY, "CPU s/M, JVM"): 10,
    ("flights", "latency", "2,000 events/s", "p95, s"): 1.5,
    ("flights", "latency", "20,000 events/s", "p95, s"): 2.5,
    ("ad_events", "latency", "20,000 events/s", "p95, s"): 1.0,
    ("ad_events", "latency", "92,600 events/s", "p95, s"): 2.0,
    ("flights", "rebuild", "stream at 2,000 events/s", "p95, times"): 2.0,
    ("flights", "rebuild", "stream at 2,000 events/s", "records/s"): 10_000_000 / 240,
    ("flights", "rebuild", "stream at 2,000 events/s", "s to the plan"): 2.0,
    ("flights", "growth", ANY, "s a run, times"): 1.2,
    ("ad_events", "growth", ANY, "s a run, times"): 1.2,
    ("flights", "cold", ANY, "seconds"): 12,
    ("ad_events", "cold", ANY, "seconds"): 12,
    ("flights", "audit", ANY, "records/s"): 1_000_000,
    ("ad_events", "audit", ANY, "records/s"): 1_000_000,
}
"""By dataset, mode, setting (ANY: each) and figure."""


def goal_of(key: Key, figure: str) -> float | None:
    """Return the goal of a figure of this platform; None without one."""
    dataset, mode, setting, system = key
    if system != PLATFORM:
        return None
    return GOALS.get((dataset, mode, setting, figure), GOALS.get((dataset, mode, ANY, figure)))


def is_met(figure: str, value: float, goal: float) -> bool:
    """Return whether a value meets its goal."""
    return value >= goal if is_higher_better(figure) else value <= goal
