"""Records of the dataset `machines`, and what plain Python makes of the reports of each machine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from small_release import Record, SmallRelease

MACHINES = Path(__file__).parents[1] / "recovery" / "datasets" / "machines"
BEGIN = datetime(2024, 2, 27, tzinfo=UTC)
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Report:
    """One report of one machine."""

    number: int
    machine: str
    state: str
    watts: int
    minute: int

    @property
    def at(self) -> datetime:
        return BEGIN + timedelta(minutes=self.minute)

    @property
    def place(self) -> tuple[datetime, str]:
        """What decides between two reports of a machine, by the declarations."""
        return self.at, f"e{self.number}"

    def sent(self, partition: int = 0) -> Record:
        """Return the record of the report."""
        fields = {"machine": self.machine, "state": self.state, "watts": self.watts, "at": self.at.isoformat()}
        return Record(json.dumps({"event_id": f"e{self.number}", **fields}).encode(), partition=partition)


def reports(seed: int, count: int, machines: int = 6) -> list[Report]:
    """Return reports, of which several of a machine have the same time."""
    numbers = random.Random(seed)
    return [
        Report(
            n,
            f"m{numbers.randrange(machines)}",
            numbers.choice(["on", "on", "off", "idle"]),
            numbers.randrange(6),
            n // 3 - numbers.choice([0, 0, 0, 9]),
        )
        for n in range(count)
    ]


def by_machine(found: Iterable[Report], *names: str) -> list[tuple[Row, list[Report]]]:
    """Return the reports of each machine, or of each machine and state, in their order."""
    ordered, groups = sorted(found, key=lambda each: each.place), dict[Row, list[Report]]()
    for each in ordered:
        groups.setdefault(tuple(getattr(each, name) for name in names or ("machine",)), []).append(each)
    return sorted(groups.items())


def last_reports(found: Iterable[Report]) -> list[Row]:
    """Return the rows of `last_reports`."""
    rows = list[Row]()
    for key, of_key in by_machine(found):
        kept = of_key[-3:][::-1]
        total = sum(each.watts for each in kept)
        measures = (len(kept), total, total / len(kept), round(total / len(kept), 2), len({e.state for e in kept}))
        rows += [(*key, n, e.state, e.watts, e.at, float(e.watts), *measures) for n, e in enumerate(kept, 1)]
    return rows


def last_watts(found: Iterable[Report]) -> list[Row]:
    """Return the rows of `last_watts`."""
    rows = list[Row]()
    for key, of_key in by_machine((each for each in found if each.watts > 1), "machine", "state"):
        kept = [each.watts for each in of_key[-2:][::-1]]
        rows += [(*key, n, watts, sum(kept) / len(kept), max(kept), len(kept)) for n, watts in enumerate(kept, 1)]
    return rows


def spells(found: Iterable[Report]) -> list[Row]:
    """Return the rows of `spells`: runs of equal states, each until the next one begins."""
    rows = list[Row]()
    for key, of_key in by_machine(found):
        runs = [list(run) for _, run in groupby(of_key, key=lambda each: each.state)]
        ends = [*(run[0].at for run in runs[1:]), None]
        peaks = [max(each.watts for each in run) for run in runs]
        rows += [(*key, run[0].state, run[0].at, end, peak) for run, end, peak in zip(runs, ends, peaks, strict=True)]
    return rows


def recent_spells(found: Iterable[Report]) -> list[Row]:
    """Return the rows of `recent_spells`: of reports with watts, less than 10 minutes older than their newest."""
    groups = by_machine(each for each in found if each.watts)
    recent = [each for _, of_key in groups for each in of_key if of_key[-1].minute - each.minute < 10]
    return spells(recent)


def switches(found: Iterable[Report]) -> list[Row]:
    """Return the rows of `switches`."""
    return [(machine, since, state) for machine, state, since, _, _ in spells(found)]


ORACLES = {
    "last_reports": last_reports,
    "last_watts": last_watts,
    "spells": spells,
    "recent_spells": recent_spells,
    "switches": switches,
}


def published(release: SmallRelease, table: str) -> list[Row]:
    """Return the published rows without what the platform notes about them; decimals of kilowatts in watts."""
    found = release.read(f"gold.{table}")
    rows = found.select(name for name in found.columns if not name.startswith("_")).rows()
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return round(float(value * 1000), 2) if isinstance(value, Decimal) else value


def assert_right(release: SmallRelease, found: Sequence[Report]) -> None:
    """Assert that all tables have what plain Python makes of the reports."""
    for table, oracle in ORACLES.items():
        there, expected = published(release, table), sorted(oracle(found), key=repr)
        assert there == expected, (table, [*set(there) ^ set(expected)][:4])
