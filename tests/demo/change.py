"""`headrace demo-change`: ships a wrong rule, rolls it back, replays three days, and accounts for every record.

The folder of the clone is never changed: the copy is in the demo's folder inside the state folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import typer
from rich.console import Console
from rich.markup import escape

from demo.questions import Question
from demo.state import DemoRefused, demo_folder, demo_lock
from include.audit.kafka import open_topic
from include.audit.run import audit_dataset
from include.change import stages as plan_stages
from include.change.plan_parameters import ReleaseParameters, ReplayParameters
from include.change.recompute import ReplayPlan
from include.change.release import ReleasePlan
from include.change.stages import PlanStage, run_plan
from include.cli.audit import print_audits
from include.cli.main import FAILED
from include.cli.plan import TerminalReporter, current_user, print_stage, show_plan
from include.ground.kafka import delete_records_before
from include.ground.settings import CLONE, Settings, load_settings
from include.observe.processes import observe_stream
from include.plans.journal import plan_lock
from include.plans.plan import PlanRecord
from include.read.publication import find_publication
from include.read.published_sql import run_query
from include.read.published_tables import PinnedTables, pinned
from include.run.child_process import driver_environment, tethered
from include.run.start_stop import up
from include.state.process_states import WORKING_STATES
from include.state.run_files import bootstrap_servers

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


KILLS = 2


def demo_change() -> None:
    """Change the demo's flights while the feed runs: ship a release, compare, publish, roll back, replay.

    Needs `make demo` before. Exit code 0: the last audit is balanced; 1: it is not; 2: refused.
    """
    console, settings = Console(), load_settings()
    with demo_lock(settings):
        if find_publication(settings, "flights") is None:
            what = f"the flights of the demo are not in {settings.state}; nothing was changed"
            raise DemoRefused(what, "make demo", code="demo-not-run")
        up(settings, ["flights"], lambda _: None)
        with live_feed(settings):
            _ship_a_wrong_rule(console, settings)
            _replay_three_days(console, settings)
        balanced = _audit(console, settings)
    raise typer.Exit(0 if balanced else FAILED)


def _chapter(console: Console, title: str) -> None:
    console.print(f"\n[bold cyan]{title}[/]", highlight=False)


def _ship_a_wrong_rule(console: Console, settings: Settings) -> None:
    _chapter(console, "1  A change of include/datasets/flights/silver.py is shipped, while new flights arrive")
    console.print(f"  [green]+ {escape(RULE)}[/]", highlight=False, soft_wrap=True)
    _print_answer(console, settings)
    record = ReleasePlan().plan(
        settings_with_wrong_rule(settings), DATASET, ReleaseParameters(), current_user(), datetime.now(UTC)
    )
    show_plan(console, record)
    chapters = {
        "compare": "2  What would change, at the same bronze batch",
        "approve": "3  Approved anyway; the error is found; rolled back",
    }
    with plan_lock(settings, record.plan.id):
        reporter = ChapterReporter(console, settings, chapters)
        record = plan_stages.run_plan(settings, record, reporter, lambda _: "demo", "demo")
        _print_answer(console, settings)
        record = plan_stages.roll_back(settings, record, "demo")
        print_stage(console, record)
        _print_answer(console, settings)
        plan_stages.retire(settings, record, "demo")


class ChapterReporter(TerminalReporter):
    """Shows the stages of a plan as chapters of the demo; calls `on_built` when the build is complete."""

    def __init__(
        self,
        console: Console,
        settings: Settings,
        chapters: Mapping[str, str],
        on_built: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(console, settings)
        self._chapters, self._on_built = chapters, on_built

    def begin(self, stage: PlanStage) -> None:
        if stage.name in self._chapters:
            _chapter(self._console, self._chapters[stage.name])
        super().begin(stage)

    def done(self, stage: PlanStage, record: PlanRecord) -> None:
        super().done(stage, record)
        if stage.name == "build":
            self._on_built()


def _replay_three_days(console: Console, settings: Settings) -> None:
    _chapter(
        console,
        f"4  The records of three days, {DAYS[0]:%d %B} and following, are replayed; Kafka has deleted half of them",
    )
    days = three_days(pinned(settings))
    # As retention would: the first half of the days, and all before them.
    delete_records_before(bootstrap_servers(settings), DATASET, days.middle)
    record = ReplayPlan().plan(
        settings, DATASET, ReplayParameters(by="offsets", offsets=days.offsets), current_user(), datetime.now(UTC)
    )
    show_plan(console, record)
    killed: list[int] = []
    killer = threading.Thread(target=_kill_driver, args=(settings, killed))

    def on_built() -> None:
        killer.join()
        deaths = ", ".join(f"kill -9 {pid}" for pid in killed)
        console.print(f"  meanwhile the stream's driver was killed and restarted: {deaths}", highlight=False)

    with plan_lock(settings, record.plan.id):
        killer.start()
        reporter = ChapterReporter(console, settings, {}, on_built)
        record = run_plan(settings, record, reporter, lambda _: "demo", "demo")
    console.print(f"  {record.plan.id}: applied, {record.plan.about}", highlight=False, soft_wrap=True)


def _audit(console: Console, settings: Settings) -> bool:
    _chapter(console, "5  Is every record accounted for?")
    found = audit_dataset(settings, DATASET, partial(open_topic, bootstrap_servers(settings), jars=settings.jars))
    print_audits([found])
    console.print("next: [bold]headrace plan list[/], [bold]headrace plan show ID[/]", highlight=False)
    return found.balanced


def _kill_driver(settings: Settings, killed: list[int]) -> None:
    """Kill the stream's driver, and again after the runner has restarted it; return after the last restart."""
    for _ in range(KILLS):
        pid = _running_driver(settings, killed)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    _running_driver(settings, killed)


def _running_driver(settings: Settings, killed: Sequence[int]) -> int | None:
    """Wait for a running driver that was not killed and return its pid; None when the runner has given up."""
    while True:
        status = observe_stream(settings, DATASET)
        if status.state.terminal or (status.state in WORKING_STATES and status.pid not in killed):
            return status.pid
        time.sleep(0.2)


def _print_answer(console: Console, settings: Settings) -> None:
    answer = single_number(pinned(settings), NIGHT_DEPARTURES)
    console.print(f"  {escape(NIGHT_DEPARTURES.words)}  [bold]{answer:,}[/]", highlight=False, soft_wrap=True)
