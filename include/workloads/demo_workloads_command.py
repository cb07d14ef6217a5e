"""`headrace demo-workloads`: known workloads of stream processors, each compared with its oracle."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from include.cli.exit_codes import FAILED, INTERRUPTED
from include.cli.up_command import print_progress
from include.durable_files import write_atomically
from include.errors import Terminal
from include.process_control.start_stop import down
from include.producers.search_events import injected
from include.rendering.render_template import render_html
from include.settings import Settings, load_settings
from include.workloads.searches_oracle import FlagScore, flag_score
from include.workloads.workload_charts import Chart, anomaly_chart, top_chart
from include.workloads.workload_registry import DATASETS, DERIVED, WORKLOADS
from include.workloads.workload_run import Checks, WorkloadResult, run_derived, run_workload

# Spikes are found in the third week: the searches are sent completely.
WHOLE = ("searches",)


class OtherDatasets(Terminal):
    """The command was started with other datasets than the workloads'."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            f"HEADRACE_DATASETS is {settings.datasets}, not {DATASETS}; nothing was started", "make demo-workloads"
        )


def demo_workloads(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Only these workloads.")] = None,
    events: Annotated[int, typer.Option(min=1, help="Events of each; of searches always all.")] = 5000,
    replay: Annotated[bool, typer.Option("--replay", help="Recompute everything by a replay plan, too.")] = False,
    permutations: Annotated[int, typer.Option(min=0, max=100, help="Send in so many other orders, too.")] = 0,
) -> None:
    """Run known workloads of stream processors from Kafka to gold, and compare each table with an oracle's.

    Each runs alone, with duplicate, late and reordered records; derived ones run after their sources. A second run
    sends nothing and compares again. The table lists lines of declaration, and seconds from the first record sent (of a
    derived one: from its start) to the publication of all; and p95, which is how long 95 % of the records waited at
    most for their publication. --replay takes half a minute for each, and --permutations for each order, which has a
    broker and a stream of its own. Exit code 0: all are equal and no audit found anything wrong; 1: not; 130: Ctrl-C.
    """
    settings, console = load_settings(), Console()
    if settings.datasets.resolve() != DATASETS.resolve():
        raise OtherDatasets(settings)
    known = [*WORKLOADS, *DERIVED]
    chosen = names or known
    if unknown := [name for name in chosen if name not in known]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(known)}")
    try:
        checks = Checks(replay, permutations)
        results = [_run(settings, console, name, events, checks) for name in chosen]
    except KeyboardInterrupt:
        console.print("stopped: nothing is lost; the same command continues")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        down(settings, lambda line: print_progress(console, line))
    console.print(_table(results))
    _show_charts(settings, console, results)
    raise typer.Exit(0 if all(map(_is_good, results)) else FAILED)


def _is_good(result: WorkloadResult) -> bool:
    equal, orders = result.orders or (0, 0)
    return not result.differing and not result.audit.findings and not result.replay and equal == orders


def _run(settings: Settings, console: Console, name: str, events: int, checks: Checks) -> WorkloadResult:
    is_derived = name in DERIVED
    feeds = DERIVED[name].feeds if is_derived else (WORKLOADS[name].feed,)
    source = f"derived from {', '.join(feed.name for feed in feeds)}" if is_derived else feeds[0].source
    console.print(f"\n[bold cyan]{name}[/]: {source}", highlight=False)
    count = 0 if name in WHOLE else events
    report = partial(print_progress, console)
    if is_derived:
        result = run_derived(settings, name, count, report)
    else:
        result = run_workload(settings, name, count, report, checks)
    for table, rows in result.tables.items():
        wrong = result.differing.get(table)
        verdict = f"[red]{wrong:,} rows differ from the oracle's[/]" if wrong else "[green]equal to the oracle's[/]"
        console.print(f"  gold.{table}: {len(rows):,} rows, {verdict}", highlight=False)
    return result


def _table(results: list[WorkloadResult]) -> Table:
    more = {"replay": _replay(results), "orders": _orders(results)}
    shown = {name: texts for name, texts in more.items() if any(texts)}
    columns = ("dataset", "lines", "events", "gold rows", "seconds", "p95", "oracle", *shown, "audit")
    table = Table(*columns, box=None, header_style="bold")
    for column in table.columns[1:6]:
        column.justify = "right"
    for number, each in enumerate(results):
        rows = sum(map(len, each.tables.values()))
        seconds = "" if each.seconds is None else f"{each.seconds:.1f}"
        equal = "[red]differs[/]" if each.differing else "equal"
        p95 = "" if each.freshness is None else f"{each.freshness:.1f}"
        counts = f"{each.declared_lines}", f"{each.events:,}", f"{rows:,}"
        checked = [texts[number] for texts in shown.values()]
        table.add_row(each.name, *counts, seconds, p95, equal, *checked, _audited(each))
    return table


def _replay(results: list[WorkloadResult]) -> list[str]:
    """Return for each result what a replay found; empty where there was none."""
    texts = {None: "", 0: "equal"}
    return [texts.get(each.replay, f"[red]{each.replay} rows[/]") for each in results]


def _orders(results: list[WorkloadResult]) -> list[str]:
    """Return for each result how many orders of arrival gave the same bytes; empty where there was none."""
    return ["{} of {}".format(*each.orders) if each.orders else "" for each in results]


def _audited(result: WorkloadResult) -> str:
    if result.audit.findings:
        return f"[red]{len(result.audit.findings)} findings[/]"
    unchecked = len(result.audit.unchecked)
    return f"balanced ({unchecked} of {len(result.tables)} by --deep)" if unchecked else "balanced"


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
