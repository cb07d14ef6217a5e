"""`headrace maintain`, `storage`, `repair`, `restore`, `ledger`: the care of tables and of what derives from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from include.change.jobs import TableMaintenance, maintain_tables, request_owner
from include.cli.main import FAILED
from include.cli.terminal import AsJson, wide_console
from include.declare.dataset import declared_dataset
from include.declare.derived_dataset import require_declared
from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.settings import Settings, load_settings
from include.observe.ended_plans import EndedData, PartUse, disk_use, remove_ended
from include.observe.ledger_reader import Batch, OffsetRange, open_reader
from include.observe.ledger_writer import RebuildResult
from include.observe.ledger_writer import rebuild as rebuild_ledger
from include.read.publication import publications, read_publication
from include.run.child_process import finish_job, refuse_running, start_job
from include.run.log_trimming import trim_logs
from include.state.owner_requests import OwnerRequest, RequestKind


def maintain(
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only this dataset. (default: all)")] = None,
    as_json: AsJson = False,
) -> None:
    """Compact all tables, delete old files, releases and plan rows, trim logs; exit 1 when a dataset was skipped.

    The stream does it between two runs; without a stream a separate job does. Skipped while a plan is open.
    """

    settings = load_settings()
    done: list[TableMaintenance] = []
    ended: list[EndedData] = []
    skipped: dict[str, HeadraceError] = {}
    for name in [dataset] if dataset else publications(settings):
        try:
            ended += remove_ended(settings, name, datetime.now(UTC))
        except HeadraceError as error:
            skipped[name] = error
        try:
            done += maintain_tables(settings, name)
        except Transient as error:
            skipped[name] = error
        except Terminal as error:
            if dataset:
                raise
            skipped[name] = error
    logs = trim_logs(settings, datetime.now(UTC))
    if as_json:
        why = {name: error.what for name, error in skipped.items()}
        removed = [{"policy": each.policy, "path": each.path, "bytes": each.bytes} for each in ended]
        found = {"tables": [asdict(each) for each in done], "removed": removed, "logs": asdict(logs)}
        typer.echo(json.dumps({**found, "left_alone": why}))
    else:
        console = wide_console()
        console.print(maintained_table(done))
        for each in ended:
            line = f"removed {escape(each.path)}: ended {each.ended:%Y-%m-%d %H:%M} UTC, {each.bytes:,} bytes"
            console.print(f"{line} (retention.{each.policy})", highlight=False, soft_wrap=True)
        console.print(f"logs: {logs.trimmed} trimmed, {logs.removed} removed", highlight=False)
        for refused in skipped.values():
            console.print(f"[yellow]skipped[/]: {escape(str(refused))}", highlight=False, soft_wrap=True)
    if skipped:
        raise typer.Exit(FAILED)


def maintained_table(done: Sequence[TableMaintenance]) -> Table:
    """Return the result, one row per table."""
    shown = Table("table", "files", "now", "deleted", "left for the next run", header_style="bold", box=None)
    for each in done:
        shown.add_row(escape(each.table), *(f"{n:,}" for n in (each.files, each.now, each.removed, each.left)))
    for column in shown.columns[1:]:
        column.justify = "right"
    return shown


COUNTS = ("current", "replaced", "log", "deletable")


def storage(
    dataset: Annotated[str | None, typer.Argument(help="Only this dataset. (default: the whole state folder)")] = None,
    as_json: AsJson = False,
) -> None:
    """Show bytes by dataset, release and table: current files, replaced ones, logs, and what is deleted next.

    Unused data is kept for the `retention` of pipeline.yaml or derived.yaml; then the stream deletes it (`next`).
    """

    parts = disk_use(load_settings(), dataset)
    if as_json:
        rows = [asdict(use.part) | {name: getattr(use, name) for name in COUNTS} for use in parts]
        for row in rows:
            row.pop("table")
        typer.echo(json.dumps({"parts": rows, "total": sum(use.total for use in parts)}))
        return
    wide_console().print(storage_table(parts))


def storage_table(parts: Sequence[PartUse]) -> Table:
    """Return the parts as a table, with a line of totals."""
    shown = Table(header_style="bold", box=None, pad_edge=False, collapse_padding=True)
    for name in ("dataset", "release", "part"):
        shown.add_column(name, no_wrap=True)
    for name in ("current", "replaced", "log", "next"):
        shown.add_column(name, justify="right", no_wrap=True, min_width=8)
    for use in parts:
        names = (escape(text) for text in (use.part.dataset or "–", use.part.release, use.part.name))
        shown.add_row(*names, *(_size(getattr(use, name)) for name in COUNTS))
    totals = (sum(getattr(use, name) for use in parts) for name in COUNTS)
    shown.add_section()
    shown.add_row("all", "", "", *map(_size, totals), style="bold")
    return shown


def _size(count: int) -> str:
    return decimal(count).replace(" bytes", " B").replace(" byte", " B") if count else ""


def repair(
    dataset: Annotated[str, typer.Argument(help="The dataset whose driver does not start.")],
    yes: Annotated[bool, typer.Option("--yes", help="Repair without a confirmation.")] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Continue without the records that Kafka expired before they were read."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the diagnosis and the repair.")] = False,
    identities: Annotated[
        bool, typer.Option("--identities", help="Only rebuild the index of identities from silver; the stream may run.")
    ] = False,
) -> None:
    """Roll back tables that lost commits, replace an unusable checkpoint, rebuild the index of identities.

    A new checkpoint starts where bronze ends, so no record is skipped or duplicated. Replaced files are kept. With
    --accept-loss the next commit of bronze names the lost offsets, and audit and status show them. The stream executes
    --identities between two runs; without a stream a job does. Exit 0: undamaged or repaired; 1: damaged; 2: refused.
    """

    if yes and dry_run:
        raise typer.BadParameter("--yes and --dry-run exclude each other")
    settings = load_settings()
    require_declared(settings, dataset)
    if identities:
        if yes or dry_run or accept_loss:
            raise typer.BadParameter("--identities excludes the other options")
        rebuild_identities(settings, dataset)
        return
    answer = "dry-run" if dry_run else "yes" if yes else "ask"
    # Checkpoints are checked by the data plane, which the control plane must not import: run it as a process.
    module = ["spark_jobs.jobs.repair_job", dataset, answer, *["accept-loss"] * accept_loss]
    name = f"repair-{dataset}"
    refuse_running(settings, name)
    process = start_job(settings, name, module, dataset, stdin=None, stderr=None)
    try:
        raise typer.Exit(process.wait())
    finally:
        finish_job(settings, name, process)


def rebuild_identities(settings: Settings, dataset: str) -> None:
    """Request the rebuild from the owner of the tables; print the entries of each active release."""
    published = read_publication(settings, dataset).release
    response = request_owner(settings, dataset, OwnerRequest("", RequestKind.REBUILD_IDENTITIES, published))
    for release, entries in response.done.items():
        typer.echo(f"{dataset}: release {release}: {entries:,} identities indexed")


def restore(
    dataset: Annotated[str, typer.Argument(help="The dataset to take over.")],
    yes: Annotated[bool, typer.Option("--yes", help="Restore without a confirmation.")] = False,
) -> None:
    """Fetch a dataset's published tables from the object store, and continue from there.

    For a new disk or host, or after another owner has published. The tables and the checkpoint of this state folder are
    moved away, the ledger is rebuilt, and the stream continues where the restored bronze ends. Exit 0: restored;
    1: declined; 2: refused.
    """

    settings = load_settings()
    require_declared(settings, dataset)
    name = f"restore-{dataset}"
    refuse_running(settings, name)
    # Leases and checkpoints are the data plane's, which the control plane must not import: run it as a process.
    module = ["spark_jobs.jobs.restore_job", dataset, "yes" if yes else "ask"]
    process = start_job(settings, name, module, dataset, stdin=None, stderr=None)
    try:
        raise typer.Exit(process.wait())
    finally:
        finish_job(settings, name, process)


ledger_app = typer.Typer(no_args_is_help=True, help="The ledger: an index of the Delta commits, batch by batch.")


@ledger_app.command()
def show(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Batches per dataset.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the last batches with their offset ranges."""

    settings = load_settings()
    if dataset is not None:
        declared_dataset(settings, dataset)
    batches = open_reader(settings).last_batches(dataset, last)
    if as_json:
        typer.echo(json.dumps([asdict(batch) for batch in batches]))
    else:
        wide_console().print(batch_table(batches))


