"""The progress display of the demo: a live table, or one line every few seconds without a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from include.cli.status import UNKNOWN, number
from include.cli.terminal import Cell, table_of
from include.demo.watch import Rates, Snapshot, is_published
from include.ground.settings import Settings
from include.observe.processes import observe_process, observe_stream
from include.observe.progress import DatasetProgress
from include.producers.manifest import KindScore, Score
from include.state.process_states import CONSOLE, ProcessState

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
