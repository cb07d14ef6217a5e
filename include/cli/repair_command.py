"""`headrace repair`: state from which a driver cannot start, and the index of identities."""

from __future__ import annotations

from typing import Annotated

import typer

from include.change.jobs import request_owner
from include.declare.derived_dataset import require_declared
from include.ground.settings import Settings, load_settings
from include.read.publication import read_publication
from include.run.job_process import finish_job, refuse_running, start_job
from include.state.owner_requests import OwnerRequest, RequestKind


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
