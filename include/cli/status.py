"""`headrace status` and `headrace wait`: processes and progress; wait until everything is published."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from include.cli.main import FAILED
from include.cli.terminal import AsJson, line_console, print_json, table_of
from include.declare.dataset import dataset_names
from include.declare.event_times import utc_text
from include.ground.settings import Settings, load_settings
from include.observe.ledger_reader import open_reader
from include.observe.progress import (
    CatchUpProgress,
    DatasetProgress,
    DerivedProgress,
    Progress,
    observe_catch_up,
    observe_progress,
)
from include.observe.watermark import WatermarkStatus, watermark_json
from include.read.plain_values import iso_time
from include.state.lease_table import LeaseRow
from include.state.process_states import ProcessState, ProcessStatus, stream_name

POLL_SECONDS = 1.0
COLOURS = {"running": "green", "crashed": "bold red", "failed": "bold red", "stopped": "dim", "asleep": "dim"}
WELL = {ProcessState.RUNNING, ProcessState.ASLEEP}
UNKNOWN = "?"


def status(
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option(help="Refresh every second, until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option(help="Exit 1 when a process is neither running nor asleep.")] = False,
) -> None:
    """Show processes, batches, rates, lag, rows per layer and rejected records by reason."""
    settings = load_settings()
    ledger = open_reader(settings)
    progress = observe_progress(settings, ledger)
    if watch:
        watch_status(lambda: observe_progress(settings, ledger), as_json)
    elif as_json:
        print_json(progress_json(progress), indent=None)
    else:
        Console().print(progress_table(progress))
    if check and any(process.state not in WELL for process in progress.processes):
        raise typer.Exit(FAILED)


def watch_status(observe: Callable[[], Progress], as_json: bool) -> None:
    """Refresh every second until Ctrl-C; as JSON: one line per refresh."""
    with suppress(KeyboardInterrupt), Live(auto_refresh=False, console=Console(quiet=as_json)) as live:
        while True:
            progress = observe()
            if as_json:
                print_json(progress_json(progress), indent=None)
            live.update(progress_table(progress), refresh=True)
            time.sleep(POLL_SECONDS)


def progress_json(progress: Progress) -> dict[str, Any]:
    """Return progress as JSON values; unknown values are null, `notes` give the reasons."""
    return {
        "at": iso_time(progress.at),
        "processes": [process_json(process) for process in progress.processes],
        "datasets": {dataset.dataset: dataset_json(dataset) for dataset in progress.datasets},
        "derived": {derived.dataset: derived_json(derived) for derived in progress.derived},
        "leases": [lease_json(lease) for lease in progress.leases],
        "notes": list(progress.notes),
    }


def process_json(process: ProcessStatus) -> dict[str, Any]:
    """Return one process as JSON values; `next_try` is when the runner starts it again (UTC), null when it does not.

    A job of a plan also has its dataset, plan, start (UTC) and time limit in seconds; a stream, the driver that it
    shares with others.
    """
    return {
        "name": process.name,
        "pid": process.pid,
        "state": process.state.label,
        "detail": process.detail,
        "restarts": process.restarts,
        "last_error": process.last_error or None,
        "next_try": iso_time(process.next_try) if process.next_try else None,
        **process.facts,
    }


def lease_json(lease: LeaseRow) -> dict[str, Any]:
    """Return a lease in PostgreSQL as JSON values: who holds it, on which host, and when it expires unless renewed."""
    return {
        "name": lease.name,
        "role": lease.role,
        "host": lease.host,
        "pid": lease.pid,
        "epoch": lease.epoch,
        "since": iso_time(lease.since),
        "expires_in_seconds": round(lease.seconds_left, 1),
        "revoked": lease.is_revoked,
    }


def dataset_json(dataset: DatasetProgress) -> dict[str, Any]:
    """Return one dataset as JSON values; rates in rows/s, lag in offsets and seconds, rows per layer."""
    batches, lag = dataset.batches, dataset.lag
    return {
        "state": dataset.process.state.label,
        "reason": dataset.process.detail or None,
        "release": dataset.release,
        "folder_differs": dataset.folder_differs,
        "shadows": list(dataset.reported.shadows),
        "changes": [asdict(change) for change in dataset.changes],
        "batches": {"ingested": batches.ingested, "refined": batches.refined, "published": batches.published},
        "rates": dict(dataset.rates),
        "lag": {"offsets": lag.offsets, "seconds": lag.seconds, "in_open_transactions": lag.uncommitted},
        "watermark": watermark_json(dataset.watermark),
        "left_to_spark": dict(dataset.reported.left_to_spark),
        "event": dataset.reported.event,
        "rows": dict(dataset.rows),
        "rejected": dict(dataset.rejected),
        "warned": dict(dataset.warned),
        "last_batch": asdict(dataset.reported.last_batch) if dataset.reported.last_batch else {},
    }


def derived_json(derived: DerivedProgress) -> dict[str, Any]:
    """Return one derived dataset as JSON values; `behind` by source in published batches, null for all of them."""
    return {
        "state": derived.process.state.label,
        "reason": derived.process.detail or None,
        "release": derived.release,
        "folder_differs": derived.folder_differs,
        "run": derived.run,
        "behind": dict(derived.behind),
        "seconds_behind": derived.seconds,
        "rows": dict(derived.rows),
        "last_run": asdict(derived.last_run) if derived.last_run else {},
    }


def progress_table(progress: Progress) -> Group:
    """Return progress as tables: processes, datasets, rows per layer next to rejected, and unknown values.

    Datasets that were never started are only named.
    """
    progress, idle = without_idle(progress)
    notes = [f"[yellow]not known:[/] {escape(note)}" for note in progress.notes]
    rows = Columns([_rows_table(progress), _rejected_table(progress)], padding=(0, 4))
    events = [f"[yellow]{d.dataset}:[/] {escape(d.reported.event)}" for d in progress.datasets if d.reported.event]
    derived = [_derived_table(progress)] if progress.derived else []
    datasets = [_dataset_table(progress), *derived, rows] if progress.datasets or progress.derived else derived
    waiting = waiting_lines(progress)
    hint = [f"never started: {', '.join(idle)}   (headrace up {idle[0]})"] if idle else []
    leases = [_lease_table(progress)] if progress.leases else []
    return Group(
        _process_table(progress), *leases, *datasets, *changed_lines(progress), *waiting, *events, *notes, *hint
    )


def without_idle(progress: Progress) -> tuple[Progress, list[str]]:
    """Return progress without the datasets that have no release, topic or process yet, and their names."""
    idle = [each.dataset for each in progress.datasets if is_idle(each) and not each.rows.get("kafka")]
    idle += [each.dataset for each in progress.derived if is_idle(each)]
    shown = replace(
        progress,
        processes=tuple(each for each in progress.processes if each.name not in map(stream_name, idle)),
        datasets=tuple(each for each in progress.datasets if each.dataset not in idle),
        derived=tuple(each for each in progress.derived if each.dataset not in idle),
    )
    return shown, idle


def is_idle(each: DatasetProgress | DerivedProgress) -> bool:
    """Whether a dataset has no release, and its process is stopped."""
    return each.release is None and each.process.state is ProcessState.STOPPED


def changed_lines(progress: Progress) -> list[str]:
    """Return how folders differ from the releases that run, and how to ship them."""
    lines = []
    for dataset in progress.datasets:
        lines += [f"{dataset.dataset}: {c.table} {c.kind}, {escape(c.why)}" for c in dataset.changes]
        if dataset.changes:
            lines.append(f"  → headrace release plan --dataset {dataset.dataset}")
    return lines


def _process_table(progress: Progress) -> Table:
    rows = []
    for process in progress.processes:
        state = Text(process.state.label, COLOURS.get(process.state.label, "yellow"))
        pid, restarts = str(process.pid or "-"), str(process.restarts or "-")
        rows.append((process.name, state, pid, restarts, detail_text(process)))
    return table_of(("process", "state", "pid", "restarts", ""), rows, box=SIMPLE_HEAD)


def _lease_table(progress: Progress) -> Table:
    rows = []
    for lease in progress.leases:
        expires = "not renewed any more" if lease.is_revoked else f"in {lease.seconds_left:.0f} s unless renewed"
        rows.append((lease.name, f"{lease.role}, pid {lease.pid} on {lease.host}", str(lease.epoch), expires))
    return table_of(("lease", "held by", "epoch", "expires"), rows, box=SIMPLE_HEAD)


def detail_text(process: ProcessStatus) -> str:
    """Return a process's current detail, and why it ended before."""
    driver = str(process.facts.get("driver", ""))
    detail = ": ".join(filter(None, [driver and f"in {driver}", process.detail])) or process.state.meaning
    before = process.last_error
    return f"{detail}; before: {before}" if before and before not in detail else detail


