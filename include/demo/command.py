"""`headrace demo`: a year of real flights from Kafka to gold, with queries, a score and an audit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from include.cli.audit import print_audits
from include.cli.main import FAILED, INTERRUPTED
from include.cli.query import print_table
from include.cli.terminal import utc_time
from include.cli.up import print_progress
from include.demo.display import progress_display, score_table, suggestions, verdict
from include.demo.feed import FeedSender, demo_runs, finished_records, open_topics
from include.demo.questions import answer_questions, audits, scores
from include.demo.state import (
    DemoRefused,
    demo_lock,
    removal_interrupted,
    remove_state,
    require_fit_machine,
    require_own_state,
)
from include.demo.watch import StallDetector, poll_snapshots, snapshot_reader, watch
from include.ground.errors import HeadraceError
from include.ground.settings import Settings, load_settings
from include.producers.sending import Run
from include.read.published_tables import PinnedTables, pinned
from include.run.airflow_process import down_airflow
from include.run.start_stop import down, up
from include.state.run_files import bootstrap_servers

STOPPED = (
    "stopped: nothing is lost, the streams keep running; the same command continues here, headrace down stops them"
)


def demo(
    fresh: Annotated[bool, typer.Option("--fresh", help="Stop the streams and remove the state folder first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without a confirmation.")] = False,
    since: Annotated[
        datetime | None, typer.Option("--from", parser=utc_time, metavar="TIME", help="First event time, UTC.")
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option("--to", parser=utc_time, metavar="TIME", help="End of the event times, exclusive, UTC."),
    ] = None,
    weather: Annotated[bool, typer.Option("--weather", help="Also run the weather, a second stream.")] = False,
) -> None:
    """Run the flights of 2013, with injected faults, from Kafka to gold; then queries, score, audit.

    In the same state folder nothing is sent twice: a stopped demo continues, a finished one shows its results again.
    Exit code 0: exactly the injected faults rejected and the audit balanced; 1: not; 2: refused; 130: Ctrl-C.
    """
    console = Console()
    try:
        good = _run_demo(console, fresh, yes, demo_runs(since, until, weather=weather))
    except KeyboardInterrupt:
        console.print(STOPPED, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if good else FAILED)


def _run_demo(console: Console, fresh: bool, yes: bool, runs: Sequence[Run]) -> bool:
    began, settings = time.monotonic(), load_settings()
    require_fit_machine()
    removing = fresh or removal_interrupted(settings)
    if fresh and not removal_interrupted(settings):
        _confirm_removal(settings, yes)
    with demo_lock(settings):
        try:
            if removing:
                _remove(console, settings)
            for run in runs:
                finished_records(settings, run)
            return _run_steps(console, settings, runs, began)
        except DemoRefused:
            raise
        except HeadraceError as error:
            text = f"[bold red]headrace:[/] {escape(str(error))}"
            Console(stderr=True, soft_wrap=True).print(text, highlight=False)
            return False


def _confirm_removal(settings: Settings, yes: bool) -> None:
    require_own_state(settings)
    if settings.state.exists() and not yes:
        typer.confirm(f"Stop the streams of {settings.state} and remove everything in it?", abort=True)


def _remove(console: Console, settings: Settings) -> None:
    def report(line: str) -> None:
        print_progress(console, line)

    def stop() -> None:
        down_airflow(settings, report)
        down(settings, report)

    remove_state(settings, stop)
    console.print(f"emptied {escape(str(settings.state))}", highlight=False, soft_wrap=True)


def _run_steps(console: Console, settings: Settings, runs: Sequence[Run], began: float) -> bool:
    """Run all steps; return whether the score is perfect and the audit balanced."""
    names, sender = " and ".join(run.feed.name for run in runs), FeedSender(settings, runs)
    with _sending(sender):
        _chapter(console, f"1  A broker, and a stream for {names}")
        _start_streams(console, settings, runs, sender)
        _chapter(console, f"2  The {names} of 2013 from Kafka to gold, with injected faults")
        _watch(console, settings, sender, began)
    reading = pinned(settings)
    _chapter(console, "3  Answers from gold")
    _answer(console, reading)
    _chapter(console, "4  Was every injected fault rejected for its reason, and nothing else?")
    perfect = _score(console, settings, runs, reading)
    _chapter(console, "5  Is every record of Kafka accounted for? Counted from outside, without Spark")
    balanced = _audit(console, settings, runs)
    _chapter(console, f"6  Done after {time.monotonic() - began:.0f} s. The streams stay up; next steps")
    _suggest(console, settings)
    return perfect and balanced


def _chapter(console: Console, title: str) -> None:
    console.print(f"\n[bold cyan]{title}[/]", highlight=False)


def _start_streams(console: Console, settings: Settings, runs: Sequence[Run], sender: FeedSender) -> None:
    """Start broker and streams; sending begins as soon as the broker is up."""

    def begin() -> None:
        bootstrap = bootstrap_servers(settings)
        open_topics(settings, runs, bootstrap)
        sender.open(bootstrap)

    up(settings, [run.feed.name for run in runs], lambda line: print_progress(console, line), begin)


def _watch(console: Console, settings: Settings, sender: FeedSender, began: float) -> None:
    if sender.finished_earlier:
        console.print(f"{sender.sent:,} records were sent by an earlier demo; nothing is sent again", highlight=False)
    with progress_display(console, began) as show:
        snapshot = watch(
            poll_snapshots(snapshot_reader(settings, sender)), StallDetector(settings), show, sender.raise_error
        )
    records, seconds = sender.sent - sender.found, snapshot.at - began
    if records:
        rate = f"{records / seconds:,.0f} a second, deriving, sending and the start of the streams included"
        console.print(f"{records:,} records are in gold, or rejected, after {seconds:.1f} s: {rate}", highlight=False)


@contextmanager
def _sending(sender: FeedSender) -> Iterator[None]:
    """Send in the background; Ctrl-C waits until sent records are in the manifest, a second Ctrl-C does not."""
    sender.start()
    try:
        yield
    finally:
        try:
            sender.stop()
        except KeyboardInterrupt:
            # An ordinary exit would wait for the thread, which is inside a library; the journal survives a kill.
            os._exit(INTERRUPTED)


def _answer(console: Console, reading: PinnedTables) -> None:
    for question, answer in answer_questions(reading):
        console.print(f"\n[bold]{escape(question.words)}[/]", highlight=False)
        console.print(escape(question.sql), style="dim", highlight=False, soft_wrap=True)
        print_table(answer, limit=10)


def _score(console: Console, settings: Settings, runs: Sequence[Run], reading: PinnedTables) -> bool:
    found = scores(settings, runs, reading)
    console.print(score_table(found))
    for feed, score in found.items():
        console.print(verdict(feed, score), highlight=False, soft_wrap=True)
    return all(score.perfect for score in found.values())


def _audit(console: Console, settings: Settings, runs: Sequence[Run]) -> bool:
    with console.status("audit") as shown:
        found = audits(settings, runs, bootstrap_servers(settings), shown.update)
    print_audits(found)
    return all(audit.balanced for audit in found)


def _suggest(console: Console, settings: Settings) -> None:
    for command, why in suggestions(settings):
        console.print(f"  [bold]{escape(command)}[/]", f"[dim]{escape(why)}[/]", sep="\n      ", soft_wrap=True)
