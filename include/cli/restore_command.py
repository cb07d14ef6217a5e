"""`headrace restore`: tables from the object store."""

from __future__ import annotations

from typing import Annotated

import typer

from include.declare.derived_dataset import require_declared
from include.ground.settings import load_settings
from include.run.job_process import finish_job, refuse_running, start_job


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