def _dataset_table(progress: Progress) -> Table:
    """Return one column per dataset: release, last batches, rates and lag."""
    columns = [dataset_cells(dataset) for dataset in progress.datasets]
    names, rows = [dataset.dataset for dataset in progress.datasets], columns[0] if columns else {}
    return table_of(("", *names), ((row, *(cells[row] for cells in columns)) for row in rows), names, box=SIMPLE_HEAD)


def dataset_cells(dataset: DatasetProgress) -> dict[str, str | Text]:
    """Return the cells of one dataset, by row name."""
    b, lag = dataset.batches, dataset.lag
    return {
        "release": release_text(dataset),
        "shadow releases": ", ".join(dataset.reported.shadows) or "-",
        "ingested batch": number(b.ingested, "-"),
        "refined batch": number(b.refined, "-"),
        "published batch": number(b.published, "-"),
        "ingest rows/s": number(dataset.rates.get("ingest")),
        "refine rows/s": number(dataset.rates.get("refine")),
        "offsets behind": number(lag.offsets),
        "in open transactions": number(lag.uncommitted),
        "seconds behind": UNKNOWN if lag.seconds is None else f"{lag.seconds:,.1f}",
        "complete up to": watermark_text(dataset.watermark),
        "held by": holder_text(dataset.watermark),
        "merges left to Spark": number(sum(dataset.reported.left_to_spark.values())),
    }


