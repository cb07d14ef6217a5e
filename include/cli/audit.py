"""`headrace audit`: check that every Kafka record is in the tables exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from include.audit.balance import EVERYTHING, DatasetAudit, Progress, deep_audit, with_deep_audit, with_mirrors
from include.audit.gold import GoldCheck, UncheckedTable, unchecked_error
from include.audit.kafka import AuditUnavailable, open_topic
from include.audit.mirror import MirrorCheck, mirror_audits
from include.audit.run import record_outcomes, requested_audits
from include.audit.source import SourceDatabase, SourceUnusable
from include.audit.verified_history import REQUESTED
from include.change.jobs import JobFailed, recompute_derived, run_job
from include.cli.main import FAILED
from include.cli.terminal import AsJson, print_json, table_of, wide_console
from include.ground.errors import HeadraceError
from include.ground.record_coordinates import is_file_set, place_in_set
from include.ground.settings import Settings, load_settings
from include.observe.processes import standing_sentence
from include.read.plain_values import iso_time
from include.run.child_process import refuse_running
from include.state.run_files import bootstrap_servers, read_run_file

SHOWN_FINDINGS = 20


def audit(
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only this dataset. (default: all)")] = None,
    as_json: AsJson = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also recompute all tables from bronze and compare every row, in a job."),
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Compare all records, also those that the last balanced audit verified. --deep implies it."
        ),
    ] = False,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="URL",
            help="Also compare gold of kind changes with the tables of this PostgreSQL database, at one moment of it: "
            "postgresql://user@host:port/database.",
        ),
    ] = "",
    slot: Annotated[
        str, typer.Option("--slot", help="With --source: the connector's replication slot. (default: the only one)")
    ] = "",
) -> None:
    """Compare Kafka, bronze, silver, rejected and gold independently. Exit 0 balanced, 1 not, 2 not fully audited.

    Also 2 when what is published balances and the stream of a dataset has failed or is halted: nothing more will come.
    """
    settings = load_settings()
    requested = [] if dataset is None else [dataset]
    with ExitStack() as opened, Console(stderr=True).status("audit") as shown:
        database = opened.enter_context(closing(SourceDatabase(source, slot))) if source else None
        audits = requested_audits(
            settings,
            requested,
            lambda topic: open_topic(_bootstrap(settings), topic, settings.jars),
            recompute_derived,
            shown.update,
            full=full or deep,
            standing=partial(standing_sentence, settings),
        )
        if deep:
            audits = [_deep(settings, each, shown.update) for each in audits]
        if database is not None:
            audits = _with_source(settings, audits, database, shown.update)
    record_outcomes(settings, audits, datetime.now(UTC))
    if as_json:
        print_json({"balanced": all(each.balanced for each in audits), "datasets": [*map(_dataset_values, audits)]})
    else:
        print_audits(audits)
    if any(each.findings for each in audits):
        raise typer.Exit(FAILED)
    for each in audits:
        for unchecked in each.unchecked:
            # Another reason has been printed with the table.
            raise unchecked_error(each.dataset, unchecked) if unchecked.expression else typer.Exit(2)
    if database is not None and not any(each.mirrors for each in audits):
        raise SourceUnusable(
            f"no dataset mirrors a table of {database.name}, by envelope debezium and gold of kind changes",
            "name the datasets' own database, or --dataset",
        )
    if any(each.standing for each in audits):
        raise typer.Exit(2)


def _deep(settings: Settings, audit: DatasetAudit, progress: Progress) -> DatasetAudit:
    """Run the job that recomputes a dataset's tables from bronze, and add what it found."""
    if audit.batch is None or audit.sources:
        return audit
    name = f"audit-{audit.dataset}"
    refuse_running(settings, name)

    def report(facts: Mapping[str, Any]) -> None:
        if "at" in facts:
            progress(f"{audit.dataset}: {facts['at']} from bronze, {facts['done']} of {facts['of']}")

    job, again = ("spark_jobs.jobs.audit_job", audit.dataset), f"headrace audit --deep --dataset {audit.dataset}"
    try:
        output = run_job(settings, name, audit.dataset, job, report, again)
        if "recomputed" not in output:
            raise JobFailed(name, str(output.get("failed")), str(output.get("remedy", "")))
    except HeadraceError as error:
        why = UncheckedTable(f"silver.{audit.dataset}", "", f"not recomputed from bronze: {error.what}")
        return replace(audit, unchecked=(*audit.unchecked, why))
    return with_deep_audit(audit, deep_audit(audit.dataset, output["recomputed"]))


