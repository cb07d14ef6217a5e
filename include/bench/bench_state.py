"""A state folder of the benchmark's own: broker and one driver, gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from include.process_control.start_stop import down, up
from include.settings import Settings, load_settings
from include.state.broker_address import bootstrap_servers

DATASET = "flights"
# Each would let the benchmark write into something that is not its own.
SHARED = ("HEADRACE_LEDGER_URL", "HEADRACE_KAFKA_PORT")
LogLine = Callable[[str], None]


@contextmanager
def temporary_state(keep: bool) -> Iterator[Settings]:
    """Yield this process's settings, but for a new state folder in the system's place for such; `keep` leaves it.

    The driver inherits the environment, so the environment is what is changed.
    """
    load_settings()
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    before = {name: os.environ.pop(name, None) for name in (*SHARED, "HEADRACE_STATE")}
    os.environ["HEADRACE_STATE"] = str(folder)
    load_settings.cache_clear()
    try:
        yield load_settings()
    finally:
        os.environ.pop("HEADRACE_STATE")
        os.environ.update({name: value for name, value in before.items() if value is not None})
        load_settings.cache_clear()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_stream(settings: Settings, log: LogLine) -> Iterator[str]:
    """Bring broker and driver up, yield the broker's address, and bring them down, whatever happens inside."""
    try:
        up(settings, [DATASET], log)
        yield bootstrap_servers(settings)
    finally:
        down(settings, log)
