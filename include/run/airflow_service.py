"""One part of Airflow as a service of its own, such as a container; `init` prepares what all parts share.

Reads: the settings.  Writes: `init`: Airflow's keys and password in the state folder, its database schema.
Guarantee: all parts have the settings that `headrace up --airflow` gives them (airflow_process.py).
After a crash: the service is started again; `init` may run any number of times.
Does not: import Airflow, or restart a part.

Usage: python -m include.run.airflow_service init | api-server | scheduler | dag-processor | triggerer
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from include.ground.errors import HeadraceError, Terminal
from include.ground.settings import CLONE, load_settings
from include.run.airflow_parts import PARTS, airflow
from include.run.airflow_process import (
    airflow_environment,
    keys_file,
    load_or_create_keys,
    require_airflow,
)

INIT = "init"
REFUSED = 2


class NotInitialised(Terminal):
    """Airflow's keys do not exist: `init` has not run on this state folder."""

    def __init__(self) -> None:
        super().__init__("Airflow has no keys in the state folder; nothing was started", "run the part `init` first")


def command_of(part: str) -> list[str]:
    """Return the command line of a part; `init` migrates the database."""
    return airflow("db", "migrate") if part == INIT else airflow(*PARTS[part])


def service_environment(part: str) -> dict[str, str]:
    """Return the environment of a part. Raises NotInitialised, AirflowMissing, PasswordUnreadable."""
    settings = load_settings()
    require_airflow()
    keys = load_or_create_keys(settings) if part == INIT else keys_file(settings).read()
    if keys is None:
        raise NotInitialised
    return airflow_environment(settings, keys)


def main(arguments: Sequence[str]) -> int:
    """Become the part that the one argument names; return 2 when that is impossible."""
    if len(arguments) != 1 or arguments[0] not in (INIT, *PARTS):
        print(f"usage: airflow_service {INIT}|{'|'.join(PARTS)}", file=sys.stderr)
        return REFUSED
    try:
        environment = service_environment(arguments[0])
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return REFUSED
    return become(command_of(arguments[0]), environment)


def become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Execute a command in this process; its files are for this user only."""
    os.umask(0o077)
    os.chdir(CLONE)
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
