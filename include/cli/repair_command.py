"""`headrace repair`: a dataset whose checkpoint is lost or damaged goes on from where its bronze ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from include.process_control.driver_process import driver_environment
from include.settings import CLONE, load_settings


def repair(
    dataset: Annotated[str, typer.Argument(help="the dataset whose driver refuses to start")],
    yes: Annotated[bool, typer.Option("--yes", help="do it without asking")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what is wrong and what would be done")] = False,
) -> None:
    """Find out why a driver refuses its checkpoint, and make a new one that begins where bronze ends.

    Nothing is skipped or doubled, no table is touched, the old checkpoint stays. Exit 0: all is well now, 1: it is
    not and was left so, 2: refused.
    """

    if yes and dry_run:
        raise typer.BadParameter("--yes and --dry-run exclude each other")
    answer = "dry-run" if dry_run else "yes" if yes else "ask"
    # The data plane's code knows how a checkpoint is judged; the control plane starts it and does not import it.
    command = [sys.executable, "-m", "spark_jobs.jobs.repair_job", dataset, answer]
    done = subprocess.run(command, cwd=CLONE, env=driver_environment(load_settings()), check=False)
    raise typer.Exit(done.returncode)
