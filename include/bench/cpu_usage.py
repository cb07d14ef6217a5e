"""CPU seconds of each process that takes part: runner, broker, the driver's JVM, its Python and workers, ourselves."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from include.bench.bench_state import DATASET
from include.settings import Settings
from include.state.process_states import BROKER, RUNNER, stream_name
from include.state.run_files import read_run_file

OURSELVES = "this command, looking"


def cpu_seconds(settings: Settings) -> dict[str, float]:
    """Return CPU seconds (user + system) used so far, by role; children that ended count for their parent."""
    used = {OURSELVES: _own(psutil.Process())}
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
    """Return what each role used in between."""
    return {role: max(0.0, seconds - before.get(role, 0.0)) for role, seconds in after.items()}


def _own(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0
