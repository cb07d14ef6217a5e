"""`headrace demo`: a year of real flights from Kafka to gold, with queries, a score and an audit."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from demo.feed import FeedSender, demo_runs, finished_records, open_topics
from demo.questions import answer_questions, audits, scores
from demo.state import (
    DemoRefused,
    demo_lock,
    removal_interrupted,
    remove_state,
    require_fit_machine,
    require_own_state,
)
from demo.watch import Rates, Snapshot, StallDetector, is_published, poll_snapshots, snapshot_reader, watch
from include.cli.audit import print_audits
from include.cli.main import FAILED, INTERRUPTED
from include.cli.query import print_table
from include.cli.status import UNKNOWN, number
from include.cli.terminal import Cell, table_of, utc_time
from include.cli.up import print_progress
from include.ground.errors import HeadraceError
from include.ground.settings import Settings, load_settings
from include.observe.processes import observe_process, observe_stream
from include.observe.progress import DatasetProgress
from include.producers.manifest import KindScore, Score
from include.producers.sending import Run
from include.read.published_tables import PinnedTables, pinned
from include.run.airflow_process import down_airflow
from include.run.start_stop import down, up
from include.state.process_states import CONSOLE, ProcessState
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


LINE_SECONDS = 5.0
HEADRACE = ".venv/bin/headrace"
WELL = {ProcessState.RUNNING}
STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False}

Show = Callable[[Snapshot, Rates], None]


@contextmanager
def progress_display(console: Console, began: float, line_every: float = LINE_SECONDS) -> Iterator[Show]:
    """Yield a function that shows a snapshot: a live table, or without a terminal a line every `line_every` seconds."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda snapshot, rates: live.update(live_table(snapshot, rates, snapshot.at - began), refresh=True)
        return
    printed_at = float("-inf")

    def print_line(snapshot: Snapshot, rates: Rates) -> None:
        nonlocal printed_at
        if snapshot.done or snapshot.at - printed_at >= line_every:
            printed_at = snapshot.at
            console.print(progress_line(snapshot, rates, snapshot.at - began), highlight=False, soft_wrap=True)

    yield print_line


def live_table(snapshot: Snapshot, rates: Rates, seconds: float) -> RenderableType:
    """Return rates, lag and rows per layer, one column per dataset, next to rejected records by reason."""
    names = [each.dataset for each in snapshot.datasets]
    columns = [cells(snapshot, rates, each) for each in snapshot.datasets]
    rows = [(row, *(column[row] for column in columns)) for row in (columns[0] if columns else ())]
    reasons = sum((Counter(dataset.rejected) for dataset in snapshot.datasets), Counter[str]())
    both = Table.grid(padding=(0, 3))
    both.add_row(
        table_of((f"after {seconds:,.0f} s", *names), rows, names, **STYLE),
        table_of(("rejected for", "records"), reasons.most_common(), **STYLE),
    )
    return Group(both, *(f"[yellow]{escape(remark)}[/]" for remark in remarks(snapshot)))


def cells(snapshot: Snapshot, rates: Rates, dataset: DatasetProgress) -> dict[str, str]:
    """Return the cells of one dataset, by row name."""
    name, rows, lag = dataset.dataset, dataset.rows, dataset.lag
    gold = [count or 0 for table, count in rows.items() if table.startswith("gold.")]
    return {
        "sent": sent_text(snapshot, name),
        "in Kafka": number(rows["kafka"]),
        "bronze": bronze_text(snapshot, dataset),
        "silver": number(rows["silver"]),
        "rejected": number(rows["rejected"]),
        "gold rows": number(sum(gold)),
        "into Kafka, per s": number(rates.kafka.get(name)),
        "to gold, per s": number(rates.refined.get(name)),
        "behind, records": number(lag.offsets),
        "behind, seconds": UNKNOWN if lag.seconds is None else f"{lag.seconds:,.1f}",
        "published batch": "-" if dataset.batches.published is None else number(dataset.batches.published),
    }


def bronze_text(snapshot: Snapshot, dataset: DatasetProgress) -> str:
    """Return the records in bronze, from the ledger or from the driver's status, which may be ahead."""
    return number(max(dataset.rows["bronze"] or 0, snapshot.ingested.get(dataset.dataset, 0)))


def sent_text(snapshot: Snapshot, name: str) -> str:
    """Return the sent share of a feed, or its state while the total is unknown."""
    fed = snapshot.fed[name]
    if fed.total is None:
        return "deriving" if all(other.finished for other in snapshot.fed.values() if other is not fed) else "next"
    return "all" if fed.finished else f"{fed.sent / max(fed.total, 1):.0%}"


