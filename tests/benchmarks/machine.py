"""The machine of a measurement: figures are only comparable with it."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import psutil
from pydantic import BaseModel, ConfigDict

from include.ground.java import find_java
from include.ground.settings import list_settings

PACKAGES = ("headrace", "pyspark", "delta-spark", "deltalake", "polars", "pyarrow", "duckdb", "confluent-kafka")
"""Packages whose versions change the figures."""
# Every benchmark sets it to its temporary folder; it does not affect the figures.
NOT_TUNING = {"HEADRACE_STATE"}


class Machine(BaseModel):
    """Cores this process may use, memory in GiB, versions, load (1 min) before the start, settings not at default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int
    memory_gib: float
    system: str
    java: str
    python: str
    packages: dict[str, str]
    load: float
    settings: dict[str, str]


def this_machine() -> Machine:
    """Return the facts of this machine. Raises JavaMissing."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        java=find_java(os.environ).version,
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in PACKAGES},
        load=round(os.getloadavg()[0], 2),
        settings={
            info.name: info.value for info in list_settings() if not info.is_default and info.name not in NOT_TUNING
        },
    )