def watermark_text(found: WatermarkStatus | None) -> str:
    """Return up to which event time a dataset is complete."""
    return "-" if found is None or found.watermark is None else utc_text(found.watermark)


def holder_text(found: WatermarkStatus | None) -> str:
    """Return which partition decides the watermark, and what it does."""
    holder = found.holder if found else None
    return "-" if holder is None else f"partition {holder.partition}, {holder.state}"


def waiting_lines(progress: Progress) -> list[str]:
    """Return what tables with `on_close` wait for, and which partition holds the watermark."""
    lines = []
    for dataset in progress.datasets:
        found = dataset.watermark
        if found is not None and found.waits:
            lines += [f"{dataset.dataset}: {escape(each.sentence)}" for each in found.waits]
            lines += [f"  {found.holder.sentence}"] if found.holder else []
    return lines


def _derived_table(progress: Progress) -> Table:
    """Return one row per derived dataset: release, last run, and the published batches that it has not used."""
    rows = []
    for each in progress.derived:
        behind = ", ".join(f"{source}: {number(count, 'all')}" for source, count in each.behind.items()) or "0"
        since = UNKNOWN if each.seconds is None else f"{each.seconds:,.1f}"
        rows.append((each.dataset, release_text(each), number(each.run, "-"), since, behind))
    columns = ("derived dataset", "release", "run", "seconds behind", "batches behind its sources")
    return table_of(columns, rows, ("run", "seconds behind"), box=SIMPLE_HEAD)


def release_text(dataset: DatasetProgress | DerivedProgress) -> Text:
    """Return the release, and whether the dataset's folder differs from it."""
    differs = (" (folder differs)", "yellow") if dataset.folder_differs else ""
    return Text("-") if dataset.release is None else Text.assemble(dataset.release, differs)


def _rows_table(progress: Progress) -> Table:
    """Return rows per layer, from Kafka (offsets) to gold."""
    rows = [
        (layer if "." in layer else f"{layer}.{dataset.dataset}", number(count))
        for dataset in progress.datasets
        for layer, count in dataset.rows.items()
    ]
    rows += [(name, number(count)) for derived in progress.derived for name, count in derived.rows.items()]
    return table_of(("table", "rows"), rows, ("rows",), box=SIMPLE_HEAD)