def remarks(snapshot: Snapshot) -> list[str]:
    """Return a sentence for each process that is not running, and for each unknown value."""
    others = [process for process in snapshot.processes if process.state not in WELL]
    return [f"{p.name}: {p.state.label}, {p.detail or p.state.meaning}" for p in others] + [
        f"unknown: {note}" for note in snapshot.progress.notes
    ]


def progress_line(snapshot: Snapshot, rates: Rates, seconds: float) -> str:
    """Return a snapshot as one line of markup."""
    texts = [dataset_text(snapshot, rates, dataset) for dataset in snapshot.datasets]
    return escape(" | ".join([f"{seconds:4.0f} s", *texts, *remarks(snapshot)]))


def dataset_text(snapshot: Snapshot, rates: Rates, dataset: DatasetProgress) -> str:
    """Return a dataset's progress as text."""
    name, rows = dataset.dataset, dataset.rows
    refined = f"silver {number(rows['silver'])}, rejected {number(rows['rejected'])}"
    if snapshot.fed[name].finished and is_published(dataset):
        return f"{name}: all published, {refined}"
    bronze = bronze_text(snapshot, dataset)
    progress = f"{number(rates.refined.get(name))}/s, behind {number(dataset.lag.offsets)}"
    sent = sent_text(snapshot, name)
    return f"{name}: sent {sent}, Kafka {number(rows['kafka'])}, bronze {bronze}, {refined}, {progress}"


def score_table(found: Mapping[str, Score]) -> Table:
    """Return injected and found faults, a row per fault and reason, and one per kind that was not found correctly."""
    rows = list[Sequence[Cell]]()
    groups: dict[tuple[str, str], list[KindScore]] = {}
    for kind in (kind for score in found.values() for kind in score.kinds):
        groups.setdefault((kind.fault, kind.reason), []).append(kind)
    for (fault, reason), kinds in groups.items():
        named = kinds[0].kind if len(kinds) == 1 else f"{len(kinds)} kinds"
        rows.append((f"{fault}: {named}", reason, *counts_of(kinds)))
        wrong = [kind for kind in kinds if correctly_found(kind) != kind.expected]
        cells = ((f"  {kind.kind}", reason, *map(number, counts_of([kind]))) for kind in wrong)
        rows += [[Text(cell, "bold red") for cell in each] for each in cells]
    counts = ("records", "found", "not found")
    return table_of(("injected", "expected reason", *counts), rows, counts, **STYLE)


def correctly_found(kind: KindScore) -> int:
    """Return the number of records that were rejected for the right reason."""
    return kind.found - kind.wrong_reason


def counts_of(kinds: Sequence[KindScore]) -> tuple[int, int, int]:
    """Return injected records, those found for the right reason, and the others."""
    injected, right = sum(kind.expected for kind in kinds), sum(map(correctly_found, kinds))
    return injected, right, injected - right


def verdict(feed: str, score: Score) -> str:
    """Return a score as a sentence of markup."""
    if score.perfect:
        twice = f"; {score.excused:,} more are in a chunk that was sent twice after a crash" if score.excused else ""
        good = f"{score.expected:,} injected, {score.found:,} found, each for its reason, none wrongly rejected{twice}"
        return f"{feed}: [bold green]{good if score.expected else 'none injected, none rejected'}[/]"
    first = ", ".join(f"{topic}/{part}/{offset}" for topic, part, offset in score.examples[:5])
    return (
        f"{feed}: [bold red]{score.missed:,} missed, {score.wrong_reason:,} for another reason, "
        f"{score.wrongly_rejected:,} wrongly rejected[/], of {score.expected:,} injected; the first: {escape(first)}"
    )


def suggestions(settings: Settings) -> list[tuple[str, str]]:
    """Return commands to try next, each with a description."""
    driver = observe_stream(settings, "flights").pid
    console = observe_process(settings, CONSOLE)
    page = [(console.detail, "the same in a browser: the console")] if console.state is ProcessState.RUNNING else []
    return [
        *page,
        (f"{HEADRACE} status", "processes, batches, rates, lag; --watch refreshes every second"),
        (f'{HEADRACE} query "SELECT * FROM gold.worst_delays ORDER BY departure_delay DESC LIMIT 3"', "any SELECT"),
        (f"{HEADRACE} rejected list --limit 5", "rejected records, with their reasons and payloads"),
        (f"{HEADRACE} produce flights --to 2013-02-01 --corrupt 1%", "the same events again: all become duplicates"),
        (f"kill -9 {driver}; {HEADRACE} status --watch", "kill the driver of the flights; the runner restarts it"),
        (f"{HEADRACE} audit", "is still every record accounted for?"),
        (f"{HEADRACE} down", "stop the streams and the broker; make demo starts them again"),
    ]
