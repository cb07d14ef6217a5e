"""CPU seconds of each process: runner, broker, the driver's JVM, its Python and workers, this command."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from include.bench.bench_state import DATASET
from include.settings import Settings
from include.state.process_states import BROKER, RUNNER, stream_name
from include.state.run_files import read_run_file

THIS_COMMAND = "this command, looking"


def cpu_seconds(settings: Settings) -> dict[str, float]:
    """Return CPU seconds (user + system) used so far, by role; ended children count for their parent."""
    used = {THIS_COMMAND: _own(psutil.Process())}
    for name in (RUNNER, BROKER):
        run = read_run_file(settings, name)
        used |= {name: _own(psutil.Process(run.pid))} if run else {}
    driver = read_run_file(settings, stream_name(DATASET))
    if driver is None:
        return used
    process = psutil.Process(driver.pid)
    used["driver: Python"] = _own(process)
    for child in process.children(recursive=True):
        role = "driver: JVM" if child.name() == "java" else "driver: Python workers"
        used[role] = used.get(role, 0.0) + _own(child)
    return used


def used_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the CPU seconds of each role between two measurements."""
    return {role: max(0.0, seconds - before.get(role, 0.0)) for role, seconds in after.items()}


def _own(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0
