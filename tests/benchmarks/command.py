"""`headrace bench`: measure the platform in temporary state folders, and compare results."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.event_supply import FEEDS
from benchmarks.machine import this_machine
from benchmarks.page import as_page, as_plot
from benchmarks.peer_run import PEERS, PeerOptions, measured_peers
from benchmarks.plan import Mode, RunOptions, measured_runs
from benchmarks.result import BenchResult, Measurement, benchmarks_path, read_result, write_result
from benchmarks.state import SOURCES, LogLine
from benchmarks.table import as_text
from include.cli.main import FAILED, INTERRUPTED
from include.ground.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Measure the platform on this machine, in state folders of its own.")
SHORT = (Mode.cold, Mode.drain, Mode.latency, Mode.audit)
"""Measured when no mode is named: the others take several minutes a run."""
Measure = Callable[[LogLine], Iterable[Measurement]]
Baseline = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", exists=True, help="Compare with this earlier result.")
]
Runs = Annotated[int, typer.Option(min=1, help="Runs; each has a new broker and driver and measures all datasets.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the state folders of the runs.")]
WarmUp = Annotated[int, typer.Option(min=2_000, help="Events before anything but the cold start is measured.")]
Events = Annotated[int, typer.Option(min=1, help="Events of a drain.")]


@app.callback()
def bench() -> None:
    """Measure the platform on this machine, in state folders of its own."""


@app.command()
def run(
    modes: Annotated[
        list[Mode] | None, typer.Argument(help="What to measure; cold, drain, latency and audit if not given.")
    ] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="flights, ad_events, checkouts; repeatable. The first two if not given."),
    ] = None,
    runs: Runs = 5,
    warm_up: WarmUp = 3_000_000,
    events: Events = 2_000_000,
    rates: Annotated[
        list[float] | None,
        typer.Option("--rate", min=1, help="Events per second of a latency, repeatable; 2000 and 20000 if not given."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each latency.")] = 60,
    lowest: Annotated[float, typer.Option(min=1, help="Sustained: where the search for a rate begins.")] = 20_000,
    highest: Annotated[float, typer.Option(min=1, help="Sustained: where it ends; the same for one trial.")] = 200_000,
    trial_seconds: Annotated[float, typer.Option(min=1, help="Sustained: seconds of each trial.")] = 60,
    batches: Annotated[int, typer.Option(min=4, help="Growth: batches that are published one by one.")] = 400,
    meanwhile: Annotated[float, typer.Option(min=1, help="Rebuild: events per second meanwhile.")] = 2_000,
    baseline: Baseline = None,
    keep: Keep = False,
) -> None:
    """Measure modes, several times each: medians with their spread, goals, and the ratio to an earlier result.

    cold: from the driver's start to its first publication. drain: events/s and CPU of a warm driver. latency: from
    Kafka timestamp to publication in an open loop. sustained: the highest rate at which the lag stays flat. growth:
    what a small run costs at first, and after many batches. rebuild: a release over all records while the stream runs.
    audit: records/s of the audit, and seconds of one right after it.

    Exit code 0: measured, whether or not a goal was met; 1: a figure is invalid, because rows are missing, surplus or
    wrong; 2: nothing was measured; 130: Ctrl-C, everything is removed.
    """
    options = RunOptions(
        modes=frozenset(modes or SHORT),
        datasets=known_datasets(datasets),
        runs=runs,
        warm_up=warm_up,
        events=events,
        rates=tuple(rates or (2_000, 20_000)),
        seconds=seconds,
        between=(lowest, highest),
        trial_seconds=trial_seconds,
        batches=batches,
        meanwhile=meanwhile,
        keep=keep,
    )
    _bench(lambda log: measured_runs(options, log), baseline)


@app.command()
def peers(
    names: Annotated[list[str] | None, typer.Argument(help="Peers; all if not given.", metavar="[PEER]…")] = None,
    runs: Runs = 5,
    warm_up: WarmUp = 3_000_000,
    events: Events = 2_000_000,
    baseline: Baseline = None,
    keep: Keep = False,
) -> None:
    """Measure hand-written jobs next to the platform: the same events of `ad_events`, the same silver and gold.

    Every system is warm, drains the same offsets of one topic, and is compared with the same oracle. The jobs are in
    tests/benchmarks/peers. Exit codes are those of `bench run`.
    """
    options = PeerOptions(known_peers(names), runs, warm_up, events, keep)
    _bench(lambda log: measured_peers(options, log), baseline)


@app.command()
def show(
    result: Annotated[Path, typer.Argument(exists=True, metavar="FILE", help="A result that bench wrote.")],
    baseline: Baseline = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Also draw rates and CPU of all systems as an image.")
    ] = None,
) -> None:
    """Show a stored result, optionally compared with another, or drawn."""
    console = Console()
    if svg is not None:
        svg.write_text(as_plot(read_result(result)), "utf-8")
    console.print(as_text(read_result(result), read_result(baseline) if baseline else None), highlight=False)


def known_datasets(names: list[str] | None) -> tuple[str, ...]:
    """Return the datasets to measure, each once. Raises typer.BadParameter for one that cannot be measured."""
    for name in names or ():
        if name not in FEEDS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(FEEDS)}", param_hint="--dataset")
    return tuple(dict.fromkeys(names or SOURCES))


def known_peers(names: list[str] | None) -> tuple[str, ...]:
    """Return the peers whose name contains one of the words. Raises typer.BadParameter for a word that none has."""
    for name in names or ():
        if not any(name.lower() in peer.lower() for peer in PEERS):
            raise typer.BadParameter(f"{name!r} is in the name of no peer: {'; '.join(PEERS)}", param_hint="PEER")
    return tuple(peer for peer in PEERS if not names or any(name.lower() in peer.lower() for name in names))


def _bench(measure: Measure, baseline: Path | None) -> None:
    """Measure, write the result to the state folder, print it and exit."""
    console, settings = Console(), load_settings()
    earlier = read_result(baseline) if baseline else None
    # SIGTERM must stop the broker and the driver, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log, path = partial(console.print, highlight=False, markup=False, soft_wrap=True), None
    try:
        for result in growing_result(measure, log):
            if path is None:
                log(f"results so far: {benchmarks_path(settings)}")
            path = write_result(settings, result)
    except KeyboardInterrupt:
        log(f"stopped: what was measured is in {path}" if path else "stopped: nothing was measured")
        raise typer.Exit(INTERRUPTED) from None
    if path is None:
        raise typer.Exit(FAILED)
    console.print(as_text(result, earlier), highlight=False)
    page = path.with_suffix(".html")
    page.write_text(as_page(result), "utf-8")
    console.print(f"result: {path}\npage: {page}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(0 if result.is_valid else FAILED)


def growing_result(measure: Measure, log: LogLine) -> Iterator[BenchResult]:
    """Yield after each measurement all of them as a result, with the machine as it was before."""
    machine, at = this_machine(), datetime.now(UTC)
    command = shlex.join([".venv/bin/headrace", *sys.argv[1:]])
    measurements = list[Measurement]()
    for measurement in measure(log):
        measurements.append(measurement)
        yield BenchResult(command=command, at=at, machine=machine, measurements=tuple(measurements))
