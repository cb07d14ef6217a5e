"""CPU seconds by kind of process: JVM and Python of what is measured, the broker, and the benchmark itself."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from include.ground.settings import Settings
from include.state.process_states import BROKER, RUNNER, stream_name
from include.state.run_files import read_run_file

JVM, PYTHON, BENCHMARK = "JVM", "Python", "benchmark"


def stream_cpu(settings: Settings, dataset: str) -> dict[str, float]:
    """Return CPU seconds (user and system) used so far by driver and runner, broker, and this command."""
    used = {BENCHMARK: _own(psutil.Process())} | broker_cpu(settings)
    for name in (RUNNER, stream_name(dataset)):
        run = read_run_file(settings, name)
        if run is not None:
            used = _sum(used, tree_cpu(run.pid) if name != RUNNER else {PYTHON: _own(psutil.Process(run.pid))})
    return used


def broker_cpu(settings: Settings) -> dict[str, float]:
    """Return the CPU seconds of the broker."""
    run = read_run_file(settings, BROKER)
    return {BROKER: _own(psutil.Process(run.pid))} if run else {}


def tree_cpu(pid: int) -> dict[str, float]:
    """Return the CPU seconds of a process and all below it; those that ended count for their parent."""
    process, used = psutil.Process(pid), {JVM: 0.0, PYTHON: 0.0}
    for each in (process, *process.children(recursive=True)):
        used[_kind(each)] += _own(each)
    return used


def used_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the CPU seconds of each kind between two measurements."""
    return {role: max(0.0, seconds - before.get(role, 0.0)) for role, seconds in after.items()}


def per_million(used: Mapping[str, float], events: int) -> dict[str, float]:
    """Return figures: CPU seconds per million events of each kind, and of all but broker and benchmark together."""
    together = sum(seconds for role, seconds in used.items() if role in (JVM, PYTHON))
    return {f"CPU s/M, {role}": 1e6 * seconds / events for role, seconds in {"all": together, **used}.items()}


def _kind(process: psutil.Process) -> str:
    try:
        return JVM if process.name() == "java" else PYTHON
    except psutil.NoSuchProcess:
        return PYTHON


def _sum(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {role: left.get(role, 0.0) + right.get(role, 0.0) for role in {**left, **right}}


def _own(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0
