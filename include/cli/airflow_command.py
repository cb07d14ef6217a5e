"""`headrace airflow …`: Airflow's own command line on the database of this state folder."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from include.ground.errors import Terminal
from include.ground.settings import CLONE, load_settings
from include.run.airflow_parts import airflow as airflow_argv
from include.run.airflow_process import airflow_environment, keys_file, require_airflow


class AirflowNeverStarted(Terminal):
    """Airflow has no keys and no database in this state folder."""

    def __init__(self) -> None:
        super().__init__("Airflow was never started in this state folder; nothing was run", "headrace up --airflow")


def airflow(
    words: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS…", help="Arguments of `airflow`.")] = None,
) -> None:
    """Run a command of Airflow, such as `backfill create …` or `dags list`, with the settings of this state folder."""
    settings = load_settings()
    require_airflow()
    keys = keys_file(settings).read()
    if keys is None:
        raise AirflowNeverStarted
    command = airflow_argv(*(words or ()))
    sys.stdout.flush()
    os.chdir(CLONE)
    os.execve(command[0], command, airflow_environment(settings, keys))
