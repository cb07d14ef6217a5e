"""`headrace demo-change`: a wrong rule shipped, seen, taken back; three days replayed; every record accounted for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from include.cli.comparison_table import show_comparison
from include.cli.plan_command import current_user, show_plan

if TYPE_CHECKING:
    from include.planning.plan import PlanRecord
    from include.settings import Settings

DEATHS = 2


def demo_change() -> None:
    """Change the flights of the demo as code is changed, with the feed running: ship, compare, promote, undo, replay.

    Needs `make demo` before. Exit code 0: the last audit is balanced; 1: it is not; 2: refused.
    """
    from include.demo.demo_changes import NoDemo, feed_running
    from include.demo.demo_state import sole_demo
    from include.process_control.start_stop import up
    from include.reading.publication import find_publication
    from include.settings import load_settings

    console, settings = Console(), load_settings()
    with sole_demo(settings):
        if find_publication(settings, "flights") is None:
            raise NoDemo(settings.state)
        up(settings, ["flights"], lambda _: None)
        with feed_running(settings):
            _ship_a_wrong_rule(console, settings)
            _replay_three_days(console, settings)
        balanced = _account_for_all(console, settings)
    raise typer.Exit(0 if balanced else 1)


def _chapter(console: Console, title: str) -> None:
    console.print(f"\n[bold cyan]{title}[/]", highlight=False)


def _ship_a_wrong_rule(console: Console, settings: Settings) -> None:
    from include.demo.demo_changes import DATASET, RULE, with_wrong_rule
    from include.planning import plan_stages
    from include.planning.plan_journal import plan_lock
    from include.planning.release_plan import plan_release

    _chapter(console, "1  Somebody ships a change of include/datasets/flights/silver.py, while new flights come in")
    console.print(f"  [green]+ {escape(RULE)}[/]", highlight=False, soft_wrap=True)
    _ask(console, settings)
    record = plan_release(with_wrong_rule(settings), DATASET, *current_user())
    show_plan(console, record)
    with plan_lock(settings, record.plan.id):
        record = _timed(console, "built beside production", lambda: _built(console, settings, record))
        _chapter(console, "2  What would change, at the same bronze batch")
        record, found = plan_stages.compare_built(settings, record, "demo", _silent)
        show_comparison(console, found.as_json(), samples=False)
        _chapter(console, "3  Approved all the same; noticed; taken back")
        plan_stages.approve(settings, record, "demo")
        record = _timed(
            console, "readers see it", lambda: plan_stages.apply(settings, _fresh(settings, record), "demo")
        )
        _ask(console, settings)
        record = _timed(console, "taken back", lambda: plan_stages.roll_back(settings, record, "demo"))
        _ask(console, settings)
        plan_stages.retire(settings, record, "demo")


def _replay_three_days(console: Console, settings: Settings) -> None:
    from include.demo.demo_changes import DATASET, DAYS, forget, three_days
    from include.planning import plan_stages
    from include.planning.plan_journal import plan_lock
    from include.planning.slice_plan import AUTO, ReplayRange, plan_replay
    from include.reading import pinned
    from include.state.broker_address import bootstrap_servers

    _chapter(
        console, f"4  The records of three days, {DAYS[0]:%d %B} and following, again; Kafka has deleted half of them"
    )
    days = three_days(pinned(settings))
    forget(bootstrap_servers(settings), days)
    record = plan_replay(settings, DATASET, ReplayRange(offsets=days.offsets), AUTO, *current_user())
    show_plan(console, record)
    with plan_lock(settings, record.plan.id):
        killed: list[int] = []
        killer = threading.Thread(target=_kill_driver, args=(settings, killed))
        killer.start()
        record = _built(console, settings, record)
        killer.join()
        deaths = ", ".join(f"kill -9 {pid}" for pid in killed)
        console.print(f"  done again, while the stream's driver died and was brought back: {deaths}", highlight=False)
        record, found = plan_stages.compare_built(settings, record, "demo", _silent)
        rows = sum(table.new_rows for table in found.tables)
        console.print(
            f"  {rows:,} rows of {len(found.tables)} tables compared: [bold]{found.verdict}[/]", highlight=False
        )
        plan_stages.approve(settings, record, "demo")
        plan_stages.apply(settings, _fresh(settings, record), "demo")
    console.print(f"  {record.plan.id}: applied, {record.plan.about}", highlight=False, soft_wrap=True)


def _account_for_all(console: Console, settings: Settings) -> bool:
    from functools import partial

    from include.audit.audit_run import audit_dataset
    from include.audit.kafka_records import open_topic
    from include.cli.audit_command import print_audits
    from include.demo.demo_changes import DATASET
    from include.state.broker_address import bootstrap_servers

    _chapter(console, "5  Is every record accounted for?")
    found = audit_dataset(settings, DATASET, partial(open_topic, bootstrap_servers(settings)))
    print_audits([found])
    console.print("next: [bold]headrace plan list[/], [bold]headrace plan show ID[/]", highlight=False)
    return found.balanced


def _kill_driver(settings: Settings, killed: list[int]) -> None:
    """Kill the stream's driver, and again when the runner has brought it back; return when it is back once more."""
    for _ in range(DEATHS):
        pid = _driver_at_work(settings, killed)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    _driver_at_work(settings, killed)


def _driver_at_work(settings: Settings, killed: Sequence[int]) -> int | None:
    """Return the driver's pid as soon as one that was not killed is at work, None when the runner gave it up."""
    from include.demo.demo_changes import DATASET
    from include.state.process_states import WORKING_STATES
    from include.status.process_status import observe_stream

    while True:
        status = observe_stream(settings, DATASET)
        if status.state.terminal or (status.state in WORKING_STATES and status.pid not in killed):
            return status.pid
        time.sleep(0.2)


def _built(console: Console, settings: Settings, record: PlanRecord) -> PlanRecord:
    from include.planning import plan_stages

    with console.status("building beside production") as shown:

        def say(said: Mapping[str, Any]) -> None:
            if "of" in said:
                shown.update(f"building beside production: {said['at']}, {said['done']} of {said['of']}")

        return plan_stages.build(settings, record, "demo", say)


def _ask(console: Console, settings: Settings) -> None:
    from include.demo.demo_changes import NIGHT, number
    from include.reading import pinned

    console.print(
        f"  {escape(NIGHT.words)}  [bold]{number(pinned(settings), NIGHT):,}[/]", highlight=False, soft_wrap=True
    )


def _timed(console: Console, what: str, act: Callable[[], PlanRecord]) -> PlanRecord:
    began = time.monotonic()
    record = act()
    at = record.events[-1].facts.get("batch")
    console.print(f"  {what} after {time.monotonic() - began:.1f} s, at bronze batch {at}", highlight=False)
    return record


def _fresh(settings: Settings, record: PlanRecord) -> PlanRecord:
    from include.planning.plan_journal import load_plan

    return load_plan(settings, record.plan.id)


def _silent(_: object) -> None:
    """Say nothing: the story is one screen."""
