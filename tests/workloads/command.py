"""`headrace demo-workloads`: known workloads of stream processors, each compared with its oracle."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from include.cli.audit import print_findings
from include.cli.main import FAILED, INTERRUPTED
from include.cli.terminal import output_file, wide_console
from include.cli.up import print_progress
from include.declare.gold import full_name
from include.ground.durable_files import write_atomically
from include.ground.errors import Terminal
from include.ground.render_template import render_html
from include.ground.settings import Settings, load_settings
from include.run.start_stop import down
from workloads.charts import Chart, anomaly_chart, top_chart
from workloads.outcome import Checks, WorkloadResult, refuse_other_events, run_group
from workloads.registry import DATASETS, DERIVED, WORKLOADS, connected
from workloads.search_events import injected
from workloads.searches_oracle import FlagScore, flag_score
from workloads.table import json_row, print_results


class OtherDatasets(Terminal):
    """The command was started with other datasets than the workloads'."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            f"HEADRACE_DATASETS is {settings.datasets}, not {DATASETS}; nothing was started", "make demo-workloads"
        )


def demo_workloads(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these workloads, with their sources.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="Events of each feed; searches always sends all.")] = 5000,
    replay: Annotated[bool, typer.Option("--replay", help="Also recompute everything from Kafka.")] = False,
    permutations: Annotated[
        int, typer.Option(min=0, max=100, help="Also let the events arrive in this many other orders.")
    ] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", parser=output_file, metavar="FILE", help="Also write the table to this file."),
    ] = None,
) -> None:
    """Run known workloads of stream processors from Kafka to gold, and compare each table with an oracle.

    A workload and the datasets derived from it run together, with duplicate, late and reordered records. A second
    run sends nothing and compares again. The table has one line per dataset: declared lines, events, rows of gold, and
    the number of rows that differ:

    stream: the rows published while the records arrived, from the oracle's rows.

    batch: all rows recomputed by one bounded job, from the stream's: by a backfill from bronze; of a derived dataset,
    by its queries over its sources.

    replay: all rows recomputed from Kafka, from the stream's (--replay). A derived dataset reads no topic.

    orders: the bytes of gold after other orders of arrival, in other batches and with a crash, from the stream's
    (--permutations). An interrupted command continues with the next order.

    The analyses of each dataset run on its tables: graphs are compared with plain Python, learned results show figures.

    p95: seconds from the Kafka timestamp to the publication for 95 % of the records; of a derived dataset: of the
    records of its sources.

    Exit code 0: everything is equal and every audit is balanced; 1: not; 130: Ctrl-C.
    """
    settings, console = load_settings(), wide_console()
    if settings.datasets.resolve() != DATASETS.resolve():
        raise OtherDatasets(settings)
    known = [*WORKLOADS, *DERIVED]
    if unknown := [name for name in names or () if name not in known]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(known)}")
    groups = connected(names or known)
    refuse_other_events(settings, [name for group in groups for name in group], events)
    # SIGTERM must stop the broker and the drivers, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        checks = Checks(replay, permutations)
        results = [each for group in groups for each in _run(settings, console, group, events, checks)]
    except KeyboardInterrupt:
        console.print("stopped: what was sent is kept; the same command checks it")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        down(settings, lambda line: print_progress(console, line))
    print_results(console, results)
    if json_file is not None:
        write_atomically(json_file, json.dumps([json_row(each) for each in results], indent=1) + "\n")
    _show_charts(settings, console, results)
    raise typer.Exit(0 if all(each.is_good for each in results) else FAILED)


def _run(
    settings: Settings, console: Console, names: list[str], events: int, checks: Checks
) -> Iterator[WorkloadResult]:
    """Run workloads that belong together, and report each table."""
    console.print()
    for name in names:
        made = f"derived from {', '.join(DERIVED[name].sources)}" if name in DERIVED else WORKLOADS[name].feed.source
        console.print(f"[bold cyan]{name}[/]: {made}", highlight=False)
    for result in run_group(settings, names, events, partial(print_progress, console), checks):
        for table, rows in result.tables.items():
            wrong = result.differing.get(table)
            verdict = f"[red]{wrong:,} rows differ from the oracle's[/]" if wrong else "[green]equal to the oracle's[/]"
            console.print(f"  {full_name(table)}: {len(rows):,} rows, {verdict}", highlight=False)
        print_findings(console, result.audit)
        yield result


def _show_charts(settings: Settings, console: Console, results: list[WorkloadResult]) -> None:
    charts: list[Chart] = []
    for result in results:
        if result.name == "searches":
            rows = result.tables["term_hours"]
            charts.append(anomaly_chart(rows))
            console.print(
                _score_text(flag_score(rows, [(a.term, a.hour, a.kind) for a in injected()])), highlight=False
            )
        if result.name == "posts":
            charts.append(top_chart(result.tables["hashtag_trends"]))
    if charts:
        page = settings.state / "workloads.html"
        write_atomically(page, render_html("workloads.html.j2", title="Workloads", charts=charts))
        console.print(f"charts: {escape(str(page))}", highlight=False, soft_wrap=True)


def _score_text(score: FlagScore) -> str:
    found = f"{score.right} of {score.injected} injected spikes and dips flagged, {score.flagged} flags"
    return f"searches: {found}: precision {score.precision:.2f}, recall {score.recall:.2f}"