def _with_source(
    settings: Settings, audits: list[DatasetAudit], database: SourceDatabase, progress: Progress
) -> list[DatasetAudit]:
    opener = partial(open_topic, _bootstrap(settings), jars=settings.jars)
    found = mirror_audits(settings, database, [each.dataset for each in audits], opener, progress)
    return [with_mirrors(each, found[each.dataset]) if each.dataset in found else each for each in audits]


def _bootstrap(settings: Settings) -> str:
    if settings.kafka_bootstrap:
        return bootstrap_servers(settings)
    run = read_run_file(settings, "broker")
    if run is None:
        raise AuditUnavailable("no broker is running for this state folder")
    return str(run.extra["bootstrap"])


def _dataset_values(audit: DatasetAudit) -> dict[str, Any]:
    verified = audit.scope.verified
    scope = {"compared_after_batch": None if verified is None else verified.batch, "why_all": audit.scope.why_all}
    return {**asdict(replace(audit, scope=EVERYTHING)), "scope": scope, "balanced": audit.balanced}


def print_audits(audits: list[DatasetAudit]) -> None:
    """Print each dataset's records by partition and layer, its gold tables, its findings, and the result."""
    console = wide_console()
    for each in audits:
        console.print(_balance_table(each) if each.partitions else _without_topic(each), highlight=False)
        for line in _detail_lines(each):
            console.print(Text("  ").append_text(line))
        print_findings(console, each)
    _print_result(console, audits)


def _detail_lines(audit: DatasetAudit) -> Iterator[Text]:
    """Yield what was compared besides the records: gold, expired batches, files, a deep audit; and what was not."""
    for check in audit.gold:
        yield _gold_line(audit, check)
    for mirror in audit.mirrors:
        yield from _mirror_lines(audit, mirror)
    for each in audit.children:
        what = f"{each.elements:,} elements in silver, {each.accepted:,} rows and {each.rejected:,} rejected"
        yield Text(f"{each.table}: {what}")
    for loaded in audit.loaded:
        gone = f", {len(loaded.gone):,} of them gone since" if loaded.gone else ""
        yield Text(f"partition {loaded.partition}: {loaded.files:,} files that plan {loaded.plan} loaded{gone}")
    for layer, batch in audit.first_unexpired.items():
        if batch:
            yield Text(f"{layer}: batches before {batch:,} have expired (retention)")
    for skipped in audit.unchecked:
        expression = f" (in {skipped.expression!r})" if skipped.expression else ""
        yield Text(f"{skipped.table}: not checked, {skipped.reason}{expression}", "yellow")
    if scope := _scope_line(audit):
        yield Text(scope)
    if audit.files:
        yield _file_line(audit)
    if audit.deep is not None:
        records, rows = audit.deep.records, sum(audit.deep.rows.values())
        until = f"up to batch {audit.deep.batch}"
        yield Text(f"recomputed from {records:,} records of bronze {until}: {rows:,} rows compared")
    for lost in audit.lost:
        where = f"partition {lost.partition} offsets [{lost.start}, {lost.end})"
        yield Text(f"{where}: never read, Kafka had expired them; accepted", "yellow")


def _gold_line(audit: DatasetAudit, check: GoldCheck) -> Text:
    origin = "its sources" if audit.sources else "silver"
    of_source = sum(mirror.findings for mirror in audit.mirrors if mirror.table == check.table)
    is_wrong = sum(finding.table == check.table for finding in audit.findings) > of_source
    line = Text(f"{check.table}: {check.rows:,} rows, ")
    if check.earlier:
        line.append(f"{check.earlier:,} of them unchanged since; ")
    line.append(f"{check.grains:,} grains, ")
    line.append(f"differs from {origin}" if is_wrong else f"equal to its recomputation from {origin}", "red" * is_wrong)
    if check.batch is not None:
        line.append(f", up to batch {check.batch} by its refresh")
    return line.append(f"; {check.expired:,} rows of expired records not compared") if check.expired else line


