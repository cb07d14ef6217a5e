"""Runs the modes of `headrace bench run`: one session for each run and dataset, all modes in it one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.drain_mode import measure_drain
from benchmarks.gate import audited, published_problems
from benchmarks.growth_mode import measure_growth
from benchmarks.latency_mode import measure_latency
from benchmarks.rebuild_mode import measure_rebuild
from benchmarks.result import PLATFORM, Figures, Measurement
from benchmarks.session import BenchSession, warm_session
from benchmarks.state import LogLine
from benchmarks.sustained_mode import measure_sustained


class Mode(StrEnum):
    """What is measured, in the order of a session."""

    cold = "cold"
    drain = "drain"
    latency = "latency"
    sustained = "sustained"
    growth = "growth"
    rebuild = "rebuild"
    audit = "audit"


@dataclass(frozen=True)
class RunOptions:
    """What to measure: `events` of a drain, `rates` and `seconds` of latency, `between` which rates to search,
    `batches` of growth."""

    modes: frozenset[Mode]
    datasets: tuple[str, ...]
    runs: int
    warm_up: int
    events: int
    rates: tuple[float, ...]
    seconds: float
    between: tuple[float, float]
    trial_seconds: float
    batches: int
    meanwhile: float
    keep: bool


@dataclass(frozen=True)
class _Step:
    mode: Mode
    setting: str
    measure: Callable[[BenchSession], Figures]


def measured_runs(options: RunOptions, log: LogLine) -> Iterator[Measurement]:
    """Yield the measurements of each run, the datasets in turn."""
    for run in range(1, options.runs + 1):
        for dataset in options.datasets:
            log(f"run {run} of {options.runs}, {dataset}")
            yield from measured_session(options, run, dataset, log)


def measured_session(options: RunOptions, run: int, dataset: str, log: LogLine) -> list[Measurement]:
    """Measure in a new session. A problem found at its end invalidates all of its figures."""
    with warm_session(dataset, options.warm_up, options.keep, log) as session:
        found = {(Mode.cold, "2,000 events in the topic"): {"seconds": session.cold}}
        found |= {(step.mode, step.setting): step.measure(session) for step in steps(options)}
        session.await_published()
        audit, problems = audited(session)
        found[Mode.audit, "all records"] = audit
        problems += published_problems(session)
    for problem in problems:
        log(f"INVALID: {problem}")
    return [
        Measurement(
            run=run,
            system=PLATFORM,
            dataset=dataset,
            mode=mode,
            setting=setting,
            figures=figures,
            problems=tuple(problems),
        )
        for (mode, setting), figures in found.items()
        if mode in options.modes
    ]


def steps(options: RunOptions) -> Iterator[_Step]:
    """Yield what is measured between warm-up and audit."""
    if Mode.drain in options.modes:
        yield _Step(Mode.drain, f"{options.events:,} events", lambda session: measure_drain(session, options.events))
    for rate in options.rates if Mode.latency in options.modes else ():
        yield _Step(Mode.latency, per_second(rate), _latency(rate, options.seconds))
    if Mode.sustained in options.modes:
        lowest, highest = options.between
        setting = f"{lowest:,.0f} to {per_second(highest)}"
        yield _Step(
            Mode.sustained, setting, lambda session: measure_sustained(session, lowest, highest, options.trial_seconds)
        )
    if Mode.growth in options.modes:
        batches = options.batches
        yield _Step(Mode.growth, f"{batches:,} batches", lambda session: measure_growth(session, batches))
    if Mode.rebuild in options.modes:
        rate = options.meanwhile
        yield _Step(
            Mode.rebuild,
            f"stream at {per_second(rate)}",
            lambda session: measure_rebuild(session, rate, options.seconds),
        )


def per_second(rate: float) -> str:
    """Return a rate as settings and goals name it."""
    return f"{rate:,.0f} events/s"


def _latency(rate: float, seconds: float) -> Callable[[BenchSession], Figures]:
    return lambda session: measure_latency(session, rate, seconds)
