"""`headrace repair`: what a driver cannot start from, after a power cut or with a lost or damaged checkpoint."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from include.process_control.driver_process import driver_environment
from include.settings import CLONE, load_settings


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
    command = [sys.executable, "-m", "spark_jobs.jobs.repair_job", dataset, answer]
    command += ["accept-loss"] * accept_loss
    done = subprocess.run(command, cwd=CLONE, env=driver_environment(load_settings()), check=False)
    raise typer.Exit(done.returncode)
