"""`headrace bench`: measure the platform, in a temporary state folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from include.audit.audit_run import audit_dataset
from include.audit.kafka_records import open_topic
from include.bench.bench_changes import measure_changes
from include.bench.bench_events import EventSupply
from include.bench.bench_latency import measure_latency
from include.bench.bench_machine import this_machine
from include.bench.bench_report import Report, as_json, as_text
from include.bench.bench_state import DATASET, running_stream, temporary_state
from include.bench.bench_throughput import measure_throughput, warm_up
from include.cli.exit_codes import FAILED, INTERRUPTED
from include.cli.option_types import output_file
from include.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Measure the platform on this machine, in a state folder of its own.")


class BenchPart(StrEnum):
    """The measured parts."""

    both = "both"
    throughput = "throughput"
    latency = "latency"


@app.callback()
def bench() -> None:
    """Measure the platform on this machine, in a state folder of its own."""


@app.command()
def demo(
    part: Annotated[BenchPart, typer.Option("--only", help="Measure only this.")] = BenchPart.both,
    warm_up: Annotated[int, typer.Option(min=1, help="Events before anything is measured.")] = 3_000_000,
    events: Annotated[int, typer.Option(min=1, help="Events of the throughput.")] = 2_000_000,
    rate: Annotated[float, typer.Option(min=1, help="Events per second of the latency.")] = 2_000,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of the latency.")] = 120,
    json_file: Annotated[
        Path | None, typer.Option("--json", parser=output_file, metavar="FILE", help="Also write the figures here.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the state folder.")] = False,
) -> None:
    """Measure the flights from topic to gold: events per second, cost by process and step, latency at a steady rate.

    Figures are shown with their targets. Exit code 0: measured, whether or not a target was met; 1: the audit of the
    measured records is not balanced; 2: nothing was measured; 130: Ctrl-C, everything is removed.
    """
    options = f"--warm-up {warm_up} --events {events} --rate {rate:g} --seconds {seconds:g}"
    _bench(f"bench demo --only {part} {options}", part, (warm_up, events), (rate, seconds), json_file, keep)


@app.command()
def change(
    warm_up: Annotated[int, typer.Option(min=1, help="Events before anything is measured.")] = 1_000_000,
    events: Annotated[int, typer.Option(min=1, help="Events of the live rate.")] = 1_000_000,
    rate: Annotated[float, typer.Option(min=1, help="Events per second of the latencies.")] = 8_000,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each latency.")] = 90,
    json_file: Annotated[
        Path | None, typer.Option("--json", parser=output_file, metavar="FILE", help="Also write the figures here.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the state folder.")] = False,
) -> None:
    """Measure changing history: rebuild rate, the stream's latency during rebuilds, promotion and rollback.

    Exit codes are those of `bench demo`.
    """
    options = f"--warm-up {warm_up} --events {events} --rate {rate:g} --seconds {seconds:g}"
    _bench(f"bench change {options}", None, (warm_up, events), (rate, seconds), json_file, keep)


def _bench(
    command: str,
    part: BenchPart | None,
    counts: tuple[int, int],
    steady: tuple[float, float],
    json_file: Path | None,
    keep: bool,
) -> None:
    """Measure a part of the demo, or without one changing history; print the report and exit."""
    console = Console()
    # SIGTERM must stop the broker and the driver, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if json_file is not None:
        json_file.open("a").close()
    try:
        report = _measure(console, f".venv/bin/headrace {command}", part, counts, steady, keep)
    except KeyboardInterrupt:
        console.print("stopped: nothing was measured")
        raise typer.Exit(INTERRUPTED) from None
    _print_report(console, report, json_file)
    raise typer.Exit(0 if report.balanced else FAILED)


def _measure(
    console: Console,
    command: str,
    part: BenchPart | None,
    counts: tuple[int, int],
    steady: tuple[float, float],
    keep: bool,
) -> Report:
    def log(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    machine, at, supply = this_machine(), datetime.now(UTC), EventSupply()
    with temporary_state(keep) as settings:
        if keep:
            log(f"state folder (not removed): {settings.state}")
        with running_stream(settings, log) as bootstrap:
            warm = warm_up(settings, bootstrap, supply, counts[0], log)
            measured, latency, changing = None, None, None
            if part is not BenchPart.latency:
                measured = measure_throughput(settings, bootstrap, supply, counts[1], log)
            if part in (BenchPart.both, BenchPart.latency):
                latency = measure_latency(settings, bootstrap, supply, *steady, log)
            if part is None:
                changing = measure_changes(settings, bootstrap, supply, *steady, log)
            balanced = _audit(settings, bootstrap, log)
    return Report(command, machine, at, warm, measured, latency, balanced, changing)


def _audit(settings: Settings, bootstrap: str, log: Callable[[str], None]) -> bool:
    from functools import partial

    log("audit: is every record accounted for? …")
    found = audit_dataset(settings, DATASET, partial(open_topic, bootstrap))
    for finding in found.findings[:5]:
        log(f"  {finding.sentence()}")
    return found.balanced


def _print_report(console: Console, report: Report, json_file: Path | None) -> None:
    console.print(as_text(report), highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(report), indent=1) + "\n")
        console.print(f"figures: {json_file}", highlight=False, markup=False, soft_wrap=True)
