"""`headrace maintain`, `storage`, `repair`, `restore`, `ledger`: the care of tables and of what derives from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from include.change.jobs import TableMaintenance, maintain_tables, request_owner
from include.cli.main import FAILED
from include.cli.terminal import AsJson, line_console, print_json, table_of, wide_console
from include.declare.dataset import declared_dataset
from include.declare.derived_dataset import require_declared
from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.settings import Settings, load_settings
from include.observe.ended_plans import EndedData, disk_use, remove_ended
from include.observe.ledger_reader import OffsetRange, open_reader
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
        print_json({**found, "left_alone": why})
    else:
        console = wide_console()
        columns = ("table", "files", "now", "deleted", "left for the next run")
        console.print(table_of(columns, ((each.table, each.files, each.now, each.removed, each.left) for each in done)))
        for each in ended:
            line = f"removed {escape(each.path)}: ended {each.ended:%Y-%m-%d %H:%M} UTC, {each.bytes:,} bytes"
            console.print(f"{line} (retention.{each.policy})", soft_wrap=True)
        console.print(f"logs: {logs.trimmed} trimmed, {logs.removed} removed")
        for refused in skipped.values():
            console.print(f"[yellow]skipped[/]: {escape(str(refused))}", soft_wrap=True)
    if skipped:
        raise typer.Exit(FAILED)


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
        print_json({"parts": rows, "total": sum(use.total for use in parts)})
        return
    names = ((use.part.dataset or "–", use.part.release, use.part.name) for use in parts)
    lines = [(*name, *(_size(getattr(use, each)) for each in COUNTS)) for name, use in zip(names, parts, strict=True)]
    totals = (sum(getattr(use, name) for use in parts) for name in COUNTS)
    lines.append(("all", "", "", *map(_size, totals)))
    sizes = ("current", "replaced", "log", "next")
    wide_console().print(table_of(("dataset", "release", "part", *sizes), lines, sizes, pad_edge=False))


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
    _ask_in_job(settings, dataset, "repair", answer, *["accept-loss"] * accept_loss)


def _ask_in_job(settings: Settings, dataset: str, job: str, *arguments: str) -> NoReturn:
    """Run the repair job under the name `job`; it may ask in this terminal. Exit with its code."""
    name = f"{job}-{dataset}"
    refuse_running(settings, name)
    module = ["spark_jobs.jobs.repair_job", dataset, *arguments]
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
    # Leases and checkpoints are the data plane's, which the control plane must not import: run it as a process.
    _ask_in_job(settings, dataset, "restore", "yes" if yes else "ask", "restore")


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
        print_json(batches)
        return
    rows = (
        (
            *(each.dataset, str(each.batch), str(each.epoch), each.rows, "\n".join(map(_offsets, each.ranges))),
            *(utc_text(each.committed_at_ms), _versions(each.reference)),
        )
        for each in batches
    )
    columns = ("batch", "epoch", "rows", "offsets [start, end) and rows", "committed (UTC)", "reference")
    wide_console().print(table_of(("dataset", *columns), rows, ("batch", "epoch")))


@ledger_app.command()
def rebuild(as_json: AsJson = False) -> None:
    """Rebuild the ledger from the Delta logs and compare it with the old one."""
    console = line_console(markup=True, stderr=as_json)
    with console.status("reading every commit of every table"):
        rebuilt = rebuild_ledger(load_settings())
    if as_json:
        print_json(rebuilt)
        return
    console.print(rebuilt_table(rebuilt))
    for line in verdict(rebuilt):
        console.print(line)


def _offsets(part: OffsetRange) -> str:
    return f"{part.partition}: [{part.start}, {part.end}) {part.rows:,}"


def _versions(reference: str) -> str:
    return "\n".join(f"{name} {version}" for name, version in sorted(json.loads(reference).items()))


def utc_text(ms: int) -> str:
    """Return UTC milliseconds as a readable time."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def rebuilt_table(rebuilt: RebuildResult) -> Table:
    """Return rows per table of the ledger, and the differences of the old one."""
    rows = []
    for name, count in rebuilt.rows.items():
        found = rebuilt.differences.get(name)
        rows.append((name, count, *((found.missing, found.surplus, found.changed) if found else (0, 0, 0))))
    return table_of(("table", "rows", "missing", "surplus", "different"), rows)


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
