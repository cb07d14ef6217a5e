"""Medians with their spread over runs, and how two results compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.result import BenchResult, Measurement

Key = tuple[str, str, str, str]
NEITHER = frozenset({"records"})
"""Figures for which neither higher nor lower is better."""
HIGHER_IS_BETTER = ("events/s", "records/s")


@dataclass(frozen=True)
class Spread:
    """A figure over `runs`: median, lowest, highest."""

    median: float
    low: float
    high: float
    runs: int = 1


@dataclass(frozen=True)
class Ratio:
    """A figure by that of the baseline: ratio of medians, bounds that both spreads allow, the fewer runs of both."""

    key: Key
    figure: str
    ratio: float
    low: float
    high: float
    runs: int = 1

    @property
    def verdict(self) -> str:
        """Return `same` while the spreads overlap, else `better` or `worse`; `other` for a figure of NEITHER.

        A single run has no spread: `one run` decides nothing.
        """
        if self.runs < 2:
            return "one run"
        if self.low <= 1.0 <= self.high:
            return "same"
        if self.figure in NEITHER:
            return "other"
        return "better" if (self.ratio > 1) == is_higher_better(self.figure) else "worse"


def is_higher_better(figure: str) -> bool:
    """Return whether a higher value is better: true for rates, false for seconds."""
    return figure.startswith(HIGHER_IS_BETTER)


def spreads(measurements: Iterable[Measurement]) -> dict[Key, dict[str, Spread]]:
    """Return each figure's spread over the valid runs, by what was measured, in order of appearance."""
    values: dict[Key, dict[str, list[float]]] = {}
    for each in measurements:
        if not each.problems:
            for name, value in each.figures.items():
                values.setdefault(each.key, {}).setdefault(name, []).append(value)
    return {
        key: {name: Spread(median(found), min(found), max(found), len(found)) for name, found in figures.items()}
        for key, figures in values.items()
    }


def compared(result: BenchResult, baseline: BenchResult) -> list[Ratio]:
    """Return the ratio of each figure that both have; one that is 0 in either is left out."""
    ours, theirs = spreads(result.measurements), spreads(baseline.measurements)
    return [
        Ratio(key, name, new.median / old.median, new.low / old.high, new.high / old.low, min(new.runs, old.runs))
        for key, figures in ours.items()
        for name, new in figures.items()
        if (old := theirs.get(key, {}).get(name)) and min(new.low, old.low) > 0
    ]


def only_in_one(result: BenchResult, baseline: BenchResult) -> list[str]:
    """Return what only one of two results has measured."""
    ours, theirs = spreads(result.measurements), spreads(baseline.measurements)
    return [
        f"{' '.join(key)}: only in {'this result' if key in ours else 'the baseline'}"
        for key in (*ours, *theirs)
        if (key in ours) != (key in theirs)
    ]


def differing_conditions(result: BenchResult, baseline: BenchResult) -> list[str]:
    """Return how the machines, versions and settings of two results differ; the load is none of these."""
    ours, theirs = (each.machine.model_dump(exclude={"load"}) for each in (result, baseline))
    return [f"{name}: {theirs[name]} → {value}" for name, value in ours.items() if theirs[name] != value]


def systems(measurements: Sequence[Measurement]) -> list[str]:
    """Return the measured systems in order of appearance."""
    return list(dict.fromkeys(each.system for each in measurements))
