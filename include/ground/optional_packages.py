"""The packages of the group `quality`, imported by the processes that need them and by no other."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from include.ground.errors import Terminal

CONNECT = "pyspark.sql.connect"


class QualityNotInstalled(Terminal):
    """The command needs a package of the group `quality`; `package` names it."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the package {package} is not installed; nothing was done", 'make setup GROUPS="runtime quality"'
        )
        self.package = package


def import_optional(package: str) -> ModuleType:
    """Import and return a module of the group; QualityNotInstalled when it is not there."""
    # Read at import. The locked version has no telemetry; an older one must not send any either.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        with _without_spark_connect():
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise QualityNotInstalled(package.partition(".")[0]) from error


@contextmanager
def _without_spark_connect() -> Iterator[None]:
    """Spark's client for remote servers, which Great Expectations looks for, is not installed here.

    Imported in a process without a script (`python -c`, a worker of pytest-xdist) it ends that process, with 0.
    """
    if CONNECT in sys.modules:
        yield
        return
    sys.modules[CONNECT] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[CONNECT]
