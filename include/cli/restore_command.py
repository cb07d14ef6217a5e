"""`headrace restore`: tables from the object store."""

from __future__ import annotations

from typing import Annotated

import typer

from include.process_control.job_process import finish_job, refuse_running, start_job
from include.settings import load_settings


def restore(
    dataset: Annotated[str, typer.Argument(help="the dataset to take over")],
    yes: Annotated[bool, typer.Option("--yes", help="restore without a confirmation")] = False,
) -> None:
    """Fetch a dataset's published tables from the object store, and continue from there.

    For a new disk or host, and when another owner has published meanwhile. Tables and checkpoint here are moved
    away, the ledger is rebuilt, and the stream reads on where the restored bronze ends. Exit 0: restored, 1: declined,
    2: refused.
    """

    settings = load_settings()
    name = f"restore-{dataset}"
    refuse_running(settings, name)
    # Leases and checkpoints are the data plane's, which the control plane must not import: run it as a process.
    module = ["spark_jobs.jobs.restore_job", dataset, "yes" if yes else "ask"]
    process = start_job(settings, name, module, dataset, stdin=None, stderr=None)
    try:
        raise typer.Exit(process.wait())
    finally:
        finish_job(settings, name, process)
