"""The changes of `demo-change`: a wrong rule in a copy of the dataset's folder, a replay, deleted records.

The folder of the clone is never changed: the copy is in the demo's folder inside the state folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from include.demo.demo_questions import Question
from include.demo.demo_state import DemoRefused, demo_folder
from include.ground.settings import CLONE, Settings
from include.read.published_sql import run_query
from include.read.published_tables import PinnedTables
from include.run.child_process import tethered
from include.run.driver_process import driver_environment

DATASET = "flights"
RULE = '.withColumn("scheduled_departure", F.from_utc_timestamp("scheduled_departure", "America/New_York"))'
ANCHOR = "        accepted.withColumn("
DAYS = (datetime(2013, 6, 10, tzinfo=UTC), datetime(2013, 6, 13, tzinfo=UTC))
# The repetition after the demo's year begins 371 days later; no table has its events before.
NEXT_YEAR = "2014-01-07"
RATE = 200
NIGHT_DEPARTURES = Question(
    "How many planes leave New York between 06:00 and 09:00 UTC? (after 1 at night there, before 5 in the morning)",
    """\
SELECT coalesce(sum(scheduled), 0)::BIGINT AS scheduled FROM gold.carrier_hours
WHERE hour(hour) BETWEEN 6 AND 8 AND hour < TIMESTAMPTZ '2014-01-01 00:00:00Z'""",
)


class DemoNotRun(DemoRefused):
    """The state folder does not hold the demo's flights."""

    def __init__(self, state: Path) -> None:
        super().__init__(f"the flights of the demo are not in {state}; nothing was changed", "make demo")
        self.state = state


@dataclass(frozen=True)
class DayOffsets:
    """Offsets [start, end) by partition of the events of some days, without late ones."""

    offsets: dict[int, tuple[int, int]]

    @property
    def middle(self) -> dict[int, int]:
        """The offset by partition before which Kafka is to delete: half of the days."""
        return {partition: (start + end) // 2 for partition, (start, end) in self.offsets.items()}


def settings_with_wrong_rule(settings: Settings) -> Settings:
    """Return settings whose datasets are a copy with the wrong rule: local time instead of UTC."""
    folder = demo_folder(settings) / "datasets"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(settings.datasets, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / DATASET / "silver.py"
    text = path.read_text("utf-8")
    if ANCHOR not in text:
        raise DemoRefused(
            f"{settings.datasets / DATASET}/silver.py was changed: the demo cannot insert its wrong rule", ""
        )
    path.write_text(text.replace(ANCHOR, f"        accepted{RULE}.withColumn("), "utf-8")
    return settings.model_copy(update={"datasets": folder})


def single_number(reading: PinnedTables, question: Question) -> int:
    """Return the answer to a question with one number."""
    return int(next(run_query(reading, question.sql).rows)[0])


def three_days(reading: PinnedTables) -> DayOffsets:
    """Return the offsets of the demo's three days, without 2 % at each end, where late and reordered records are."""
    since, until = (f"TIMESTAMPTZ '{day:%Y-%m-%d}'" for day in DAYS)
    sql = (
        f"SELECT _partition, quantile_disc(_offset, 0.02), quantile_disc(_offset, 0.98) FROM silver.{DATASET} "
        f"WHERE occurred_at >= {since} AND occurred_at < {until} GROUP BY 1"
    )
    return DayOffsets({int(part): (int(first), int(last) + 1) for part, first, last in run_query(reading, sql).rows})


@contextmanager
def live_feed(settings: Settings) -> Iterator[None]:
    """Send the next year's flights in the background, by `headrace produce` in a process that ends with this one."""
    command = ["produce", DATASET, "--repeat", "2", "--from", NEXT_YEAR, "--rate", str(RATE), "--quiet"]
    process = subprocess.Popen(
        tethered([sys.executable, "-m", "include.cli.main", *command]),
        cwd=CLONE,
        env=driver_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
