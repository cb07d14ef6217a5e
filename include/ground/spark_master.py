"""Checks that the master of a Spark cluster answers; Spark itself tries for a minute and then stops the session."""

from __future__ import annotations

import socket

from include.ground.errors import Transient
from include.ground.settings import Settings

STANDALONE = "spark://"
ANSWER_SECONDS = 5.0
EXECUTOR_SECONDS = 120.0
"""How long a driver waits for its first executor."""


class MasterUnreachable(Transient):
    """No host of HEADRACE_SPARK_MASTER answers."""

    def __init__(self, master: str, why: str) -> None:
        super().__init__(f"the Spark master {master} does not answer ({why}); nothing was read", "headrace doctor")
        self.master = master


def require_master(settings: Settings) -> None:
    """Raise MasterUnreachable unless a host of a standalone master accepts connections. Other masters are not tried."""
    if not settings.spark_master.startswith(STANDALONE):
        return
    why = ""
    for address in settings.spark_master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            why = str(error)
        else:
            return
    raise MasterUnreachable(settings.spark_master, why)
