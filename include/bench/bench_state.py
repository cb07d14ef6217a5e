"""A temporary state folder with its own broker and driver."""

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
# Each would make the benchmark write outside its folder.
SHARED = ("HEADRACE_LEDGER_URL", "HEADRACE_KAFKA_PORT")
OWN = {"HEADRACE_STATE": "", "HEADRACE_CONSOLE": "off"}
LogLine = Callable[[str], None]


@contextmanager
def temporary_state(keep: bool) -> Iterator[Settings]:
    """Yield the settings with a new temporary state folder, which is removed afterwards unless `keep`.

    It sets environment variables, because the driver inherits the environment.
    """
    load_settings()
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    before = {name: os.environ.pop(name, None) for name in (*SHARED, *OWN)}
    os.environ |= OWN | {"HEADRACE_STATE": str(folder)}
    load_settings.cache_clear()
    try:
        yield load_settings()
    finally:
        for name in OWN:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in before.items() if value is not None})
        load_settings.cache_clear()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_stream(settings: Settings, log: LogLine) -> Iterator[str]:
    """Start broker and driver, yield the broker's address, and always stop them."""
    try:
        up(settings, [DATASET], log)
        yield bootstrap_servers(settings)
    finally:
        down(settings, log)