@ledger_app.command()
def rebuild() -> None:
    """Rebuild the ledger from the Delta logs and compare it with the old one."""

    console = Console(soft_wrap=True)
    with console.status("reading every commit of every table"):
        rebuilt = rebuild_ledger(load_settings())
    console.print(rebuilt_table(rebuilt))
    for line in verdict(rebuilt):
        console.print(line, highlight=False)


def batch_table(batches: list[Batch]) -> Table:
    """Return batches as a table; offset ranges are half-open."""
    names = ("batch", "epoch", "rows", "offsets [start, end) and rows", "committed (UTC)", "reference")
    table = Table("dataset", *names)
    for batch in batches:
        cells = [str(batch.batch), str(batch.epoch), f"{batch.rows:,}", "\n".join(map(offsets_text, batch.ranges))]
        table.add_row(batch.dataset, *cells, utc_text(batch.committed_at_ms), versions_text(batch.reference))
    for column in table.columns[1:4]:
        column.justify = "right"
    return table


def offsets_text(part: OffsetRange) -> str:
    """Return one offset range as text."""
    return f"{part.partition}: [{part.start}, {part.end}) {part.rows:,}".replace("[", r"\[")


def versions_text(reference: str) -> str:
    """Return the versions of reference tables as text."""
    return "\n".join(f"{name} {version}" for name, version in sorted(json.loads(reference).items()))


def utc_text(ms: int) -> str:
    """Return UTC milliseconds as a readable time."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def rebuilt_table(rebuilt: RebuildResult) -> Table:
    """Return rows per table of the ledger, and the differences of the old one."""
    table = Table("table", "rows", "missing", "surplus", "different")
    for name, rows in rebuilt.rows.items():
        found = rebuilt.differences.get(name)
        cells = (found.missing, found.surplus, found.changed) if found else (0, 0, 0)
        table.add_row(name, f"{rows:,}", *(f"{cell:,}" for cell in cells))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def verdict(rebuilt: RebuildResult) -> list[str]:
    """Describe the result of the rebuild."""
    lines = [f"{rebuilt.commits:,} commits read."]
    if rebuilt.set_aside:
        lines.append(f"The old file was damaged; it was moved to {rebuilt.set_aside}.")
    for path, version in rebuilt.cleaned.items():
        lines.append(
            f"[yellow]The log of {path} begins at version {version}: earlier commits are not in the ledger.[/]"
        )
    if rebuilt.identical:
        lines.append("[green]identical[/]: the ledger was correct.")
    elif rebuilt.compared:
        lines.append("[yellow]different[/]: the ledger was wrong and is now correct.")
    else:
        lines.append("new: there was no readable ledger of this version to compare with.")
    return lines
