"""Starts the driver of a dataset, or names what prevents it."""

from __future__ import annotations

import os
import sys

from include.declare.dataset import declared_dataset
from include.declare.dataset_checks import validate_datasets
from include.declare.derived_dataset import derived_names
from include.ground.errors import HeadraceError
from include.ground.settings import CLONE, Settings
from include.read.publication import find_publication
from include.run.child_process import spawn, tethered
from include.state.process_states import stream_name
from include.state.run_files import RunFile

ALLOCATOR = {"_RJEM_MALLOC_CONF": "narenas:1,tcache_max:4096,dirty_decay_ms:1000,muzzy_decay_ms:0"}
"""Of delta-rs, whose threads otherwise keep what the largest commit needed, each in an arena of its own."""


def start_driver(settings: Settings, dataset: str) -> RunFile:
    """Start a dataset's driver so that it dies with this process; return its run file."""
    argv = tethered(driver_command(dataset))
    return spawn(settings, stream_name(dataset), argv, CLONE, driver_environment(settings))


def driver_command(dataset: str) -> list[str]:
    """Return the command line of a dataset's driver; its working folder is the clone."""
    return [sys.executable, "-m", "spark_jobs.jobs.stream_job", dataset]


def driver_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a driver: ours, and the absolute path of the state folder."""
    return {**ALLOCATOR, **os.environ, "HEADRACE_STATE": str(settings.state), "PYTHONUNBUFFERED": "1"}


def start_blocker(settings: Settings, dataset: str) -> str:
    """Return why the dataset's driver must not be started, "" when it may be.

    A published release runs from its own snapshot, so an invalid folder does not prevent it.
    """
    try:
        if find_publication(settings, dataset) is None:
            validate_datasets(settings, [dataset]) if dataset in derived_names(settings) else declared_dataset(
                settings, dataset
            )
    except HeadraceError as error:
        return error.what
    return ""