def _mirror_lines(audit: DatasetAudit, mirror: MirrorCheck) -> Iterator[Text]:
    """Yield how a table compares with the one that it mirrors, and what was not compared."""
    is_wrong = mirror.findings > 0
    line = Text(f"{mirror.table}: ").append("differs from" if is_wrong else "equal to", "red" * is_wrong)
    line.append(f" {mirror.source} at LSN {mirror.position}, {mirror.rows:,} rows in {mirror.ranges:,} ranges of keys")
    if mirror.since:
        line.append(f"; {mirror.since:,} rows have changed since, and were compared as they were")
    yield line
    if mirror.left_out:
        yield Text(f"{mirror.table}: not compared: {', '.join(mirror.left_out)}", "yellow")


def _file_line(audit: DatasetAudit) -> Text:
    line = Text(f"files: {sum(each.files for each in audit.files):,} verified by checksum")
    if unverifiable := sum(each.unverifiable for each in audit.files):
        line.append(f"; {unverifiable:,} not verifiable (written without a checksum)")
    if earlier := sum(each.earlier for each in audit.files):
        line.append(f"; {earlier:,} unchanged since")
    return line


def _print_result(console: Console, audits: list[DatasetAudit]) -> None:
    first = next((finding for each in audits for finding in each.findings), None)
    if first is not None:
        finding = escape(first.sentence())
        console.print(f"[bold red]not balanced[/]; first finding: {finding}", soft_wrap=True)
        for repair in [each.deep.repair for each in audits if each.deep and each.deep.repair]:
            console.print(f"next: {repair}   (recomputes these batches, shows the difference)", soft_wrap=True)
    elif all(each.batch is None for each in audits):
        console.print("nothing is published yet, so there is nothing to compare")
    elif any(each.unchecked for each in audits):
        console.print("[bold yellow]not fully audited[/]; the tables that were checked are balanced")
    else:
        console.print("[bold green]balanced[/]")
    for each in audits:
        if each.standing:
            console.print(f"[bold yellow]not complete[/]: {escape(each.standing)}", soft_wrap=True)
            console.print("  → headrace status", highlight=False)


def print_findings(console: Console, audit: DatasetAudit) -> None:
    """Print what an audit found wrong; nothing when it is balanced."""
    for finding in audit.findings[:SHOWN_FINDINGS]:
        console.print(f"  {finding.sentence()} ({finding.rows:,})", style="red", highlight=False, markup=False)
    if len(audit.findings) > SHOWN_FINDINGS:
        console.print(f"  and {len(audit.findings) - SHOWN_FINDINGS:,} more: headrace audit --json")


def _scope_line(audit: DatasetAudit) -> str:
    """Return what was compared: the records after those that an audit before verified, or why all; "" if requested."""
    verified = audit.scope.verified
    if audit.scope.why_all == REQUESTED:
        return ""
    if verified is None:
        return f"all records were compared ({audit.scope.why_all})"
    records = sum(layers.get("bronze", 0) for layers in verified.records.values())
    return (
        f"compared the records after batch {verified.batch:,}; the {records:,} earlier ones were balanced at "
        f"{iso_time(verified.at)} and are unchanged (--full compares all)"
    )


def _without_topic(audit: DatasetAudit) -> str:
    if audit.batch is None:
        return f"{audit.dataset}: no topic, no publication yet"
    return f"{audit.dataset}: release {audit.release}, run {audit.batch} over {', '.join(audit.sources)}"


def _balance_table(audit: DatasetAudit) -> Table:
    published = "no publication yet" if audit.batch is None else f"release {audit.release}, batch {audit.batch}"
    expired, removed = (any(getattr(each, name) for each in audit.partitions) for name in ("expired", "removed"))
    columns = ["partition", "end offset", "Kafka", "bronze", "silver", "rejected", "not yet published"]
    columns += ["deleted in Kafka, in bronze"] * expired + ["expired from bronze"] * removed
    rows = []
    for p in audit.partitions:
        end = f"{place_in_set(p.published_end)[0]:,} files" if is_file_set(p.partition) else p.published_end
        numbers = [str(p.partition), end, p.kafka, p.bronze, p.silver, p.rejected, p.later]
        rows.append(numbers + [p.expired] * expired + [p.removed] * removed)
    return table_of(columns, rows, title=f"{audit.dataset}: {published}", title_justify="left", box=HEAVY_HEAD)