def _rejected_table(progress: Progress) -> Table:
    """Return rejected records by reason, the most frequent first, each under all of its reasons; then warnings."""
    rows: list[tuple[str, Text, str]] = []
    for dataset in progress.datasets:
        for reason, count in sorted(dataset.rejected.items(), key=lambda item: (-item[1], item[0])):
            rows.append((dataset.dataset, Text(reason), number(count)))
        for rule, count in sorted(dataset.warned.items()):
            rows.append((dataset.dataset, Text.assemble(rule, (" (warned)", "yellow")), number(count)))
    return table_of(("rejected", "reason", "rows"), rows, ("rows",), box=SIMPLE_HEAD)


def number(value: float | None, unknown: str = UNKNOWN) -> str:
    """Return a whole number with separators, `unknown` for None."""
    return unknown if value is None else f"{value:,.0f}"


def seconds(given: str | float) -> float:
    """Return a duration in seconds; NaN and infinity are usage errors."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"{given!r} is not a number of seconds")
    return value


def wait(
    caught_up: Annotated[bool, typer.Option("--caught-up", help="Wait until gold holds everything in Kafka.")] = False,
    timeout: Annotated[float, typer.Option(parser=seconds, metavar="SECONDS", help="Give up after this time.")] = 300.0,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this dataset; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Wait until everything readable in Kafka is published; exit 1 at the timeout or when waiting cannot help."""

    # Imported here: it evaluates gold's declarations, whose libraries triple the start of `headrace status`.
    from include.cli.grains import open_sentences

    if not caught_up:
        raise typer.BadParameter("give --caught-up: headrace wait --caught-up")
    console = line_console(stderr=True, markup=True)
    settings = load_settings()
    elapsed = await_caught_up(settings, dataset or [], timeout, as_json)
    if as_json:
        print_json({"caught_up": True, "seconds": round(elapsed, 1)})
        return
    console.print(f"[green]caught up[/] after {elapsed:.1f} s")
    for name in dataset or dataset_names(settings):
        for line in open_sentences(settings, name):
            console.print(f"  {line}", markup=False)


def await_caught_up(settings: Settings, datasets: list[str], timeout: float, as_json: bool = False) -> float:
    """Return the seconds until everything was published in two observations in a row; else Exit(1) with the backlog."""
    started, before = time.monotonic(), None
    while True:
        observed, elapsed = observe_catch_up(settings, datasets), time.monotonic() - started
        if observed.caught_up and before == observed.ends:
            return elapsed
        if observed.blocked_by and not observed.caught_up:
            fail(observed, f"waiting cannot help: {observed.blocked_by}", "headrace status, then headrace up", as_json)
        # After a first observation with everything published there is always a second one, whatever the timeout.
        if elapsed >= timeout and (before is not None or not observed.caught_up):
            fail(observed, f"not caught up after {timeout:g} s", "headrace status", as_json)
        before = observed.ends if observed.caught_up else None
        time.sleep(POLL_SECONDS / 2)


def fail(observed: CatchUpProgress, what: str, remedy: str, as_json: bool) -> None:
    """Print the reason, the backlog and the remedy; exit 1."""
    if as_json:
        print_json({"caught_up": False, "why": what, "next": remedy, **asdict(observed)})
        raise typer.Exit(FAILED)
    console = line_console(stderr=True, markup=True)
    console.print(f"[bold red]headrace:[/] {escape(what)}")
    for dataset, partitions in observed.behind.items():
        parts = ", ".join(f"partition {part}: {count:,}" for part, count in sorted(partitions.items()))
        console.print(f"  {dataset}: {sum(partitions.values()):,} offsets behind ({parts})")
    for dataset, uncommitted in observed.uncommitted.items():
        parts = ", ".join(f"partition {part}: {count:,}" for part, count in sorted(uncommitted.items()))
        why = "Kafka aborts it after its producer's transaction.timeout.ms"
        console.print(f"  {dataset}: {sum(uncommitted.values()):,} offsets in an open transaction ({parts}); {why}")
    for derived, sources in observed.unfollowed.items():
        parts = ", ".join(f"{source}: {number(count, 'all')}" for source, count in sources.items())
        console.print(f"  {derived}: batches of its sources not used yet: {parts}")
    for dataset, tables in observed.unrefreshed.items():
        parts = ", ".join(f"{table} has batch {batch:,}" for table, batch in tables.items())
        console.print(f"  {dataset}: not refreshed yet: {parts}")
    for note in observed.unknown:
        console.print(f"  not known: {escape(note)}")
    console.print(f"  → {remedy}")
    raise typer.Exit(FAILED)
