"""`headrace repair`: what a driver cannot start from, after a power cut or with a lost or damaged checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from include.process_control.job_process import finish_job, refuse_running, start_job
from include.settings import load_settings


def repair(
    dataset: Annotated[str, typer.Argument(help="the dataset whose driver is refused")],
    yes: Annotated[bool, typer.Option("--yes", help="repair without a confirmation")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="continue without records that Kafka expired before they were read")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show the diagnosis and the repair")] = False,
) -> None:
    """Roll back tables that lost commits; replace a damaged or lost checkpoint by a new one at bronze's end.

    No record is skipped or duplicated; what is removed or replaced is kept. Exit 0: sound or repaired, 1: damaged and
    not repaired, 2: refused. The offsets of an accepted loss stay in the commits of bronze; audit and status show them.
    """

    if yes and dry_run:
        raise typer.BadParameter("--yes and --dry-run exclude each other")
    answer = "dry-run" if dry_run else "yes" if yes else "ask"
    # Checkpoints are checked by the data plane, which the control plane must not import: run it as a process.
    module = ["spark_jobs.jobs.repair_job", dataset, answer, *["accept-loss"] * accept_loss]
    settings, name = load_settings(), f"repair-{dataset}"
    refuse_running(settings, name)
    process = start_job(settings, name, module, dataset, stdin=None, stderr=None)
    try:
        raise typer.Exit(process.wait())
    finally:
        finish_job(settings, name, process)
